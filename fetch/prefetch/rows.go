package prefetch

import (
	"math"
	"slices"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/operators"
	"bowstring/fetch/read"
	"bowstring/schema"
)

const (
	// runRows is how many rows are planned at once.
	runRows = 256
	// runShare is the inverse of a share of the window. The blobs of a run with several
	// rows take at most that share, because memory is freed by whole runs.
	runShare = 32
	// maxPrefetch is how many rows a stream may read after one that has not arrived
	// yet: a resume ticket has a bit for each.
	maxPrefetch = 8 * schema.MaxServedBytes
)

// run is a few rows of one share that were planned and are being read or held. All
// fields belong to the stream's goroutine. Each row has a cell for each blob column.
type run struct {
	from                       walk // the position of planning before the run
	epochOffset, step, ordinal int64
	seq                        int64 // of its first row in the stream
	index                      int64 // of its first row in the epoch's order
	positions                  []int64
	rows                       []schema.Row // of the manifest; zero if delivered before
	state                      []rowState
	// raw is, by row, the bytes of blobs that operators have yet to process, which count
	// in addition to size; nil without operators
	raw      []int64
	guess    []int64       // by cell, its part of its row's size; nil without operators
	cells    []schema.Blob // row by row
	left     int           // rows that were not delivered
	missing  int           // rows that have not arrived
	next     int           // the next cell to request
	inFlight int           // cells that were requested and have not arrived
	faults   []fault
	near     bool // its rows may go into the next batch
	dropped  bool // it was freed; outcomes of its reads are released
}

// rowState is the progress of a row of a run.
type rowState struct {
	size    int64 // bytes of its blobs, or of the results of operators
	early   int64 // size, at least 1, if it was cached when it was begun; else 0
	pending int32 // cells that have not arrived yet
	begun   bool  // its memory is reserved, and its first cell was requested
	taken   bool  // it was delivered
}

// fault is a cell that could not be read, or a value that could not be computed.
type fault struct {
	row    int
	column string
	err    error
}

// pipeline has the rows that a stream has planned, is reading, or holds for its
// consumer, in the plan's order. A row is first drafted (its row of the manifest is
// looked up), then planned (part of a run), then read, and at last delivered. The
// pipeline belongs to the stream's goroutine.
type pipeline struct {
	walk    walk // the next row to draft
	drafts  []*draft
	drafted int   // rows in drafts that are not planned yet
	dseq    int64 // the number in the stream of the next row to draft
	most    int64 // rows that may be planned after the first undelivered one
	ended   bool  // there is nothing more to plan
	far     bool  // planning has reached most, and continues after a delivery
	paused  bool  // refill stopped after maxSlice cells, to process messages
	seq     int64
	runs    []*run
	reading int // index in runs of the next run to request cells of
	near    int // index in runs of the first run that is not near
	whole   int // all runs before this index have arrived: see backTo

	sought sought // the search for cached rows, if the order is loose

	// If the order is loose: the rows that were delivered, those that have arrived, and
	// the first row that was not delivered.
	served   bitmap
	back     bitmap
	first    walk
	firstRow int64
	stop     int64 // the next batch has only rows before this one

	rows      int   // begun, and not delivered
	bytes     int64 // of those
	inFlight  int   // cells
	news      int   // count of arrived rows and of drafts that were looked up; Next waits for either
	ready     int   // rows of near runs that have arrived and were not delivered
	readySize int64 // bytes of those

	blocked   []*operators.Task // operators' tasks whose results have no room; their cells count as in flight
	reserving bool              // a helper reserves memory: see obtain
	granted   int64             // bytes reserved for the next row
	lacking   int64             // bytes that the next row lacks, if the stream holds nothing
	wants     []read.Want       // reads to request together; empty between calls of refill
}

// init begins planning at a ticket's row. served marks later rows that were delivered.
func (pl *pipeline) init(w walk, served []byte, most int64) {
	pl.first, pl.most = w, most
	pl.served = bitmapOf(served)
	pl.goOn()
	pl.walk, pl.seq, pl.dseq = pl.first, pl.firstRow, pl.firstRow
}

// plan appends a run; false at the end, if the run would be too far from the first
// undelivered row, or if its draft is not looked up yet. It drops runs at the front
// that were delivered before the stream was resumed: nothing would arrive for them.
func (s *owner) plan() bool {
	for s.appendRun() {
		if s.pipeline.runs[0].left > 0 {
			return true
		}
		s.pipeline.trim()
	}
	return false
}

// appendRun turns the first draft, or a part of it, into a run. It returns false if
// there is no draft to use now: see plan.
func (s *owner) appendRun() bool {
	pl := &s.pipeline
	if pl.ended {
		return false
	}
	if pl.far = len(pl.runs) > 0 && pl.seq-pl.runs[0].seq > pl.most-runRows; pl.far {
		return false
	}
	s.draft()
	s.settleMore(&pl.walk)
	if len(pl.drafts) == 0 && pl.walk.needs > 0 {
		over := s.job.Steered()               // read before Settled: once steered, Settled does not change
		if pl.walk.needs <= s.job.Settled() { // it was settled after draft checked, so this is not the end
			s.check, s.again = true, true
			return false
		}
		if !over {
			return false
		}
	}
	if len(pl.drafts) == 0 {
		pl.ended = true
		s.check = true
		return false
	}
	d := pl.drafts[0]
	if !d.ready {
		return false
	}
	from := d.from
	from.at += int64(d.used)
	n, cols := len(d.positions)-d.used, len(s.columns)
	r := &run{
		from: from, epochOffset: from.epochOffset, step: from.step, ordinal: from.ordinal(), seq: pl.seq, index: from.at,
		near: !s.order.loose,
	}
	// A run of large samples has one row, and there are many such runs. So the sizes are
	// computed in arrays first, and the run's slices have the exact length.
	var sizes, raw [runRows]int64
	var guess []int64
	most := s.window.limit / runShare
	count := 0
	for ; count < n && (count == 0 || most > 0); count++ {
		row := d.rows[d.used+count]
		if row.Page == nil {
			if s.stage != nil {
				guess = append(guess, make([]int64, cols)...)
			}
			continue
		}
		for i := range s.columns {
			c := &s.columns[i]
			ref, _, err := row.TryBlob(c.ordinal)
			if err != nil {
				s.manifestLost(err)
				return false
			}
			n := ref.Size
			if c.made != nil {
				raw[count] += n
				n = c.madeBytes(n)
			}
			if s.stage != nil {
				guess = append(guess, n)
			}
			sizes[count] += n
		}
		most -= sizes[count] + raw[count]
	}
	r.positions, r.rows = d.positions[d.used:d.used+count:d.used+count], d.rows[d.used:d.used+count:d.used+count]
	r.state, r.cells = make([]rowState, count), make([]schema.Blob, count*cols)
	if s.stage != nil {
		r.raw, r.guess = slices.Clone(raw[:count]), guess
	}
	for i := range count {
		taken := r.rows[i].Page == nil
		r.state[i] = rowState{size: sizes[i], pending: int32(cols), taken: taken}
		if !taken {
			r.left++
		}
	}
	r.missing = r.left
	if d.used += count; d.used == len(d.positions) {
		pl.drafts = pl.drafts[1:]
	}
	pl.drafted -= count
	pl.seq += int64(count)
	pl.runs = append(pl.runs, r)
	pl.promote(s)
	return true
}

// promote marks the runs whose rows may go into the next batch as near. The caller has
// moved the slot.
func (pl *pipeline) promote(s *owner) {
	if !s.order.loose {
		return
	}
	if pl.first.epochOffset != s.slot.epochOffset {
		pl.first.settle()
	}
	for ; pl.near < len(pl.runs); pl.near++ {
		r := pl.runs[pl.near]
		if r.epochOffset != s.slot.epochOffset || s.order.reach >= 0 && r.ordinal > s.slot.ordinal()+s.order.reach {
			return
		}
		r.near = true
		for row := range r.positions {
			if !r.state[row].taken && r.state[row].pending == 0 {
				pl.ready++
				pl.readySize += r.state[row].size
			}
		}
	}
}

// begin counts a row as begun, with its first cell.
func (s *owner) begin(r *run, row, column int) {
	if column == 0 {
		r.state[row].begun = true
		s.pipeline.rows++
		s.pipeline.bytes += r.state[row].size
		s.window.used += s.rowSize(r, row)
	}
}

// rowSize is how many bytes of the window a row takes: its blobs, its metadata, and
// the blobs that operators have yet to process.
func (s *owner) rowSize(r *run, row int) int64 {
	n := r.state[row].size + s.sizer.rowBytes
	if r.raw != nil {
		n += r.raw[row]
	}
	return n
}

// receive processes the outcome of a read, and takes over its blob. A cell with
// operators goes on to the stage, and stays in flight.
func (s *owner) receive(o *read.Outcome) {
	r, cell := o.Token.Of.(*run), o.Token.N
	if s.gone || r.dropped {
		o.Blob.Release()
		return
	}
	from := s.set.opts.Reader.From(o)
	bytes := int64(len(o.Blob.Bytes()))
	if o.Err == nil {
		s.part.Count(bytes, from)
	}
	row, column := cell/len(s.columns), cell%len(s.columns)
	if s.columns[column].made != nil && o.Err == nil {
		s.makeCell(r, cell, o.Blob, from)
		return
	}
	s.pipeline.inFlight--
	r.inFlight--
	if o.Err != nil {
		s.fault(r, row, column, o.Err)
		if s.columns[column].made != nil {
			s.settle(&making{run: r, cell: cell}, o.Ref.Size, r.guess[cell])
		}
	} else {
		r.cells[cell] = o.Blob
		s.window.completed(o.At, bytes, s.path.Slow, s.waiting && !s.woken)
	}
	s.from = from
	s.back(r, row)
}

// back counts a cell as arrived, and wakes the consumer's check if its row completes
// what serve waits for.
func (s *owner) back(r *run, row int) {
	r.state[row].pending--
	if r.state[row].pending > 0 {
		if s.waiting && s.pipeline.onlyBlocked() {
			s.woken = true
		}
		return
	}
	pl := &s.pipeline
	pl.news++
	r.missing--
	if s.order.loose {
		pl.back.add(r.seq + int64(row))
	}
	if r.state[row].early > 0 && s.job.Layout() == nil {
		s.part.Use(r.epochOffset, r.index+int64(row))
	}
	if r.near {
		pl.ready++
		pl.readySize += r.state[row].size
	}
	if s.waiting && s.wakes(r.seq+int64(row)) {
		s.woken = true
	}
}

// takeRow moves a row that has arrived into a batch. The batch owns the blobs then.
func (s *owner) takeRow(r *run, row int, p *part) {
	cols := len(s.columns)
	for c := range cols {
		p.blobs[c] = append(p.blobs[c], r.cells[row*cols+c])
		r.cells[row*cols+c] = schema.Blob{}
	}
	for _, f := range r.faults {
		if f.row == row {
			p.faults = append(p.faults, fault{len(p.positions), f.column, f.err})
		}
	}
	p.positions = append(p.positions, r.positions[row])
	p.rows = append(p.rows, r.rows[row])
	p.reserved += s.rowSize(r, row)
	r.state[row].taken = true
	r.left--
	pl := &s.pipeline
	pl.rows--
	pl.bytes -= r.state[row].size
	pl.sought.bytes -= r.state[row].early
	pl.sought.more(seekEach)
	if r.near {
		pl.ready--
		pl.readySize -= r.state[row].size
	}
	if !s.order.loose {
		return
	}
	seq := r.seq + int64(row)
	p.seqs = append(p.seqs, seq)
	pl.back.remove(seq)
	pl.served.add(seq)
	if seq == pl.firstRow {
		pl.goOn()
	}
}

// goOn moves first to the first row that was not delivered.
func (pl *pipeline) goOn() {
	if next := pl.served.nextOut(pl.firstRow); next > pl.firstRow {
		pl.first.skip(next - pl.firstRow)
		pl.firstRow = next
		pl.served.forget(next)
		pl.back.forget(next)
	}
}

// trim drops the delivered runs at the front.
func (pl *pipeline) trim() {
	n := 0
	for n < len(pl.runs) && pl.runs[n].left == 0 {
		n++
	}
	if n == 0 {
		return
	}
	clear(pl.runs[:n])
	pl.runs = pl.runs[n:] // not moved to the front: there may be very many, and append copies them when needed
	pl.reading = max(0, pl.reading-n)
	pl.near = max(0, pl.near-n)
	pl.whole = max(0, pl.whole-n)
	pl.sought.trim(n)
	pl.far = false
}

// runOf returns the run of a planned row, and the row's index in it.
func (pl *pipeline) runOf(seq int64) (*run, int) {
	i, found := slices.BinarySearchFunc(pl.runs, seq, func(r *run, seq int64) int { return int(r.seq - seq) })
	if !found {
		i--
	}
	return pl.runs[i], int(seq - pl.runs[i].seq)
}

// reads is roughly where the first row is that has not arrived: the offset of its epoch
// from the ticket's, and the index in that epoch's order. With a layout, the rank's rows
// may be anywhere in a step. The index is then that of the step's first row, or of the
// next step's if no row of the step is left.
func (s *owner) reads() (offset, index int64) {
	pl := &s.pipeline
	w := pl.walk
	offset, step, index := w.epochOffset, w.step, w.at
	if pl.reading < len(pl.runs) && len(s.columns) > 0 {
		r := pl.runs[pl.reading]
		offset, step, index = r.epochOffset, r.step, r.index+int64(r.next/len(s.columns))
	} else if len(pl.drafts) > 0 {
		d := pl.drafts[0]
		offset, step, index = d.from.epochOffset, d.from.step, d.from.at+int64(d.used)
	}
	if s.job.Layout() != nil {
		if index == w.hi && step == w.step && offset == w.epochOffset {
			step++
		}
		index = min(step*s.job.Request().Batch, s.job.Plan().Rows())
	} else if cols := len(s.columns); cols > 0 {
		// Cells in flight are not read yet: another stream or node may still bring them.
		index = max(index-int64(pl.inFlight/cols)*s.job.Request().DataRanks(), 0)
	}
	return offset, index
}

const (
	// maxDrafted is how many rows are looked up in the manifest before they are planned.
	// draftsAtOnce is how many drafts are begun in one call.
	maxDrafted   = 4 * runRows
	draftsAtOnce = 2
)

// draft is rows of one share that will be planned, and are being looked up in the
// manifest. All fields belong to the stream's goroutine.
type draft struct {
	from      walk // the position of drafting before it
	positions []int64
	rows      []schema.Row // their rows of the manifest, once ready; zero if delivered before
	ready     bool
	dropped   bool // undraft or redraft removed it; found ignores it
	used      int  // rows that were planned
}

// loading reports whether planning waits for the manifest.
func (pl *pipeline) loading() bool { return len(pl.drafts) > 0 && !pl.drafts[0].ready }

// draft starts to look up the next rows in the manifest, so that planning does not wait
// for pages. With a layout, the rank's rows of the step have to be computed first.
func (s *owner) draft() {
	pl, m := &s.pipeline, s.job.Manifest()
	for range draftsAtOnce {
		if pl.drafted >= maxDrafted || len(pl.drafts) > 0 && m.Resident() && s.job.Layout() == nil || !pl.walk.settle() {
			return
		}
		d := &draft{from: pl.walk, positions: make([]int64, min(pl.walk.left(), runRows))}
		var served []bool // rows that were delivered before, if there are any
		for i := range d.positions {
			if s.order.loose && pl.served.has(pl.dseq+int64(i)) {
				if served == nil {
					served = make([]bool, len(d.positions))
				}
				served[i] = true
			}
		}
		pl.walk.at += int64(len(d.positions))
		pl.dseq += int64(len(d.positions))
		pl.drafted += len(d.positions)
		pl.drafts = append(pl.drafts, d)
		shared, known := d.from.shared()
		if !known {
			s.findShare(d, served)
			continue
		}
		d.from.positions(shared, d.positions)
		wanted := but(d.positions, served)
		if rows, ok := m.Try(wanted); ok {
			d.found(rows, served)
		} else if !m.Start(s.context(), wanted, func(rows []schema.Row, err error) {
			s.do(func(s *owner) { s.found(d, d.positions, rows, served, err) })
		}) {
			s.fail(read.ErrClosing())
		}
	}
}

// findShare computes which rows a draft has, and looks them up, on a goroutine of the
// manifest. The job is retained meanwhile, because the stream may be closed, and its
// release would close the manifest under the look-up.
func (s *owner) findShare(d *draft, served []bool) {
	ctx, j, m := s.context(), s.job, s.job.Manifest()
	positions := make([]int64, len(d.positions))
	var rows []schema.Row
	find := func() error {
		shared, err := j.Shared(ctx, d.from.epochOffset, d.from.step)
		if err == nil {
			d.from.positions(shared, positions)
			rows, err = m.At(ctx, but(positions, served))
		}
		return err
	}
	j.Retain()
	found := func(err error) {
		s.do(func(s *owner) { s.found(d, positions, rows, served, err) })
		j.Release()
	}
	if !m.Go(find, found) {
		s.fail(read.ErrClosing())
		j.Release() // not the last: the stream has retained the job too
	}
}

// but returns the positions that were not served.
func but(positions []int64, served []bool) []int64 {
	if served == nil {
		return positions
	}
	var left []int64
	for i, pos := range positions {
		if !served[i] {
			left = append(left, pos)
		}
	}
	return left
}

// found sets the rows of a draft. rows leaves out the served ones.
func (d *draft) found(rows []schema.Row, served []bool) {
	d.rows, d.ready = rows, true
	if served == nil {
		return
	}
	d.rows = make([]schema.Row, len(d.positions))
	for i := range d.rows {
		if !served[i] {
			d.rows[i], rows = rows[0], rows[1:]
		}
	}
}

// found processes the result of a draft's look-up. An error ends the stream.
func (s *owner) found(d *draft, positions []int64, rows []schema.Row, served []bool, err error) {
	if s.gone || d.dropped {
		return
	}
	if err != nil {
		s.fail(err) // the stream cannot know its next blobs
	} else {
		d.positions = positions
		d.found(rows, served)
		s.pipeline.news++
	}
	s.check, s.more = true, true
}

// undraft drops all drafts. The caller sets where drafting continues.
func (pl *pipeline) undraft() {
	for _, d := range pl.drafts {
		d.dropped = true
	}
	pl.drafts, pl.drafted = nil, 0
}

// redraft makes a removed run a draft again, from its row first on, because its rows of
// the manifest are known. If there are too many drafts, it drops the last ones.
func (s *owner) redraft(r *run, first int) {
	pl, from := &s.pipeline, r.from
	from.at += int64(first)
	if s.job.Manifest().Resident() {
		pl.undraft() // looking them up again is cheap
		pl.walk, pl.dseq = from, r.seq+int64(first)
		return
	}
	d := &draft{from: from, positions: r.positions[first:], rows: slices.Clone(r.rows[first:]), ready: true}
	for i := range d.rows {
		if r.state[first+i].taken {
			d.rows[i] = schema.Row{}
		}
	}
	pl.drafts = slices.Insert(pl.drafts, 0, d)
	pl.drafted += len(d.positions)
	for pl.drafted > 2*maxDrafted && len(pl.drafts) > 1 {
		last := pl.drafts[len(pl.drafts)-1]
		pl.drafts = pl.drafts[:len(pl.drafts)-1]
		last.dropped = true
		pl.walk = last.from
		pl.walk.at += int64(last.used)
		n := len(last.positions) - last.used
		pl.drafted -= n
		pl.dseq -= int64(n)
	}
}

// part is a batch before it is assembled. It owns its blobs until release, or until
// assemble moves them into a Batch.
type part struct {
	walk      walk    // the position of the stream before it
	pieces    []piece // if no blobs are read: the rows, which assemble looks up
	positions []int64 // of samples: one for each row, unless packing says otherwise
	packing   *schema.Packing
	// the numbers of the rows in the stream; nil if they are the first undelivered ones
	seqs     []int64
	rows     []schema.Row    // of the manifest
	blobs    [][]schema.Blob // by blob column, by row
	reserved int64           // bytes of the window
	hold     admission.Hold  // its memory in the ledger, once it is delivered
	faults   []fault
	last     bool          // it ends the share
	resume   schema.Ticket // the ticket that continues after it
}

func (p *part) release() {
	for _, column := range p.blobs {
		for i := range column {
			column[i].Release()
		}
	}
}

// order says which rows may go into a batch.
//
// In every order, batches have the sizes that the plan gives them: each is the share of
// a step, or a piece of it if batches are bounded. The rows differ. In strict order they
// are the share's own. In a loose order they are rows that have arrived, the earliest
// in the plan first, of any step of the epoch or of the steps within reach. With a
// reach, the batch waits for rows whose last step has come.
type order struct {
	loose bool
	reach int64 // steps by which a row may move; -1: any number
}

func orderOf(r schema.Request) order {
	switch mode, steps := r.OrderOf(); mode {
	case schema.OrderWindow:
		return order{true, steps}
	case schema.OrderFree:
		return order{true, -1}
	}
	return order{}
}

// wanted is what the consumer waits for: the missing rows below seq, or else a number
// of ready rows or of bytes.
type wanted struct {
	seq     int64
	missing int
	ready   int
	bytes   int64
}

// wakes reports whether the arrival of row seq may complete a batch.
func (s *owner) wakes(seq int64) bool {
	w, pl := &s.wanted, &s.pipeline
	if pl.onlyBlocked() {
		return true
	}
	if w.missing > 0 {
		if seq < w.seq {
			w.missing--
		}
		return w.missing == 0
	}
	return s.order.loose && (pl.ready >= w.ready || pl.readySize >= w.bytes)
}

// gather takes the rows of the next batch if they have arrived. Otherwise it returns
// nil, and sets s.wanted to what serve waits for.
func (s *owner) gather() *part {
	s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
	if s.order.loose {
		if !s.enough() {
			return nil
		}
	} else if !s.prefix(true) {
		return nil
	}
	pl := &s.pipeline
	// one more, for what the batch itself holds
	p := &part{walk: s.slot, blobs: make([][]schema.Blob, len(s.columns), len(s.columns)+1)}
	n := int(min(s.slot.left(), int64(max(pl.rows, 1))))
	p.positions, p.rows = make([]int64, 0, n), make([]schema.Row, 0, n)
	cells := make([]schema.Blob, n*len(s.columns))
	for c := range p.blobs {
		p.blobs[c] = cells[c*n : c*n : (c+1)*n]
	}
	s.sizer.reset()
	if s.order.loose {
		s.fillLoose(p)
	} else {
		s.fill(p)
	}
	pl.trim()
	return p
}

// fill takes the first rows of the plan, as far as they have arrived.
func (s *owner) fill(p *part) {
	for _, r := range s.pipeline.runs {
		for row := range r.positions {
			if r.state[row].taken {
				continue
			}
			if s.slot.left() == 0 || r.state[row].pending > 0 || !s.sizer.fits(r.state[row].size) {
				return
			}
			s.takeRow(r, row, p)
			s.slot.at++
		}
	}
}

// fillLoose takes the earliest rows that have arrived and may go into the batch. If
// rows were begun early, these go first (fillSought), unless due rows fill the batch.
func (s *owner) fillLoose(p *part) {
	pl := &s.pipeline
	if pl.sought.bytes > 0 && pl.stop == math.MaxInt64 {
		s.fillSought(p)
		return
	}
	for seq := pl.back.nextIn(pl.firstRow); seq >= 0 && s.slot.left() > 0; seq = pl.back.nextIn(seq + 1) {
		r, row := pl.runOf(seq)
		if !r.near || seq >= pl.stop || !s.sizer.fits(r.state[row].size) {
			return
		}
		s.takeRow(r, row, p)
		s.slot.at++
	}
}

// prefix reports whether the rows of the next batch have arrived, in strict order. If
// few is set and memory has no room for more rows, some of them are enough.
func (s *owner) prefix(few bool) bool {
	s.wanted = wanted{}
	s.sizer.reset()
	pl := &s.pipeline
	stuck := few && pl.onlyBlocked() && (len(pl.blocked) > 0 || !s.fullSince.IsZero())
	left := s.slot.left()
	for i := 0; left > 0 && (i < len(pl.runs) || s.plan()); i++ {
		r := pl.runs[i]
		for row := range r.positions {
			switch {
			case r.state[row].taken:
				continue
			case left == 0 || !s.sizer.fits(r.state[row].size):
				return s.wanted.missing == 0
			case r.state[row].pending > 0:
				s.wanted.missing++
			case stuck && s.wanted.missing == 0:
				return true // fill takes as many of the next rows as have arrived
			}
			left--
			s.wanted.seq = r.seq + int64(row) + 1
		}
	}
	if left > 0 && pl.loading() {
		return false // the draft may have more rows for the batch
	}
	return s.wanted.missing == 0
}

// enough reports whether a batch can be filled out of order. It waits only for those
// due rows that this batch takes, because the window may have no room for more.
func (s *owner) enough() bool {
	s.wanted = wanted{}
	pl := &s.pipeline
	need := int(min(s.slot.left(), schema.DefaultMetaBatch))
	pl.stop = math.MaxInt64
	full := s.order.reach >= 0 && s.due(need)
	// If nothing more can arrive, the arrived rows make a batch.
	stuck := pl.onlyBlocked() && (len(pl.blocked) > 0 || pl.far || pl.ended || s.unsettled() || !s.fullSince.IsZero())
	if s.wanted.missing > 0 {
		return stuck && pl.ready > 0
	}
	bytes := pl.readySize + int64(pl.ready)*s.sizer.rowBytes
	if pl.ready > 0 && (full || pl.ready >= need || bytes >= s.sizer.maxBytes || stuck) {
		return true
	}
	s.wanted.ready = need
	s.wanted.bytes = s.sizer.maxBytes
	return false
}

// due counts the missing rows among the due rows (those whose last step has come) that
// the next batch of that many rows takes. full says that due rows fill the batch: then
// stop is the first due row that does not fit.
func (s *owner) due(rows int) (full bool) {
	s.sizer.reset()
	last := s.slot.ordinal() - s.order.reach
	for _, r := range s.pipeline.runs {
		if r.epochOffset != s.slot.epochOffset || r.ordinal > last {
			return false
		}
		if r.left == 0 {
			continue
		}
		for row := range r.positions {
			switch {
			case r.state[row].taken:
				continue
			case rows == 0 || !s.sizer.fits(r.state[row].size):
				s.pipeline.stop = r.seq + int64(row)
				return true
			case r.state[row].pending > 0:
				s.wanted.seq = r.seq + int64(row) + 1
				s.wanted.missing++
			}
			rows--
		}
	}
	return false
}

// The functions below are for streams that read no blobs. They plan rows only when the
// consumer asks for them.

// piece is a number of rows of a share, from the position of a walk on.
type piece struct {
	from walk
	rows int64
}

// nextUnread returns the first n undelivered rows of a stream without blobs, and counts
// them as delivered.
func (pl *pipeline) nextUnread(n int64) (pieces []piece) {
	for range n {
		pl.first.settle()
		w := pl.first
		pl.served.add(pl.firstRow)
		pl.goOn()
		if k := len(pieces) - 1; k >= 0 && pieces[k].from.epochOffset == w.epochOffset && pieces[k].from.step == w.step &&
			pieces[k].from.at+pieces[k].rows == w.at {
			pieces[k].rows++
		} else {
			pieces = append(pieces, piece{w, 1})
		}
	}
	return pieces
}

// soonUnread returns the positions of up to n rows that nextUnread returns next, as far
// as they are known without waiting.
func (pl *pipeline) soonUnread(n int64) (positions []int64) {
	w := pl.first
	for n > 0 && w.settle() {
		shared, known := w.shared()
		if !known {
			return positions
		}
		rows := min(n, w.left())
		positions = append(positions, w.samples(shared, rows)...)
		w.at += rows
		n -= rows
	}
	return positions
}

const (
	// maxQueue is the most cells of a stream that wait for their turn in the reader.
	maxQueue = 64
	// maxSlice is how many cells refill handles before the goroutine takes messages:
	// rows of nulls need no read, and there may be any number of them.
	maxSlice = 1024
	// leastRow is the least that a prefetched row counts in the window, in bytes. A
	// window of empty rows would take seconds to plan, and no path carries that many
	// reads.
	leastRow = 4 << 10
)

// refill plans rows, and requests their cells, while the window has room: at most
// maxSlice cells, and as many as the queue takes. Cached rows of a loose order go first.
func (s *owner) refill() {
	pl := &s.pipeline
	cols := len(s.columns)
	pl.paused = false
	pl.sought.more(seekOften)
	s.unblock()
	if s.gone || s.idle.Load() || cols == 0 || s.context().Err() != nil {
		return
	}
	s.window.setLimit(s.tenant.share.Load())
	s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
	room := maxQueue - s.place.Waiting()
	if room > 0 {
		s.roomAgain()
	}
	now := time.Now()
	for cells := 0; len(pl.wants) < room; cells++ {
		if cells == maxSlice {
			pl.paused = true
			break
		}
		if s.seeks() && s.beginEarly(now) {
			continue
		}
		if pl.reading == len(pl.runs) && !s.plan() {
			break
		}
		r := pl.runs[pl.reading]
		if r.next == len(r.cells) {
			pl.reading++
			continue
		}
		row, column := r.next/cols, r.next%cols
		if st := &r.state[row]; st.taken || column == 0 && st.begun {
			r.next += cols
			continue
		}
		if column == 0 && !s.beginTurn(r, row) {
			if s.makeWay(r) {
				continue
			}
			s.noRoom()
			break
		}
		if !s.want(r, row, column, now) {
			break
		}
		r.next++
	}
	if len(pl.wants) > 0 {
		s.place.Ask(pl.wants...)
		s.part.Advance(s.reads())
		clear(pl.wants)
		pl.wants = pl.wants[:0]
	}
}

// want adds the read of a cell to wants; a null arrives at once. It returns false, and
// fails the stream, if the manifest cannot be read.
func (s *owner) want(r *run, row, column int, now time.Time) bool {
	pl := &s.pipeline
	ref, ok, err := r.rows[row].TryBlob(s.columns[column].ordinal)
	if err != nil {
		s.manifestLost(err)
		return false
	}
	s.begin(r, row, column)
	if !ok {
		s.back(r, row) // a null
		return true
	}
	pl.inFlight++
	r.inFlight++
	pl.wants = append(pl.wants, read.Want{
		Ref: ref, At: s.places.At(r.positions[row], s.payer), Context: s.context(),
		Since: now, Account: &s.account, Trace: s.trace,
		Token: read.Token{Of: r, N: row*len(s.columns) + column}, Late: s.late && s.columns[column].made == nil,
		Use: r.seq + int64(row) - pl.runs[0].seq,
	})
	return true
}

// reserve reserves the memory of a row if the window and the ledger have room. capped
// says that the window has none. Rows of the next batch, and due rows, may exceed the
// window: otherwise a window smaller than a batch would stop the stream forever. No row
// exceeds the ledger.
func (s *owner) reserve(r *run, row int, capped bool) bool {
	pl, n := &s.pipeline, s.rowSize(r, row)
	pl.lacking = 0
	next := int64(pl.rows) < s.slot.left() && pl.bytes+r.state[row].size <= s.sizer.maxBytes // the batch needs it
	full := s.window.used+n > s.window.size || int64(pl.rows)*leastRow > max(s.window.size, s.window.least) ||
		capped
	if full && pl.rows > 0 && !next && !s.isDue(r) || len(pl.blocked) > 0 || pl.reserving {
		return false
	}
	if pl.granted >= n {
		s.hold.Shrink(pl.granted - n)
		pl.granted = 0
		return true
	}
	if s.hold.TryGrow(n) {
		return true
	}
	if pl.rows == 0 {
		pl.lacking = n - pl.granted
	}
	return false
}

// needs is how many bytes the next row lacks if the stream has no row to continue with;
// 0 if it can continue.
func (pl *pipeline) needs() int64 {
	if pl.rows > 0 || pl.inFlight > 0 {
		return 0
	}
	return pl.lacking
}

// drop frees runs, the last one first, until the stream holds at most that many bytes.
// It keeps the first runs, as many as but says.
func (s *owner) drop(most int64, but int) {
	pl := &s.pipeline
	asked := 0 // cells
	for s.window.used > most && len(pl.runs) > but {
		r := pl.runs[len(pl.runs)-1]
		r.dropped = true
		asked += r.inFlight
		s.unplan(r)
	}
	if asked == 0 {
		return
	}
	// One pass over the queue and the reads in flight cancels the cells of all runs.
	s.place.Cancel(func(t read.Token) bool { return t.Of.(*run).dropped })
	s.unmake()
}

// unplan removes the last run, and makes its undelivered rows a draft.
func (s *owner) unplan(r *run) {
	pl := &s.pipeline
	var bytes int64
	for row := range r.positions {
		if r.state[row].taken {
			continue
		}
		if r.state[row].begun {
			pl.rows--
			pl.bytes -= r.state[row].size
			pl.sought.bytes -= r.state[row].early
			bytes += s.rowSize(r, row)
		}
		if r.state[row].pending == 0 {
			pl.back.remove(r.seq + int64(row))
			if r.near {
				pl.ready--
				pl.readySize -= r.state[row].size
			}
		}
	}
	pl.inFlight -= r.inFlight
	r.release()
	s.window.used -= bytes
	s.hold.Shrink(bytes)
	pl.runs = pl.runs[:len(pl.runs)-1]
	delivered := 0 // rows at the front that must not be planned again
	for len(pl.runs) == 0 && r.state[delivered].taken {
		delivered++
	}
	s.redraft(r, delivered)
	pl.seq, pl.ended, pl.far = r.seq+int64(delivered), false, false
	pl.reading, pl.near = min(pl.reading, len(pl.runs)), min(pl.near, len(pl.runs))
	pl.whole = min(pl.whole, len(pl.runs))
	pl.sought.cut(len(pl.runs))
}

// release releases the blobs of a run.
func (r *run) release() {
	for i := range r.cells {
		r.cells[i].Release()
		r.cells[i] = schema.Blob{}
	}
}

// releaseAll releases everything that was not delivered.
func (s *owner) releaseAll() {
	pl := &s.pipeline
	for _, r := range pl.runs {
		for row := range r.positions {
			if !r.state[row].taken && r.state[row].begun {
				s.window.used -= s.rowSize(r, row)
				s.hold.Shrink(s.rowSize(r, row))
			}
		}
		r.release()
	}
	pl.undraft()
	s.hold.Shrink(pl.granted)
	pl.granted, pl.runs, pl.whole = 0, nil, 0
	pl.rows, pl.bytes, pl.inFlight, pl.sought = 0, 0, 0, sought{}
}

// noRoom begins to count the time that a full window stops reading. It does not count
// while cells wait for their turn, because then the store is the bottleneck.
func (s *owner) noRoom() {
	if s.fullSince.IsZero() && s.place.Waiting() == 0 && len(s.pipeline.wants) == 0 {
		s.fullSince = time.Now()
	}
}

// roomAgain is the opposite of noRoom.
func (s *owner) roomAgain() {
	if !s.fullSince.IsZero() {
		s.fullFor += time.Since(s.fullSince)
		s.fullSince = time.Time{}
	}
}

// nextPart is the inverse of a share of the memory: idle streams together keep at most
// that share for their next batches.
const nextPart = 8

// dropIdle frees the rows of an idle stream after its next batch: see freeIdle. It does
// nothing if the consumer asks for a batch by now.
func (s *owner) dropIdle() {
	if s.gone || s.asked {
		return
	}
	rows := s.slot.left()
	bytes := min(s.sizer.batchBytes, s.set.opts.WindowBytes/(nextPart*max(s.set.reading.Load(), 1)))
	kept := 0
	for ; kept < len(s.pipeline.runs) && rows > 0; kept++ {
		r := s.pipeline.runs[kept]
		rows -= int64(r.left)
		for row := range r.state {
			if !r.state[row].taken {
				bytes -= s.rowSize(r, row)
			}
		}
		if bytes < 0 {
			break
		}
	}
	s.drop(0, kept)
}

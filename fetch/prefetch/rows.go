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
	// runShare is of which part of the window the blobs of a run are at most, if it
	// has several: whole runs are given back.
	runShare = 32
	// maxPrefetch is how many rows a stream may read ahead of one that is not back
	// yet: a resume ticket has a bit for each.
	maxPrefetch = 8 * schema.MaxServedBytes
)

// run is a few rows of one share, planned and on their way. All fields are
// of the stream's goroutine.
type run struct {
	from                       walk // where planning stood before it
	epochOffset, step, ordinal int64
	seq                        int64 // of its first row in the stream
	index                      int64 // of its first row in the epoch's order
	positions                  []int64
	rows                       []schema.Row // where they lie; none of a row that was delivered before
	state                      []rowState
	// bytes that a row has beside, of blobs of which something is to be made; nil without operators
	raw      []int64
	guess    []int64       // by cell, what of its row's size it is; nil without operators
	cells    []schema.Blob // row by row
	left     int           // rows that were not
	missing  int           // rows that are not back
	next     int           // cell to read next
	inFlight int           // cells that were asked for and are not back
	faults   []fault
	near     bool // its rows may go into the next batch
	dropped  bool // it was given back
}

// rowState is how far a row of a run is.
type rowState struct {
	size    int64 // bytes of its blobs
	early   int64 // of those, if it was there when it was begun, at least 1; else 0
	pending int32 // cells that are not back yet
	begun   bool  // its first cell was gone on from
	taken   bool  // it was delivered
}

// fault is a cell that could not be read, or a value that could not be made.
type fault struct {
	row    int
	column string
	err    error
}

// pipeline is what a stream has planned, is reading, or holds for its consumer, in
// the plan's order. It is of the stream's goroutine.
type pipeline struct {
	walk    walk // where drafting stands
	drafts  []*draft
	drafted int   // rows in drafts that were not planned
	dseq    int64 // of the next row to draft in the stream
	most    int64 // rows that may be planned from the first one that was not delivered
	ended   bool  // there is nothing more to plan
	far     bool  // nothing more may be planned before the first row is delivered
	paused  bool  // planning stopped in the middle, to let others have the lock
	seq     int64
	runs    []*run
	reading int // index in runs of the run to read from next
	near    int // index in runs of the first one whose rows may not go into the next batch
	whole   int // runs before it are back: see backTo

	sought sought // rows that are there, of a loose order

	// Of a loose order alone: which rows were delivered or are back, and the first
	// one that was not delivered.
	served   bitmap
	back     bitmap
	first    walk
	firstRow int64
	stop     int64 // no row from this one on goes into the next batch

	rows      int   // begun to be read, or back, and not delivered
	bytes     int64 // of those
	inFlight  int   // cells
	news      int   // rows that ever came back, and drafts that were found: what Next waits for
	ready     int   // rows of near runs that are back and not delivered
	readySize int64 // bytes of those

	blocked   []*operators.Task // cells whose results have no room; they count as in flight
	reserving bool              // Next waits for bytes of the ledger
	granted   int64             // bytes of the ledger that the next row has
	lacking   int64             // bytes that it would need, where nothing is held and there are none
	wants     []read.Want
}

// init begins to plan where a ticket says, but for the rows that it says were served.
func (pl *pipeline) init(w walk, served []byte, most int64) {
	pl.first, pl.most = w, most
	pl.served = bitmapOf(served)
	pl.goOn()
	pl.walk, pl.seq, pl.dseq = pl.first, pl.firstRow, pl.firstRow
}

// plan appends a run; false at the end, or where that would be too far
// ahead. The first run always has a row left: one that was served whole before
// the stream was resumed would be waited for without end.
func (s *owner) plan() bool {
	for s.appendRun() {
		if s.pipeline.runs[0].left > 0 {
			return true
		}
		s.pipeline.trim()
	}
	return false
}

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
		over := s.job.Steered()               // before Settled, which then changes no more
		if pl.walk.needs <= s.job.Settled() { // it was settled since draft looked: this is not the end
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
	// Of large samples a run has one row, and there are many runs: none is made
	// larger than it needs to be.
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

// promote counts in the runs whose rows may go into the next batch now.
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

// begin goes on to the next cell. The bytes of a row are reserved with its first.
func (s *owner) begin(r *run, row, column int) {
	if column == 0 {
		r.state[row].begun = true
		s.pipeline.rows++
		s.pipeline.bytes += r.state[row].size
		s.window.used += s.rowSize(r, row)
	}
}

// rowSize is what a row takes of the window: its blobs, and its metadata.
func (s *owner) rowSize(r *run, row int) int64 {
	n := r.state[row].size + s.sizer.rowBytes
	if r.raw != nil {
		n += r.raw[row]
	}
	return n
}

// receive takes what became of a cell.
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

// back counts a cell in.
func (s *owner) back(r *run, row int) {
	r.state[row].pending--
	if r.state[row].pending > 0 {
		if s.waiting && s.pipeline.idle() {
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

// takeRow moves a row that is back into a batch.
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

// goOn finds the first row that was not delivered.
func (pl *pipeline) goOn() {
	if next := pl.served.nextOut(pl.firstRow); next > pl.firstRow {
		pl.first.skip(next - pl.firstRow)
		pl.firstRow = next
		pl.served.forget(next)
		pl.back.forget(next)
	}
}

// trim forgets the runs at the front that were delivered.
func (pl *pipeline) trim() {
	n := 0
	for n < len(pl.runs) && pl.runs[n].left == 0 {
		n++
	}
	if n == 0 {
		return
	}
	clear(pl.runs[:n])
	pl.runs = pl.runs[n:] // appending makes room where there is none: there may be very many
	pl.reading = max(0, pl.reading-n)
	pl.near = max(0, pl.near-n)
	pl.whole = max(0, pl.whole-n)
	pl.sought.trim(n)
	pl.far = false
}

// runOf returns the run that has a row, and which of its rows it is.
func (pl *pipeline) runOf(seq int64) (*run, int) {
	i, found := slices.BinarySearchFunc(pl.runs, seq, func(r *run, seq int64) int { return int(r.seq - seq) })
	if !found {
		i--
	}
	return pl.runs[i], int(seq - pl.runs[i].seq)
}

// reads is about where in the order of which epoch the first row is that is not back. Where ranks get what
// their nodes own, its rows lie anywhere in the step, and it is the step's first; or the next one's, if none is left.
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
		// What was asked for and is not back may come from where others bring it meanwhile.
		index = max(index-int64(pl.inFlight/cols)*s.job.Request().DataRanks(), 0)
	}
	return offset, index
}

const (
	// maxDrafted is how many rows are looked up in the manifest ahead of being planned,
	// draftsAtOnce how many drafts of them are begun without giving up the lock.
	maxDrafted   = 4 * runRows
	draftsAtOnce = 2
)

// draft is rows of one share that are to be planned, and are being looked up in the
// manifest. All fields are of the stream's goroutine.
type draft struct {
	from      walk // where drafting stood before it
	positions []int64
	rows      []schema.Row // where they lie, once it is ready; none of a row that was delivered before
	ready     bool
	dropped   bool // nobody waits for it
	used      int  // rows that were planned
}

// loading reports whether planning waits for rows of the manifest.
func (pl *pipeline) loading() bool { return len(pl.drafts) > 0 && !pl.drafts[0].ready }

// draft has the rows that come next looked up in the manifest. Where ranks get what their
// nodes own, it is found out first which rows these are.
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

// findShare has it found out which rows a draft has, and where they lie. Meanwhile the job is held: the stream may be
// closed, and what others have of it is not to be given back for them.
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
		j.Release() // the stream has a hold, too
	}
}

// but leaves out what was served.
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

// found takes in where the rows lie, but for those that were delivered before.
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

// found takes what came of a draft.
func (s *owner) found(d *draft, positions []int64, rows []schema.Row, served []bool, err error) {
	if s.gone || d.dropped {
		return
	}
	if err != nil {
		s.fail(err) // it cannot know which blobs come next
	} else {
		d.positions = positions
		d.found(rows, served)
		s.pipeline.news++
	}
	s.check, s.more = true, true
}

// undraft gives up the drafts, so that planning goes on elsewhere.
func (pl *pipeline) undraft() {
	for _, d := range pl.drafts {
		d.dropped = true
	}
	pl.drafts, pl.drafted = nil, 0
}

// redraft makes a run that is taken out a draft again, from one of its rows on: where they lie is known. Of the
// drafts, those that are used last are given up where they are too many.
func (s *owner) redraft(r *run, first int) {
	pl, from := &s.pipeline, r.from
	from.at += int64(first)
	if s.job.Manifest().Resident() {
		pl.undraft() // it costs nothing to look them up again
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

// part is a record batch in the making.
type part struct {
	walk      walk    // where the stream stands before it
	pieces    []piece // of a stream that reads nothing: the rows, which are then to be looked up
	positions []int64 // of samples: one a row, or as packing says
	packing   *schema.Packing
	// of the rows in the stream, where the order is loose; nil if they are the first that are left
	seqs     []int64
	rows     []schema.Row    // where they lie
	blobs    [][]schema.Blob // by blob column, by row
	reserved int64           // bytes of the window
	hold     admission.Hold  // of the ledger for it, once it is handed out
	faults   []fault
	last     bool          // the share ends with it
	resume   schema.Ticket // what goes on after it
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
// Batches have the sizes that the plan gives them, in every order: each is the
// share of a step, or a piece of it where batches are bounded. What differs is
// which rows fill it. Strictly they are the share's own. Otherwise they are
// those that are back, the earliest in the plan first, of any step of the epoch,
// or of those within reach: then a row whose last step has come is waited for.
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

// wanted is what Next waits for: the rows below seq that are missing, or else
// that many rows to be ready, or bytes.
type wanted struct {
	seq     int64
	missing int
	ready   int
	bytes   int64
}

// wakes says whether the row seq, which has come back, is worth another look.
func (s *owner) wakes(seq int64) bool {
	w, pl := &s.wanted, &s.pipeline
	if pl.idle() {
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

// gather takes the rows of the next batch if they are there; otherwise it
// says in s.wanted what to wait for.
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
	// and what the batch itself holds
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

// fill takes the rows that come first in the plan, as far as they are back.
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

// fillLoose takes the earliest rows that are back, of those that may go into the batch: first those that were there
// before their turn, unless rows whose last step has come fill it.
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

// prefix reports whether the rows of the next batch are there, in strict
// order; or some of them, where few says that they do and memory has no room for more.
func (s *owner) prefix(few bool) bool {
	s.wanted = wanted{}
	s.sizer.reset()
	pl := &s.pipeline
	stuck := few && pl.idle() && (len(pl.blocked) > 0 || !s.fullSince.IsZero())
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
				return true // of what comes after it, as much as is there
			}
			left--
			s.wanted.seq = r.seq + int64(row) + 1
		}
	}
	if left > 0 && pl.loading() {
		return false // there may be more rows for it
	}
	return s.wanted.missing == 0
}

// enough reports whether a batch can be filled out of order. Of the rows
// whose last step has come it waits for those that this batch takes: the window
// may have no room for more.
func (s *owner) enough() bool {
	s.wanted = wanted{}
	pl := &s.pipeline
	need := int(min(s.slot.left(), schema.DefaultMetaBatch))
	pl.stop = math.MaxInt64
	full := s.order.reach >= 0 && s.due(need)
	// Where nothing more can come, what is there makes a batch.
	stuck := pl.idle() && (len(pl.blocked) > 0 || pl.far || pl.ended || s.unsettled() || !s.fullSince.IsZero())
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

// due counts the rows whose last step has come, and that are missing, of
// those that the next batch of so many rows takes. full says that they fill it:
// then no row goes into it from the first due one on that does not fit.
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

// What follows is of streams that read no blobs, or nothing at all: they plan what they serve when it is asked for.

// piece is so many rows of a share, from where a walk stands.
type piece struct {
	from walk
	rows int64
}

// nextUnread returns the first n rows that were not delivered, of a stream that reads nothing,
// and counts them as delivered.
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

// soonUnread returns the positions of about so many rows that nextUnread will return, as far as they are known.
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
	// maxQueue is how many cells of a stream wait for their turn at most.
	maxQueue = 64
	// maxSlice is how many cells are gone through before the lock is given up: rows
	// of nulls need no read, and there may be any number of them.
	maxSlice = 1024
	// leastRow is what a row read ahead is of the window at least, in bytes: a window
	// of rows of nothing would be planned for seconds, and no path carries so many
	// reads.
	leastRow = 4 << 10
)

// refill asks for what the window has room for, as far as one slice goes.
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

// want goes on to a cell, and asks for it; false if where it lies cannot be read.
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

// reserve counts a row in, if the window and the ledger have room for it. capped says that the window has none.
// What the batch needs that the consumer could have next is beyond the window, or
// one smaller than that would stop the stream for good; it is never beyond the ledger.
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

// needs is how many bytes the next row needs that are not to be had, where
// the stream holds nothing that it could go on with; 0 if it can go on.
func (pl *pipeline) needs() int64 {
	if pl.rows > 0 || pl.inFlight > 0 {
		return 0
	}
	return pl.lacking
}

// drop drops what was read ahead last, but for so many runs at the front.
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
	// What waits and what is read is gone through once, whatever the number of runs.
	s.place.Cancel(func(t read.Token) bool { return t.Of.(*run).dropped })
	s.unmake()
}

// unplan takes the last run out.
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
	delivered := 0 // at the front: they are not planned again
	for len(pl.runs) == 0 && r.state[delivered].taken {
		delivered++
	}
	s.redraft(r, delivered)
	pl.seq, pl.ended, pl.far = r.seq+int64(delivered), false, false
	pl.reading, pl.near = min(pl.reading, len(pl.runs)), min(pl.near, len(pl.runs))
	pl.whole = min(pl.whole, len(pl.runs))
	pl.sought.cut(len(pl.runs))
}

// release gives the blobs of a run back.
func (r *run) release() {
	for i := range r.cells {
		r.cells[i].Release()
		r.cells[i] = schema.Blob{}
	}
}

// releaseAll gives back what was not delivered.
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

// noRoom begins to count the time that reading stands still, though nothing
// waits for its turn.
func (s *owner) noRoom() {
	if s.fullSince.IsZero() && s.place.Waiting() == 0 && len(s.pipeline.wants) == 0 {
		s.fullSince = time.Now()
	}
}

// roomAgain ends it.
func (s *owner) roomAgain() {
	if !s.fullSince.IsZero() {
		s.fullFor += time.Since(s.fullSince)
		s.fullSince = time.Time{}
	}
}

// nextPart is of which part of the memory what streams keep that stand still is at most, all of them together.
const nextPart = 8

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

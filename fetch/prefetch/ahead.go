package prefetch

import (
	"slices"

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
	// maxAhead is how many rows a stream may read ahead of one that is not back
	// yet: a resume ticket has a bit for each.
	maxAhead = 8 * schema.MaxServedBytes
)

// run is a few rows of one share, planned and on their way. All fields are
// of the stream's goroutine.
type run struct {
	from               walk // where planning stood before it
	lap, step, ordinal int64
	seq                int64 // of its first row in the stream
	index              int64 // of its first row in the epoch's order
	positions          []int64
	rows               []schema.Row // where they lie; none of a row that was delivered before
	state              []rowState
	// bytes that a row has beside, of blobs of which something is to be made; nil without operators
	raw      []int64
	guess    []int64       // by cell, what of its row's size it is; nil without operators
	cells    []schema.Blob // row by row
	left     int           // rows that were not
	next     int           // cell to read next
	inFlight int           // cells that were asked for and are not back
	faults   []fault
	near     bool // its rows may go into the next batch
	dropped  bool // it was given back
}

// rowState is how far a row of a run is.
type rowState struct {
	size    int64 // bytes of its blobs
	pending int32 // cells that are not back yet
	taken   bool  // it was delivered
}

// fault is a cell that could not be read, or a value that could not be made.
type fault struct {
	row    int
	column string
	err    error
}

// ahead is what a stream has planned, is reading, or holds for its consumer, in
// the plan's order. It is of the stream's goroutine.
type ahead struct {
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

	hungry    []*operators.Task // cells whose results have no room; they count as in flight
	reserving bool              // Next waits for bytes of the ledger
	granted   int64             // bytes of the ledger that the next row has
	starving  int64             // bytes that it would need, where nothing is held and there are none
	wants     []read.Want
}

// init begins to plan where a ticket says, but for the rows that it says were served.
func (a *ahead) init(w walk, served []byte, most int64) {
	a.first, a.most = w, most
	a.served = bitmapOf(served)
	a.goOn()
	a.walk, a.seq, a.dseq = a.first, a.firstRow, a.firstRow
}

// plan appends a run; false at the end, or where that would be too far
// ahead. The first run always has a row left: one that was served whole before
// the stream was resumed would be waited for without end.
func (s *owner) plan() bool {
	for s.appendRun() {
		if s.ahead.runs[0].left > 0 {
			return true
		}
		s.ahead.trim()
	}
	return false
}

func (s *owner) appendRun() bool {
	a := &s.ahead
	if a.ended {
		return false
	}
	if a.far = len(a.runs) > 0 && a.seq-a.runs[0].seq > a.most-runRows; a.far {
		return false
	}
	s.draft()
	if len(a.drafts) == 0 {
		a.ended = true
		s.look = true
		return false
	}
	d := a.drafts[0]
	if !d.ready {
		return false
	}
	from := d.from
	from.at += int64(d.used)
	n, cols := len(d.positions)-d.used, len(s.columns)
	r := &run{
		from: from, lap: from.lap, step: from.step, ordinal: from.ordinal(), seq: a.seq, index: from.at,
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
	if d.used += count; d.used == len(d.positions) {
		a.drafts = a.drafts[1:]
	}
	a.drafted -= count
	a.seq += int64(count)
	a.runs = append(a.runs, r)
	a.promote(s)
	return true
}

// promote counts in the runs whose rows may go into the next batch now.
func (a *ahead) promote(s *owner) {
	if !s.order.loose {
		return
	}
	if a.first.lap != s.slot.lap {
		a.first.settle()
	}
	for ; a.near < len(a.runs); a.near++ {
		r := a.runs[a.near]
		if r.lap != s.slot.lap || s.order.reach >= 0 && r.ordinal > s.slot.ordinal()+s.order.reach {
			return
		}
		r.near = true
		for row := range r.positions {
			if !r.state[row].taken && r.state[row].pending == 0 {
				a.ready++
				a.readySize += r.state[row].size
			}
		}
	}
}

// begin goes on to the next cell. The bytes of a row are reserved with its first.
func (s *owner) begin(r *run, row, column int) {
	if column == 0 {
		s.ahead.rows++
		s.ahead.bytes += r.state[row].size
		s.window.used += s.rowSize(r, row)
	}
	r.next++
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
	s.ahead.inFlight--
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
		if s.waiting && s.ahead.idle() {
			s.woken = true
		}
		return
	}
	a := &s.ahead
	a.news++
	if s.order.loose {
		a.back.add(r.seq + int64(row))
	}
	if r.near {
		a.ready++
		a.readySize += r.state[row].size
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
	a := &s.ahead
	a.rows--
	a.bytes -= r.state[row].size
	if r.near {
		a.ready--
		a.readySize -= r.state[row].size
	}
	if !s.order.loose {
		return
	}
	seq := r.seq + int64(row)
	p.seqs = append(p.seqs, seq)
	a.back.remove(seq)
	a.served.add(seq)
	if seq == a.firstRow {
		a.goOn()
	}
}

// goOn finds the first row that was not delivered.
func (a *ahead) goOn() {
	if next := a.served.nextOut(a.firstRow); next > a.firstRow {
		a.first.skip(next - a.firstRow)
		a.firstRow = next
		a.served.forget(next)
		a.back.forget(next)
	}
}

// trim forgets the runs at the front that were delivered.
func (a *ahead) trim() {
	n := 0
	for n < len(a.runs) && a.runs[n].left == 0 {
		n++
	}
	if n == 0 {
		return
	}
	clear(a.runs[:n])
	a.runs = a.runs[n:] // appending makes room where there is none: there may be very many
	a.reading = max(0, a.reading-n)
	a.near = max(0, a.near-n)
	a.far = false
}

// runOf returns the run that has a row, and which of its rows it is.
func (a *ahead) runOf(seq int64) (*run, int) {
	i, found := slices.BinarySearchFunc(a.runs, seq, func(r *run, seq int64) int { return int(r.seq - seq) })
	if !found {
		i--
	}
	return a.runs[i], int(seq - a.runs[i].seq)
}

// reads is where in the order of which epoch the stream reads next. Where ranks get what
// their nodes own, its rows lie anywhere in the step, and it is the step's first; or the next one's, if none is left.
func (s *owner) reads() (lap, index int64) {
	a := &s.ahead
	w := a.walk
	lap, step, index := w.lap, w.step, w.at
	if a.reading < len(a.runs) && len(s.columns) > 0 {
		r := a.runs[a.reading]
		lap, step, index = r.lap, r.step, r.index+int64(r.next/len(s.columns))
	} else if len(a.drafts) > 0 {
		d := a.drafts[0]
		lap, step, index = d.from.lap, d.from.step, d.from.at+int64(d.used)
	}
	if s.job.Layout() != nil {
		if index == w.hi && step == w.step && lap == w.lap {
			step++
		}
		index = min(step*s.job.Request().Batch, s.job.Plan().Rows())
	}
	return lap, index
}

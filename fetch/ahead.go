package fetch

import (
	"time"

	"bowstring/schema"
)

const (
	// runRows is how many rows are planned at once.
	runRows = 256
	// maxAhead is how many rows a stream may read ahead of one that is not back
	// yet: a resume ticket has a bit for each.
	maxAhead = 8 * schema.MaxServedBytes
)

// run is a few rows of one share, planned and on their way. All fields are
// guarded by scheduler.mu.
type run struct {
	lap, step, ordinal int64
	row                int64 // of its first row in the share
	seq                int64 // of its first row in the stream
	index              int64 // of its first row in the epoch's order
	positions          []int64
	sizes              []int64       // bytes of blobs in each row
	cells              []schema.Blob // row by row
	pending            []int32       // cells of each row that are not back yet
	taken              []bool        // rows that were delivered
	left               int           // rows that were not
	next               int           // cell to read next
	faults             []fault
}

// fault is a cell that could not be read.
type fault struct {
	row, column int
	err         error
}

// ahead is what a stream has planned, is reading, or holds for its consumer, in
// the plan's order. It is guarded by scheduler.mu.
type ahead struct {
	walk    walk  // where planning stands
	most    int64 // rows that may be planned from the first one that was not delivered
	ended   bool  // there is nothing more to plan
	far     bool  // nothing more may be planned before the first row is delivered
	seq     int64
	served  []byte // bitmap of the rows that a resumed stream has sent before, from the first one on
	runs    []*run
	reading int // index in runs of the run to read from next

	rows      int   // begun to be read, or back, and not delivered
	bytes     int64 // of those
	inFlight  int   // cells
	ready     int   // rows of the present lap that are back and not delivered
	readySize int64 // bytes of those
}

// planRun appends a run; false at the end, or where that would be too far ahead.
// The first run always has a row left: one that was served whole before the
// stream was resumed would be waited for without end.
func (s *Stream) planRun() bool {
	for s.appendRun() {
		if a := &s.ahead; a.runs[0].left > 0 {
			return true
		}
		s.trim()
	}
	return false
}

func (s *Stream) appendRun() bool {
	a := &s.ahead
	if a.ended {
		return false
	}
	if a.far = len(a.runs) > 0 && a.seq-a.runs[0].seq > a.most-runRows; a.far {
		return false
	}
	if !a.walk.settle() {
		a.ended = true
		s.cond.Broadcast() // Next may wait for more
		return false
	}
	n, cols := int(min(a.walk.left(), runRows)), len(s.columns)
	r := &run{
		lap: a.walk.lap, step: a.walk.step, ordinal: a.walk.ordinal(), row: a.walk.row(), seq: a.seq, index: a.walk.at,
		positions: make([]int64, n), sizes: make([]int64, n), cells: make([]schema.Blob, n*cols),
		pending: make([]int32, n), taken: make([]bool, n), left: n,
	}
	for i := range n {
		pos := a.walk.take()
		r.positions[i] = pos
		r.pending[i] = int32(cols)
		if len(a.served) > 0 && r.lap == 0 && bit(a.served, a.seq+int64(i)) {
			r.taken[i] = true
			r.left--
			continue
		}
		for _, c := range s.columns {
			ref, _ := s.job.Manifest().Blob(c.ordinal, pos)
			r.sizes[i] += ref.Size
		}
	}
	a.seq += int64(n)
	a.runs = append(a.runs, r)
	return true
}

// bit says whether a bitmap has bit i.
func bit(b []byte, i int64) bool { return i>>3 < int64(len(b)) && b[i>>3]>>(i&7)&1 == 1 }

// peek returns the blob to be read next; false if there is nothing to read, or
// no room for it in the window.
func (s *Stream) peek() (schema.BlobRef, bool) {
	a := &s.ahead
	cols := len(s.columns)
	if cols == 0 || s.ctx.Err() != nil {
		return schema.BlobRef{}, false
	}
	for {
		if a.reading == len(a.runs) && !s.planRun() {
			return schema.BlobRef{}, false
		}
		r := a.runs[a.reading]
		if r.next == len(r.cells) {
			a.reading++
			continue
		}
		row, column := r.next/cols, r.next%cols
		if r.taken[row] {
			r.next += cols
			continue
		}
		if column == 0 && !s.room(r.sizes[row]) {
			s.noRoom()
			return schema.BlobRef{}, false
		}
		ref, ok := s.job.Manifest().Blob(s.columns[column].ordinal, r.positions[row])
		if ok {
			return ref, true
		}
		s.begin(r, row, column)
		s.back(r, row) // a null
	}
}

// room says whether the window has room for a row more. A batch that the
// consumer could have next is always read, or a window smaller than that would
// stop the stream for good.
func (s *Stream) room(size int64) bool {
	a := &s.ahead
	return s.window.used+size <= s.window.size || a.rows == 0 ||
		int64(a.rows) < s.slot.left() && a.bytes+size <= s.sizer.maxBytes
}

// takeCell takes what peek returned.
func (s *Stream) takeCell(ref schema.BlobRef) waiter {
	r := s.ahead.runs[s.ahead.reading]
	cell := r.next
	s.begin(r, cell/len(s.columns), cell%len(s.columns))
	s.ahead.inFlight++
	return waiter{stream: s, run: r, cell: cell}
}

// begin goes on to the next cell. The bytes of a row are reserved with its first.
func (s *Stream) begin(r *run, row, column int) {
	if column == 0 {
		s.ahead.rows++
		s.ahead.bytes += r.sizes[row]
		s.window.used += r.sizes[row]
	}
	r.next++
}

// noRoom begins to count the time that reading stands still.
func (s *Stream) noRoom() {
	if s.fullSince.IsZero() {
		s.fullSince = time.Now()
	}
}

// roomAgain ends it.
func (s *Stream) roomAgain() {
	if !s.fullSince.IsZero() {
		s.fullFor += time.Since(s.fullSince)
		s.fullSince = time.Time{}
	}
}

// receive takes what became of a read.
func (s *Stream) receive(now time.Time, r *run, cell int, blob schema.Blob, err error, spilled bool) {
	if s.gone {
		blob.Release()
		return
	}
	s.live.count(int64(len(blob.Bytes())), spilled, err)
	row, column := cell/len(s.columns), cell%len(s.columns)
	s.ahead.inFlight--
	if err != nil {
		if !s.job.Tolerant() {
			s.cancel(s.sampleError(r.positions[row], column, err))
		}
		r.faults = append(r.faults, fault{row, column, err})
	} else {
		r.cells[cell] = blob
		s.window.completed(now, int64(len(blob.Bytes())), s.engine.slow, s.waiting)
		s.engine.want(s)
	}
	s.spilled = spilled
	s.back(r, row)
}

// back counts a cell in.
func (s *Stream) back(r *run, row int) {
	r.pending[row]--
	if r.pending[row] > 0 {
		return
	}
	a := &s.ahead
	if r.lap == s.slot.lap {
		a.ready++
		a.readySize += r.sizes[row]
	}
	if s.waiting && s.wakes(r.seq+int64(row)) {
		s.cond.Signal()
	}
}

// take moves a row that is back into a batch.
func (s *Stream) take(r *run, row int, p *part) {
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
	p.reserved += r.sizes[row]
	r.taken[row] = true
	r.left--
	a := &s.ahead
	a.rows--
	a.bytes -= r.sizes[row]
	a.ready--
	a.readySize -= r.sizes[row]
}

// trim forgets the runs at the front that were delivered.
func (s *Stream) trim() {
	a := &s.ahead
	n := 0
	for n < len(a.runs) && a.runs[n].left == 0 {
		n++
	}
	if n == 0 {
		return
	}
	a.runs = append(a.runs[:0], a.runs[n:]...)
	a.reading = max(0, a.reading-n)
	a.far = false
}

// recount counts the rows that are back, of the lap that begins to be delivered.
func (s *Stream) recount() {
	a := &s.ahead
	a.ready, a.readySize = 0, 0
	for _, r := range a.runs {
		if r.lap != s.slot.lap {
			continue
		}
		for row := range r.positions {
			if !r.taken[row] && r.pending[row] == 0 {
				a.ready++
				a.readySize += r.sizes[row]
			}
		}
	}
}

// release gives back the blobs that were not delivered.
func (a *ahead) release() {
	for _, r := range a.runs {
		for i := range r.cells {
			r.cells[i].Release()
		}
	}
	a.runs = nil
}

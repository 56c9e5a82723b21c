package prefetch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"bowstring/fetch/operators"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/read"
	"bowstring/schema"
)

// What operators make of cells is made between their arrival and the batch. A cell that has
// come goes to the stage, and counts as in flight until its result is there. Its row was
// counted in with the blob and with the result: that of a column of tensors of one shape is
// known; another is guessed by what was made before, and known when the stage has read the
// cell's header. Where there is no room for more than was guessed, the task is hungry: it
// waits for what batches give back, and nothing new is read.

const (
	// makingPerWorker is how many cells for each worker a window has room for at least.
	makingPerWorker = 4
	// firstRatio is how much larger a tensor is taken to be than its blob at first.
	firstRatio = 4
)

// ratio is how many bytes were made of how many. It is of the stream's goroutine.
type ratio struct{ made, of int64 }

// making is what a stream knows of a task.
type making struct {
	run  *run
	cell int
	from read.From // where the blob came from
	once *once     // that it is made by, if it is made for others, too
}

// madeBytes is how many bytes are made of a blob of n, as far as is known.
func (c *blobColumn) madeBytes(n int64) int64 {
	if size := c.made.Form.CellBytes(); size >= 0 {
		return size
	}
	switch {
	case c.ratio.of > 0:
		return int64(float64(n) * float64(c.ratio.made) / float64(c.ratio.of))
	case c.made.Form.Encoded():
		return n
	}
	return firstRatio * n
}

// openStage gives the stream its place in the stage, before anything is read.
func (s *Stream) openStage() {
	s.program = string(schema.Request{Operators: s.job.Request().Operators}.Marshal())
	s.stage = s.set.opts.Stage.Open(s.tenant.name, s.job.Group())
}

// widen has the window hold what keeps the stage's workers busy.
func (s *owner) widen() {
	if s.stage == nil {
		return
	}
	row := s.job.MeanBytes()
	for i := range s.columns {
		if c := &s.columns[i]; c.made != nil {
			row += max(c.made.Form.CellBytes(), 0)
		}
	}
	w := &s.window
	w.least = max(w.least, makingPerWorker*int64(s.set.opts.Stage.Workers())*row)
	w.size = min(max(w.size, w.least), w.limit)
}

// draws says where the numbers of a sample come from, in an epoch. Those of a sample of a mixture do not depend on what
// other sources there are.
func (s *Stream) draws(epoch uint64, position int64) draw.Key {
	source, at := s.job.Locate(position)
	return draw.Key{Seed: s.job.SourceSeed(source), Epoch: epoch, Position: uint64(at)}
}

// rowEpoch is the epoch by which numbers are drawn for a row: of a mixture the one of its source, as one epoch of the
// mixture may have several of these.
func (s *Stream) rowEpoch(r *run, row int) uint64 {
	if r.from.list != nil || s.job.Alone() != nil {
		return s.epochOf(r.epochOffset)
	}
	return s.job.SourceEpoch(r.from.plan, r.index+int64(row))
}

// task is the making of a column's cell.
func (s *Stream) task(column int, epoch uint64, position int64, blob schema.Blob) *operators.Task {
	made := s.columns[column].made
	if source, _ := s.job.Locate(position); s.job.Alone() == nil {
		made = s.job.OperatorsOf(source).Column(s.columns[column].name)
	}
	return &operators.Task{
		Column: made, Cell: blob, Draws: made.Draws(s.draws(epoch, position)),
		Context: s.context(), Tenant: s.tenant.name, To: s, Trace: s.traceMade,
	}
}

// makeCell has a cell made that has come.
func (s *owner) makeCell(r *run, cell int, blob schema.Blob, from read.From) {
	row, column := cell/len(s.columns), cell%len(s.columns)
	t := s.task(column, s.rowEpoch(r, row), r.positions[row], blob)
	t.Data, t.Guess = &making{run: r, cell: cell, from: from}, r.guess[cell]
	if ref, ok, err := r.rows[row].TryBlob(s.columns[column].ordinal); err == nil && ok {
		// What is made of a blob is kept by its content: by the checksum, if that was learned.
		if t.Ref = s.set.opts.Reader.Known(ref).Settled(); !t.Ref.Unproven() {
			t.At = s.places.At(r.positions[row], s.payer)
		}
	}
	s.shareCell(r, cell, blob)
	s.makeOnce(t)
}

// Room implements operators.Receiver. Where more than was guessed is needed, the stream's goroutine says when there is
// room.
func (s *Stream) Room(t *operators.Task, bytes int64) bool {
	if bytes <= t.Guess {
		return true
	}
	if !s.do(func(s *owner) { s.room(t) }) {
		dropTask(t)
	}
	return false
}

// room has a task made again if there is room for its result. Otherwise it is hungry.
func (s *owner) room(t *operators.Task) {
	m := t.Data.(*making)
	pl := &s.pipeline
	if s.gone || m.run.dropped {
		dropTask(t)
		return
	}
	pl.blocked = append(pl.blocked, t)
	slices.SortFunc(pl.blocked, func(x, y *operators.Task) int {
		x1, y1 := x.Data.(*making), y.Data.(*making)
		return cmp.Or(cmp.Compare(x1.run.seq, y1.run.seq), cmp.Compare(x1.cell, y1.cell))
	})
	s.unblock()
	if slices.Contains(pl.blocked, t) { // others may have room
		m.once.abandon()
		m.once = nil
	}
	if pl.idle() {
		s.check = true
	}
}

// grown notes that a result is larger than was guessed. The ledger has counted it in.
func (s *owner) grown(m *making, extra int64) {
	row := m.cell / len(s.columns)
	m.run.guess[m.cell] += extra
	m.run.state[row].size += extra
	s.pipeline.bytes += extra
	s.window.used += extra
}

// unblock gives room to what is hungry, the first in the plan first, as far as there is some. The place of a stream
// that is gone takes nothing: closeStage has what is hungry then.
func (s *owner) unblock() {
	pl := &s.pipeline
	for !s.gone && len(pl.blocked) > 0 && !pl.reserving {
		m := pl.blocked[0].Data.(*making)
		extra := pl.blocked[0].ResultBytes() - m.run.guess[m.cell]
		if !s.hold.TryGrow(extra) {
			return
		}
		s.unblockFirst(m, extra)
	}
}

// unblockFirst has the first of what is hungry made.
func (s *owner) unblockFirst(m *making, extra int64) {
	pl := &s.pipeline
	t := pl.blocked[0]
	pl.blocked = slices.Delete(pl.blocked, 0, 1)
	s.grown(m, extra)
	s.stage.Again(t)
}

// awaitRoom waits for room for what is hungry, where nothing else goes on. What was read
// ahead beyond the first run is given back, to be read again.
func (s *owner) awaitRoom() {
	s.drop(0, 1)
	s.unblock()
	pl := &s.pipeline
	if len(pl.blocked) == 0 || !pl.idle() {
		s.check, s.again = true, true
		return
	}
	first := pl.blocked[0]
	m := first.Data.(*making)
	extra := first.ResultBytes() - m.run.guess[m.cell]
	s.obtain(extra, func() {
		if len(pl.blocked) > 0 && pl.blocked[0] == first {
			s.unblockFirst(m, extra)
		} else { // one that comes before it
			s.hold.Shrink(extra)
		}
		s.unblock()
	}, func(err error) error {
		row, column := m.cell/len(s.columns), m.cell%len(s.columns)
		err = s.sampleError(m.run.positions[row], m.run.rows[row], s.columns[column].name, err)
		return errNoMemory(err, "making the next sample")
	})
}

// Made implements operators.Receiver.
func (s *Stream) Made(t *operators.Task, o operators.Outcome) {
	if m := t.Data.(*making); m.once != nil {
		o = m.once.finish(o)
	}
	if !s.do(func(s *owner) { s.made(t, o) }) {
		t.Cell.Release()
		o.Blob.Release()
	}
}

// made takes what was made of a cell.
func (s *owner) made(t *operators.Task, o operators.Outcome) {
	m := t.Data.(*making)
	r, row, column := m.run, m.cell/len(s.columns), m.cell%len(s.columns)
	raw := int64(len(t.Cell.Bytes()))
	size := int64(len(o.Blob.Bytes()))
	t.Cell.Release()
	if s.gone || r.dropped {
		o.Blob.Release()
		return
	}
	s.pipeline.inFlight--
	r.inFlight--
	if o.Err != nil {
		s.fault(r, row, column, o.Err)
		size = r.guess[m.cell] // of what may come in its place
	} else {
		r.cells[m.cell] = o.Blob
		if c := &s.columns[column]; raw > 0 {
			c.ratio.made, c.ratio.of = c.ratio.made+size, c.ratio.of+raw
		}
		s.window.completed(time.Now(), size, s.path.Slow, s.waiting && !s.woken)
	}
	s.settle(m, raw, size)
	s.processor += o.Processor
	s.from, s.making = m.from, o.Queued+o.Took
	s.back(r, row)
	s.more = true
}

// settle counts the blob out that something was made of, and what was guessed beyond its size.
func (s *owner) settle(m *making, raw, size int64) {
	r, row := m.run, m.cell/len(s.columns)
	less := r.guess[m.cell] - size
	r.guess[m.cell] = size
	r.state[row].size -= less
	r.raw[row] -= raw
	s.pipeline.bytes -= less
	s.window.used -= less + raw
	s.hold.Shrink(less + raw)
}

// fault notes that a cell cannot be had. A store that does not answer, or an engine that is not there, is no fault
// of the sample: that ends the stream, whatever on_error is, and a client that goes on by its last ticket gets the
// sample. Otherwise an outage would fill a training set with nulls, and each substitute would wait for the whole time
// of a read.
func (s *owner) fault(r *run, row, column int, err error) {
	name := s.columns[column].name
	if !s.job.Tolerant() || passes(err) {
		s.fail(s.sampleError(r.positions[row], r.rows[row], name, err))
	}
	r.faults = append(r.faults, fault{row, name, err})
}

// passes reports whether an error may pass by itself: the store, or what makes something of a cell, is not there now.
func passes(err error) bool {
	return errors.Is(err, schema.ErrUnavailable) && !errors.Is(err, schema.ErrDataLoss)
}

// idle reports whether nothing is in flight that comes by itself.
func (pl *pipeline) idle() bool { return pl.inFlight == len(pl.blocked) }

// unmake takes back what waits to be made of runs that were dropped.
func (s *owner) unmake() {
	if s.stage == nil {
		return
	}
	of := func(t *operators.Task) bool {
		r := t.Data.(*making).run
		return r != nil && r.dropped
	}
	for _, t := range s.stage.Drop(of) {
		dropTask(t)
	}
	s.pipeline.blocked = slices.DeleteFunc(s.pipeline.blocked, func(t *operators.Task) bool {
		if !of(t) {
			return false
		}
		t.Cell.Release()
		return true
	})
}

// closeStage gives up what waits to be made. The stream is gone.
func (s *owner) closeStage() {
	if s.stage == nil {
		return
	}
	for _, t := range s.stage.Close() {
		// Somebody may wait for it.
		t.To.Made(t, operators.Outcome{Err: context.Canceled})
	}
	for _, t := range s.pipeline.blocked {
		t.Cell.Release()
	}
	s.pipeline.blocked = nil
}

// dropTask gives up a task that is not begun.
func dropTask(t *operators.Task) {
	t.Data.(*making).once.abandon()
	t.Cell.Release()
}

// instant is a Receiver of one cell that somebody waits for.
type instant chan operators.Outcome

// Room implements operators.Receiver: the cell takes the place of another.
func (instant) Room(*operators.Task, int64) bool { return true }

// Made implements operators.Receiver.
func (c instant) Made(t *operators.Task, o operators.Outcome) {
	t.Cell.Release()
	c <- o
}

// makeNow makes a cell out of turn of the window, and takes its blob over.
func (s *Stream) makeNow(column int, offset, position int64, blob schema.Blob) (schema.Blob, error) {
	done := make(instant, 1)
	t := s.task(column, s.epochOf(offset), position, blob)
	t.To, t.Data = done, &making{}
	if !s.do(func(s *owner) { s.stage.Put(t) }) {
		blob.Release()
		return schema.Blob{}, context.Cause(s.context())
	}
	o := <-done
	return o.Blob, o.Err
}

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

// Operators run between the arrival of a cell and its batch. An arrived cell goes to the
// stage, and counts as in flight until its result is there. The memory of its row covers
// the blob and the result. The size of a result is known if the column has tensors of one
// shape. Otherwise it is guessed from earlier results, and known once the stage has read
// the cell's header. If the result is larger than the guess and the difference has no
// room, the task is blocked: it waits until batches are released, and nothing new is read.

const (
	// makingPerWorker is the least number of cells for each worker of the stage that a
	// window has room for.
	makingPerWorker = 4
	// firstRatio is the assumed size of a tensor, in sizes of its blob, before the first
	// result.
	firstRatio = 4
)

// ratio is how many bytes operators have made, of how many bytes of blobs. It belongs to
// the stream's goroutine.
type ratio struct{ made, of int64 }

// making is a stream's state of a task.
type making struct {
	run  *run
	cell int
	from read.From // the source of the blob
	once *once     // set if other ranks get the result too
}

// madeBytes is the known or guessed size of the result for a blob of n bytes.
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

// openStage opens the stream's place in the stage. It is called before the first read.
func (s *Stream) openStage() {
	s.program = string(schema.Request{Operators: s.job.Request().Operators}.Marshal())
	s.stage = s.set.opts.Stage.Open(s.tenant.name, s.job.Group())
}

// widen raises the window's lower bound to what keeps the stage's workers busy.
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

// draws is the key of a sample's random numbers in an epoch. The numbers of a mixture's
// sample depend only on its source, not on the other sources.
func (s *Stream) draws(epoch uint64, position int64) draw.Key {
	source, at := s.job.Locate(position)
	return draw.Key{Seed: s.job.SourceSeed(source), Epoch: epoch, Position: uint64(at)}
}

// rowEpoch is the epoch in the key of a row's random numbers. For a mixture it is the
// epoch of the row's source, because one epoch of the mixture may have several of these.
func (s *Stream) rowEpoch(r *run, row int) uint64 {
	if r.from.list != nil || s.job.Alone() != nil {
		return s.epochOf(r.epochOffset)
	}
	return s.job.SourceEpoch(r.from.plan, r.index+int64(row))
}

// task is the task that runs a column's operators on a cell. The task's receiver
// releases the cell.
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

// makeCell gives an arrived cell to the stage, and takes its blob over.
func (s *owner) makeCell(r *run, cell int, blob schema.Blob, from read.From) {
	row, column := cell/len(s.columns), cell%len(s.columns)
	t := s.task(column, s.rowEpoch(r, row), r.positions[row], blob)
	t.Data, t.Guess = &making{run: r, cell: cell, from: from}, r.guess[cell]
	if ref, ok, err := r.rows[row].TryBlob(s.columns[column].ordinal); err == nil && ok {
		// Results are cached by the content of the blob: by its checksum, once that is known.
		if t.Ref = s.set.opts.Reader.Known(ref).Settled(); !t.Ref.Unproven() {
			t.At = s.places.At(r.positions[row], s.payer)
		}
	}
	s.shareCell(r, cell, blob)
	s.makeOnce(t)
}

// Room implements operators.Receiver. If the result is larger than the guess, it returns
// false, and the stream's goroutine resumes the task once there is room.
func (s *Stream) Room(t *operators.Task, bytes int64) bool {
	if bytes <= t.Guess {
		return true
	}
	if !s.do(func(s *owner) { s.room(t) }) {
		dropTask(t)
	}
	return false
}

// room resumes a task if there is room for its result. Otherwise the task is blocked.
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
	if slices.Contains(pl.blocked, t) { // other streams of the group may have room
		m.once.abandon()
		m.once = nil
	}
	if pl.onlyBlocked() {
		s.check = true
	}
}

// grown raises the guess of a result. The caller has reserved the extra bytes.
func (s *owner) grown(m *making, extra int64) {
	row := m.cell / len(s.columns)
	m.run.guess[m.cell] += extra
	m.run.state[row].size += extra
	s.pipeline.bytes += extra
	s.window.used += extra
}

// unblock resumes blocked tasks in the plan's order, as far as there is room. It does
// nothing once the stream is gone: the stage takes no task then, and closeStage drops
// the blocked ones.
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

// unblockFirst resumes the first blocked task. The caller has reserved the extra bytes.
func (s *owner) unblockFirst(m *making, extra int64) {
	pl := &s.pipeline
	t := pl.blocked[0]
	pl.blocked = slices.Delete(pl.blocked, 0, 1)
	s.grown(m, extra)
	s.stage.Again(t)
}

// awaitRoom makes room for blocked tasks if nothing else is in flight. It frees all runs
// after the first, which are read again later. If that is not enough, it reserves the
// memory of the first blocked task, as obtain does.
func (s *owner) awaitRoom() {
	s.drop(0, 1)
	s.unblock()
	pl := &s.pipeline
	if len(pl.blocked) == 0 || !pl.onlyBlocked() {
		s.check, s.again = true, true
		return
	}
	first := pl.blocked[0]
	m := first.Data.(*making)
	extra := first.ResultBytes() - m.run.guess[m.cell]
	s.obtain(extra, func() {
		if len(pl.blocked) > 0 && pl.blocked[0] == first {
			s.unblockFirst(m, extra)
		} else { // a task of an earlier row is blocked now
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

// made processes the result for a cell, and takes its blob over.
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
		size = r.guess[m.cell] // a substitute may take its place
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

// settle releases the memory of the cell's blob, and corrects the guess to the size of
// the result.
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

// fault notes that a cell could not be read or made. If the store or an operator's engine
// is unavailable, that is no fault of the sample, and the stream ends whatever on_error
// says. A client that resumes with its last ticket gets the sample. Otherwise an outage
// would fill a training set with nulls, and each substitute would wait until its read
// times out.
func (s *owner) fault(r *run, row, column int, err error) {
	name := s.columns[column].name
	if !s.job.Tolerant() || passes(err) {
		s.fail(s.sampleError(r.positions[row], r.rows[row], name, err))
	}
	r.faults = append(r.faults, fault{row, name, err})
}

// passes reports whether an error may be temporary: the store, or an operator's engine,
// is unavailable now.
func passes(err error) bool {
	return errors.Is(err, schema.ErrUnavailable) && !errors.Is(err, schema.ErrDataLoss)
}

// onlyBlocked reports whether nothing in flight will arrive by itself: only blocked tasks are
// left.
func (pl *pipeline) onlyBlocked() bool { return pl.inFlight == len(pl.blocked) }

// unmake drops the tasks of dropped runs that have not begun.
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

// closeStage cancels the tasks that have not begun. The stream is gone.
func (s *owner) closeStage() {
	if s.stage == nil {
		return
	}
	for _, t := range s.stage.Close() {
		// makeNow may wait for the task.
		t.To.Made(t, operators.Outcome{Err: context.Canceled})
	}
	for _, t := range s.pipeline.blocked {
		t.Cell.Release()
	}
	s.pipeline.blocked = nil
}

// dropTask cancels a task that has not begun, and releases its cell.
func dropTask(t *operators.Task) {
	t.Data.(*making).once.abandon()
	t.Cell.Release()
}

// instant is a Receiver of one cell that makeNow waits for.
type instant chan operators.Outcome

// Room implements operators.Receiver. There is room: the cell replaces a faulty one.
func (instant) Room(*operators.Task, int64) bool { return true }

// Made implements operators.Receiver.
func (c instant) Made(t *operators.Task, o operators.Outcome) {
	t.Cell.Release()
	c <- o
}

// makeNow runs a column's operators on a substitute's cell, outside the window, waits for
// the result, and takes the cell's blob over. The consumer's goroutine calls it.
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

package fetch

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"bowstring/schema"
)

// Batch is one record batch of a stream: the whole or a part of its rank's
// share of a step. The consumer owns it and calls Release when the bytes are
// out; until then the batch counts against the stream's window, also after
// the stream was closed.
type Batch struct {
	*schema.Batch
	Rank int
	Step int64
	// Row is where the batch begins in its rank's share of the step, in rows.
	Row int64
	// Last says that the share ends with this batch.
	Last bool
	// Positions are the rows' positions in the snapshot, in the order served.
	Positions []int64
	// Resume is the ticket that goes on after this batch.
	Resume schema.Ticket
	// Faults lists the samples that could not be read, where the request's
	// on_error lets the stream go on.
	Faults []Fault
	Wait   Wait
}

// Wait says where the time of a batch went that its consumer may have waited.
type Wait struct {
	// Store is how long the consumer's side of the stream stood still because
	// reads of this batch were not back.
	Store time.Duration
	// Window is how long reading stood still since the last batch because the
	// window was full, that is, because the consumer was slower.
	Window time.Duration
	// Encode is how long it took to put the batch together.
	Encode time.Duration
}

// Fault is a sample that could not be read.
type Fault struct {
	Position   int64  `json:"position"`
	ID         string `json:"id"`
	Column     string `json:"column"`
	Cause      string `json:"cause"`
	Substitute *int64 `json:"substitute,omitempty"` // position of the sample sent in its place, if one was
}

// Stream serves a ticket: it reads samples ahead of its consumer, in the order
// of the plan, while the window has room. Next is for one goroutine at a time;
// Close may be called from another.
//
// Its reading goroutines take single cells in the plan's order; whichever
// completes first is kept until its batch is whole. They end with the stream's
// context and are waited for by Close.
type Stream struct {
	engine   *Engine
	job      *Job
	snapshot *openSnapshot
	ticket   schema.Ticket
	columns  []blobColumn
	ctx      context.Context
	cancel   context.CancelCauseFunc
	workers  sync.WaitGroup
	unwatch  func() bool
	closing  sync.Once

	window window // its mutex guards all that follows

	cursor    cursor
	ended     bool    // the cursor has no more parts
	parts     []*part // made and not yet delivered; the first is the one to deliver next
	filling   int     // index in parts of the part with cells not yet taken; len(parts) if none
	started   int     // reading goroutines
	waiting   bool    // Next waits for the first part
	full      int     // reading goroutines that wait for room in the window
	fullSince time.Time
	fullFor   time.Duration // since the last batch
}

// blobColumn is a blob column that the stream reads.
type blobColumn struct {
	ordinal int // among the snapshot's blob columns
	name    string
}

// part is a record batch in the making.
type part struct {
	step, row int64
	last      bool
	positions []int64
	blobs     [][]schema.Blob // by blob column, by row
	taken     int             // cells handed to readers, column by column within a row
	pending   int             // cells not yet back
	reserved  int64           // bytes of the window
	faults    []fault
}

// fault is a cell that could not be read.
type fault struct {
	row, column int
	err         error
}

// cell is one blob to read.
type cell struct {
	part        *part
	row, column int
	ref         schema.BlobRef
}

// Stream starts to serve a ticket of the job. The stream ends with ctx.
func (e *Engine) Stream(ctx context.Context, j *Job, t schema.Ticket) (*Stream, error) {
	c, err := newPlanCursor(j, t)
	if err != nil {
		return nil, err
	}
	t.Request = j.request // with the snapshot's number, for the resume tickets
	return e.start(ctx, j, t, c)
}

// Take starts to serve the samples at the given positions, in their order,
// repeats included. Each batch's Row is its offset in positions; Resume is not
// set.
func (e *Engine) Take(ctx context.Context, j *Job, positions []int64) (*Stream, error) {
	rows := j.Manifest().Rows()
	for i, p := range positions {
		if p < 0 || p >= rows {
			return nil, &schema.FieldError{Field: fmt.Sprintf("position[%d]", i), Got: fmt.Sprint(p), Want: fmt.Sprintf("0 to %d, the positions of %s", rows-1, j.snapshot.key)}
		}
	}
	t := schema.Ticket{Request: j.request}
	return e.start(ctx, j, t, &listCursor{sizer: newSizer(j), positions: positions})
}

func (e *Engine) start(ctx context.Context, j *Job, t schema.Ticket, c cursor) (*Stream, error) {
	s := &Stream{engine: e, job: j, snapshot: j.snapshot, ticket: t, cursor: c}
	s.window.init(e.opts.StreamReads)
	blobs := schema.BlobFields(j.Manifest().Snapshot().Schema)
	for _, ordinal := range j.projection.BlobColumns() {
		s.columns = append(s.columns, blobColumn{ordinal, blobs[ordinal].Name})
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	if err := e.register(s); err != nil {
		s.cancel(nil)
		return nil, err
	}
	s.snapshot.retain()
	s.unwatch = context.AfterFunc(s.ctx, func() {
		s.window.mu.Lock()
		defer s.window.mu.Unlock()
		s.window.cond.Broadcast()
	})
	s.window.mu.Lock()
	defer s.window.mu.Unlock()
	s.startReaders()
	return s, nil
}

// Close ends the stream, waits for its reads, and releases what was not
// delivered. Further calls do nothing.
func (s *Stream) Close() {
	s.closing.Do(func() {
		s.cancel(context.Canceled)
		s.workers.Wait()
		s.unwatch()
		for _, p := range s.parts {
			p.release()
		}
		s.parts = nil
		s.snapshot.release()
		s.engine.unregister(s)
	})
}

func (p *part) release() {
	for _, column := range p.blobs {
		for i := range column {
			column[i].Release()
		}
	}
}

// startReaders brings the number of reading goroutines up to what the window
// allows. The window's lock is held.
func (s *Stream) startReaders() {
	if len(s.columns) == 0 || s.ended || s.ctx.Err() != nil {
		return
	}
	for s.started < s.window.reads {
		s.started++
		s.workers.Go(s.readCells)
	}
}

// readCells is a reading goroutine.
func (s *Stream) readCells() {
	for {
		c, ok := s.takeCell()
		if !ok {
			return
		}
		start := time.Now()
		blob, err := s.engine.read(s.ctx, c.ref)
		s.putCell(c, start, blob, err)
	}
}

// takeCell waits for room in the window and returns the next cell to read, or
// false at the end. Null cells are skipped.
func (s *Stream) takeCell() (cell, bool) {
	w := &s.window
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if s.ctx.Err() != nil {
			return cell{}, false
		}
		if s.filling == len(s.parts) && !s.addPart() {
			return cell{}, false
		}
		p := s.parts[s.filling]
		if p.taken == len(p.positions)*len(s.columns) {
			s.filling++
			continue
		}
		row, column := p.taken/len(s.columns), p.taken%len(s.columns)
		ref, ok := s.job.Manifest().Blob(s.columns[column].ordinal, p.positions[row])
		if !ok {
			p.taken++
			s.cellDone(p)
			continue
		}
		// The part that the consumer needs next is always read, or a window
		// smaller than it would stop the stream for good.
		if s.filling > 0 && w.used+ref.Size > w.size {
			s.waitForRoom()
			continue
		}
		p.taken++
		p.reserved += ref.Size
		w.used += ref.Size
		return cell{p, row, column, ref}, true
	}
}

// addPart makes the next part; the window's lock is held.
func (s *Stream) addPart() bool {
	if s.ended {
		return false
	}
	p := s.cursor.next()
	if p == nil {
		s.ended = true
		s.window.cond.Broadcast() // Next may wait for a part
		return false
	}
	p.blobs = make([][]schema.Blob, len(s.columns))
	cells := make([]schema.Blob, len(s.columns)*len(p.positions))
	for i := range p.blobs {
		p.blobs[i] = cells[i*len(p.positions) : (i+1)*len(p.positions)]
	}
	p.pending = len(cells)
	s.parts = append(s.parts, p)
	return true
}

// waitForRoom waits for a change of the window, counting the time.
func (s *Stream) waitForRoom() {
	if s.full == 0 {
		s.fullSince = time.Now()
	}
	s.full++
	s.window.cond.Wait()
	s.full--
	if s.full == 0 {
		s.fullFor += time.Since(s.fullSince)
	}
}

// putCell records what became of a read that began at start.
func (s *Stream) putCell(c cell, start time.Time, blob schema.Blob, err error) {
	w := &s.window
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		if s.ctx.Err() == nil && !s.job.tolerant() {
			s.cancel(s.sampleError(c.part.positions[c.row], c.column, err))
		}
		c.part.faults = append(c.part.faults, fault{c.row, c.column, err})
	} else {
		c.part.blobs[c.column][c.row] = blob
		w.completed(c.ref.Size, start)
		if s.waiting {
			w.grow(c.ref.Size)
			s.startReaders()
		}
	}
	s.cellDone(c.part)
}

// cellDone counts a cell in; the window's lock is held.
func (s *Stream) cellDone(p *part) {
	p.pending--
	if p.pending == 0 && p == s.parts[0] {
		s.window.cond.Broadcast()
	}
}

// sampleError says which sample failed.
func (s *Stream) sampleError(position int64, column int, err error) error {
	return fmt.Errorf("sample %s (position %d of %s), column %q: %w",
		schema.FormatID(s.job.Manifest().ID(position)), position, s.snapshot.key, s.columns[column].name, err)
}

// Next returns the next batch, io.EOF after the last. The error of a stream
// that failed is returned again by every further call.
func (s *Stream) Next() (*Batch, error) {
	p, wait, err := s.head()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	faults, err := s.mend(p)
	if err != nil {
		p.release()
		s.window.free(p.reserved)
		s.cancel(err)
		return nil, err
	}
	assembled, err := s.job.projection.Assemble(s.job.Manifest(), p.positions, p.blobs)
	if err != nil {
		s.window.free(p.reserved)
		err = fmt.Errorf("putting step %d of %s together: %w", p.step, s.snapshot.key, err)
		s.cancel(err)
		return nil, err
	}
	// The batch points into the manifest, and fills the window, until it is
	// released like its blobs.
	s.snapshot.retain()
	hold := schema.NewBlob(nil, &batchHold{&s.window, p.reserved, s.snapshot})
	assembled.Blobs = append(assembled.Blobs, []schema.Blob{hold})
	wait.Encode = time.Since(start)
	s.engine.stats.batches.Add(1)
	s.engine.stats.rows.Add(int64(len(p.positions)))
	return &Batch{
		Batch: assembled, Rank: s.ticket.Rank, Step: p.step, Row: p.row, Last: p.last,
		Positions: p.positions, Resume: s.resume(p), Faults: faults, Wait: wait,
	}, nil
}

// batchHold is what a batch holds beside its blobs: a part of the window, and
// the snapshot.
type batchHold struct {
	window   *window
	bytes    int64
	snapshot *openSnapshot
}

// Unpin implements schema.Owner.
func (h *batchHold) Unpin() {
	h.window.free(h.bytes)
	h.snapshot.release()
}

// head waits until the first part is whole and takes it off the list.
func (s *Stream) head() (*part, Wait, error) {
	w := &s.window
	w.mu.Lock()
	defer w.mu.Unlock()
	var wait Wait
	var start time.Time
	for {
		if s.ctx.Err() != nil {
			return nil, wait, context.Cause(s.ctx)
		}
		if len(s.parts) == 0 && !s.addPart() {
			return nil, wait, io.EOF
		}
		if s.parts[0].pending == 0 {
			break
		}
		if start.IsZero() {
			start = time.Now()
		}
		s.waiting = true
		w.cond.Wait()
		s.waiting = false
	}
	if !start.IsZero() {
		wait.Store = time.Since(start)
	}
	if s.full > 0 {
		now := time.Now()
		s.fullFor += now.Sub(s.fullSince)
		s.fullSince = now
	}
	wait.Window, s.fullFor = s.fullFor, 0
	p := s.parts[0]
	s.parts = slices.Delete(s.parts, 0, 1)
	s.filling = max(0, s.filling-1)
	w.cond.Broadcast() // the next part is first now, and read whatever the window
	return p, wait, nil
}

// resume is the ticket that goes on after p.
func (s *Stream) resume(p *part) schema.Ticket {
	t := s.ticket
	t.Step, t.Row = p.step, p.row+int64(len(p.positions))
	if p.last {
		t.Step, t.Row = p.step+max(t.Stride, 1), 0
		if t.Stop != nil {
			t.Step = min(t.Step, *t.Stop)
		}
	}
	return t
}

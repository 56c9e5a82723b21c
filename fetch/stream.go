package fetch

import (
	"context"
	"fmt"
	"io"
	"math/bits"
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
	Rank  int
	Epoch uint64
	Step  int64
	// Row is where the batch begins in its rank's share of the step, in rows.
	// Out of order, Step and Row count what was served: rows of other steps may
	// fill the share.
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
	// reads of this batch were not back from the store, Spill because they were
	// not back from the spill. Of several reads, the one waited for last counts.
	Store time.Duration
	Spill time.Duration
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

// Stream serves a ticket: its samples are read ahead of its consumer, while the
// window has room. Next is for one goroutine at a time; Close may be called from
// another.
//
// The scheduler takes single cells from it in the plan's order; whichever comes
// back first is kept until a batch is whole. A stream has no goroutine.
type Stream struct {
	engine  *Engine
	job     *Job
	ticket  schema.Ticket
	columns []blobColumn
	order   order
	ctx     context.Context //nolint:containedctx // a stream is a call under way
	cancel  context.CancelCauseFunc
	unwatch func() bool
	closing sync.Once

	// All that follows is guarded by scheduler.mu, but for slot and sizer of a
	// stream without blob columns, which are Next's own.
	cond    sync.Cond // told when Next may go on
	window  window
	ahead   ahead
	slot    walk // how far was delivered
	sizer   sizer
	wanted  wanted // what Next waits for, while waiting
	waiting bool
	spilled bool // what came back last came from the spill
	gone    bool // closed

	group   *group
	queued  bool      // in its group's turns
	dataset uint32    // the spill's number of the snapshot
	live    *liveJob  // what it belongs to, as the spill sees it; nil if there is none
	opened  time.Time // when it began

	fullSince time.Time     // since when reading stands still for want of room, zero if it does not
	fullFor   time.Duration // how long it did since the last batch
	waited    Wait          // sums of all batches
}

// blobColumn is a blob column that the stream reads.
type blobColumn struct {
	ordinal int // among the snapshot's blob columns
	name    string
}

// Stream starts to serve a ticket of the job. The stream ends with ctx.
func (e *Engine) Stream(ctx context.Context, j *Job, t schema.Ticket) (*Stream, error) {
	w, err := newWalk(j, t)
	if err != nil {
		return nil, err
	}
	t.Request = j.Request() // with the snapshot's number, for the resume tickets
	s := &Stream{engine: e, job: j, ticket: t, order: orderOf(j.Request()), slot: w}
	s.ahead.walk, s.ahead.served = w, t.Served
	if n := len(t.Served); n > 0 {
		last := w
		if !last.skip(int64(8*n - bits.LeadingZeros8(t.Served[n-1]))) {
			return nil, &schema.FieldError{Field: "served", Got: fmt.Sprintf("%d bytes of bits", n), Want: "no bit for a row after the epoch's end"}
		}
		for _, b := range t.Served {
			s.slot.skip(int64(bits.OnesCount8(b)))
		}
	}
	return s, e.start(ctx, s)
}

// Take starts to serve the samples at the given positions, in their order,
// repeats included. Each batch's Row is its offset in positions; Resume is not
// set.
func (e *Engine) Take(ctx context.Context, j *Job, positions []int64) (*Stream, error) {
	rows := j.Manifest().Rows()
	for i, p := range positions {
		if p < 0 || p >= rows {
			return nil, &schema.FieldError{Field: fmt.Sprintf("position[%d]", i), Got: fmt.Sprint(p), Want: fmt.Sprintf("0 to %d, the positions of %s", rows-1, j.SnapshotName())}
		}
	}
	w := walk{job: j, list: positions, hi: int64(len(positions)), stride: 1, laps: 1}
	s := &Stream{engine: e, job: j, ticket: schema.Ticket{Request: j.Request()}, slot: w}
	s.ahead.walk = w
	return s, e.start(ctx, s)
}

func (e *Engine) start(ctx context.Context, s *Stream) error {
	j := s.job
	s.sizer = newSizer(j)
	s.ahead.most = maxAhead
	s.cond.L = &e.mu
	blobs := schema.BlobFields(j.Manifest().Snapshot().Schema)
	for _, ordinal := range j.Projection().BlobColumns() {
		s.columns = append(s.columns, blobColumn{ordinal, blobs[ordinal].Name})
	}
	if len(s.columns) > 0 && e.opts.Spill != nil {
		s.dataset = e.opts.Spill.Dataset(s.job.SnapshotName())
	}
	s.opened = time.Now()
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.slot.settle()
	s.job.Retain()
	if err := e.add(s); err != nil {
		s.cancel(nil)
		s.job.Release()
		return err
	}
	s.unwatch = context.AfterFunc(s.ctx, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		s.cond.Broadcast()
	})
	return nil
}

// Close ends the stream, gives up its reads, and releases what was not
// delivered. Further calls do nothing.
func (s *Stream) Close() {
	s.closing.Do(func() {
		s.cancel(context.Canceled)
		s.unwatch()
		s.engine.remove(s)
		s.ahead.release()
		s.job.Release()
		s.engine.live.Done()
	})
}

// sampleError says which sample failed.
func (s *Stream) sampleError(position int64, column int, err error) error {
	return fmt.Errorf("sample %s (position %d of %s), column %q: %w",
		schema.FormatID(s.job.Manifest().ID(position)), position, s.job.SnapshotName(), s.columns[column].name, err)
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
		s.engine.free(s, p.reserved)
		s.cancel(err)
		return nil, err
	}
	assembled, err := s.job.Projection().Assemble(s.job.Manifest(), p.positions, p.blobs)
	if err != nil {
		s.engine.free(s, p.reserved)
		err = fmt.Errorf("putting step %d of %s together: %w", p.walk.step, s.job.SnapshotName(), err)
		s.cancel(err)
		return nil, err
	}
	// The batch points into the manifest, and fills the window, until it is
	// released like its blobs.
	s.job.Retain()
	hold := schema.NewBlob(nil, &batchHold{s, p.reserved})
	assembled.Blobs = append(assembled.Blobs, []schema.Blob{hold})
	wait.Encode = time.Since(start)
	s.engine.delivered(s, len(p.positions), wait)
	return &Batch{
		Batch: assembled, Rank: s.ticket.Rank, Epoch: s.epochOf(p.walk.lap), Step: p.walk.step, Row: p.walk.row(), Last: p.last,
		Positions: p.positions, Resume: p.resume, Faults: faults, Wait: wait,
	}, nil
}

// epochOf is the epoch's number, 0 where nothing is shuffled.
func (s *Stream) epochOf(lap int64) uint64 {
	if s.ticket.Shuffle == nil {
		return 0
	}
	return s.ticket.Shuffle.Epoch + uint64(lap)
}

// batchHold is what a batch holds beside its blobs: a part of the window, and
// the snapshot.
type batchHold struct {
	stream *Stream
	bytes  int64
}

// Unpin implements schema.Owner.
func (h *batchHold) Unpin() {
	h.stream.engine.free(h.stream, h.bytes)
	h.stream.job.Release()
}

// head waits until the next batch's rows are there and takes them.
func (s *Stream) head() (*part, Wait, error) {
	if len(s.columns) == 0 {
		return s.unread()
	}
	e := s.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, Wait{}, context.Cause(s.ctx)
	}
	if s.slot.left() == 0 {
		return nil, Wait{}, io.EOF
	}
	var wait Wait
	p := s.gather()
	for p == nil {
		start := time.Now()
		e.want(s) // what the consumer needs next is read whatever the window
		e.dispatch()
		if p = s.gather(); p != nil { // a batch of nulls needs no read
			break
		}
		s.await()
		if took := time.Since(start); s.spilled {
			wait.Spill += took
		} else {
			wait.Store += took
		}
		if s.ctx.Err() != nil {
			return nil, wait, context.Cause(s.ctx)
		}
		p = s.gather()
	}
	if !s.fullSince.IsZero() {
		s.roomAgain()
		s.noRoom()
	}
	wait.Window, s.fullFor = s.fullFor, 0
	s.finishPart(p)
	// The share that comes next may be read whatever the window.
	if lap := s.slot.lap; s.slot.settle() && s.slot.lap != lap {
		s.recount()
	}
	e.want(s)
	e.dispatch()
	return p, wait, nil
}

// await waits until s.wanted is there, or the stream has ended.
func (s *Stream) await() {
	s.waiting = true
	s.engine.waiting++
	s.cond.Wait()
	s.waiting = false
	s.engine.waiting--
}

// unread makes a batch that has no blobs. It needs no lock: nobody but Next
// knows of it.
func (s *Stream) unread() (*part, Wait, error) {
	if s.ctx.Err() != nil {
		return nil, Wait{}, context.Cause(s.ctx)
	}
	if !s.slot.settle() {
		return nil, Wait{}, io.EOF
	}
	p := &part{walk: s.slot, positions: make([]int64, 0, min(s.slot.left(), schema.DefaultMetaBatch))}
	s.sizer.reset()
	a := &s.ahead
	for s.slot.left() > 0 && s.sizer.fits(0) {
		for served := true; served; a.seq++ {
			a.walk.settle()
			served = bit(a.served, a.seq)
			if pos := a.walk.take(); !served {
				p.positions = append(p.positions, pos)
			}
		}
		s.slot.at++
	}
	s.finishPart(p)
	return p, Wait{}, nil
}

// finishPart says how the stream stands after p.
func (s *Stream) finishPart(p *part) {
	p.last = s.slot.left() == 0
	if s.slot.list != nil {
		return
	}
	if served, from, ok := s.servedAhead(); ok {
		p.resume = from.ticket(s.ticket)
		p.resume.Served = served
		return
	}
	p.resume = s.slot.ticket(s.ticket)
}

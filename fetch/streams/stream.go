package streams

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"bowstring/fetch/admission"
	"bowstring/fetch/jobs"
	"bowstring/fetch/lookahead"
	"bowstring/fetch/store"
	"bowstring/fetch/tiers"
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
	// Peer is the same of reads from other nodes.
	Store time.Duration
	Spill time.Duration
	Peer  time.Duration
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
// Single cells are asked for in the plan's order; whichever comes back first is
// kept until a batch is whole. A stream has no goroutine.
type Stream struct {
	set     *Set
	job     *jobs.Job
	ticket  schema.Ticket
	columns []blobColumn
	order   order
	call    atomic.Pointer[call]
	unwatch func() bool
	closing sync.Once
	place   *admission.Stream[queued]
	part    *lookahead.Part
	id      uint64 // its number among those of the set
	named   []byte // the ticket as JSON, if anybody asks
	caller  store.Caller
	tenant  *tenant       // set before it is read by anybody else
	account tiers.Account // what was read for it
	dataset uint32        // the spill's number of the snapshot
	payer   uint16        // the spill's number of the tenant
	opened  time.Time     // when it began
	steps   int64         // of an epoch, 0 if there is no plan
	queued  atomic.Int64  // cells that wait for their turn
	told    told
	trace   *tiers.Trace // nil if nobody traces it
	first   trace.Span   // until the first batch, if somebody does; nil otherwise

	mu       lock
	cond     sync.Cond // told when Next may go on
	window   window
	hold     *admission.Hold // what the window, and batches that were not released, have of the ledger
	path     tiers.Path      // as it was when Next was last called
	ahead    ahead
	slot     walk // how far was delivered
	sizer    sizer
	wanted   wanted // what Next waits for, while waiting
	waiting  bool
	from     tiers.From // where what came back last came from
	gone     bool       // closed
	orphaned bool       // what it has now is batches that were not released

	fullSince time.Time     // since when reading stands still for want of room, zero if it does not
	fullFor   time.Duration // how long it did since the last batch
	waited    Wait          // sums of all batches
}

// call is what a stream serves: a context that it can end. A stream lets go of it
// when it is closed: it leads to what a transport has, batches of this stream
// among it, and nothing that a batch leads to may, or the collector would never
// find one that was dropped.
type call struct {
	ctx    context.Context //nolint:containedctx // a stream is a call under way
	cancel context.CancelCauseFunc
}

func newCall(ctx context.Context) *call {
	ctx, cancel := context.WithCancelCause(ctx)
	return &call{ctx, cancel}
}

// context is that of the call.
func (s *Stream) context() context.Context { return s.call.Load().ctx }

// fail ends the stream with an error.
func (s *Stream) fail(err error) { s.call.Load().cancel(err) }

// blobColumn is a blob column that the stream reads.
type blobColumn struct {
	ordinal int // among the snapshot's blob columns
	name    string
}

// Open starts to serve a ticket of the job. The stream ends with ctx.
func (s *Set) Open(ctx context.Context, j *jobs.Job, t schema.Ticket) (*Stream, error) {
	w, err := newWalk(j, t)
	if err != nil {
		return nil, err
	}
	t.Request = j.Request() // with the snapshot's number, for the resume tickets
	st := &Stream{set: s, job: j, ticket: t, order: orderOf(t.Request), slot: w}
	st.mu.stream = st
	st.ahead.init(w, t.Served, s.opts.MaxAhead)
	if n := len(t.Served); n > 0 {
		last := w
		if !last.skip(int64(8*n - bits.LeadingZeros8(t.Served[n-1]))) {
			return nil, &schema.FieldError{Field: "served", Got: fmt.Sprintf("%d bytes of bits", n), Want: "no bit for a row after the epoch's end"}
		}
		for _, b := range t.Served {
			st.slot.skip(int64(bits.OnesCount8(b)))
		}
	}
	return st, s.start(ctx, st)
}

// Take starts to serve the samples at the given positions, in their order,
// repeats included. Each batch's Row is its offset in positions; Resume is not
// set.
func (s *Set) Take(ctx context.Context, j *jobs.Job, positions []int64) (*Stream, error) {
	for i, p := range positions {
		if !j.Sees(p) {
			return nil, j.CheckPosition(fmt.Sprintf("position[%d]", i), p)
		}
	}
	w := walk{job: j, list: positions, hi: int64(len(positions)), stride: 1, laps: 1}
	st := &Stream{set: s, job: j, ticket: schema.Ticket{Request: j.Request()}, slot: w}
	st.mu.stream = st
	st.ahead.init(w, nil, s.opts.MaxAhead)
	return st, s.start(ctx, st)
}

func (s *Set) start(ctx context.Context, st *Stream) error {
	j := st.job
	st.sizer = newSizer(j)
	st.cond.L = &st.mu
	blobs := schema.BlobFields(j.Manifest().Snapshot().Schema)
	for _, ordinal := range j.Projection().BlobColumns() {
		st.columns = append(st.columns, blobColumn{ordinal, blobs[ordinal].Name})
	}
	st.opened = time.Now()
	st.call.Store(newCall(ctx))
	if st.slot.list == nil {
		st.steps = j.Plan().Steps()
		if s.opts.Told {
			named := st.ticket
			named.Served = nil // which may be long, and says little of what comes
			st.named = named.Marshal()
		}
	}
	st.id = s.ids.Add(1)
	if st.trace = tiers.NewTrace(ctx); st.trace != nil {
		_, st.first = trace.SpanFromContext(ctx).TracerProvider().Tracer("bowstring/fetch").Start(ctx, "first batch")
	}
	st.slot.settle()
	st.caller = store.CallerFrom(ctx)
	st.hold, _ = s.opts.Ledger.TryFor(admission.Windows, st.caller.Tenant, 0)
	j.Retain()
	if err := s.add(st); err != nil {
		st.fail(nil)
		st.endFirst()
		j.Release()
		return err
	}
	if len(st.columns) > 0 {
		st.dataset, st.payer = s.opts.Ahead.Dataset(j), s.opts.Ahead.Tenant(st.tenant.name)
		if st.slot.list == nil {
			st.part = s.opts.Ahead.Follow(j, st.payer, st.ticket.Rank, st.slot.at, st.ticket.Epochs)
		}
		st.account.Tenant = st.tenant.reads
		st.place = s.queue.Open(st.tenant.name, s.weightFor(st.tenant.name), j.Group())
		st.path = s.opts.Reader.Path()
		st.window.init(st.opened, st.path, st.tenant.share.Load())
	}
	st.unwatch = context.AfterFunc(st.context(), func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.cond.Broadcast()
	})
	st.refill()
	s.pump()
	return nil
}

// Close ends the stream, gives up its reads, and releases what was not
// delivered. Further calls do nothing.
func (s *Stream) Close() {
	s.closing.Do(func() {
		cause := context.Canceled
		if ctx := s.context(); ctx.Err() != nil {
			cause = context.Cause(ctx)
		}
		s.fail(context.Canceled)
		s.endFirst()
		s.unwatch()
		s.unwatch = nil
		ended := newCall(context.Background())
		ended.cancel(cause)
		s.call.Store(ended)
		s.mu.Lock()
		s.gone = true
		lap, index := s.readsLocked()
		s.mu.Unlock()
		if s.place != nil {
			s.place.Close()
			s.set.opts.Reader.Leave(func(to tiers.Receiver, _ tiers.Token) bool { return to == tiers.Receiver(s) })
			s.part.Advance(lap, index)
		}
		s.mu.Lock()
		s.releaseLocked()
		s.orphaned = true
		s.set.orphans.add(s.window.used)
		s.mu.Unlock()
		s.part.Leave()
		s.set.remove(s)
		s.job.Release()
		s.set.pump() // others may have what it had
		s.set.live.Done()
	})
}

// sampleError says which sample failed.
func (s *Stream) sampleError(position int64, row schema.Row, column int, err error) error {
	return fmt.Errorf("sample %s (position %d of %s), column %q: %w",
		cmp.Or(s.job.ShownID(row.ID()), "of hidden id"), position, s.job.SnapshotName(), s.columns[column].name, err)
}

// Next returns the next batch, io.EOF after the last. The error of a stream
// that failed is returned again by every further call.
func (s *Stream) Next() (*Batch, error) {
	p, wait, err := s.head()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var faults []Fault
	if p.pieces != nil {
		if p.positions, err = s.positionsOf(p.pieces); err == nil {
			p.rows, err = s.job.Manifest().At(s.context(), p.positions)
		}
		wait.Store += time.Since(start)
	}
	if err == nil {
		err = schema.Guard(func() (err error) {
			faults, err = s.mend(p)
			return err
		})
	}
	if err != nil {
		p.release()
		s.free(p.reserved)
		s.fail(err)
		return nil, err
	}
	start = time.Now()
	assembled, err := s.job.Projection().AssembleRows(s.job.Manifest().Form(), p.positions, p.rows, p.blobs)
	if err != nil {
		s.free(p.reserved)
		err = fmt.Errorf("putting step %d of %s together: %w", p.walk.step, s.job.SnapshotName(), err)
		s.fail(err)
		return nil, err
	}
	// The batch points into the manifest, and fills the window, until it is
	// released like its blobs.
	s.job.Retain()
	s.set.transit.Add(p.reserved)
	s.tenant.transit.Add(p.reserved)
	hold := schema.NewBlob(nil, &batchHold{s, p.reserved})
	assembled.Blobs = append(assembled.Blobs, []schema.Blob{hold})
	wait.Encode = time.Since(start)
	s.delivered(len(p.positions), wait)
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

// delivered counts a batch.
func (s *Stream) delivered(rows int, w Wait) {
	s.endFirst()
	c := &s.set.count
	c.batches.Add(1)
	c.rows.Add(int64(rows))
	c.waited.Add(int64(w.Store))
	s.mu.Lock()
	s.waited.Store += w.Store
	s.waited.Spill += w.Spill
	s.waited.Peer += w.Peer
	s.waited.Window += w.Window
	s.waited.Encode += w.Encode
	lap, index := s.readsLocked()
	s.mu.Unlock()
	s.part.Advance(lap, index)
}

// endFirst ends the span of the first batch. It may be called again.
func (s *Stream) endFirst() {
	if s.first != nil {
		s.first.End()
	}
}

// batchHold is what a batch holds beside its blobs: a part of the window, and
// the snapshot.
type batchHold struct {
	stream *Stream
	bytes  int64
}

// Unpin implements schema.Owner.
func (h *batchHold) Unpin() {
	h.stream.set.transit.Add(-h.bytes)
	h.stream.tenant.transit.Add(-h.bytes)
	h.stream.free(h.bytes)
	h.stream.job.Release()
}

// head waits until the next batch's rows are there and takes them.
func (s *Stream) head() (*part, Wait, error) {
	if len(s.columns) == 0 {
		return s.unread()
	}
	path := s.set.opts.Reader.Path()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.path = path
	if s.context().Err() != nil {
		return nil, Wait{}, context.Cause(s.context())
	}
	if s.slot.left() == 0 {
		return nil, Wait{}, io.EOF
	}
	var wait Wait
	p := s.gatherLocked()
	for p == nil {
		start := time.Now()
		if err := s.awaitLocked(); err != nil {
			return nil, wait, err
		}
		switch took := time.Since(start); s.from {
		case tiers.FromSpill:
			wait.Spill += took
		case tiers.FromPeer:
			wait.Peer += took
		default:
			wait.Store += took
		}
		p = s.gatherLocked()
	}
	if !s.fullSince.IsZero() {
		s.roomAgainLocked()
		s.noRoomLocked()
	}
	wait.Window, s.fullFor = s.fullFor, 0
	s.finishPartLocked(p)
	s.slot.settle() // the share that comes next may be read whatever the window
	s.ahead.promote(s)
	s.refillLocked()
	s.mu.Unlock()
	s.set.pump()
	s.mu.Lock()
	return p, wait, nil
}

// awaitLocked has what the consumer needs next read, whatever the window, and
// waits until s.wanted is there, or more of it can be asked for. It fails where
// the stream has ended, or a sample is too large for all memory.
func (s *Stream) awaitLocked() error {
	before := s.ahead.backs
	s.refillLocked()
	need := s.ahead.needs()
	s.mu.Unlock()
	s.set.pump()
	if need > 0 {
		// Not even the next sample has room: others have it all.
		more, err := s.set.reserve(s.context(), s.tenant, need)
		s.mu.Lock()
		if err != nil {
			if s.context().Err() != nil {
				return context.Cause(s.context())
			}
			err = errNoMemory(err, fmt.Sprintf("reading the next sample of %s", s.job.SnapshotName()))
			s.fail(err)
			return err
		}
		if s.gone { // nobody would give it back
			more.Release()
			return context.Cause(s.context())
		}
		s.hold.Take(more)
		s.ahead.granted += need
		return nil
	}
	s.mu.Lock()
	if s.context().Err() != nil {
		return context.Cause(s.context())
	}
	if s.ahead.paused || s.ahead.backs != before || s.ahead.inFlight == 0 && !s.ahead.loading() {
		return nil // planning goes on, or something has come meanwhile
	}
	s.waiting = true
	s.set.waiting.Add(1)
	s.cond.Wait()
	s.waiting = false
	s.set.waiting.Add(-1)
	if s.context().Err() != nil {
		return context.Cause(s.context())
	}
	return nil
}

// unread makes a batch that has no blobs: metadata, or nothing at all.
func (s *Stream) unread() (*part, Wait, error) {
	if s.context().Err() != nil {
		return nil, Wait{}, context.Cause(s.context())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.slot.settle() {
		return nil, Wait{}, io.EOF
	}
	rows := min(s.slot.left(), schema.DefaultMetaBatch)
	if most := min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant)); s.sizer.rowBytes > 0 {
		rows = min(rows, max(most/s.sizer.rowBytes, 1))
	}
	reserved := rows * s.sizer.rowBytes
	s.mu.Unlock()
	more, err := s.set.reserve(s.context(), s.tenant, reserved)
	s.mu.Lock()
	if err != nil {
		if s.context().Err() != nil {
			return nil, Wait{}, context.Cause(s.context())
		}
		return nil, Wait{}, errNoMemory(err, fmt.Sprintf("reading the next row of %s", s.job.SnapshotName()))
	}
	if s.gone { // nobody would give it back
		more.Release()
		return nil, Wait{}, context.Cause(s.context())
	}
	s.hold.Take(more)
	s.window.used += reserved
	p := &part{walk: s.slot, pieces: s.ahead.nextUnread(rows), reserved: reserved}
	s.slot.at += rows
	s.finishPartLocked(p)
	if m := s.job.Manifest(); !m.Resident() {
		m.Ahead(s.context(), s.ahead.soonUnread(min(rows, maxDrafted)))
	}
	return p, Wait{}, nil
}

// finishPartLocked says how the stream stands after p.
func (s *Stream) finishPartLocked(p *part) {
	p.last = s.slot.left() == 0
	if s.slot.list != nil {
		return
	}
	if !s.order.loose {
		p.resume = s.slot.ticket(s.ticket)
		return
	}
	p.resume = s.ahead.first.ticket(s.ticket)
	p.resume.Served = s.ahead.served.from(s.ahead.firstRow)
}

package prefetch

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"bowstring/fetch/admission"
	"bowstring/fetch/lineage"
	"bowstring/fetch/operators"
	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/fetch/upcoming"
	"bowstring/schema"
)

// Stream serves a ticket. It prefetches samples while the window has room. One
// goroutine at a time may call Next; another one may call Close.
//
// Cells are requested in the plan's order, and kept in the order in which they arrive
// until a batch is complete. The state that changes belongs to one goroutine, and other
// goroutines send it messages: see owner. The fields here do not change once that
// goroutine runs, except where their comment says so.
type Stream struct {
	set          *Set
	job          *resolve.Job
	ticket       schema.Ticket
	shows        *schema.Projection // the job's, with the rank's slice of sequences
	columns      []blobColumn
	order        order
	mail         mail
	next         chan handed   // has room for one
	done         chan struct{} // closed when its goroutine has ended
	call         atomic.Pointer[call]
	unwatch      func() bool
	late         bool // its consumer checks blobs: Serving.CheckedLate
	closing      sync.Once
	place        *read.Place
	stage        *operators.Place // nil if no column has operators
	program      string           // all operators of the request; "" without a stage
	part         *upcoming.Part
	id           uint64 // unique in the set
	named        []byte // the ticket as JSON, for SendProgress; nil without it
	caller       store.Caller
	tenant       *tenant         // set before another goroutine reads it
	account      read.Account    // what was read for the stream
	places       upcoming.Places // of its samples
	payer        uint16          // the spill's number of the tenant
	opened       time.Time       // when the stream was opened
	steps        int64           // of an epoch, 0 if there is no plan
	behind       atomic.Bool     // it may request more blobs, and has not yet
	idle         atomic.Bool     // no batch was asked for since idleAfter; changed by the stream's goroutine
	published    published       // its state, for other goroutines
	sequence     string          // names the ranks that get the same samples; "" if there is only one
	begins       spot            // the first row
	group        *rankGroup      // those ranks; like claim, set before the stream runs
	claim        *claim
	continuation atomic.Pointer[schema.Ticket] // set at an end because weights change; else nil
	digester     digester                      // belongs to the consumer's goroutine
	served       atomic.Bool                   // the whole ticket was served; set before the stream is removed
	record       *lineage.Recorder             // records delivered rows; nil without lineage
	trace        *read.Trace                   // nil if the stream is not traced, as is the next one
	traceMade    *operators.Trace
	first        trace.Span // the span until the first batch; nil if the stream is not traced
}

// call is the call that a stream serves: a context that the stream can cancel. Close
// replaces it, because the context refers to state of the transport, and a consumer may
// keep a batch, which refers to its stream, for long.
type call struct {
	ctx    context.Context //nolint:containedctx // a stream is a call under way
	cancel context.CancelCauseFunc
}

func newCall(ctx context.Context) *call {
	ctx, cancel := context.WithCancelCause(ctx)
	return &call{ctx, cancel}
}

// context is the context of the call.
func (s *Stream) context() context.Context { return s.call.Load().ctx }

// fail ends the stream with an error.
func (s *Stream) fail(err error) { s.call.Load().cancel(err) }

// blobColumn is a blob column that the stream reads.
type blobColumn struct {
	ordinal int // among the snapshot's blob columns
	name    string
	made    *operators.Column // nil if its cells are served unchanged
	ratio   ratio             // size of results to cells; belongs to the stream's goroutine
}

// Serving is how a stream is served.
type Serving struct {
	// CheckedLate lets the stream deliver blobs whose checksums were not compared:
	// [schema.Buffer] says which. The consumer copies each of them, compares the copy, and
	// calls [Batch.Again] if it is wrong. So each byte is read from memory once, and the
	// bytes that were checked are the bytes that are delivered. Only blobs in mapped
	// files are delivered so, and only if an unreadable sample ends the stream, because
	// an assembled batch has no place for a substitute.
	CheckedLate bool
	// Unrecorded keeps the stream out of the lineage, for callers that only view data.
	Unrecorded bool
}

// Open starts to serve a ticket of the job. The stream ends with ctx, and the caller
// closes it. Errors are schema.FieldErrors of the ticket, or resolve.ErrSteered.
func (s *Set) Open(ctx context.Context, j *resolve.Job, t schema.Ticket, how Serving) (*Stream, error) {
	w, err := newWalk(j, t)
	if err != nil {
		return nil, err
	}
	if err := s.settle(ctx, j, j.RunStep(w.plan, w.step)+1); err != nil {
		return nil, err
	}
	t.Request = j.Request() // with the snapshot's number, for the resume tickets
	st := &owner{Stream: &Stream{set: s, job: j, ticket: t, order: orderOf(t.Request)}, slot: w}
	st.pipeline.init(w, t.Served, s.opts.MaxPrefetch)
	if n := len(t.Served); n > 0 {
		last := w
		for !last.skip(int64(8*n - bits.LeadingZeros8(t.Served[n-1]))) {
			if last.needs > 0 {
				if err := s.settle(ctx, j, last.needs); err != nil {
					return nil, err
				}
				last = w
				continue
			}
			return nil, &schema.FieldError{Field: "served", Got: fmt.Sprintf("%d bytes of bits", n),
				Want: "no bit for a row after the epoch's end"}
		}
		for _, b := range t.Served {
			st.slot.skip(int64(bits.OnesCount8(b)))
		}
	}
	return st.Stream, s.start(ctx, st, how)
}

// settle settles steps up to need for a stream that begins. It returns
// resolve.ErrSteered if the job does not have the weights of the last of these steps.
func (s *Set) settle(ctx context.Context, j *resolve.Job, need int64) error {
	if err := j.Settle(ctx, need, leastLeap); err != nil {
		return err
	}
	if j.Settled() < need {
		return resolve.ErrSteered
	}
	return nil
}

// Take starts to serve the samples at the given positions, in their order,
// repeats included. Each batch's Row is its offset in positions; Resume is not
// set.
func (s *Set) Take(ctx context.Context, j *resolve.Job, positions []int64) (*Stream, error) {
	if j.Request().Pack != nil {
		return nil, &schema.FieldError{Field: "pack", Got: "it with single positions",
			Want: "it left out: what is asked for is documents, and not sequences"}
	}
	for i, p := range positions {
		if !j.Sees(p) {
			return nil, j.CheckPosition(fmt.Sprintf("position[%d]", i), p)
		}
	}
	w := walk{job: j, list: positions, hi: int64(len(positions)), stride: 1, epochs: 1}
	st := &owner{Stream: &Stream{set: s, job: j, ticket: schema.Ticket{Request: j.Request()}}, slot: w}
	st.pipeline.init(w, nil, s.opts.MaxPrefetch)
	return st.Stream, s.start(ctx, st, Serving{})
}

func (s *Set) start(ctx context.Context, st *owner, how Serving) error {
	j := st.job
	st.sizer, st.shows = newSizer(j), j.Projection().SliceOf(j.Request().World, st.ticket.Rank)
	st.mail.wake, st.next, st.done = make(chan struct{}, 1), make(chan handed, 1), make(chan struct{})
	blobs := schema.BlobFields(j.Manifest().Snapshot().Schema)
	for _, ordinal := range j.Projection().BlobColumns() {
		name := blobs[ordinal].Name
		st.columns = append(st.columns, blobColumn{ordinal: ordinal, name: name, made: j.Operators().Column(name)})
	}
	st.opened = time.Now()
	st.left = st.opened
	st.call.Store(newCall(ctx))
	if st.slot.list == nil {
		st.steps = j.Plan().Steps()
		if s.opts.SendProgress != nil {
			named := st.ticket
			named.Served = nil // which may be long, and says little of what comes
			st.named = named.Marshal()
		}
	}
	if st.slot.list == nil && !how.Unrecorded {
		st.record = s.opts.Lineage.Begin(st.lineageHead(ctx))
	}
	st.late = how.CheckedLate && !j.Tolerant()
	if st.slot.list == nil && j.Request().Digest {
		st.digester.init(j, &st.ticket)
	}
	st.id = s.ids.Add(1)
	if st.trace, st.traceMade = read.NewTrace(ctx), operators.NewTrace(ctx); st.trace != nil {
		_, st.first = trace.SpanFromContext(ctx).TracerProvider().Tracer("bowstring/fetch").Start(ctx, "first batch")
	}
	st.slot.settle()
	st.caller = store.CallerFrom(ctx)
	st.hold, _ = s.opts.Ledger.TryFor(admission.Windows, st.caller.Tenant, 0)
	if st.slot.list == nil && len(st.columns) > 0 {
		st.sequence, st.begins = st.sequenceOf(), st.spotOf(st.slot.epochOffset, st.slot.at)
	}
	j.Retain()
	st.publish() // others see it from now on
	if err := s.add(st.Stream); err != nil {
		st.fail(nil)
		st.endFirst()
		j.Release()
		return err
	}
	if len(st.columns) > 0 {
		st.fallBehind()
		st.places, st.payer = s.opts.Upcoming.Places(j), s.opts.Upcoming.Tenant(st.tenant.name)
		if st.slot.list == nil {
			st.part = s.opts.Upcoming.Follow(j, st.payer, st.ticket.Rank, st.slot.at, st.ticket.Epochs)
		}
		st.account.Tenant = st.tenant.reads
		if j.Operators() != nil {
			st.openStage()
		}
		st.place = s.opts.Reader.Open(st.tenant.name, s.weightFor(st.tenant.name), j.Group(), st.Stream)
		if s.opts.There != nil && st.order.loose {
			st.reach = min(upcoming.Reach(j), st.pipeline.most-runRows)
		}
		st.attached = len(j.Manifest().Snapshot().Sets) > 0
		st.path = s.opts.Reader.Path(st.attached)
		st.window.init(st.opened, st.path, st.tenant.share.Load())
		if st.steps > 0 && !st.ticket.Restricted() {
			s.SendProgress() // before its first request, so that owners know the later ones
		}
		st.widen()
	}
	st.unwatch = context.AfterFunc(st.context(), st.recheck)
	go st.run()
	return nil
}

// Close ends the stream, cancels its reads, and releases what was not delivered. It
// waits for the stream's goroutine. Further calls do nothing. Delivered batches stay
// valid.
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
		s.do(func(o *owner) { o.ending = true })
		<-s.done
	})
}

// sampleError wraps an error with the sample that failed. The sample's id is in the
// manifest, which may itself be unreadable.
func (s *Stream) sampleError(position int64, row schema.Row, column string, err error) error {
	var id schema.ID
	shown := "of unreadable id"
	if schema.Guard(func() error {
		id = row.ID()
		return nil
	}) == nil {
		shown = cmp.Or(s.job.ShownID(id), "of hidden id")
	}
	snapshot, at := s.job.Where(position)
	return fmt.Errorf("sample %s (position %d of %s), column %q: %w", shown, at, snapshot, column, err)
}

// Next returns the next batch, io.EOF after the last. The error of a stream
// that failed is returned again by every further call.
func (s *Stream) Next() (*Batch, error) {
	if !s.do((*owner).come) {
		return nil, context.Cause(s.context())
	}
	got := <-s.next
	if got.err != nil {
		return nil, got.err
	}
	return s.assemble(got.part, got.wait, got.processor)
}

// Continuation is the ticket that continues after the last batch, if the stream ended
// because the weights of its run change. The caller opens the job again with it. It is
// false if the whole ticket was served.
func (s *Stream) Continuation() (schema.Ticket, bool) {
	if t := s.continuation.Load(); t != nil {
		return *t, true
	}
	return schema.Ticket{}, false
}

// Ready reports whether Next would return a whole batch at once. It is false for
// streams that do not need it: those without blobs, with a loose order, or at their
// end. It is false too if memory is scarce, because prefetched rows can be freed for
// streams that have nothing, and a batch that was taken cannot.
func (s *Stream) Ready() bool {
	if len(s.columns) == 0 || s.order.loose {
		return false
	}
	ready := false
	s.ask(func(s *owner) {
		if s.gone || s.slot.left() == 0 || s.context().Err() != nil {
			return
		}
		s.sizer.maxBytes = min(s.sizer.batchBytes, s.set.pieceBytes(s.tenant))
		ready = s.prefix(false) && s.set.roomy(s.tenant, s.sizer.bytes)
	})
	return ready
}

// do posts f to the stream's goroutine. It returns false if the goroutine has ended, so
// that f never runs.
func (s *Stream) do(f func(*owner)) bool {
	return s.mail.post(func(l *letters) { l.todo = append(l.todo, f) })
}

// ask is do, and waits until f has returned. It returns at once if the stream has ended.
func (s *Stream) ask(f func(*owner)) {
	done := make(chan struct{})
	if s.do(func(o *owner) { f(o); close(done) }) {
		<-done
	}
}

// recheck makes the stream's goroutine check for a batch and refill the window.
func (s *Stream) recheck() { s.mail.post(func(l *letters) { l.recheck = true }) }

// More implements read.Receiver.
func (s *Stream) More() {
	s.mail.post(func(l *letters) {
		l.recheck = true
		s.fallBehind()
	})
}

// fallBehind notes that the stream may request more. Until its goroutine has done so,
// the path to the store does not count as idle. Otherwise the prefetcher of the spill
// would take the path, and read the blobs that the stream is about to request.
func (s *Stream) fallBehind() {
	if !s.behind.Swap(true) {
		s.set.behind.Add(1)
	}
}

// catchUp is the opposite of fallBehind. Repeated calls do nothing.
func (s *Stream) catchUp() {
	if s.behind.Swap(false) {
		s.set.behind.Add(-1)
		s.set.opts.Upcoming.Wake()
	}
}

// Receive implements read.Receiver.
func (s *Stream) Receive(list []read.Outcome) {
	if s.mail.post(func(l *letters) { l.answers = append(l.answers, list...) }) {
		return
	}
	for i := range list {
		list[i].Blob.Release()
	}
}

// free returns the memory of a batch to the ledger. Any goroutine may call it. It does
// not refill the window itself: the stream's goroutine does.
func (s *Stream) free(h *admission.Hold) {
	n := h.Bytes()
	h.Release()
	s.mail.post(func(l *letters) { l.freed += n })
}

// giveBack frees prefetched data of the stream, last rows first, until it holds at most
// that many bytes. The rows are planned and read again when there is room; their rows
// of the manifest stay known. It frees nothing while the consumer waits.
func (s *Stream) giveBack(most int64) {
	s.ask(func(s *owner) {
		if !s.gone && !s.asked {
			s.drop(most, 0)
		}
	})
}

// isIdle reports whether the stream is idle, and whether this call has found that. An
// idle stream reads nothing more before its consumer asks for a batch.
func (s *Stream) isIdle(now time.Time) (is, found bool) {
	s.ask(func(s *owner) {
		if !s.gone && !s.asked && now.Sub(s.left) >= idleAfter {
			found = !s.idle.Swap(true)
		}
	})
	return s.idle.Load(), found
}

// freeIdle is giveBack for an idle stream. The stream keeps its next batch unless that
// is large, so that a consumer that takes a batch every ten seconds does not wait.
func (s *Stream) freeIdle() { s.ask((*owner).dropIdle) }

// stats returns the numbers that the stream has published.
func (s *Stream) stats() WindowStats {
	t := &s.published
	full := t.full.Load()
	if since := t.fullSinceOpened.Load(); since != 0 {
		full += int64(time.Since(s.opened)) - since
	}
	return WindowStats{
		Job: s.job.ID(), Dataset: s.job.SnapshotName(), Order: cmp.Or(s.job.Request().Order, "strict"),
		Epoch: s.epochOf(t.epochOffset.Load()), Step: t.step.Load(), Steps: s.steps, Rank: s.ticket.Rank,
		WindowLimit: t.limit.Load(), WindowUsed: t.used.Load(),
		InFlight: int(t.inFlight.Load()), Ready: int(t.ready.Load()),
		StoreWait: t.store.Load(), SpillWait: t.spill.Load(), PeerWait: t.peer.Load(), WindowWait: full,
		MakingWait: t.making.Load(),
	}
}

// StoreBytes is how many bytes were read from the store for the stream, so far.
func (s *Stream) StoreBytes() int64 { return s.account.LastBytes.Load() }

package flight

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/flight/auth"
	"bowstring/flight/catalog"
	"bowstring/flight/usage"
	"bowstring/flight/wire"
	"bowstring/schema"
)

// call is an RPC under way.
type call struct {
	id      uint64
	method  string
	peer    string
	host    string // of peer: who has a share of what there is
	started time.Time
	caller  fetch.Caller // on whose behalf, set before the handler runs

	// who makes it, if anybody had to say; set before the handler runs, or by the handler of a handshake
	identity *auth.Identity
	leave    func() // ends the watch over the identity, or nil; set before the handler runs

	incoming *wire.Lease // of what came in last, set before the handler runs

	conn     *wire.Conn // what it came by, or nil; set before the handler runs
	lane     *wire.Lane // of conn, or nil; set before the handler runs
	observer Observer   // or nil, likewise
	span     trace.Span // or nil, likewise

	rows, bytes atomic.Int64               // moved so far, in either direction; see count
	stored      atomic.Int64               // bytes read from the store for it; see countStored
	processor   atomic.Int64               // nanoseconds that operators took for it; see countProcessor
	waits       waits                      // of batches sent; see countWaits
	sources     atomic.Pointer[sourceRows] // of a mixture; see countSources

	killed   chan struct{} // closed by kill
	cancel   context.CancelCauseFunc
	registry *registry

	kind, plan string         // given to beginStream, "" before; guarded by registry.mu
	streamed   bool           // beginStream has been called; guarded by registry.mu
	streaming  bool           // counts towards MaxStreams; guarded by registry.mu
	access     catalog.Access // what the rules let it do; guarded by registry.mu
	reads      bool           // its read is in the audit log; guarded by registry.mu
	billed     billed         // the part of its usage that is in the book; guarded by registry.mu
	action     string         // what DoAction was asked for; guarded by registry.mu
	cause      error          // why it was killed; guarded by registry.mu, fixed once killed is closed
}

// outcome is the client's error: the reason for which the call was killed, if it failed
// after that, else err.
func (c *call) outcome(err error) error {
	if err != nil {
		select {
		case <-c.killed:
			return c.cause
		default:
		}
	}
	return err
}

// registry lists the calls under way. It is safe for concurrent use.
type registry struct {
	maxStreams, maxPeerStreams int

	mu        sync.Mutex
	nextID    uint64                // guarded by mu
	calls     map[*call]struct{}    // guarded by mu
	streams   int                   // calls that are streaming; guarded by mu
	auxiliary int                   // calls of other services; guarded by mu
	peers     map[string]*peerCalls // by call.host; guarded by mu

	tenantStreams map[string]*tenantStreams // guarded by mu
	book          *usage.Book               // nil if usage is not recorded

	draining error         // why no call of the Flight service may begin; guarded by mu
	ended    chan struct{} // closed and replaced whenever a call ends; guarded by mu
	totals   totals        // of calls that ended; guarded by mu
	tenants  tenants       // likewise; guarded by mu
}

// peerCalls counts the running calls of one address. It is guarded by registry.mu.
type peerCalls struct{ calls, streams, auxiliary int }

// maxAuxiliary bounds the running calls of other services than Flight's, and
// maxPeerAuxiliary those of one address. Clients can watch health without credentials and
// for ever: this must not use up the places of authenticated calls.
const maxAuxiliary, maxPeerAuxiliary = 1024, 64

// callsPerStream is the number of calls allowed for each allowed stream. It covers calls
// that have not sent their request yet, and short calls.
const callsPerStream = 8

func newRegistry(o *Options) *registry {
	return &registry{
		maxStreams: o.MaxStreams, maxPeerStreams: o.MaxStreamsPerPeer, book: o.Usage,
		calls: map[*call]struct{}{}, peers: map[string]*peerCalls{}, tenantStreams: map[string]*tenantStreams{},
		ended: make(chan struct{}),
	}
}

// callKey is the key of the call in a context.
type callKey struct{}

// callFrom returns the call that ctx belongs to, nil outside of a server.
func callFrom(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// laneOf returns the lane of the call that ctx belongs to.
func laneOf(ctx context.Context) *wire.Lane {
	if c := callFrom(ctx); c != nil {
		return c.lane
	}
	return nil
}

// begin registers a call, within the limits of the server and of the address. The
// returned context ends with ctx, or when the call is killed. The caller calls end. It
// fails with schema.ErrLimit, or with the drain's error if the server is draining: calls
// of other services go on during a drain, because health checks have to report it.
func (r *registry) begin(ctx context.Context, method, peer string) (context.Context, *call, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining != nil && isFlight(method) {
		return nil, nil, r.draining
	}
	host := auth.Host(peer)
	p := r.peers[host]
	if p == nil {
		p = &peerCalls{}
	}
	if isAuxiliary(method) {
		if r.auxiliary >= maxAuxiliary || p.auxiliary >= maxPeerAuxiliary {
			return nil, nil, fmt.Errorf("%w: %d calls of %s and the like run, %d of them of this address; there may "+
				"be %d, and %d", schema.ErrLimit, r.auxiliary, method, p.auxiliary, maxAuxiliary, maxPeerAuxiliary)
		}
		r.auxiliary++
		p.auxiliary++
	} else if n := len(r.calls) - r.auxiliary; n >= callsPerStream*r.maxStreams {
		return nil, nil, fmt.Errorf("%w: %d calls run, %d for each of MaxStreams, which is %d", schema.ErrLimit, n,
			callsPerStream, r.maxStreams)
	} else if n := p.calls - p.auxiliary; n >= callsPerStream*r.maxPeerStreams {
		return nil, nil, fmt.Errorf("%w: %d calls of this address run, %d for each of MaxStreamsPerPeer, which is %d",
			schema.ErrLimit, n, callsPerStream, r.maxPeerStreams)
	}
	p.calls++
	r.peers[host] = p
	r.nextID++
	c := &call{id: r.nextID, method: method, peer: peer, host: host, started: time.Now(), killed: make(chan struct{}),
		registry: r}
	ctx, c.cancel = context.WithCancelCause(context.WithValue(ctx, callKey{}, c))
	r.calls[c] = struct{}{}
	return ctx, c, nil
}

// end removes a call from all counts, charges its usage to its tenant, and wakes those
// that wait for calls to end.
func (r *registry) end(c *call) {
	c.cancel(nil)
	if c.leave != nil {
		c.leave()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, c)
	r.endStreamLocked(c)
	r.billLocked(c, time.Now())
	p := r.peers[c.host]
	if isAuxiliary(c.method) {
		r.auxiliary--
		p.auxiliary--
	}
	if p.calls--; p.calls == 0 {
		delete(r.peers, c.host)
	}
	r.totals.add(c, time.Now())
	r.tenants.ended(c, time.Now())
	close(r.ended)
	r.ended = make(chan struct{})
}

func (r *registry) beginStream(c *call, kind, plan string, terms fetch.Terms) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.streaming {
		if r.streams >= r.maxStreams {
			return fmt.Errorf("%w: MaxStreams is %d, and as many run; wait for one to end", schema.ErrLimit,
				r.maxStreams)
		}
		p := r.peers[c.host]
		if p.streams >= r.maxPeerStreams {
			return fmt.Errorf("%w: MaxStreamsPerPeer is %d, and as many of this address run; wait for one to end",
				schema.ErrLimit, r.maxPeerStreams)
		}
		if err := r.admitLocked(c.caller.Tenant, terms); err != nil {
			return err
		}
		c.streaming, c.streamed = true, true
		r.streams++
		p.streams++
		r.totals.Streams++
	}
	c.kind, c.plan = kind, plan
	return nil
}

// unname takes back which plan a call serves.
func (r *registry) unname(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.plan = ""
}

func (r *registry) endStream(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endStreamLocked(c)
}

func (r *registry) endStreamLocked(c *call) {
	if c.streaming {
		r.billLocked(c, time.Now()) // while it is known that it runs
		c.streaming = false
		r.streams--
		r.peers[c.host].streams--
		r.dismissLocked(c.caller.Tenant)
	}
}

// kill ends the calls that match, which get cause for an error, and returns
// them. Their handlers may take a moment to notice.
func (r *registry) kill(cause error, match func(*call) bool) []*call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var killed []*call
	for c := range r.calls {
		if !match(c) {
			continue
		}
		c.killLocked(cause)
		killed = append(killed, c)
	}
	return killed
}

// killCall ends one call, unless it is over.
func (r *registry) killCall(c *call, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, runs := r.calls[c]; runs {
		c.killLocked(cause)
	}
}

// killLocked ends a call; its registry's mutex is held.
func (c *call) killLocked(cause error) {
	if c.cause == nil {
		c.cause = cause
		close(c.killed) // first: what the end of the context breaks is to know why
		c.cancel(cause)
	}
}

// wait returns when no call matches, or with ctx's cause and how many still do.
func (r *registry) wait(ctx context.Context, match func(*call) bool) (left int, err error) {
	for {
		r.mu.Lock()
		left = 0
		for c := range r.calls {
			if match(c) {
				left++
			}
		}
		ended := r.ended
		r.mu.Unlock()
		if left == 0 {
			return 0, nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return left, context.Cause(ctx)
		}
	}
}

// drain refuses new calls of the Flight service from now on.
func (r *registry) drain(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = why
}

// describe returns the description that beginStream got.
func (r *registry) describe(c *call) (kind, plan string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.kind, c.plan
}

// note notes what the rules let a call do, or did not.
func (r *registry) note(c *call, a catalog.Access) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.access = a
}

// accessOf returns what was noted of a call last.
func (r *registry) accessOf(c *call) catalog.Access {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.access
}

// accessOfAny returns what was noted last of a running call that matches.
func (r *registry) accessOfAny(match func(*call) bool) (catalog.Access, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.calls {
		if match(c) {
			return c.access, true
		}
	}
	return catalog.Access{}, false
}

// act notes which action a call is.
func (r *registry) act(c *call, action string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.action = action
}

// actionOf returns which action a call is, "" if it is none.
func (r *registry) actionOf(c *call) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.action
}

// beginStream counts a call in as a stream: kind is "DoGet", "DoPut",
// "DoExchange" or "warm", plan the fetch.Job's ID where there is one. It may be called
// again to name the plan once that is known. schema.ErrLimit if MaxStreams run, or as
// many of the tenant as it may have.
//
// ctx is the call's own (stream.Context()), or derived from it. The returned
// one is what the handler's work is to run under: it ends when the client goes
// away, the plan is cancelled or the drain is over, and context.Cause says
// which. done counts the stream out; the end of the call does so, too.
func (s *Server) beginStream(ctx context.Context, kind, plan string) (_ context.Context, done func(), err error) {
	c := callFrom(ctx)
	if c == nil {
		return nil, nil, fmt.Errorf("beginning a stream: the context is not that of a call")
	}
	if err := s.calls.beginStream(c, kind, plan, s.termsOf(c.caller.Tenant)); err != nil {
		return nil, nil, err
	}
	return ctx, func() { s.calls.endStream(c) }, nil
}

// Count adds to what a call has moved, which its log line and the statistics show.
func (c *call) Count(rows int, bytes int64) {
	c.rows.Add(int64(rows))
	c.bytes.Add(bytes)
}

// count counts what the call that ctx belongs to has moved.
func count(ctx context.Context, rows int, bytes int64) {
	if c := callFrom(ctx); c != nil {
		c.Count(rows, bytes)
	}
}

// countProcessor adds to the CPU time that operators took for a call.
func countProcessor(ctx context.Context, took time.Duration) {
	if c := callFrom(ctx); c != nil {
		c.processor.Add(int64(took))
	}
}

// countWaits adds to where a call's time went, which its log line shows. ctx is
// the call's.
func countWaits(ctx context.Context, w fetch.Wait, consumer time.Duration, faults int) {
	if c := callFrom(ctx); c != nil {
		c.waits.store.Add(int64(w.Store))
		c.waits.spill.Add(int64(w.Spill))
		c.waits.peer.Add(int64(w.Peer))
		c.waits.operators.Add(int64(w.Operators))
		c.waits.window.Add(int64(w.Window))
		c.waits.encode.Add(int64(w.Encode))
		c.waits.consumer.Add(int64(consumer))
		c.waits.faults.Add(int64(faults))
	}
}

const (
	// streamDelay is about when a stream that was refused may try again, lastStreamDelay
	// where many were refused lately.
	streamDelay     = time.Second
	lastStreamDelay = 30 * time.Second
)

// tenantStreams counts the streams of a tenant, and those refused since one could begin.
// It is guarded by registry.mu, and there as long as one runs.
type tenantStreams struct{ running, refused int }

// admitLocked counts a stream in, unless its tenant has as many as it may. The more were
// refused, the later they are to come back: as many as there is room for in a second
// come again in a second.
func (r *registry) admitLocked(tenant string, terms fetch.Terms) error {
	t := r.tenantStreams[tenant]
	if t == nil {
		t = &tenantStreams{}
		r.tenantStreams[tenant] = t
	}
	if terms.Streams > 0 && t.running >= terms.Streams {
		t.refused++
		r.tenants.of(tenant, time.Now()).Refused++
		after := min(streamDelay*time.Duration(1+min(t.refused/terms.Streams, 1000)), lastStreamDelay)
		return &schema.LimitError{
			Limit: admission.LimitStreams, After: schema.Jittered(after),
			Message: fmt.Sprintf("tenant %s may have %d streams at once, and as many run", schema.Quote(tenant),
				terms.Streams),
		}
	}
	t.running++
	t.refused = 0
	return nil
}

// dismissLocked counts a stream out.
func (r *registry) dismissLocked(tenant string) {
	t := r.tenantStreams[tenant]
	if t.running--; t.running == 0 {
		delete(r.tenantStreams, tenant)
	}
}

// pace waits until the caller's tenant may be sent more, and says how long that took. It
// is waited before a batch is put together, so that nothing is held meanwhile but what
// was read ahead.
func (s *Server) pace(ctx context.Context) (time.Duration, error) {
	return s.paces.Wait(ctx, fetch.CallerFrom(ctx).Tenant)
}

// billed is what of a call's work is in the book already. It is guarded by registry.mu.
type billed struct {
	amount usage.Amount
	until  time.Time
	parts  []usage.Amount // by dataset of a mixture
}

// amountLocked is what a call has used so far.
func (c *call) amountLocked(now time.Time) usage.Amount {
	a := usage.Amount{Seconds: c.billed.amount.Seconds, StoreBytes: c.stored.Load(),
		ProcessorSeconds: time.Duration(c.processor.Load()).Seconds()}
	if c.kind == "DoPut" {
		a.RowsIn, a.BytesIn = c.rows.Load(), c.bytes.Load()
	} else {
		a.Rows, a.Bytes = c.rows.Load(), c.bytes.Load()
	}
	if c.streamed {
		a.Streams = 1
		if c.streaming {
			// The monotonic clock, which no step of the wall's moves.
			a.Seconds += max(now.Sub(cmp.Or(c.billed.until, c.started)).Seconds(), 0)
		}
	}
	return a
}

// billLocked counts what a call has used since it was counted last. Only streams of a
// dataset that the caller was let do something with count.
func (r *registry) billLocked(c *call, now time.Time) {
	if r.book == nil || !c.streamed || len(c.access.Datasets()) == 0 || c.access.Refused {
		return
	}
	if parts := c.parts(); parts != nil {
		r.billPartsLocked(c, parts, now)
		return
	}
	is, was := c.amountLocked(now), c.billed.amount
	c.billed = billed{amount: is, until: now}
	r.book.Add(c.caller.Tenant, c.access.Dataset, since(is, was))
}

// billPartsLocked is billLocked of a call that reads a mixture.
func (r *registry) billPartsLocked(c *call, parts []part, now time.Time) {
	all, was := c.amountLocked(now), c.billed.parts
	next := make([]usage.Amount, len(parts))
	for i := range parts {
		next[i] = parts[i].of(all, i == 0)
		added := next[i]
		if i < len(was) {
			added = since(added, was[i])
		}
		r.book.Add(c.caller.Tenant, parts[i].dataset, added)
	}
	c.billed = billed{amount: all, until: now, parts: next}
}

// since is what was used since so much was.
func since(is, was usage.Amount) usage.Amount {
	is.Add(usage.Amount{
		Streams: -was.Streams, Rows: -was.Rows, Bytes: -was.Bytes, StoreBytes: -was.StoreBytes,
		RowsIn: -was.RowsIn, BytesIn: -was.BytesIn, Seconds: -was.Seconds,
		ProcessorSeconds: -was.ProcessorSeconds,
	})
	return is
}

// countStored adds to what was read from the store for a call. ctx is the call's.
func countStored(ctx context.Context, bytes int64) {
	if c := callFrom(ctx); c != nil {
		c.stored.Add(bytes)
	}
}

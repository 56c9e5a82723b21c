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

// call is a running RPC. The registry owns it from begin to end. Its handler and the
// goroutines of the handler use it. Fields without a note are set by begin and never
// change.
type call struct {
	id     uint64
	method string
	peer   string
	// host is the host of peer. Limits per address count by it.
	host    string
	started time.Time
	// caller is set before the handler runs.
	caller fetch.Caller

	// identity is set if the caller has authenticated. It is set before the handler runs.
	// Only the handler of a handshake sets it later.
	identity *auth.Identity
	leave    func() // ends the watch over the identity, or nil; set before the handler runs

	incoming *wire.Lease // memory of the last incoming message; set before the handler runs

	conn     *wire.Conn // its connection, or nil; set before the handler runs
	lane     *wire.Lane // of conn, or nil; set before the handler runs
	observer Observer   // may be nil; set before the handler runs
	span     trace.Span // nil if the call is not traced; set before the handler runs

	// These counters only grow. Streams update them without the registry's mutex, because
	// they do so for each batch.
	rows, bytes atomic.Int64               // moved so far, in either direction; see count
	stored      atomic.Int64               // bytes read from the store for it; see countStored
	processor   atomic.Int64               // nanoseconds that operators took for it; see countProcessor
	waits       waits                      // of batches sent; see countWaits
	sources     atomic.Pointer[sourceRows] // of a mixture; see countSources

	killed   chan struct{} // closed by kill
	cancel   context.CancelCauseFunc
	registry *registry

	// Statistics and cancellation read these fields of all calls, so the registry's mutex
	// guards them.
	kind, plan string         // given to beginStream, "" before; guarded by registry.mu
	streamed   bool           // beginStream has been called; guarded by registry.mu
	streaming  bool           // counts towards MaxStreams; guarded by registry.mu
	access     catalog.Access // the latest decision about its rights; guarded by registry.mu
	reads      bool           // its read is in the audit log; guarded by registry.mu
	billed     billed         // the part of its usage that is in the book; guarded by registry.mu
	action     string         // the name of the action of DoAction; guarded by registry.mu
	cause      error          // why it was killed; guarded by registry.mu, fixed once killed is closed
}

// outcome returns the error for the client. If the call was killed and then failed, that is
// the reason for the kill: err is only a consequence. A call that succeeds despite the kill
// has succeeded.
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

// registry lists the running calls and enforces the limits on their number. The server owns
// it. It is safe for concurrent use. mu is never held during I/O.
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
	tenants  tenants       // of calls that ended, by tenant; guarded by mu
}

// peerCalls counts the running calls of one address. It is guarded by registry.mu.
type peerCalls struct{ calls, streams, auxiliary int }

// maxAuxiliary bounds the running calls of services other than Flight, and maxPeerAuxiliary
// those of one address. Clients can watch health without credentials and without end. Such
// calls must not use up the places of authenticated calls.
const maxAuxiliary, maxPeerAuxiliary = 1024, 64

// callsPerStream is the number of calls allowed for each allowed stream. It covers calls
// that have not sent their request yet, and short calls.
const callsPerStream = 8

// newRegistry returns a registry with the limits of o, whose defaults have been filled in.
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

// beginStream counts a call as a stream: see [Server.beginStream]. It checks the limit of
// the server first, then that of the address, then that of the tenant. Only the last check
// counts a refusal.
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

// unname clears the plan of a call whose plan turned out to be wrong.
func (r *registry) unname(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.plan = ""
}

// endStream ends the count of a call as a stream. Further calls of it do nothing.
func (r *registry) endStream(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endStreamLocked(c)
}

func (r *registry) endStreamLocked(c *call) {
	if c.streaming {
		r.billLocked(c, time.Now()) // before streaming is cleared: it adds the running time
		c.streaming = false
		r.streams--
		r.peers[c.host].streams--
		r.dismissLocked(c.caller.Tenant)
	}
}

// kill ends the calls that match, with cause as their error, and returns them. Their
// handlers may take a moment to notice.
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

// killCall ends one call, unless it has already ended.
func (r *registry) killCall(c *call, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, runs := r.calls[c]; runs {
		c.killLocked(cause)
	}
}

// killLocked ends a call. The registry's mutex is held. The first cause wins.
func (c *call) killLocked(cause error) {
	if c.cause == nil {
		c.cause = cause
		close(c.killed) // before cancel: outcome must find the cause when the context ends
		c.cancel(cause)
	}
}

// wait returns when no call matches. If ctx ends first, it returns ctx's cause and the
// number of calls that match.
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

// drain refuses new calls of the Flight service with the error why.
func (r *registry) drain(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = why
}

// describe returns the kind and the plan that beginStream was called with.
func (r *registry) describe(c *call) (kind, plan string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.kind, c.plan
}

// note stores the latest decision about the rights of a call.
func (r *registry) note(c *call, a catalog.Access) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.access = a
}

// accessOf returns the latest decision that note has stored for a call.
func (r *registry) accessOf(c *call) catalog.Access {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.access
}

// accessOfAny returns the latest decision for one running call that matches. Which one it
// returns is not defined.
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

// act stores the name of the action that a call runs.
func (r *registry) act(c *call, action string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.action = action
}

// actionOf returns the name of the action that a call runs, "" if it runs none.
func (r *registry) actionOf(c *call) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.action
}

// beginStream counts a call as a stream. kind is "DoGet", "DoPut", "DoExchange" or "warm";
// plan is the fetch.Job's ID, if there is one. It may be called again to set the plan when
// that is known. It fails with schema.ErrLimit if MaxStreams run, or as many streams of the
// tenant as the tenant may have.
//
// ctx is the call's own (stream.Context()), or derived from it. The handler works under the
// returned context. That one ends when the client goes away, the plan is cancelled or the
// drain is over, and context.Cause says which. done ends the count; so does the end of the
// call.
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

// Count adds rows and bytes that the call has moved. The log line and the statistics show
// the sums.
func (c *call) Count(rows int, bytes int64) {
	c.rows.Add(int64(rows))
	c.bytes.Add(bytes)
}

// count adds to the rows and bytes of the call that ctx belongs to.
func count(ctx context.Context, rows int, bytes int64) {
	if c := callFrom(ctx); c != nil {
		c.Count(rows, bytes)
	}
}

// countProcessor adds to the CPU time of a call's operators.
func countProcessor(ctx context.Context, took time.Duration) {
	if c := callFrom(ctx); c != nil {
		c.processor.Add(int64(took))
	}
}

// countWaits adds the waiting times of one batch to those of the call that ctx belongs to.
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
	// streamDelay is the suggested delay before a refused stream is tried again, and
	// lastStreamDelay the longest one. The delay grows with the number of recent refusals.
	streamDelay     = time.Second
	lastStreamDelay = 30 * time.Second
)

// tenantStreams counts the running streams of a tenant, and the refusals since the last
// stream began. It is guarded by registry.mu, and exists while a stream runs.
type tenantStreams struct{ running, refused int }

// admitLocked counts a stream of a tenant, unless the tenant has as many as it may. A
// refusal names a delay that grows with the number of refusals. Thus, however many clients
// wait, only about as many as the limit retry in one second.
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

// dismissLocked ends the count of a tenant's stream.
func (r *registry) dismissLocked(tenant string) {
	t := r.tenantStreams[tenant]
	if t.running--; t.running == 0 {
		delete(r.tenantStreams, tenant)
	}
}

// pace waits until the caller's tenant may be sent more, and returns how long that took.
// The wait comes before a batch is assembled. During it the stream holds only prefetched
// data.
func (s *Server) pace(ctx context.Context) (time.Duration, error) {
	return s.paces.Wait(ctx, fetch.CallerFrom(ctx).Tenant)
}

// billed is the part of a call's usage that the book has already. It is guarded by
// registry.mu.
type billed struct {
	amount usage.Amount
	until  time.Time
	// parts are by dataset of a mixture, in the order of call.parts.
	parts []usage.Amount
}

// amountLocked returns what a call has used so far.
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
			// Sub uses the monotonic clock: a correction of the wall clock adds no usage.
			a.Seconds += max(now.Sub(cmp.Or(c.billed.until, c.started)).Seconds(), 0)
		}
	}
	return a
}

// billLocked adds to the book what a call has used since the last time. It counts only
// streams that had a right to some dataset. Differences are added, because the book is
// written while streams run.
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

// billPartsLocked is billLocked for a call that reads a mixture. parts changes between
// calls as rows are sent, so each dataset's amount is a difference of its own.
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

// since returns the difference of two amounts.
func since(is, was usage.Amount) usage.Amount {
	is.Add(usage.Amount{
		Streams: -was.Streams, Rows: -was.Rows, Bytes: -was.Bytes, StoreBytes: -was.StoreBytes,
		RowsIn: -was.RowsIn, BytesIn: -was.BytesIn, Seconds: -was.Seconds,
		ProcessorSeconds: -was.ProcessorSeconds,
	})
	return is
}

// countStored adds to the bytes that were read from the store for the call of ctx.
func countStored(ctx context.Context, bytes int64) {
	if c := callFrom(ctx); c != nil {
		c.stored.Add(bytes)
	}
}

package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// maxResults is how many unused results are kept. Their memory is bounded by the ledger;
// this bounds the search for the oldest.
const maxResults = 512

// results caches what was computed from the rows of snapshots, above all the matches of
// where expressions. So the ranks of a job and its resumed streams do not scan the rows
// again each. Snapshots never change, so results never become outdated. It is safe for
// concurrent use.
type results struct {
	ledger *admission.Ledger

	mu    sync.Mutex
	kept  map[string]*result // by key; guarded by mu
	clock int64              // counts releases, for the order of use; guarded by mu
}

// result is one value computed from rows: a selection, a sum, a slot table, lengths,
// costs, weights, a balance or a pack. Only the fields of its kind are set. The value is
// immutable once the result is added. The result and its memory are kept while it has
// holds, and after that until the memory is needed.
type result struct {
	cache     *results
	key       string
	selection plan.Selection
	sum       int64
	slots     *slotTable
	lengths   plan.Lengths
	costs     plan.Costs
	weights   *plan.SampleWeights
	balance   *plan.Balance
	pack      *plan.Pack
	classes   []string        // of balance, in their order
	memory    *admission.Hold // nil if it takes next to no memory
	tenant    string          // the account of memory: the tenant that wanted it first; "" for none

	refs     int   // holds; guarded by results.mu
	lastUsed int64 // results.clock when refs last became 0; guarded by results.mu
}

// Retain adds a hold. The caller has one.
func (r *result) Retain() {
	r.cache.mu.Lock()
	r.refs++
	r.cache.mu.Unlock()
}

// Release ends a hold. A result without holds stays, unless an equal one was added first.
func (r *result) Release() {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	r.refs--
	if r.refs > 0 {
		return
	}
	if c.kept[r.key] != r {
		r.memory.Release() // an equal one was added before it
		return
	}
	c.clock++
	r.lastUsed = c.clock
	for c.idleLocked() > maxResults {
		c.dropLocked(anybodys)
	}
}

// get returns a cached result with a hold for the caller; nil if there is none.
func (c *results) get(key string) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.kept[key]
	if r != nil {
		r.refs++
	}
	return r
}

// add caches a result, and returns it with a hold for the caller. If an equal one is
// cached already, r is used by this caller and freed with its last hold.
func (c *results) add(key string, r *result) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.cache, r.key, r.refs = c, key, 1
	if c.kept[key] == nil {
		c.kept[key] = r
	}
	return r
}

// selectionDelay is about when to retry a selection for which there was no memory. Jobs
// end seldom, so an earlier try is in vain.
const selectionDelay = 10 * time.Second

// reserve reserves memory for a result, on a tenant's account. It drops unused results to
// make room, and does not wait for those in use: a job may run for days. If the tenant's
// own limit is reached, only its own results are dropped.
func (c *results) reserve(tenant string, bytes int64) (*admission.Hold, error) {
	for {
		if h, ok := c.ledger.TryFor(admission.Evaluation, tenant, bytes); ok {
			return h, nil
		}
		// One result at a time is dropped, the oldest first, until the memory suffices.
		own, all := c.ledger.Left(admission.Evaluation, tenant)
		c.mu.Lock()
		dropped := c.dropLocked(func(r *result) bool { return r.tenant == tenant || bytes > all })
		c.mu.Unlock()
		if dropped {
			continue
		}
		if own < bytes && all >= bytes {
			most := c.ledger.MostFor(admission.Evaluation, tenant)
			e := &schema.LimitError{Limit: admission.LimitEvaluation, Message: fmt.Sprintf(
				"%d bytes would be needed for the selection; tenant %s may have %d at most, %d of them beside what it "+
					"and others have for running jobs",
				bytes, schema.Quote(cmp.Or(tenant, "(none)")), most, max(own, 0))}
			if bytes <= most {
				e.After = schema.Jittered(selectionDelay)
			}
			return nil, e
		}
		a := c.ledger.Accounts()[admission.Evaluation]
		return nil, fmt.Errorf("%w: %d bytes would be needed for the selection; of the %d that all selections "+
			"together may take, running jobs have %d",
			schema.ErrLimit, bytes, a.Limit, a.Used)
	}
}

// within computes a selection that takes bytes of memory, and meanwhile more during the
// computation, on the account of the caller in ctx.
func (c *results) within(ctx context.Context, bytes, meanwhile int64,
	compute func() (plan.Selection, error)) (*result, error) {
	tenant := store.CallerFrom(ctx).Tenant
	memory, err := c.reserve(tenant, bytes+meanwhile)
	if err != nil {
		return nil, err
	}
	r := &result{memory: memory, tenant: tenant}
	defer func() {
		if r.selection == nil { // it failed, or panicked
			memory.Release()
		}
	}()
	selection, err := compute()
	if err != nil {
		return nil, err
	}
	memory.Shrink(meanwhile)
	r.selection = selection
	return r, nil
}

// idleLocked counts the results without holds.
func (c *results) idleLocked() (n int) {
	for _, r := range c.kept {
		if r.refs == 0 {
			n++
		}
	}
	return n
}

// anybodys matches every result.
func anybodys(*result) bool { return true }

// dropLocked drops the least recently used result that matches and is unused; false if
// all are in use.
func (c *results) dropLocked(match func(*result) bool) bool {
	var oldest *result
	for _, r := range c.kept {
		if r.refs == 0 && match(r) && (oldest == nil || r.lastUsed < oldest.lastUsed) {
			oldest = r
		}
	}
	if oldest == nil {
		return false
	}
	delete(c.kept, oldest.key)
	oldest.memory.Release()
	return true
}

// close drops all unused results.
func (c *results) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.dropLocked(anybodys) {
	}
}

// held is a value that is kept as long as it has holds.
type held interface {
	Retain()
	Release()
}

// computations runs computations whose value several callers want at the same time, once.
// A computation belongs to no single caller: it is cancelled only when none waits for it
// any more. It is safe for concurrent use.
type computations[V held] struct {
	logger  *slog.Logger
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool                       // guarded by mu
	byKey  map[string]*computation[V] // guarded by mu: those that may be joined
}

// computation is one that runs, or whose value has not been taken by all waiters.
type computation[V held] struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when value and err are there
	value  V             // has one hold until the last waiter has left
	err    error

	waiters  int  // guarded by computations.mu
	finished bool // value and err are there; guarded by computations.mu
}

// errUnwanted ends a computation that no caller waits for.
var errUnwanted = errors.New("no caller waits for it any more")

func errClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// do returns the value of compute, with a hold for the caller. Concurrent callers with
// one key share a computation, whose context has the values of the first caller's
// context. compute returns its value with one hold. The computation may outlive the call,
// so it takes its own hold of reads, the object that it reads from. A panic in compute is
// an error.
func (c *computations[V]) do(ctx context.Context, key string, reads held,
	compute func(context.Context) (V, error)) (v V, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return v, errClosing()
	}
	p := c.byKey[key]
	if p == nil {
		// The computation has its own context: the first caller may leave while others
		// wait.
		own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		p = &computation[V]{cancel: cancel, done: make(chan struct{})}
		if c.byKey == nil {
			c.byKey = map[string]*computation[V]{}
		}
		c.byKey[key] = p
		reads.Retain()
		c.running.Go(func() {
			defer reads.Release()
			c.run(own, key, p, compute)
		})
	}
	p.waiters++
	c.mu.Unlock()
	defer c.leave(key, p)
	select {
	case <-p.done:
		if p.err != nil {
			return v, p.err
		}
		p.value.Retain()
		return p.value, nil
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// run runs the computation, and publishes its value. If all waiters have left meanwhile,
// it releases the value.
func (c *computations[V]) run(ctx context.Context, key string, p *computation[V],
	compute func(context.Context) (V, error)) {
	defer p.cancel(nil)
	value, err := c.recovered(ctx, compute)
	c.mu.Lock()
	p.value, p.err, p.finished = value, err, true
	if c.byKey[key] == p {
		delete(c.byKey, key)
	}
	unwanted := p.waiters == 0
	c.mu.Unlock()
	close(p.done)
	if unwanted && err == nil {
		value.Release()
	}
}

// recovered runs compute, and returns a panic as an error, because a defect must not end
// the process.
func (c *computations[V]) recovered(ctx context.Context, compute func(context.Context) (V, error)) (v V, err error) {
	defer recovered(ctx, c.logger, &err)
	err = schema.Guard(func() (err error) {
		v, err = compute(ctx)
		return err
	})
	return v, err
}

// recovered, when deferred, turns a panic into an error and logs it.
func recovered(ctx context.Context, logger *slog.Logger, err *error) {
	if p := recover(); p != nil {
		*err = schema.Recovered(p).Log(ctx, logger, "panic while a request was resolved")
	}
}

// leave removes a waiter. The last one cancels the computation, or releases its value.
func (c *computations[V]) leave(key string, p *computation[V]) {
	c.mu.Lock()
	p.waiters--
	last, finished := p.waiters == 0, p.finished
	if last && c.byKey[key] == p {
		delete(c.byKey, key) // the next caller begins a new one
	}
	c.mu.Unlock()
	switch {
	case !last:
	case !finished:
		p.cancel(errUnwanted)
	case p.err == nil:
		p.value.Release()
	}
}

// close cancels all computations, and waits until they have ended.
func (c *computations[V]) close() {
	c.mu.Lock()
	c.closed = true
	for _, p := range c.byKey {
		p.cancel(errClosing())
	}
	c.mu.Unlock()
	c.running.Wait()
}

// nothing is the held for a computation that reads nothing that needs a hold.
type nothing struct{}

func (nothing) Retain()  {}
func (nothing) Release() {}

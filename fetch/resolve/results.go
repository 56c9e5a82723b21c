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

// maxResults is how many unused results are kept.
const maxResults = 512

// results keeps what was computed from the rows of snapshots, the matches of a
// where expression above all, so that the ranks of a job and its resumed streams
// do not each scan the rows again. Snapshots never change, so no result does.
type results struct {
	ledger *admission.Ledger

	mu    sync.Mutex
	kept  map[string]*result // by key; guarded by mu
	clock int64              // guarded by mu
}

// result is a selection, a sum, the slots, the lengths or the costs of rows, or what they are drawn by. It stays in memory, and counted in the ledger,
// while somebody holds it, and longer while there is room.
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
	memory    *admission.Hold // nil if it takes next to none
	tenant    string          // on whose account: that of who asked first

	refs     int   // guarded by results.mu
	lastUsed int64 // results.clock when refs last became 0; guarded by results.mu
}

func (r *result) Retain() {
	r.cache.mu.Lock()
	r.refs++
	r.cache.mu.Unlock()
}

func (r *result) Release() {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	r.refs--
	if r.refs > 0 {
		return
	}
	if c.kept[r.key] != r {
		r.memory.Release() // another one like it was kept
		return
	}
	c.clock++
	r.lastUsed = c.clock
	for c.idleLocked() > maxResults {
		c.dropLocked(anybodys)
	}
}

// get returns a kept result, with a hold for the caller; nil if there is none.
func (c *results) get(key string) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.kept[key]
	if r != nil {
		r.refs++
	}
	return r
}

// add keeps a result, and returns it with a hold for the caller.
func (c *results) add(key string, r *result) *result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.cache, r.key, r.refs = c, key, 1
	if c.kept[key] == nil {
		c.kept[key] = r
	}
	return r
}

// selectionDelay is about when it is worth trying again to have a selection that there
// was no room for: jobs end seldom.
const selectionDelay = 10 * time.Second

// reserve reserves memory for a result, on a tenant's account. It drops unused results to
// make room, and does not wait for those in use: a job may run for days. If the tenant's
// own limit is reached, only its own results are dropped.
func (c *results) reserve(tenant string, bytes int64) (*admission.Hold, error) {
	for {
		if h, ok := c.ledger.TryFor(admission.Evaluation, tenant, bytes); ok {
			return h, nil
		}
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

func (c *results) idleLocked() (n int) {
	for _, r := range c.kept {
		if r.refs == 0 {
			n++
		}
	}
	return n
}

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

// held is something that is kept as long as somebody has a hold of it.
type held interface {
	Retain()
	Release()
}

// computations makes values that several callers want once. A computation belongs to no
// single call: it is cancelled early only when no caller waits for it any more. It is
// safe for concurrent use.
type computations[V held] struct {
	logger  *slog.Logger
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool                       // guarded by mu
	byKey  map[string]*computation[V] // guarded by mu: those that may be joined
}

// computation is under way, or has waiters that have not yet taken its value.
type computation[V held] struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when value and err are there
	value  V             // the computation has a hold of it until its last waiter has left
	err    error

	waiters  int  // guarded by computations.mu
	finished bool // value and err are there; guarded by computations.mu
}

// errUnwanted ends a computation that no caller waits for.
var errUnwanted = errors.New("no caller waits for it any more")

func errClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// do returns what compute returns, with a hold for the caller. Callers that come
// together share one computation; its context carries the values of the first
// caller's. compute returns its value with one hold. It may go on when that call
// has ended: of what it reads, reads, it has a hold of its own until it has
// ended. A panic in it is an error.
func (c *computations[V]) do(ctx context.Context, key string, reads held,
	compute func(context.Context) (V, error)) (v V, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return v, errClosing()
	}
	p := c.byKey[key]
	if p == nil {
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

// recovered runs compute, whose panic must not end the process.
func (c *computations[V]) recovered(ctx context.Context, compute func(context.Context) (V, error)) (v V, err error) {
	defer recovered(ctx, c.logger, &err)
	err = schema.Guard(func() (err error) {
		v, err = compute(ctx)
		return err
	})
	return v, err
}

// recovered, deferred, makes an error of a panic, and logs it.
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
		delete(c.byKey, key) // who comes now begins anew
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

// close ends all computations, and waits until they have ended.
func (c *computations[V]) close() {
	c.mu.Lock()
	c.closed = true
	for _, p := range c.byKey {
		p.cancel(errClosing())
	}
	c.mu.Unlock()
	c.running.Wait()
}

// nothing is what a computation reads that needs no hold.
type nothing struct{}

func (nothing) Retain()  {}
func (nothing) Release() {}

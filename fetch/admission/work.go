package admission

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Work bounds what keeps processors busy for long, so that the streams of others
// go on: so many pieces run at once, and tenants take turns, by their weights and
// within their shares. It is safe for concurrent use.
type Work struct {
	slots int

	mu      sync.Mutex
	terms   func(tenant string) Terms // nil: all are alike
	running int
	tenants []*tenantWork // that run or wait
	virtual float64       // the start tag of the piece that began last
	begun   uint64        // pieces, to have those with equal tags take turns
}

// tenantWork is the pieces of one tenant, those that wait in the order they came.
// It is guarded by Work.mu.
type tenantWork struct {
	tenant  string
	terms   Terms
	tag     float64 // start tag of its next piece
	last    uint64  // when its last one began
	running int
	pieces  []chan struct{} // each closed when it may run
}

// NewWork returns a bound of that many pieces at once; 0 stands for half of the
// processors, one at least.
func NewWork(slots int) *Work {
	if slots <= 0 {
		slots = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &Work{slots: slots}
}

// SetTerms has tenants get what terms says, those that wait included; nil has all
// get the same.
func (w *Work) SetTerms(terms func(tenant string) Terms) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.terms = terms
	for _, t := range w.tenants {
		t.terms = w.termsOfLocked(t.tenant)
	}
	w.goOnLocked()
}

func (w *Work) termsOfLocked(tenant string) Terms {
	if w.terms == nil {
		return Terms{}
	}
	return w.terms(tenant)
}

// Do runs f as soon as it is the tenant's turn, in the caller's goroutine, and
// returns its error. It fails with ctx's cause where that ends first. Long work
// is done in several pieces, so that others come in between.
func (w *Work) Do(ctx context.Context, tenant string, f func() error) error {
	if err := w.enter(ctx, tenant); err != nil {
		return err
	}
	defer w.leave(tenant)
	return f()
}

// Turn is the place that a piece of work has. It is for the goroutine that works.
type Turn struct {
	work   *Work
	ctx    context.Context //nolint:containedctx // of the one call of DoInPieces that it is for
	tenant string
	held   bool
}

// DoInPieces runs f as Do does. f pauses now and then, and gives the place up while it waits for something.
func (w *Work) DoInPieces(ctx context.Context, tenant string, f func(*Turn) error) error {
	if err := w.enter(ctx, tenant); err != nil {
		return err
	}
	t := &Turn{work: w, ctx: ctx, tenant: tenant, held: true}
	defer func() {
		if t.held {
			w.leave(tenant)
		}
	}()
	return f(t)
}

// Pause gives the place to others that wait, and returns when it is the tenant's turn again; with an error, after which
// the work ends, where ctx has ended before that. Calls on a nil Turn do nothing.
func (t *Turn) Pause() error { return t.Without(func() error { return nil }) }

// Without runs f, which waits for something, without the place, and returns its error when it is the tenant's turn again.
// On a nil Turn it runs f.
func (t *Turn) Without(f func() error) error {
	if t == nil || !t.held {
		return f()
	}
	t.work.leave(t.tenant)
	t.held = false
	if err := f(); err != nil {
		return err // the work ends with it
	}
	if err := t.work.enter(t.ctx, t.tenant); err != nil {
		return err
	}
	t.held = true
	return nil
}

func (w *Work) enter(ctx context.Context, tenant string) error {
	w.mu.Lock()
	t := w.tenantLocked(tenant)
	if t == nil {
		t = &tenantWork{tenant: tenant, terms: w.termsOfLocked(tenant), tag: w.virtual}
		w.tenants = append(w.tenants, t)
	} else if t.running == 0 && len(t.pieces) == 0 {
		t.tag = max(t.tag, w.virtual)
	}
	turn := make(chan struct{})
	t.pieces = append(t.pieces, turn)
	w.goOnLocked()
	w.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	if !w.withdraw(tenant, turn) {
		w.leave(tenant) // it was its turn in that moment
	}
	return fmt.Errorf("waiting for a processor: %w", context.Cause(ctx))
}

func (w *Work) tenantLocked(tenant string) *tenantWork {
	for _, t := range w.tenants {
		if t.tenant == tenant {
			return t
		}
	}
	return nil
}

// withdraw has a piece wait no longer, false if its turn had come.
func (w *Work) withdraw(tenant string, turn chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenantLocked(tenant) // it is there: the piece waits, or runs
	at := slices.Index(t.pieces, turn)
	if at < 0 {
		return false
	}
	t.pieces = slices.Delete(t.pieces, at, at+1)
	w.forgetLocked(t)
	return true
}

// leave hands the place to whose turn it is.
func (w *Work) leave(tenant string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenantLocked(tenant)
	t.running--
	w.running--
	w.goOnLocked()
	w.forgetLocked(t)
}

// forgetLocked forgets a tenant without pieces.
func (w *Work) forgetLocked(t *tenantWork) {
	if t.running == 0 && len(t.pieces) == 0 {
		w.tenants = slices.DeleteFunc(w.tenants, func(o *tenantWork) bool { return o == t })
	}
}

// goOnLocked begins the pieces whose turn it is.
func (w *Work) goOnLocked() {
	for w.running < w.slots {
		var next *tenantWork
		for _, t := range w.tenants {
			if len(t.pieces) > 0 && t.running < w.mostLocked(t) && (next == nil || t.before(next)) {
				next = t
			}
		}
		if next == nil {
			return
		}
		w.begun++
		w.running++
		next.running++
		next.last, w.virtual = w.begun, next.tag
		next.tag += 1 / float64(max(next.terms.Weight, 1))
		close(next.pieces[0])
		next.pieces = slices.Delete(next.pieces, 0, 1)
	}
}

func (t *tenantWork) before(o *tenantWork) bool {
	return t.tag < o.tag || t.tag == o.tag && t.last < o.last
}

// mostLocked is how many pieces of a tenant may run at once.
func (w *Work) mostLocked(t *tenantWork) int {
	if t.terms.Workers <= 0 {
		return w.slots
	}
	return max(int(t.terms.Workers*float64(w.slots)), 1)
}

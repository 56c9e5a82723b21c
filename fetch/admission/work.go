package admission

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Work bounds CPU-bound work, so that other streams keep running. A fixed number of pieces runs at once, and tenants
// take turns by weight and within their shares. It is safe for concurrent use.
type Work struct {
	slots int

	mu      sync.Mutex
	terms   func(tenant string) Terms // nil: all tenants are alike
	running int                       // slots in use
	tenants []*tenantWork             // that have pieces running or waiting
	virtual float64                   // the start tag of the piece that began last
	begun   uint64                    // pieces begun; breaks ties between equal tags
}

// tenantWork holds the pieces of one tenant, waiting ones in order of arrival. Work.mu guards it.
type tenantWork struct {
	tenant  string
	terms   Terms
	tag     float64         // start tag of its next piece
	last    uint64          // when its last one began
	running int             // slots that it uses
	pieces  []chan struct{} // each closed when it may run
}

// NewWork returns a Work that runs up to slots pieces at once; 0 is half of GOMAXPROCS, at least one.
func NewWork(slots int) *Work {
	if slots <= 0 {
		slots = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &Work{slots: slots}
}

// SetTerms sets the quotas of tenants, including those that wait; nil treats all alike.
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

// Do waits for the tenant's turn, then runs f on the caller's goroutine and returns its error. It fails with ctx's
// cause if ctx ends first. Callers split long work into pieces, so that other tenants run in between.
func (w *Work) Do(ctx context.Context, tenant string, f func() error) error {
	if err := w.enter(ctx, tenant); err != nil {
		return err
	}
	defer w.leave(tenant)
	return f()
}

// Turn is the slot that a piece of work occupies. Only the goroutine that works uses it.
type Turn struct {
	work   *Work
	ctx    context.Context //nolint:containedctx // of the call of DoInPieces
	tenant string
	held   bool // the slot is occupied
}

// DoInPieces is Do for an f that pauses now and then, and releases its slot while it waits for something.
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

// Pause releases the slot to waiting pieces, and returns when it is the tenant's turn again. If ctx ends first it
// returns an error, and the work must end. Calls on a nil Turn do nothing.
func (t *Turn) Pause() error { return t.Without(func() error { return nil }) }

// Without runs f, which waits for something, without the slot. It returns when it is the tenant's turn again, with
// f's error. On a nil Turn it only runs f.
func (t *Turn) Without(f func() error) error {
	if t == nil || !t.held {
		return f()
	}
	t.work.leave(t.tenant)
	t.held = false
	if err := f(); err != nil {
		return err // the work ends with this error
	}
	if err := t.work.enter(t.ctx, t.tenant); err != nil {
		return err
	}
	t.held = true
	return nil
}

// enter waits for a slot. A tenant that had no pieces starts at the current virtual time, so
// it has no claim for the time it was away.
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
		w.leave(tenant) // its turn came at the same time
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

// withdraw removes a waiting piece; false if its turn has come.
func (w *Work) withdraw(tenant string, turn chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenantLocked(tenant) // not nil: the piece waits or runs
	at := slices.Index(t.pieces, turn)
	if at < 0 {
		return false
	}
	t.pieces = slices.Delete(t.pieces, at, at+1)
	w.forgetLocked(t)
	return true
}

// leave releases a slot to the next piece.
func (w *Work) leave(tenant string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tenantLocked(tenant)
	t.running--
	w.running--
	w.goOnLocked()
	w.forgetLocked(t)
}

// forgetLocked drops a tenant without pieces.
func (w *Work) forgetLocked(t *tenantWork) {
	if t.running == 0 && len(t.pieces) == 0 {
		w.tenants = slices.DeleteFunc(w.tenants, func(o *tenantWork) bool { return o == t })
	}
}

// goOnLocked starts pieces while slots are free: the next piece is of the tenant with the least
// tag among those below their share.
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

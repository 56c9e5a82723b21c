package admission

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// Work bounds what keeps processors busy for long, so that the streams of others
// go on: so many pieces run at once, and tenants take turns. It is safe for
// concurrent use.
type Work struct {
	slots int

	mu      sync.Mutex
	running int
	tenants []*tenantWork // that wait, in the order of their turns
}

// tenantWork is the pieces of one tenant that wait, in the order they came.
type tenantWork struct {
	tenant string
	pieces []chan struct{} // each closed when it may run
}

// NewWork returns a bound of that many pieces at once; 0 stands for half of the
// processors, one at least.
func NewWork(slots int) *Work {
	if slots <= 0 {
		slots = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &Work{slots: slots}
}

// Do runs f as soon as it is the tenant's turn, in the caller's goroutine, and
// returns its error. It fails with ctx's cause where that ends first. Long work
// is done in several pieces, so that others come in between.
func (w *Work) Do(ctx context.Context, tenant string, f func() error) error {
	if err := w.enter(ctx, tenant); err != nil {
		return err
	}
	defer w.leave()
	return f()
}

func (w *Work) enter(ctx context.Context, tenant string) error {
	w.mu.Lock()
	if w.running < w.slots {
		w.running++
		w.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	i := slices.IndexFunc(w.tenants, func(t *tenantWork) bool { return t.tenant == tenant })
	if i < 0 {
		i = len(w.tenants)
		w.tenants = append(w.tenants, &tenantWork{tenant: tenant})
	}
	w.tenants[i].pieces = append(w.tenants[i].pieces, turn)
	w.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	if !w.withdraw(tenant, turn) {
		w.leave() // it was its turn in that moment
	}
	return fmt.Errorf("waiting for a processor: %w", context.Cause(ctx))
}

// withdraw has a piece wait no longer, false if its turn had come.
func (w *Work) withdraw(tenant string, turn chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, t := range w.tenants {
		if at := slices.Index(t.pieces, turn); t.tenant == tenant && at >= 0 {
			if t.pieces = slices.Delete(t.pieces, at, at+1); len(t.pieces) == 0 {
				w.tenants = slices.Delete(w.tenants, i, i+1)
			}
			return true
		}
	}
	return false
}

// leave hands the place to the next tenant's first piece.
func (w *Work) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tenants) == 0 {
		w.running--
		return
	}
	t := w.tenants[0]
	w.tenants = slices.Delete(w.tenants, 0, 1)
	close(t.pieces[0])
	if t.pieces = slices.Delete(t.pieces, 0, 1); len(t.pieces) > 0 {
		w.tenants = append(w.tenants, t)
	}
}

package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"bowstring/fetch/admission"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ledger(t *testing.T, uploads int64) *admission.Ledger {
	t.Helper()
	limits := admission.Limits{Uploads: uploads}
	limits.EnsureDefaults()
	if err := limits.Validate(); err != nil {
		t.Fatal(err)
	}
	return admission.NewLedger(limits)
}

func used(l *admission.Ledger) admission.Account { return l.Accounts()[admission.Uploads] }

// A reservation that never fits fails with an error that names the limit. One that does not fit now waits, in order.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger(t, 100)
		_, err := l.Reserve(t.Context(), admission.Uploads, 101)
		if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(),
			"101 bytes would be needed at once for uploads") {
			t.Fatalf("more than the limit: %v", err)
		}
		first, err := l.Reserve(t.Context(), admission.Uploads, 80)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Grow(t.Context(), 21); !errors.Is(err, schema.ErrLimit) {
			t.Fatalf("growing past the limit: %v", err)
		}
		var order []int64
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, n := range []int64{50, 20} { // the second would fit, and came later
			wg.Go(func() {
				h, err := l.Reserve(context.Background(), admission.Uploads, n)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				h.Release()
			})
			synctest.Wait()
		}
		if _, ok := l.Try(admission.Uploads, 10); ok {
			t.Error("a later reservation was granted before one that waits")
		}
		if a := used(l); a.Used != 80 || a.Waiting != 2 {
			t.Errorf("%+v", a)
		}
		first.Shrink(40)
		synctest.Wait()
		first.Release()
		first.Release()
		wg.Wait()
		if !slices.Equal(order, []int64{50, 20}) {
			t.Errorf("granted: %v", order)
		}
		if a := used(l); a.Used != 0 || a.Waiting != 0 || a.Most != 90 {
			t.Errorf("in the end: %+v", a)
		}
	})
}

// A caller that cancels its wait leaves nothing reserved.
func TestLedgerCancelled(t *testing.T) {
	l := ledger(t, 100)
	first, _ := l.Try(admission.Uploads, 100)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Reserve(ctx, admission.Uploads, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	first.Release()
	if a := used(l); a.Used != 0 || a.Waiting != 0 {
		t.Errorf("%+v", a)
	}
}

// With any number of concurrent callers, the limit holds and no memory leaks.
func TestLedgerAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const limit = 1000
	l := ledger(t, limit)
	var out atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for range 2000 {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(4) == 0 {
					go cancel()
				}
				n := rng.Int64N(limit) + 1
				h, err := l.Reserve(ctx, admission.Uploads, n)
				if err == nil {
					if all := out.Add(n); all > limit {
						t.Errorf("%d bytes are out", all)
					}
					out.Add(-n)
					h.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if a := used(l); a.Used != 0 || a.Waiting != 0 || a.Most > limit {
		t.Errorf("in the end: %+v", a)
	}
}

// Tenants take turns, however many pieces one has.
func TestWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := admission.NewWork(1)
		var order []string
		var wg sync.WaitGroup
		begin, end := make(chan struct{}), make(chan struct{})
		wg.Go(func() {
			_ = w.Do(context.Background(), "first", func() error { close(begin); <-end; return nil })
		})
		<-begin
		for _, tenant := range []string{"a", "a", "a", "b", "a", "b"} {
			wg.Go(func() {
				_ = w.Do(context.Background(), tenant, func() error { order = append(order, tenant); return nil })
			})
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.Do(ctx, "c", func() error { t.Error("ran"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		close(end)
		wg.Wait()
		if got := strings.Join(order, ""); got != "ababaa" {
			t.Errorf("order %s", got)
		}
		if err := w.Do(t.Context(), "d", func() error {
			return errors.ErrUnsupported
		}); !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
	})
}

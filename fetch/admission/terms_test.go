package admission_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// termsOf returns the quotas of a table.
func termsOf(table map[string]admission.Terms) func(string) admission.Terms {
	return func(tenant string) admission.Terms { return table[tenant] }
}

func newLedger(windows, evaluation int64) *admission.Ledger {
	limits := admission.Limits{Windows: windows, Evaluation: evaluation}
	limits.EnsureDefaults()
	return admission.NewLedger(limits)
}

// A tenant at its ceiling waits, and others go on. A reservation that never fits fails with an error that names the
// limit.
func TestLedgerOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(100, 100)
		l.SetTerms(termsOf(map[string]admission.Terms{"small": {Windows: 0.3}}))
		first, ok := l.TryFor(admission.Windows, "small", 25)
		if !ok {
			t.Fatal("25 of 30 do not fit")
		}
		if _, ok := l.TryFor(admission.Windows, "small", 10); ok {
			t.Error("35 of 30 fit")
		}
		_, err := l.ReserveFor(t.Context(), admission.Windows, "small", 31)
		var limit *schema.LimitError
		if !errors.As(err, &limit) || limit.Limit != admission.LimitWindows || !errors.Is(err, schema.ErrLimit) ||
			!strings.Contains(err.Error(), `tenant "small" may have 30`) {
			t.Errorf("more than it may ever have: %v", err)
		}
		got := make(chan *admission.Hold)
		go func() {
			h, err := l.ReserveFor(t.Context(), admission.Windows, "small", 10)
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		synctest.Wait()
		other, ok := l.TryFor(admission.Windows, "other", 75)
		if !ok {
			t.Error("a reservation that waits for its tenant's share blocks another tenant")
		}
		other.Release()
		first.Shrink(5)
		second := <-got
		if own, all := l.Left(admission.Windows, "small"); own != 0 || all != 70 {
			t.Errorf("left: %d, %d", own, all)
		}
		// A new ceiling unblocks reservations that wait for it.
		go func() {
			h, _ := l.ReserveFor(t.Context(), admission.Windows, "small", 25)
			got <- h
		}()
		synctest.Wait()
		l.SetTerms(nil)
		(<-got).Release()
		first.Release()
		second.Release()
		if n := l.UsedBy(admission.Windows, "small"); n != 0 {
			t.Errorf("in the end %d", n)
		}
	})
}

// With several tenants, none can hold all of the memory that is held for long.
func TestLedgerLeavesSome(t *testing.T) {
	l := newLedger(1, 1<<20)
	l.SetTerms(func(string) admission.Terms { return admission.Terms{Several: true} })
	for n := range 6 {
		tenant, got := fmt.Sprint(n), int64(0)
		for {
			if _, ok := l.TryFor(admission.Evaluation, tenant, 256); !ok {
				break
			}
			got += 256
		}
		// Each takes half of what the tenants before have left.
		if want := int64(1<<20) >> (n + 1); got < want*9/10 || got > want*11/10 {
			t.Errorf("tenant %d, coming after as many, got %d, want about %d", n, got, want)
		}
	}
}

// Ceilings hold at any time, in any order of events, and no memory leaks.
func TestLedgerOfTenantsAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const limit = 1000
	l := newLedger(limit, limit)
	table := func(tenant string) admission.Terms {
		return admission.Terms{Windows: map[string]float64{"a": 0.2, "b": 0.5}[tenant]}
	}
	l.SetTerms(table)
	var wg sync.WaitGroup
	for i, tenant := range []string{"a", "a", "b", "b", "c", "c"} {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 500 {
				ctx, cancel := context.WithCancel(t.Context())
				if r.IntN(4) == 0 {
					go cancel()
				}
				h, err := l.ReserveFor(ctx, admission.Windows, tenant, r.Int64N(200)+1)
				cancel()
				if err != nil {
					continue
				}
				if most := l.MostFor(admission.Windows, tenant); l.UsedBy(admission.Windows, tenant) > most {
					t.Errorf("tenant %s has more than %d", tenant, most)
				}
				if r.IntN(8) == 0 {
					l.SetTerms(table)
				}
				h.Release()
			}
		})
	}
	wg.Wait()
	if a := l.Accounts()[admission.Windows]; a.Used != 0 || a.Waiting != 0 || a.Most > limit {
		t.Errorf("in the end: %+v", a)
	}
}

// Turns go by weight, and a tenant never runs more pieces than its share, even if slots are free.
func TestWorkOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := admission.NewWork(4)
		w.SetTerms(termsOf(map[string]admission.Terms{"half": {Workers: 0.5}}))
		var wg sync.WaitGroup
		running, most := map[string]int{}, map[string]int{}
		var mu sync.Mutex
		end := make(chan struct{})
		piece := func(tenant string) {
			wg.Go(func() {
				_ = w.Do(t.Context(), tenant, func() error {
					mu.Lock()
					running[tenant]++
					most[tenant] = max(most[tenant], running[tenant])
					mu.Unlock()
					<-end
					mu.Lock()
					defer mu.Unlock()
					running[tenant]--
					return nil
				})
			})
			synctest.Wait()
		}
		for range 5 {
			piece("half")
		}
		for range 3 {
			piece("other")
		}
		if running["half"] != 2 || running["other"] != 2 {
			t.Errorf("running: %v", running)
		}
		close(end)
		wg.Wait()
		if most["half"] != 2 {
			t.Errorf("at most: %v", most)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := admission.NewWork(1)
		w.SetTerms(termsOf(map[string]admission.Terms{"heavy": {Weight: 3}}))
		var order []string
		var wg sync.WaitGroup
		begin, end := make(chan struct{}), make(chan struct{})
		wg.Go(func() { _ = w.Do(t.Context(), "first", func() error { close(begin); <-end; return nil }) })
		<-begin
		for range 12 {
			for _, tenant := range []string{"light", "heavy"} {
				wg.Go(func() {
					_ = w.Do(t.Context(), tenant, func() error { order = append(order, tenant); return nil })
				})
				synctest.Wait()
			}
		}
		close(end)
		wg.Wait()
		heavy := strings.Count(strings.Join(order[:12], ""), "heavy")
		if heavy < 8 || heavy > 10 {
			t.Errorf("of twelve turns the heavy one had %d, want 9: %v", heavy, order)
		}
	})
}

// A tenant that may not have more of a class gets no turn there, and others go on.
func TestQueueSetsAside(t *testing.T) {
	var inFlight int
	q := admission.NewQueue(1, classOf, func(i *item, _ int) admission.Taken {
		if i.owner == "bounded" && inFlight == 2 {
			return admission.Taken{Aside: true}
		}
		if i.owner == "bounded" {
			inFlight++
		}
		return admission.Taken{OK: true, Cost: i.cost}
	})
	var bounded, free []*admission.Stream[item]
	for n := range 3 {
		bounded = append(bounded, q.Open("bounded", 5, fmt.Sprint(n)))
		free = append(free, q.Open("free", 1, fmt.Sprint(n)))
		for range 5 {
			bounded[n].Put(item{owner: "bounded", cost: 10})
			free[n].Put(item{owner: "free", cost: 10})
		}
	}
	take := func() map[string]int {
		got := map[string]int{}
		for {
			i, _, ok := q.Take()
			if !ok {
				return got
			}
			got[i.owner]++
		}
	}
	if got := take(); got["bounded"] != 2 || got["free"] != 15 {
		t.Fatalf("taken %v", got)
	}
	inFlight--
	if got := take(); len(got) > 0 {
		t.Errorf("taken before Again: %v", got)
	}
	q.Again()
	if got := take(); got["bounded"] != 1 {
		t.Errorf("taken %v", got)
	}
	bounded[0].Drop(func(*item) bool { return true }) // while it is set aside
	bounded[1].Close()
	inFlight = -100
	q.SetWeights(func(string) int64 { return 1 })
	q.Again()
	left := q.Waiting()
	if got := take(); got["bounded"] != left || q.Waiting() != 0 {
		t.Errorf("taken %v, %d waited", got, left)
	}
	bounded[2].Close()
	bounded[0].Close()
	if again := q.Open("bounded", 1, "again"); again == nil {
		t.Error("no place")
	}
}

// A hold made by Sibling is on the account of the first hold, even if tenants have no quotas any more.
func TestSiblingOfAHold(t *testing.T) {
	l := newLedger(100, 100)
	l.SetTerms(termsOf(map[string]admission.Terms{"small": {Windows: 0.3}}))
	h, _ := l.TryFor(admission.Windows, "small", 10)
	l.SetTerms(nil)
	more := h.Sibling()
	if err := more.Grow(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	h.Take(more)
	if n := l.UsedBy(admission.Windows, "small"); n != 15 || h.Bytes() != 15 {
		t.Errorf("the tenant has %d bytes, the hold %d; want 15", n, h.Bytes())
	}
	h.Release()
	if n := l.UsedBy(admission.Windows, "small"); n != 0 {
		t.Errorf("in the end the tenant has %d bytes", n)
	}
}

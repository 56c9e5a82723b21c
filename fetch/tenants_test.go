package fetch_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/admission"
	"bowstring/schema"
)

func as(t *testing.T, e *fetch.Engine, tenant string, req schema.Request) (*fetch.Stream, *fetch.Job) {
	t.Helper()
	ctx := fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant})
	j := must(e.Open(ctx, req))
	return must(e.Stream(ctx, j, ticket(req, 0))), j
}

func terms(table map[string]fetch.Terms) func(string) fetch.Terms {
	return func(tenant string) fetch.Terms { return table[tenant] }
}

// Tenants of different weights get what the store gives by weight, however many streams each has.
func TestTenantsShareByWeight(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	streams := map[string]int{"one": 1, "two": 12, "four": 3}
	weights := map[string]int64{"one": 1, "two": 2, "four": 4}
	opts := fetch.Options{Terms: func(tenant string) fetch.Terms {
		return fetch.Terms{Weight: weights[tenant], Several: true}
	}}
	far(t, newRemote(st, 20*time.Millisecond, 4e6), opts, func(t *testing.T, e *fetch.Engine) {
		got := map[string]*atomic.Int64{"one": {}, "two": {}, "four": {}}
		var wg sync.WaitGroup
		seed := uint64(0)
		for tenant, n := range streams {
			for range n {
				seed++
				req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 16,
					Shuffle: &schema.Shuffle{Seed: seed}}
				j := resolve(t, e, req)
				defer j.Close()
				tk := ticket(req, 0)
				tk.Epochs = 100
				s := must(e.Stream(fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant}), j, tk))
				wg.Go(func() {
					defer s.Close()
					bytes, _ := pull(t, s, 3*time.Second, 15*time.Second)
					got[tenant].Add(bytes)
				})
			}
		}
		wg.Wait()
		var all float64
		for _, n := range got {
			all += float64(n.Load())
		}
		for tenant, n := range got {
			if share, want := float64(n.Load())/all, float64(weights[tenant])/7; share < 0.9*want || share > 1.1*want {
				t.Errorf("tenant %s got %.3f of all, want %.3f", tenant, share, want)
			}
		}
	})
}

// A tenant's bound for windows holds, also while its streams are idle. It blocks no other
// tenant. If not even one sample fits, the error says so.
func TestTenantWindows(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	synctest.Test(t, func(t *testing.T) {
		const limit, most = 1 << 20, 100_000
		table := map[string]fetch.Terms{"small": {Windows: float64(most) / limit, Several: true},
			"tiny": {Windows: 500.0 / limit}}
		e := must(fetch.NewEngine(st, fetch.Options{WindowBytes: limit, Logger: quiet, Terms: terms(table)}))
		defer e.Close()
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 1000, BatchBytes: 1 << 30}
		bound := func() {
			t.Helper()
			synctest.Wait()
			if n := e.Ledger().UsedBy(admission.Windows, "small"); n > most {
				t.Fatalf("it holds %d bytes, of %d", n, most)
			}
		}
		var held []*fetch.Batch
		var stalled []*fetch.Stream
		for range 6 {
			s, j := as(t, e, "small", req)
			defer j.Close()
			stalled = append(stalled, s)
			bound()
			held = append(held, must(s.Next()))
			bound()
		}
		for _, tenant := range []string{"small", "other"} {
			s, j := as(t, e, tenant, req)
			rows := 0
			for b := range batches(t, s) {
				rows += len(b.Positions)
				bound()
			}
			s.Close()
			j.Close()
			if rows != 1000 {
				t.Errorf("tenant %s: %d rows", tenant, rows)
			}
		}
		for i, s := range stalled {
			held[i].Release()
			s.Close()
		}
		s, j := as(t, e, "tiny", req)
		defer j.Close()
		defer s.Close()
		var err error
		for err == nil {
			var b *fetch.Batch
			if b, err = s.Next(); err == nil {
				b.Release()
			}
		}
		var named *schema.LimitError
		if !errors.As(err, &named) || named.Limit != admission.LimitWindows || named.After != 0 {
			t.Errorf("of a sample that is larger than the ceiling: %v", err)
		}
	})
}

// A tenant has no more in flight to the store than its share; others have the rest; and who is alone
// at its share goes on.
func TestTenantReads(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	far(t, newRemote(st, 20*time.Millisecond, 4e6),
		fetch.Options{Terms: terms(map[string]fetch.Terms{"small": {Reads: 0.1}})},
		func(t *testing.T, e *fetch.Engine) {
			rate := func(tenants ...string) map[string]float64 {
				got := map[string]float64{}
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i, tenant := range tenants {
					req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 16,
						Shuffle: &schema.Shuffle{Seed: uint64(i)}}
					j := resolve(t, e, req)
					defer j.Close()
					tk := ticket(req, 0)
					tk.Epochs = 100
					s := must(e.Stream(fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant}), j, tk))
					wg.Go(func() {
						defer s.Close()
						bytes, _ := pull(t, s, time.Second, 4*time.Second)
						mu.Lock()
						defer mu.Unlock()
						got[tenant] = float64(bytes)
					})
				}
				wg.Wait()
				return got
			}
			both := rate("small", "other")
			if both["small"] == 0 || both["small"] > 0.3*both["other"] {
				t.Errorf("with a share of a tenth: %v", both)
			}
			if alone := rate("small"); alone["small"] < both["small"]/2 {
				t.Errorf("alone it got %v, beside another %v", alone, both)
			}
			e.SetTerms(nil)
			if both = rate("small", "other"); both["small"] < 0.7*both["other"] {
				t.Errorf("without a share: %v", both)
			}
		})
}

// One reader with many expressions does not hold all memory of selections, and one at its ceiling is refused
// by name.
func TestTenantEvaluation(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	synctest.Test(t, func(t *testing.T) {
		e := must(fetch.NewEngine(st, fetch.Options{
			Memory: admission.Limits{Evaluation: 2_200_000}, Logger: quiet,
			Terms: terms(map[string]fetch.Terms{"greedy": {Several: true}, "other": {Several: true},
				"small": {Evaluation: 1e-4}}),
		}))
		defer e.Close()
		var held []*fetch.Job
		open := func(tenant string, n int) error {
			j, err := e.Open(fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant}),
				schema.Request{Dataset: "d", Where: fmt.Sprintf("label == 1 or label > %d", 1000+n)})
			if err == nil {
				held = append(held, j)
			}
			return err
		}
		var err error
		n := 0
		for ; err == nil && n < 10_000; n++ {
			err = open("greedy", n)
		}
		var named *schema.LimitError
		if !errors.As(err, &named) || named.Limit != admission.LimitEvaluation || named.After <= 0 {
			t.Errorf("after %d expressions: %v", n, err)
		}
		if err := open("other", 20_000); err != nil {
			t.Errorf("after one has all that it may, another: %v", err)
		}
		if err := open("small", 30_000); !errors.As(err, &named) || named.After != 0 {
			t.Errorf("more than there may ever be: %v", err)
		}
		for _, j := range held {
			j.Close()
		}
		held = nil
		if err := open("greedy", 40_000); err != nil {
			t.Errorf("when its jobs have ended: %v", err)
		}
		held[0].Close()
		synctest.Wait()
	})
}

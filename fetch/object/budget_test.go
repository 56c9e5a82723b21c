package object_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// refusing is a bucket that takes a number of requests a second by prefix, and refuses the others, in the test's time.
type refusing struct {
	mu     sync.Mutex
	rng    *rand.Rand
	parts  []*part
	share  float64       // of the requests that it refuses at any rate
	after  time.Duration // that it says with refusals
	asked  int64
	denied int64
}

// part is a partition: the keys with a prefix.
type part struct {
	prefix string
	rate   float64 // 0: any
	burst  float64
	tokens float64
	at     time.Time
	served int64
}

func (p *part) take(now time.Time) bool {
	if p.rate == 0 {
		p.served++
		return true
	}
	p.tokens = min(p.tokens+p.rate*now.Sub(p.at).Seconds(), p.burst)
	p.at = now
	if p.tokens < 1 {
		return false
	}
	p.tokens--
	p.served++
	return true
}

func (b *refusing) URL() string { return "s3://test" }

func (b *refusing) ask(ctx context.Context, key string) error {
	b.mu.Lock()
	latency := 20*time.Millisecond + time.Duration(b.rng.ExpFloat64()*float64(10*time.Millisecond))
	b.mu.Unlock()
	sleep(ctx, latency/2)
	b.mu.Lock()
	ok := b.rng.Float64() >= b.share
	for _, p := range b.parts {
		if ok && len(key) >= len(p.prefix) && key[:len(p.prefix)] == p.prefix {
			ok = p.take(time.Now())
			break
		}
	}
	b.asked++
	if !ok {
		b.denied++
	}
	b.mu.Unlock()
	sleep(ctx, latency/2)
	if err := ctx.Err(); err != nil {
		return err
	}
	if !ok {
		return &object.ThrottledError{Bucket: b.URL(), Key: key, Status: 503, After: b.after}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (b *refusing) Range(ctx context.Context, key string, _ schema.ObjectVersion, _ int64, _ []byte) error {
	return b.ask(ctx, key)
}

func (b *refusing) Get(ctx context.Context, key string, _ schema.ObjectVersion, _ int64) ([]byte, object.Info, error) {
	return nil, object.Info{Key: key}, b.ask(ctx, key)
}

func (b *refusing) Stat(ctx context.Context, key string) (object.Info, error) {
	return object.Info{Key: key}, b.ask(ctx, key)
}

func (b *refusing) List(ctx context.Context, o object.ListOptions) iter.Seq2[object.Info, error] {
	return func(yield func(object.Info, error) bool) {
		for page := range 3 {
			if o.Page != nil {
				if err := o.Page(ctx); err != nil {
					yield(object.Info{}, err)
					return
				}
			}
			if err := b.ask(ctx, o.Prefix); err != nil {
				yield(object.Info{}, err)
				return
			}
			for i := range 5 {
				if !yield(object.Info{Key: fmt.Sprintf("%s%d-%d", o.Prefix, page, i)}, nil) {
					return
				}
			}
		}
	}
}

func (b *refusing) Put(ctx context.Context, key string, _ []byte, _ object.Condition) (object.Info, object.Outcome, error) {
	if err := b.ask(ctx, key); err != nil {
		return object.Info{}, object.Failed, err
	}
	return object.Info{Key: key}, object.Made, nil
}

func (b *refusing) Delete(ctx context.Context, key string) error { return b.ask(ctx, key) }
func (b *refusing) Close() error                                 { return nil }

type tenantKey struct{}

func tenantOf(ctx context.Context) string {
	name, _ := ctx.Value(tenantKey{}).(string)
	return name
}

// load reads keys of a prefix again and again, as a tenant, with a number of workers, until the context ends.
type load struct {
	tenant, prefix string
	workers        int
	think          time.Duration // between two requests
	made           atomic.Int64  // requests that were not refused
	longest        atomic.Int64  // wait for a request
}

func (l *load) run(ctx context.Context, wg *sync.WaitGroup, b object.Bucket) {
	ctx = context.WithValue(ctx, tenantKey{}, l.tenant)
	for i := range l.workers {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				err := b.Range(ctx, fmt.Sprintf("%s%d-%d", l.prefix, i, n), schema.ObjectVersion{}, 0, nil)
				if took := int64(time.Since(began)); took > l.longest.Load() {
					l.longest.Store(took)
				}
				switch {
				case err == nil:
					l.made.Add(1)
				case ctx.Err() == nil:
					sleep(ctx, 5*time.Millisecond) // the attempt after it
				}
				if l.think > 0 {
					sleep(ctx, l.think)
				}
			}
		})
	}
}

func newRefusing(t *testing.T, parts ...*part) *refusing {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, p := range parts {
		p.at, p.tokens = time.Now(), p.burst
	}
	return &refusing{rng: rand.New(rand.NewPCG(seed, 1)), parts: parts}
}

// TestBudgetOfManyRates: whatever the store allows, and however it counts, nearly all of it is used, and little refused.
func TestBudgetOfManyRates(t *testing.T) {
	for _, rate := range []float64{30, 300, 1200} {
		for _, burst := range []float64{0.05, 1} {
			t.Run(fmt.Sprintf("%g a second, burst %g", rate, burst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := &part{rate: rate, burst: max(rate*burst, 5)}
					under := newRefusing(t, p)
					b := object.Budgeted(under, object.NewBudget(object.BudgetOptions{}))
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
					defer cancel()
					var wg sync.WaitGroup
					l := &load{workers: int(max(rate/5, 20))}
					l.run(ctx, &wg, b)
					wg.Wait()
					used := float64(l.made.Load()) / (rate * 300)
					refused := float64(under.denied) / float64(under.asked)
					t.Logf("used %.3f of what is allowed, refused %.4f, longest wait %v", used, refused,
						time.Duration(l.longest.Load()))
					if used < 0.9 || refused > 0.05 {
						t.Errorf("used %.3f of what is allowed, want 0.9 or more; %.4f refused, want 0.05 or less", used, refused)
					}
					if longest := time.Duration(l.longest.Load()); longest > 20*time.Second {
						t.Errorf("a request waited for %v", longest)
					}
				})
			})
		}
	}
}

// TestBudgetIsFair: tenants that want more than there is get the same, however many
// requests each has. A tenant that wants less gets what it wants, and does not wait
// behind others.
func TestBudgetIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{rate: 500, burst: 100})
		b := object.Budgeted(under, object.NewBudget(object.BudgetOptions{Tenant: tenantOf}))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		loads := []*load{{tenant: "large", workers: 400}, {tenant: "small", workers: 60}, {tenant: "third", workers: 120},
			{tenant: "modest", workers: 1, think: 100 * time.Millisecond}}
		for _, l := range loads {
			l.run(ctx, &wg, b)
		}
		wg.Wait()
		share := float64(loads[0].made.Load()+loads[1].made.Load()+loads[2].made.Load()) / 3
		for _, l := range loads {
			t.Logf("%s: %d requests, longest wait %v", l.tenant, l.made.Load(), time.Duration(l.longest.Load()))
			if l.workers > 1 && (float64(l.made.Load()) < 0.9*share || float64(l.made.Load()) > 1.1*share) {
				t.Errorf("tenant %s made %d requests, want %.0f within a tenth", l.tenant, l.made.Load(), share)
			}
		}
		if least := int64(1100); loads[3].made.Load() < least {
			t.Errorf("a tenant that wants little made %d requests, want %d or more", loads[3].made.Load(), least)
		}
	})
}

// TestBudgetFollows: what the store allows rises to three times and falls to a third of that.
func TestBudgetFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &part{rate: 300, burst: 100}
		under := newRefusing(t, p)
		b := object.Budgeted(under, object.NewBudget(object.BudgetOptions{}))
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		l := &load{workers: 300}
		l.run(ctx, &wg, b)
		for _, phase := range []struct{ rate, settle float64 }{{300, 20}, {900, 75}, {300, 20}} {
			under.mu.Lock()
			p.rate = phase.rate
			under.mu.Unlock()
			sleep(ctx, time.Duration(phase.settle)*time.Second)
			before := l.made.Load()
			sleep(ctx, 30*time.Second)
			got := float64(l.made.Load()-before) / 30
			t.Logf("%.0f a second of %.0f", got, phase.rate)
			if got < 0.9*phase.rate {
				t.Errorf("%.0f s after the store began to allow %.0f a second, %.0f are made", phase.settle, phase.rate, got)
			}
		}
		cancel()
		wg.Wait()
		if refused := float64(under.denied) / float64(under.asked); refused > 0.05 {
			t.Errorf("%.4f of the requests were refused, want 0.05 or less", refused)
		}
	})
}

// TestBudgetOfPrefixes: where one prefix is refused, it gets a limit of its own, and others none.
func TestBudgetOfPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cold, rest := &part{prefix: "data/cold/", rate: 200, burst: 20}, &part{}
		under := newRefusing(t, cold, rest)
		budget := object.NewBudget(object.BudgetOptions{})
		b := object.Budgeted(under, budget)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		loads := []*load{{prefix: "data/cold/", workers: 50}, {prefix: "data/hot/", workers: 50}, {prefix: "other/", workers: 20}}
		for _, l := range loads {
			l.run(ctx, &wg, b)
		}
		sleep(ctx, 8*time.Minute)
		before := []int64{loads[0].made.Load(), loads[1].made.Load(), loads[2].made.Load()}
		sleep(ctx, time.Minute)
		for i, least := range []int64{180 * 60, 1300 * 60, 500 * 60} {
			if got := loads[i].made.Load() - before[i]; got < least {
				t.Errorf("%s: %d requests in a minute, want %d or more", loads[i].prefix, got, least)
			}
		}
		limits := map[string]object.Limit{}
		for _, l := range budget.Limits() {
			if l.Class == "reads" {
				t.Logf("%+v", l)
				limits[l.Prefix] = l
			}
		}
		if l := limits["data/cold/"]; l.PerSecond < 150 || l.PerSecond > 300 {
			t.Errorf("the prefix that is refused has the limit %+v, want about 200 a second", l)
		}
		for _, prefix := range []string{"", "data/"} {
			if limits[prefix].PerSecond != 0 {
				t.Errorf("what is not refused has the limit %+v", limits[prefix])
			}
		}
		cancel()
		wg.Wait()
	})
}

// TestBudgetOfWholeBucket: a limit of the whole bucket is not divided, however requests
// are distributed in it.
func TestBudgetOfWholeBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{rate: 400, burst: 100})
		budget := object.NewBudget(object.BudgetOptions{})
		b := object.Budgeted(under, budget)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for i, workers := range []int{40, 30, 20} {
			(&load{prefix: fmt.Sprintf("%d/", i), workers: workers}).run(ctx, &wg, b)
		}
		wg.Wait()
		for _, l := range budget.Limits() {
			if l.Prefix != "" {
				t.Errorf("there is a limit %+v", l)
			}
		}
		if refused := float64(under.denied) / float64(under.asked); refused > 0.05 {
			t.Errorf("%.4f of the requests were refused, want 0.05 or less", refused)
		}
	})
}

// TestBudgetWaitsAsTheBucketSays: nothing is asked before the time that a refusal names, and writes are not reads.
func TestBudgetWaitsAsTheBucketSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &part{rate: 1, burst: 1}
		under := newRefusing(t, p)
		under.after = 7 * time.Second
		b := object.Budgeted(under, object.NewBudget(object.BudgetOptions{}))
		ctx := t.Context()
		_ = b.Range(ctx, "a", schema.ObjectVersion{}, 0, nil)
		if err := b.Range(ctx, "a", schema.ObjectVersion{}, 0, nil); err == nil {
			t.Fatal("the second request was not refused")
		}
		refused := time.Now()
		if _, _, err := b.Put(ctx, "a", nil, object.Condition{}); time.Since(refused) > 5*time.Second {
			t.Errorf("a write waited for %v as a read was refused: %v", time.Since(refused), err)
		}
		under.mu.Lock()
		p.rate = 0
		under.mu.Unlock()
		if err := b.Range(ctx, "a", schema.ObjectVersion{}, 0, nil); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(refused); waited < 7*time.Second || waited > 9*time.Second {
			t.Errorf("the next read was made %v after the refusal, want 7 s", waited)
		}
	})
}

// TestBudgetEndsWithContexts: a request that waits ends with its context, and leaves nothing behind.
func TestBudgetEndsWithContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{rate: 1, burst: 1})
		budget := object.NewBudget(object.BudgetOptions{MaxWaiting: 10})
		b := object.Budgeted(under, budget)
		read := func(ctx context.Context) error { return b.Range(ctx, "a", schema.ObjectVersion{}, 0, nil) }
		_, _ = read(t.Context()), read(t.Context())
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		why := errors.New("enough")
		for range 10 {
			wg.Go(func() {
				if err := read(ctx); err != nil && !errors.Is(err, why) && !errors.Is(err, schema.ErrUnavailable) {
					t.Errorf("a request that waits ends with %v", err)
				}
			})
		}
		synctest.Wait()
		if err := read(ctx); !errors.Is(err, schema.ErrUnavailable) {
			t.Errorf("one more than may wait: %v, want it unavailable", err)
		}
		cancel(why)
		wg.Wait()
		for _, l := range budget.Limits() {
			if l.Waiting != 0 {
				t.Errorf("%d still wait", l.Waiting)
			}
		}
		sleep(t.Context(), 5*time.Second)
		if err := read(t.Context()); err != nil {
			t.Errorf("a request after them: %v", err)
		}
	})
}

// TestBudgetIsShared: three nodes that share a bucket use what it allows, each about as
// much. When one has left, each of the others allows itself 1.5 times as much at once.
// The requests of the following seconds are not compared, because a node that has just
// been refused makes few.
func TestBudgetIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{rate: 900, burst: 200})
		var nodes atomic.Int64
		nodes.Store(3)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		loads, budgets, buckets := make([]*load, 3), make([]*object.Budget, 3), make([]object.Bucket, 3)
		for i := range loads {
			budgets[i] = object.NewBudget(object.BudgetOptions{Sharers: func() int { return int(nodes.Load()) }})
			buckets[i] = object.Budgeted(under, budgets[i])
			loads[i] = &load{workers: 200}
			loads[i].run(ctx, &wg, buckets[i])
		}
		wg.Wait()
		var all float64
		for i, l := range loads {
			got := float64(l.made.Load()) / 180
			if all += got; got < 150 || got > 450 {
				t.Errorf("node %d makes %.0f a second of 900", i, got)
			}
		}
		if all < 0.9*900 {
			t.Errorf("the nodes make %.0f a second of 900 together", all)
		}
		if refused := float64(under.denied) / float64(under.asked); refused > 0.05 {
			t.Errorf("%.4f of the requests were refused, want 0.05 or less", refused)
		}
		limitOf := func(i int) float64 {
			if err := buckets[i].Range(t.Context(), "a", schema.ObjectVersion{}, 0, nil); err != nil {
				t.Fatal(err)
			}
			for _, l := range budgets[i].Limits() {
				if l.Class == "reads" && l.Prefix == "" {
					return l.PerSecond
				}
			}
			t.Fatalf("node %d has no limit", i)
			return 0
		}
		sleep(t.Context(), 10*time.Second) // the store has what it allows at once
		for i := range budgets {
			nodes.Store(3)
			three := limitOf(i)
			nodes.Store(2)
			two := limitOf(i)
			if by := two / three; by < 1.4 || by > 1.6 {
				t.Errorf("node %d allows itself %.0f a second as one of three and %.0f as one of two", i, three, two)
			}
		}
	})
}

// TestBudgetOfLists: each page of a list waits for its turn and is counted.
func TestBudgetOfLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		under := newRefusing(t, &part{})
		requests := object.NewRequests(object.RequestsOptions{})
		b := requests.Wrap(under)
		n := 0
		for _, err := range b.List(t.Context(), object.ListOptions{Prefix: "a/"}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		got := requests.Usage()
		if n != 15 || len(got) != 1 || got[0].Lists != 3 || under.asked != 3 {
			t.Errorf("%d objects, %d requests, %+v", n, under.asked, got)
		}
	})
}

// TestRequestsTakeNoMemory: a request that does not wait costs no allocation.
func TestRequestsTakeNoMemory(t *testing.T) {
	b := object.NewRequests(object.RequestsOptions{Tenant: tenantOf}).Wrap(&quick{})
	ctx := context.WithValue(context.Background(), tenantKey{}, "a")
	buf := make([]byte, 10)
	if n := testing.AllocsPerRun(1000, func() {
		if err := b.Range(ctx, "data/train/1.jpg", schema.ObjectVersion{}, 0, buf); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a request costs %g allocations", n)
	}
}

// quick is a bucket that answers at once.
type quick struct{ refusing }

func (*quick) URL() string { return "s3://test?region=us-east-1" }

func (*quick) Range(context.Context, string, schema.ObjectVersion, int64, []byte) error { return nil }

func BenchmarkRequests(b *testing.B) {
	bucket := object.NewRequests(object.RequestsOptions{Tenant: tenantOf}).Wrap(&quick{})
	ctx := context.WithValue(context.Background(), tenantKey{}, "a")
	buf := make([]byte, 10)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			_ = bucket.Range(ctx, "data/train/1.jpg", schema.ObjectVersion{}, 0, buf)
		}
	})
}

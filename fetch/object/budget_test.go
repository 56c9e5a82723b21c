package object_test

import (
	"context"
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

// refusing is a bucket that takes so many requests a second by prefix, and refuses the others, in the time of the test.
type refusing struct {
	mu     sync.Mutex
	rng    *rand.Rand
	parts  []*part
	after  time.Duration // that it says with refusals
	served map[string]int64
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
	ok := true
	for _, p := range b.parts {
		if len(key) >= len(p.prefix) && key[:len(p.prefix)] == p.prefix {
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

// load reads keys of a prefix again and again, as a tenant, so many at once, until the context ends.
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
	for _, rate := range []float64{30, 300, 3000} {
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
					if used < 0.9 || refused > 0.02 {
						t.Errorf("used %.3f of what is allowed, want 0.9 or more; %.4f refused, want 0.02 or less", used, refused)
					}
					if longest := time.Duration(l.longest.Load()); longest > 20*time.Second {
						t.Errorf("a request waited for %v", longest)
					}
				})
			})
		}
	}
}

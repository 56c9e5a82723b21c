package calibrate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is a store in virtual time: a round trip, then one server after another for reads and
// for bytes.
type far struct {
	latency     time.Duration
	reads, rate float64 // a second; 0 for no limit

	mu       sync.Mutex
	free     time.Time
	inFlight atomic.Int64
	most     atomic.Int64
}

func (f *far) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	n := f.inFlight.Add(1)
	defer f.inFlight.Add(-1)
	for most := f.most.Load(); n > most && !f.most.CompareAndSwap(most, n); most = f.most.Load() {
	}
	cost := 0.0
	if f.reads > 0 {
		cost = 1 / f.reads
	}
	if f.rate > 0 {
		cost = max(cost, float64(ref.Size)/f.rate)
	}
	f.mu.Lock()
	now := time.Now()
	if f.free.Before(now) {
		f.free = now
	}
	f.free = f.free.Add(time.Duration(cost * 1e9))
	due := f.free.Add(f.latency)
	f.mu.Unlock()
	select {
	case <-time.After(time.Until(due)):
		return schema.NewBlob(make([]byte, ref.Size), nil), nil
	case <-ctx.Done():
		return schema.Blob{}, context.Cause(ctx)
	}
}

func refsOf(sizes ...int64) (refs []schema.BlobRef) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		refs = append(refs, schema.BlobRef{Size: sizes[rng.IntN(len(sizes))]})
	}
	return refs
}

// Calibration finds the limits of the store, and reports no limit that it did not reach.
func TestStore(t *testing.T) {
	for _, c := range []struct {
		name         string
		far          *far
		sizes        []int64
		reads, bytes float64 // 0: not said
		atLeast      bool
	}{
		{"both", &far{latency: 20 * time.Millisecond, reads: 2000, rate: 50e6}, []int64{1000, 100_000}, 2000, 50e6,
			false},
		{"reads", &far{latency: 5 * time.Millisecond, reads: 1000}, []int64{1000, 10_000}, 1000, 0, false},
		{"bytes", &far{latency: 5 * time.Millisecond, rate: 20e6}, []int64{10_000, 100_000}, 0, 20e6, false},
		{"far", &far{latency: 150 * time.Millisecond, rate: 40e6}, []int64{4000, 200_000}, 0, 40e6, false},
		{"one size", &far{latency: 5 * time.Millisecond, rate: 20e6}, []int64{50_000}, 400, 20e6, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refs := refsOf(c.sizes...)
				r, err := Store(t.Context(), c.far.get, refs, Options{Time: 6 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				near := func(name string, got, want float64) {
					if u := r.Uncertain[name]; math.Abs(got-want) > 0.08*want || u.AtLeast != (c.atLeast || want == 0) {
						t.Errorf("%s is %g, want %g; %+v", name, got, want, r)
					}
				}
				near("store.reads_per_s", r.Store.ReadsPerS, c.reads)
				near("store.bytes_per_s", r.Store.BytesPerSec, c.bytes)
				if ms := float64(c.far.latency) / 1e6; r.Store.LatencyMS < ms || r.Store.LatencyMS > ms+3 {
					t.Errorf("latency is %g ms, want about %g", r.Store.LatencyMS, ms)
				}
			})
		})
	}
}

// A probe keeps to its bounds, ends with its context, and says what the store failed with.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := far{latency: 100 * time.Millisecond}
		start := time.Now()
		r, err := Store(t.Context(), f.get, refsOf(1000), Options{Time: 4 * time.Second, Reads: 64, Bytes: 20_000})
		if err != nil || f.most.Load() > 20 || time.Since(start) > 6*time.Second {
			t.Errorf("%d reads in flight, want 20; %s, %v", f.most.Load(), time.Since(start), err)
		}
		if u := r.Uncertain["store.reads_per_s"]; !u.AtLeast || r.Store.ReadsPerS != 0 {
			t.Errorf("a bound ended it, and it is said to be all that there is: %+v", r)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := Store(ctx, f.get, refsOf(1000), Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after its context: %v", err)
		}
	})
	broken := func(context.Context, schema.BlobRef) (schema.Blob, error) {
		return schema.Blob{}, schema.ErrUnavailable
	}
	if _, err := Store(t.Context(), broken, refsOf(1), Options{}); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("of a store that fails: %v", err)
	}
	if _, err := Store(t.Context(), broken, nil, Options{}); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("without a blob: %v", err)
	}
	if _, err := Store(t.Context(), broken, refsOf(1), Options{Reads: -1}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("with a wrong option: %v", err)
	}
}

package delay_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/store"
	"bowstring/fetch/store/local"
	"bowstring/internal/delay"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

func TestStoreIsAStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Opener {
		dir := t.TempDir()
		return func() (store.Store, error) {
			inner, err := local.Open(dir, local.Options{SegmentBytes: 64 << 10})
			if err != nil {
				return nil, err
			}
			return delay.New(delay.Config{}).Store(inner), nil
		}
	})
}

// shelf is a store in memory, of which only Get and Datasets work.
type shelf struct {
	store.Store
	mu    sync.Mutex
	blobs map[schema.Key][]byte
	gets  map[schema.Key]int
	fault error
}

func (s *shelf) put(data []byte) schema.BlobRef {
	ref := schema.RefOf(data)
	s.blobs[ref.Key] = data
	return ref
}

func (s *shelf) Get(_ context.Context, ref schema.BlobRef) (schema.Blob, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets[ref.Key]++
	if s.fault != nil {
		return schema.Blob{}, s.fault
	}
	data, ok := s.blobs[ref.Key]
	if !ok {
		return schema.Blob{}, schema.ErrNotFound
	}
	return schema.NewBlob(data, nil), nil
}

func (s *shelf) Datasets(context.Context) ([]store.Dataset, error) { return nil, nil }

func (s *shelf) Stats() store.Stats { return store.Stats{Blobs: 7} }

// remote runs f in a bubble with a store behind a link.
func remote(t *testing.T, config delay.Config, f func(t *testing.T, inner *shelf, s store.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		inner := &shelf{blobs: map[schema.Key][]byte{}, gets: map[schema.Key]int{}}
		f(t, inner, delay.New(config).Store(inner))
	})
}

func get(t *testing.T, s store.Store, ref schema.BlobRef) time.Duration {
	t.Helper()
	since := clock()
	blob, err := s.Get(t.Context(), ref)
	if err != nil {
		t.Error(err)
	} else if err := ref.Check(blob.Bytes()); err != nil {
		t.Error(err)
	}
	blob.Release()
	return since()
}

func TestStoreLatency(t *testing.T) {
	remote(t, delay.Config{RTT: rtt}, func(t *testing.T, inner *shelf, s store.Store) {
		ref := inner.put([]byte("a blob"))
		equal(t, "first", get(t, s, ref), rtt)
		equal(t, "second", get(t, s, ref), rtt)
		equal(t, "reads of the inner store", inner.gets[ref.Key], 1)
		since := clock()
		_, err := s.Get(t.Context(), schema.RefOf([]byte("unknown")))
		equal(t, "unknown", errors.Is(err, schema.ErrNotFound), true)
		equal(t, "unknown", since(), rtt)
		since = clock()
		_, err = s.Datasets(t.Context())
		equal(t, "catalog", err, nil)
		equal(t, "catalog", since(), rtt)
		equal(t, "counts", s.Stats(), store.Stats{BlobReads: 2, BlobBytes: 2 * ref.Size, Blobs: 7})
	})
}

func TestStoreBandwidth(t *testing.T) {
	const n, size = 50, 100_000
	remote(t, delay.Config{RTT: rtt, Bandwidth: 1e7}, func(t *testing.T, inner *shelf, s store.Store) {
		ref := inner.put(make([]byte, size))
		get(t, s, ref)
		since := clock()
		var running sync.WaitGroup
		for range n {
			running.Go(func() { get(t, s, ref) })
		}
		running.Wait()
		equal(t, "all", since(), rtt+n*size*time.Second/1e7)
	})
}

// latencies are those of calls one after another.
func latencies(t *testing.T, config delay.Config, n int) (all []time.Duration) {
	remote(t, config, func(t *testing.T, inner *shelf, s store.Store) {
		ref := inner.put([]byte("a blob"))
		for range n {
			all = append(all, get(t, s, ref))
		}
	})
	return all
}

func TestStoreSlowShare(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const n, share, by = 5000, 0.1, 10 * time.Second
	config := delay.Config{RTT: rtt, Jitter: 10 * ms, Seed: seed, SlowShare: share, SlowBy: by}
	first := latencies(t, config, n)
	slow := 0
	for _, d := range first {
		if d >= by {
			slow++
			d -= by
		}
		if d < rtt || d >= rtt+10*ms {
			t.Errorf("latency %s", d)
		}
	}
	within(t, "slow", float64(slow), n*share, 0.25) // 5.9 standard deviations
	second := latencies(t, config, n)
	config.Seed++
	third := latencies(t, config, n)
	same := 0
	for i := range first {
		equal(t, "the same seed gives the same", first[i], second[i])
		if first[i] == third[i] {
			same++
		}
	}
	if same > n/100 {
		t.Errorf("another seed gives the same %d times of %d", same, n)
	}
}

func TestStoreCancel(t *testing.T) {
	why := errors.New("enough")
	remote(t, delay.Config{RTT: rtt}, func(t *testing.T, inner *shelf, s store.Store) {
		ref := inner.put([]byte("a blob"))
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*ms, why)
		defer cancel()
		since := clock()
		_, err := s.Get(ctx, ref)
		equal(t, "get", errors.Is(err, why), true)
		equal(t, "get", since(), 30*ms)
		_, err = s.Datasets(ctx)
		equal(t, "catalog", errors.Is(err, why), true)
		equal(t, "catalog", since(), 30*ms)
	})
}

func TestStoreTriesAgainAfterAFault(t *testing.T) {
	remote(t, delay.Config{}, func(t *testing.T, inner *shelf, s store.Store) {
		ref := inner.put([]byte("a blob"))
		inner.fault = schema.ErrUnavailable
		_, err := s.Get(t.Context(), ref)
		equal(t, "fault", errors.Is(err, schema.ErrUnavailable), true)
		inner.fault = nil
		get(t, s, ref)
		get(t, s, ref)
		equal(t, "reads of the inner store", inner.gets[ref.Key], 2)
	})
}

func TestStoreAllocatesNothing(t *testing.T) {
	ctx := t.Context()
	ctx.Done() // makes the channel
	for _, rtt := range []time.Duration{0, time.Microsecond} {
		inner := &shelf{blobs: map[schema.Key][]byte{}, gets: map[schema.Key]int{}}
		ref := inner.put([]byte("a blob"))
		s := delay.New(delay.Config{RTT: rtt}).Store(inner)
		least := 1.0
		for range 10 { // the race detector makes a sync.Pool forget at random
			least = min(least, testing.AllocsPerRun(100, func() {
				blob, err := s.Get(ctx, ref)
				if err != nil {
					t.Error(err)
				}
				blob.Release()
			}))
		}
		if least > 0 {
			t.Errorf("RTT %s: %v allocations a Get", rtt, least)
		}
	}
}

type held struct {
	store.Store
	got string
}

func (h *held) SetAddr(addr string) error { h.got = addr; return nil }

func TestStoreSaysWhereItIsServed(t *testing.T) {
	type holder interface{ SetAddr(string) error }
	l := delay.New(delay.Config{})
	if _, ok := l.Store(&shelf{}).(holder); ok {
		t.Error("a store that no process holds has an address")
	}
	h := &held{}
	if err := l.Store(h).(holder).SetAddr("here"); err != nil {
		t.Error(err)
	}
	equal(t, "SetAddr", h.got, "here")
}

func BenchmarkStoreGet(b *testing.B) {
	for _, rtt := range []time.Duration{0, 20 * ms, 150 * ms} {
		b.Run("rtt="+rtt.String(), func(b *testing.B) {
			inner := &shelf{blobs: map[schema.Key][]byte{}, gets: map[schema.Key]int{}}
			ref := inner.put(make([]byte, 110_000))
			s := delay.New(delay.Config{RTT: rtt}).Store(inner)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			b.ReportAllocs()
			start := cpu()
			b.SetParallelism(2048)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					blob, err := s.Get(ctx, ref)
					if err != nil {
						b.Error(err)
					}
					blob.Release()
				}
			})
			b.ReportMetric(float64((cpu()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

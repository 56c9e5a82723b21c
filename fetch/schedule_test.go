package fetch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// However far the store is, a stream fills the path, and soon; what is in
// flight stays within a few times what the path holds.
func TestStreamFillsThePath(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	const rate = 2e6
	for _, rtt := range []time.Duration{100 * time.Microsecond, 20 * time.Millisecond, 150 * time.Millisecond} {
		t.Run(rtt.String(), func(t *testing.T) {
			r := newRemote(st, rtt, rate)
			far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
				req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64,
					Shuffle: &schema.Shuffle{Seed: 1}}
				s, done := serve(t, e, ticket(req, 0), 100)
				defer done()
				bytes, took := pull(t, s, 5*time.Second, 20*time.Second)
				if got := float64(bytes) / took.Seconds(); got < 0.95*rate {
					t.Errorf("%.2f of the path's rate", got/rate)
				}
				// Probed every ten seconds, it is still known in the end.
				path := e.Stats().Path
				if got := time.Duration(path.MinLatency) * time.Microsecond; got < rtt ||
					got > 2*rtt+5*time.Millisecond {
					t.Errorf("least latency %s", got)
				}
			})
			holds := int(rate*rtt.Seconds())/1500 + 1
			if r.most > max(10*holds, 400) {
				t.Errorf("%d reads were in flight where the path holds %d", r.most, holds)
			}
		})
	}
}

// A path that becomes slower is believed: less is in flight.
func TestInFlightFollowsThePath(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	r := newRemote(st, 100*time.Millisecond, 4e6)
	far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64, Shuffle: &schema.Shuffle{Seed: 1}}
		s, done := serve(t, e, ticket(req, 0), 100)
		defer done()
		pull(t, s, 0, 8*time.Second)
		before := e.Stats()
		r.mu.Lock()
		r.bytes /= 4
		r.mu.Unlock()
		pull(t, s, 0, 40*time.Second)
		after := e.Stats()
		if after.InFlightLimit > before.InFlightLimit/2 {
			t.Errorf("%d bytes may be in flight on a path of a quarter of the rate, %d before", after.InFlightLimit,
				before.InFlightLimit)
		}
	})
}

// A batch of 256 comes within three round trips, however far the store is.
func TestFirstBatchTakesThreeRoundTrips(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	const rtt = 150 * time.Millisecond
	far(t, newRemote(st, rtt, 0), fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 256, Shuffle: &schema.Shuffle{Seed: 1}}
		j := resolve(t, e, req)
		defer j.Close()
		began := time.Now()
		s := start(t, e, j, ticket(req, 0))
		defer s.Close()
		b, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if took := time.Since(began); took > 3*rtt {
			t.Errorf("it took %.1f", float64(took)/float64(rtt))
		}
	})
}

// Jobs share evenly what the store gives, however many streams each has.
func TestJobsShareEvenly(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	far(t, newRemote(st, 20*time.Millisecond, 4e6), fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		var got [2]atomic.Int64
		var wg sync.WaitGroup
		for job, streams := range []int{1, 4} {
			req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64,
				Shuffle: &schema.Shuffle{Seed: uint64(job)}, World: &schema.World{Size: int64(streams)}}
			j := resolve(t, e, req)
			defer j.Close()
			for rank := range streams {
				tk := ticket(req, rank)
				tk.Epochs = 100
				s := start(t, e, j, tk)
				wg.Go(func() {
					defer s.Close()
					bytes, _ := pull(t, s, 3*time.Second, 15*time.Second)
					got[job].Add(bytes)
				})
			}
		}
		wg.Wait()
		a, b := float64(got[0].Load()), float64(got[1].Load())
		if share := min(a, b) / (a + b) * 2; share < 0.9 {
			t.Errorf("one stream got %.0f bytes, four of another job %.0f: the slower has %.2f of an even share", a, b,
				share)
		}
	})
}

// A blob that several streams want at the same time is read once.
func TestReadOnceForAll(t *testing.T) {
	st := newStore(t)
	snap := put(t, st, "d", 1000)
	r := newRemote(st, 20*time.Millisecond, 0)
	far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Batch: 50, Shuffle: &schema.Shuffle{Seed: 3}}
		j := resolve(t, e, req)
		defer j.Close()
		var wg sync.WaitGroup
		for range 3 {
			s := start(t, e, j, ticket(req, 0))
			wg.Go(func() {
				defer s.Close()
				if got := consume(t, j, s); len(got.positions) != 1000 {
					t.Errorf("%d rows", len(got.positions))
				}
			})
		}
		wg.Wait()
		st := e.Stats()
		if st.SharedReads == 0 || st.SharedReads+int64(r.total(snap)) < 3*990 {
			t.Errorf("%d shared of %d cells", st.SharedReads, 3*990)
		}
	})
	if n := r.total(snap); n > 1500 {
		t.Errorf("%d reads for 990 blobs that three streams wanted together", n)
	}
}

// A stream that leaves, or is cut off, does not take along the reads that
// others wait for too.
func TestLeavingASharedRead(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	far(t, newRemote(st, 20*time.Millisecond, 0), fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Batch: 50}
		j := resolve(t, e, req)
		defer j.Close()
		first, second := start(t, e, j, ticket(req, 0)), start(t, e, j, ticket(req, 0))
		synctest.Wait() // both have asked
		if e.Stats().SharedReads == 0 {
			t.Error("nothing is shared")
		}
		first.Close()
		if got := consume(t, j, second); len(got.positions) != 1000 {
			t.Errorf("%d rows", len(got.positions))
		}
		second.Close()
		if st := e.Stats(); st.ReadsInFlight != 0 || st.BytesInFlight != 0 || st.WindowUsed != 0 {
			t.Errorf("with every stream closed: %+v", st)
		}
	})
}

// Reading goes on across the end of an epoch: with a consumer that takes its
// time, no batch but the first is waited for.
func TestPrefetchAcrossEpochs(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 600)
	far(t, newRemote(st, 150*time.Millisecond, 0), fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Columns: []string{"position", "image"}, Batch: 64,
			Shuffle: &schema.Shuffle{Seed: 1, Epoch: 5}}
		s, done := serve(t, e, ticket(req, 0), 3)
		defer done()
		epochs := map[uint64][]int64{}
		first := true
		for b := range batches(t, s) {
			if !first && b.Wait.Store > 0 {
				t.Errorf("epoch %d step %d waited %s for the store", b.Epoch, b.Step, b.Wait.Store)
			}
			first = false
			epochs[b.Epoch] = append(epochs[b.Epoch], b.Positions...)
			time.Sleep(100 * time.Millisecond) // a training step, in the bubble's time
		}
		for epoch := uint64(5); epoch < 8; epoch++ {
			slices.Sort(epochs[epoch])
			if got := slices.Compact(epochs[epoch]); len(got) != 600 {
				t.Errorf("epoch %d has %d samples", epoch, len(got))
			}
		}
		if len(epochs) != 3 {
			t.Errorf("%d epochs", len(epochs))
		}
	})
}

// A closed engine ends reads that hang, those outside of streams too.
func TestCloseEndsReads(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	r := newRemote(st, time.Millisecond, 0)
	far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		r.hook = func(ctx context.Context, _ schema.BlobRef, _ int) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		opened := make(chan error, 1)
		go func() {
			_, err := e.Open(context.Background(), schema.Request{Dataset: "d"})
			opened <- err
		}()
		time.Sleep(time.Second) // in the bubble's time
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-opened; !errors.Is(err, schema.ErrUnavailable) {
			t.Errorf("opening while the engine closes: %v", err)
		}
	})
}

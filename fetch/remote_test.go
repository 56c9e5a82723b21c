package fetch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// remote is a store far away, in a bubble's time: a reply takes rtt and its
// turn on a link of some bytes per second.
type remote struct {
	store.Store
	rtt time.Duration

	mu    sync.Mutex
	bytes float64                                                      // per second, 0 for no limit; guarded by mu
	free  time.Time                                                    // when the link is; guarded by mu
	reads map[schema.Key]int                                           // begun; guarded by mu
	most  int                                                          // reads in flight; guarded by mu
	now   int                                                          // guarded by mu
	hook  func(ctx context.Context, ref schema.BlobRef, nth int) error // before the blob comes, if not nil
}

func newRemote(store store.Store, rtt time.Duration, bytesPerSec float64) *remote {
	return &remote{Store: store, rtt: rtt, bytes: bytesPerSec, reads: map[schema.Key]int{}}
}

func (r *remote) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	r.mu.Lock()
	nth := r.reads[ref.Key]
	r.reads[ref.Key]++
	r.now++
	r.most = max(r.most, r.now)
	hook := r.hook
	at := time.Now()
	if r.bytes > 0 {
		if r.free.Before(at) {
			r.free = at
		}
		r.free = r.free.Add(time.Duration(float64(ref.Size) / r.bytes * 1e9))
		at = r.free
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.now--
		r.mu.Unlock()
	}()
	if err := pause(ctx, time.Until(at.Add(r.rtt))); err != nil {
		return schema.Blob{}, err
	}
	if hook != nil {
		if err := hook(ctx, ref, nth); err != nil {
			return schema.Blob{}, err
		}
	}
	return r.Store.Get(ctx, ref)
}

// pause waits, in a bubble's time.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// total is how many reads were begun, except those of manifest chunks.
func (r *remote) total(snap *schema.Snapshot) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	chunks := map[schema.Key]bool{}
	for _, c := range snap.Chunks {
		chunks[c.Key] = true
	}
	for k, reads := range r.reads {
		if !chunks[k] {
			n += reads
		}
	}
	return n
}

// far runs a test in a bubble, with an engine over a store that is far away.
func far(t *testing.T, r *remote, opts fetch.Options, f func(t *testing.T, e *fetch.Engine)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Logger = quiet
		e := must(fetch.NewEngine(r, opts))
		f(t, e)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// resolve opens a job that the caller closes: cleanups run outside the bubble.
func resolve(t *testing.T, e *fetch.Engine, req schema.Request) *fetch.Job {
	t.Helper()
	j, err := e.Open(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// serve starts a stream of some epochs; done closes it and its job.
func serve(t *testing.T, e *fetch.Engine, tk schema.Ticket, epochs int64) (s *fetch.Stream, done func()) {
	t.Helper()
	tk.Epochs = epochs
	j := resolve(t, e, tk.Request)
	s = start(t, e, j, tk)
	return s, func() {
		s.Close()
		j.Close()
	}
}

// pull reads a stream for some time, or to its end, and returns the bytes of
// images that came after the warm-up.
func pull(t *testing.T, s *fetch.Stream, warm, whole time.Duration) (bytes int64, took time.Duration) {
	t.Helper()
	start := time.Now()
	for {
		b, err := s.Next()
		if errors.Is(err, io.EOF) {
			return bytes, time.Since(start) - warm
		}
		if err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > warm {
			for _, p := range b.Positions {
				if p%100 != 99 {
					bytes += int64(len(content(int(p))))
				}
			}
		}
		b.Release()
		if time.Since(start) > whole {
			return bytes, time.Since(start) - warm
		}
	}
}

// keyOf identifies blobs in hooks.
func keyOf(ref schema.BlobRef) uint64 { return binary.LittleEndian.Uint64(ref.Key[:]) }

func mustPlan(t *testing.T, cfg plan.Config) *plan.Plan {
	t.Helper()
	p, err := plan.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

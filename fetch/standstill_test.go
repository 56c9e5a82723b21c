package fetch_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch"
	"bowstring/schema"
)

// Memory is for streams whose consumers read. Idle streams get no share, and free what they have if memory is short. A
// stream with twenty idle ones has at least a third of its throughput alone, whether it began before them or not. Each
// idle stream continues when its consumer does.
func TestIdleStreamsTakeNoShare(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	for _, c := range []struct {
		held   int // batches that each idle stream's consumer does not release
		tenant string
		before bool // whether the one that reads was there before
	}{{held: 2}, {tenant: "other", before: true}} {
		t.Run(fmt.Sprintf("held=%d,tenant=%s,before=%t", c.held, c.tenant, c.before), func(t *testing.T) {
			far(t, newRemote(st, 20*time.Millisecond, 0), fetch.Options{WindowBytes: 400_000}, func(t *testing.T, e *fetch.Engine) {
				withIdle(t, e, c.held, c.tenant, c.before)
			})
		})
	}
}

// endless starts a stream of a job of its own, on a tenant's account.
func endless(t *testing.T, e *fetch.Engine, tenant string, seed uint64, batch int64) (*fetch.Stream, func()) {
	req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: batch, Shuffle: &schema.Shuffle{Seed: seed}}
	j := resolve(t, e, req)
	tk := ticket(req, 0)
	tk.Epochs = 1000
	s := must(e.Stream(fetch.WithCaller(t.Context(), fetch.Caller{Tenant: tenant}), j, tk))
	return s, func() {
		s.Close()
		j.Close()
	}
}

func withIdle(t *testing.T, e *fetch.Engine, held int, tenant string, before bool) {
	reader, done := endless(t, e, "", 0, 64)
	rate := func() float64 {
		bytes, took := pull(t, reader, time.Second, 3*time.Second)
		return float64(bytes) / took.Seconds()
	}
	alone := rate()
	if !before {
		done()
	}
	var idle []*fetch.Stream
	var batches []*fetch.Batch
	for i := range uint64(20) {
		if before {
			pull(t, reader, 0, 100*time.Millisecond)
		}
		s, done := endless(t, e, tenant, 1+i, 64)
		defer done()
		idle = append(idle, s)
		for k := range 2 {
			b := must(s.Next())
			if k < held {
				batches = append(batches, b)
			} else {
				b.Release()
			}
		}
	}
	if before {
		pull(t, reader, 0, 7*time.Second)
	} else {
		time.Sleep(7 * time.Second)
		reader, done = endless(t, e, "", 0, 64)
	}
	if shared := rate(); shared < alone/3 {
		t.Errorf("%.0f bytes a second with idle streams, %.0f alone", shared, alone)
	}
	done()
	for _, b := range batches {
		b.Release()
	}
	for i, s := range idle {
		for range 3 {
			b, err := s.Next()
			if err != nil {
				t.Fatalf("stream %d: %v", i, err)
			}
			b.Release()
		}
	}
}

// A stream whose consumer takes a batch every six seconds counts as idle, but the consumer finds each batch ready: the
// stream frees only rows after its next batch for a stream that reads without pause.
func TestSlowConsumerFindsItsBatch(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 1000)
	far(t, newRemote(st, 20*time.Millisecond, 0), fetch.Options{WindowBytes: 400_000}, func(t *testing.T, e *fetch.Engine) {
		slow, done := endless(t, e, "", 1, 8)
		defer done()
		reader, readerDone := endless(t, e, "", 2, 64)
		var reading sync.WaitGroup
		reading.Go(func() {
			pull(t, reader, 0, 24*time.Second)
			readerDone()
		})
		for i := range 4 {
			began := time.Now()
			b := must(slow.Next())
			if waited := time.Since(began); i > 0 && waited > 0 {
				t.Errorf("batch %d was waited for: %v", i, waited)
			}
			b.Release()
			time.Sleep(6 * time.Second)
		}
		reading.Wait()
		synctest.Wait()
	})
}

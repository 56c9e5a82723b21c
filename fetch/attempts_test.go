package fetch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Reads that fail are made again, as the store's trouble may pass; each attempt
// knows how many there were before.
func TestRetries(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 500)
	r := newRemote(st, 5*time.Millisecond, 0)
	far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Batch: 50}
		j := resolve(t, e, req)
		defer j.Close()
		down := time.Now().Add(4 * time.Second)
		r.hook = func(ctx context.Context, ref schema.BlobRef, nth int) error {
			if n := store.AttemptFrom(ctx); n != nth {
				t.Errorf("read %d of a blob says it is attempt %d", nth, n)
			}
			if keyOf(ref)%5 == 0 && time.Now().Before(down) {
				return fmt.Errorf("%w: a node is down", schema.ErrUnavailable)
			}
			return nil
		}
		s := start(t, e, j, ticket(req, 0))
		defer s.Close()
		if got := consume(t, j, s); len(got.positions) != 500 {
			t.Errorf("%d rows", len(got.positions))
		}
		if st := e.Stats(); st.Retries == 0 || st.FailedReads != st.Retries {
			t.Errorf("%d retries for %d failed reads", st.Retries, st.FailedReads)
		}
	})
}

// An error that does not pass ends the stream after the time for retries, and names the
// sample. An error that no retry can fix ends it at once.
func TestRetriesEnd(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 100)
	bug := errors.New("a bug")
	for _, c := range []struct {
		err          error
		least, most  time.Duration
		attempts     int
		is           error
		wantInErrors string
	}{
		{fmt.Errorf("%w: node 7 is down", schema.ErrUnavailable), 5 * time.Second, 11 * time.Second, 0,
			schema.ErrUnavailable, "node 7"},
		{fmt.Errorf("%w: no such blob", schema.ErrNotFound), 0, time.Second, 3, schema.ErrDataLoss, "no such blob"},
		{bug, 0, 50 * time.Millisecond, 1, bug, "a bug"},
	} {
		r := newRemote(st, 5*time.Millisecond, 0)
		far(t, r, fetch.Options{ReadTimeout: 10 * time.Second}, func(t *testing.T, e *fetch.Engine) {
			req := schema.Request{Dataset: "d", Batch: 10}
			j := resolve(t, e, req)
			defer j.Close()
			bad, _ := refAt(t, j, 42)
			r.hook = func(_ context.Context, ref schema.BlobRef, _ int) error {
				if ref == bad {
					return c.err
				}
				return nil
			}
			began := time.Now()
			s := start(t, e, j, ticket(req, 0))
			defer s.Close()
			var err error
			for err == nil {
				var b *fetch.Batch
				if b, err = s.Next(); err == nil {
					b.Release()
				}
			}
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), "position 42") ||
				!strings.Contains(err.Error(), c.wantInErrors) {
				t.Errorf("%v: the stream ends with %v", c.err, err)
			}
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("%v: the stream ends after %s, want %s to %s", c.err, took, c.least, c.most)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if n := r.reads[bad.Key]; c.attempts > 0 && n != c.attempts {
				t.Errorf("%v: %d attempts, want %d", c.err, n, c.attempts)
			}
		})
	}
}

// One read in a hundred takes two seconds longer: hedges keep the streams
// going in every order, and cost no more than they may. The window is too small
// to hold what comes while the slow ones are waited for.
func TestHedges(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	run := func(order string, slow, noHedge bool) (speed float64) {
		r := newRemote(st, 20*time.Millisecond, 2e6)
		var n atomic.Int64
		if slow {
			r.hook = func(ctx context.Context, _ schema.BlobRef, _ int) error {
				if n.Add(1)%100 == 50 {
					return pause(ctx, 2*time.Second)
				}
				return nil
			}
		}
		far(t, r, fetch.Options{NoHedge: noHedge, WindowBytes: 1 << 20}, func(t *testing.T, e *fetch.Engine) {
			req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64, Order: order,
				Shuffle: &schema.Shuffle{Seed: 1}}
			s, done := serve(t, e, ticket(req, 0), 100)
			defer done()
			bytes, took := pull(t, s, 2*time.Second, 14*time.Second)
			speed = float64(bytes) / took.Seconds()
			st := e.Stats()
			if st.Hedges > st.Reads/20+32 {
				t.Errorf("%d hedges for %d reads", st.Hedges, st.Reads)
			}
			if slow && !noHedge && (st.Hedges == 0 || st.HedgesWon < st.Hedges/2) {
				t.Errorf("of %d hedges %d were of use", st.Hedges, st.HedgesWon)
			}
			if noHedge && st.Hedges > 0 {
				t.Errorf("%d hedges that were not wanted", st.Hedges)
			}
		})
		return speed
	}
	for order, least := range map[string]float64{schema.OrderStrict: 0.7, schema.OrderWindow: 0.9,
		schema.OrderFree: 0.9} {
		if testing.Short() && order != schema.OrderStrict {
			continue
		}
		clean := run(order, false, false)
		if got := run(order, true, false) / clean; got < least {
			t.Errorf("%s: %.2f of the speed without slow reads", order, got)
		}
		if unhedged := run(order, true, true) / clean; order == schema.OrderStrict && unhedged > 0.9 {
			t.Errorf("without hedges it is %.2f: the slow reads slow down nothing", unhedged)
		}
	}
}

// If a server stops answering, its reads are cancelled and started at another server, and
// the stream continues.
func TestSilentServer(t *testing.T) {
	st := newStore(t)
	put(t, st, "d", 3000)
	r := newRemote(st, 5*time.Millisecond, 4e6)
	far(t, r, fetch.Options{}, func(t *testing.T, e *fetch.Engine) {
		req := schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: 64, Shuffle: &schema.Shuffle{Seed: 1}}
		s, done := serve(t, e, ticket(req, 0), 4)
		defer done()
		pull(t, s, 0, time.Second)
		var hung atomic.Int64
		r.mu.Lock()
		r.hook = func(ctx context.Context, ref schema.BlobRef, _ int) error {
			if keyOf(ref)%3 == 0 && store.AttemptFrom(ctx) == 0 {
				hung.Add(1)
				defer hung.Add(-1)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		r.mu.Unlock()
		rows := 0
		for b := range batches(t, s) {
			rows += b.Rows
		}
		if rows < 3*3000 {
			t.Errorf("%d rows after a server fell silent", rows)
		}
		if n := e.Stats().ReadsInFlight; n != 0 {
			t.Errorf("%d reads in flight after the end", n)
		}
	})
}

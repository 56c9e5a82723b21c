package read_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"
	"testing"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// A tier in the middle that brings nothing, or wrong bytes, costs one look-up: the blob comes from the store, once,
// and the tier above caches it.
func TestMiddleTier(t *testing.T) {
	const n = 20
	for name, c := range map[string]struct {
		do   func(ctx context.Context, n int64, data []byte) ([]byte, error)
		tier int // the tier that brings blobs
	}{
		"right":       {nil, 1},
		"lost":        {func(context.Context, int64, []byte) ([]byte, error) { return nil, schema.ErrNotFound }, 2},
		"unavailable": {func(context.Context, int64, []byte) ([]byte, error) { return nil, schema.ErrUnavailable }, 2},
		"other error": {func(context.Context, int64, []byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF }, 2},
		"wrong bytes": {func(_ context.Context, _ int64, b []byte) ([]byte, error) {
			b[len(b)/2] ^= 1
			return b, nil
		}, 2},
		"short": {func(_ context.Context, _ int64, b []byte) ([]byte, error) { return b[:len(b)-1], nil }, 2},
		"empty": {func(context.Context, int64, []byte) ([]byte, error) { return nil, nil }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			cache := newSpill(t, t.TempDir()) // keeps offers until it is closed
			near.do = c.do
			attempts := make(chan int, n)
			far.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
				attempts <- store.AttemptFrom(ctx)
				return b, nil
			}
			at := spill.Place{Dataset: cache.Dataset("d@1")}
			r := newReader(t, read.Options{NoHedge: true}, read.Spill(cache), peer{near}, read.Store(far))
			for i := range n {
				to := newOutcomes()
				_, ref := content(i)
				want(t, r, read.Want{Ref: ref, At: at, To: to})
				requireBlob(t, to.next(t), i, c.tier)
				if !cache.Has(ref) {
					t.Errorf("blob %d was not offered to the tier above", i)
				}
			}
			below := int64(c.tier-1) * n
			if near.gets.Load() != n || far.gets.Load() != below {
				t.Errorf("%d blobs were asked of the peer %d times, and of the store %d times", n, near.gets.Load(),
					far.gets.Load())
			}
			close(attempts)
			for a := range attempts {
				if a != 0 {
					t.Errorf("the store's first read is attempt %d", a)
				}
			}
			st := r.Stats()
			if st.Reads != below || st.UpperReads != n-below || st.FailedReads != 0 || st.Retries != 0 ||
				st.InFlight != 0 {
				t.Errorf("%+v", st)
			}
			if d := cache.Stats().Datasets["d@1"]; d.Misses != n {
				t.Errorf("the spill counts %d misses of %d", d.Misses, n)
			}
		})
	}
}

// A silent tier in the middle is not waited for, whether it then fails or brings the blob too late.
func TestSlowMiddleTier(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late=", late), func(t *testing.T) {
			near, far := newFake(t), newFake(t)
			near.has = func(ref schema.BlobRef) bool { _, slow := content(0); return ref == slow }
			near.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
				<-ctx.Done()
				if late {
					return b, nil
				}
				return nil, context.Cause(ctx)
			}
			r := newReader(t, read.Options{}, peer{near}, read.Store(far))
			for i := 1; i < blobs; i++ { // so that the latency of a slow read is known
				_, ref := content(i)
				b, err := r.Get(t.Context(), ref)
				if err != nil {
					t.Fatal(err)
				}
				b.Release()
			}
			to := newOutcomes()
			_, ref := content(0)
			want(t, r, read.Want{Ref: ref, To: to})
			requireBlob(t, to.next(t), 0, 1)
			r.Close()
			st := r.Stats()
			if more := st.Hedges + st.Retries; more == 0 || far.gets.Load() != blobs-1+more {
				t.Errorf("the store was asked %d times for %d blobs and %d times more", far.gets.Load(), blobs-1, more)
			}
			if near.gets.Load() != 1 || len(to) != 0 || st.Reads != blobs || st.InFlight != 0 || st.Held != 0 {
				t.Errorf("the peer was asked %d times, %d more outcomes; %+v", near.gets.Load(), len(to), st)
			}
		})
	}
}

// A held blob is shared without a read, and forgotten with its last hold.
func TestHeld(t *testing.T) {
	far := newFake(t)
	r := newReader(t, read.Options{NoHedge: true}, read.Store(far))
	_, ref := content(7)
	get := func() read.Outcome {
		t.Helper()
		to := newOutcomes()
		want(t, r, read.Want{Ref: ref, To: to})
		return to.next(t)
	}
	for round := range int64(3) {
		first := get()
		second := get()
		requireBlob(t, first, 7, 0)
		third := get()
		requireBlob(t, second, 7, read.InWindow)
		if st := r.Stats(); st.Held != 1 || far.out.Load() != 1 {
			t.Errorf("%d blobs are held, %d are out", st.Held, far.out.Load())
		}
		requireBlob(t, third, 7, read.InWindow)
		if st := r.Stats(); st.Held != 0 || far.out.Load() != 0 || far.gets.Load() != round+1 {
			t.Errorf("after the last hold %d blobs are held, %d are out, %d were read", st.Held, far.out.Load(),
				far.gets.Load())
		}
	}
}

// The store sees the context of the first receiver, and the number of the attempt.
func TestContextReachesTheStore(t *testing.T) {
	near, far := newFake(t), newFake(t)
	near.do = func(context.Context, int64, []byte) ([]byte, error) { return nil, schema.ErrUnavailable }
	type seen struct {
		caller  store.Caller
		attempt int
	}
	var mu sync.Mutex
	var all []seen
	joined := make(chan struct{})
	far.do = func(ctx context.Context, n int64, b []byte) ([]byte, error) {
		<-joined
		mu.Lock()
		defer mu.Unlock()
		all = append(all, seen{store.CallerFrom(ctx), store.AttemptFrom(ctx)})
		if n < 2 {
			return nil, schema.ErrUnavailable
		}
		return b, nil
	}
	r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
	_, ref := content(3)
	to := newOutcomes()
	first := store.Caller{Principal: "ada", Tenant: "vision", Trace: "1"}
	want(t, r, read.Want{Ref: ref, Context: store.WithCaller(t.Context(), first), To: to})
	other := store.WithCaller(t.Context(), store.Caller{Principal: "bob"})
	want(t, r, read.Want{Ref: ref, Context: other, To: to})
	if n := r.Stats().SharedReads; n != 1 {
		t.Fatalf("%d reads are shared, want that of the second one", n)
	}
	close(joined)
	one, two := to.next(t), to.next(t)
	requireBlob(t, one, 3, 1)
	requireBlob(t, two, 3, 1)
	r.Close()
	if wanted := []seen{{first, 0}, {first, 1}, {first, 2}}; !reflect.DeepEqual(all, wanted) {
		t.Errorf("the store saw %+v, want %+v", all, wanted)
	}
}

// If some of several receivers leave, the others get the outcome. With the last one the read ends, and asks no other
// tier.
func TestCancelWaiters(t *testing.T) {
	near, far := newFake(t), newFake(t)
	answer, asked := make(chan struct{}), make(chan struct{}, 10)
	near.do = func(ctx context.Context, _ int64, b []byte) ([]byte, error) {
		asked <- struct{}{}
		select {
		case <-answer:
			return b, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
	_, ref := content(1)
	_, given := content(2)
	to := newOutcomes()
	for n := range 4 {
		want(t, r, read.Want{Ref: ref, To: to, Token: read.Token{N: n}})
	}
	want(t, r, read.Want{Ref: given, To: to, Token: read.Token{N: 9}})
	<-asked
	<-asked
	leave := func(ns ...int) int {
		return r.Cancel(func(of read.Receiver, tk read.Token) bool {
			return of == read.Receiver(to) && slices.Contains(ns, tk.N)
		})
	}
	if n := leave(0, 2); n != 2 { // the first of them, and one in the middle
		t.Errorf("%d have left", n)
	}
	if n := leave(0, 2, 5); n != 0 {
		t.Errorf("%d have left who do not wait", n)
	}
	if n := leave(9); n != 1 {
		t.Errorf("%d have left", n)
	}
	until(t, "the unwanted read has ended", func() bool { return r.Stats().Held == 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrUnexpectedEOF)
	if _, err := r.Get(ctx, ref); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Get with a context that has ended: %v", err)
	}
	close(answer)
	one, two := to.next(t), to.next(t)
	requireBlob(t, one, 1, 0)
	requireBlob(t, two, 1, 0)
	r.Close()
	if n := far.gets.Load(); n != 0 || len(to) != 0 {
		t.Errorf("%d reads of the store, %d more outcomes", n, len(to))
	}
	if n := near.gets.Load(); n != 2 {
		t.Errorf("two blobs were read %d times", n)
	}
}

// Close ends hanging reads in any tier, and those that wait for a retry, and delivers an error to all receivers.
func TestClose(t *testing.T) {
	near, far := newFake(t), newFake(t)
	_, silent := content(1)
	near.has = func(ref schema.BlobRef) bool { return ref == silent }
	near.do = hang
	_, hangs := content(2)
	var failing sync.Once
	failed := make(chan struct{})
	far.do = func(ctx context.Context, n int64, b []byte) ([]byte, error) {
		if len(b) == int(hangs.Size) {
			return hang(ctx, n, b)
		}
		failing.Do(func() { close(failed) })
		return nil, schema.ErrUnavailable
	}
	r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
	to := newOutcomes()
	_, fails := content(3)
	for _, ref := range []schema.BlobRef{silent, hangs, fails} {
		for range 2 {
			want(t, r, read.Want{Ref: ref, To: to})
		}
	}
	<-failed
	until(t, "both hang", func() bool { return near.gets.Load() == 1 && far.gets.Load() >= 2 })
	r.Close()
	if len(to) != 6 {
		t.Fatalf("%d of 6 outcomes came", len(to))
	}
	for range 6 {
		if o := to.next(t); !errors.Is(o.Err, schema.ErrUnavailable) {
			t.Errorf("got %v", o.Err)
		}
	}
	r.Close() // a second call does nothing
	if begins(t, r, read.Want{Ref: fails, To: to}) {
		t.Error("a reader that is closed begins a read")
	}
	if _, err := r.Get(t.Context(), fails); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("a reader that is closed: %v", err)
	}
	if st := r.Stats(); st.Held != 0 || st.InFlight != 0 || st.BytesInFlight != 0 {
		t.Errorf("%+v", st)
	}
}

// A tier with a fixed number of reads takes no more at once, and does not block the path to the store.
func TestParallel(t *testing.T) {
	near, far := newFake(t), newFake(t)
	near.traits.Parallel = 2
	near.has = func(ref schema.BlobRef) bool { _, there := far.known[ref.Key]; return there && ref.Key[0]%2 == 0 }
	near.do = hang
	r := newReader(t, read.Options{NoHedge: true}, peer{near}, read.Store(far))
	begun, full := 0, 0
	to := newOutcomes()
	for i := 0; full < 3; i++ {
		_, ref := content(i)
		if !near.has(ref) {
			other := newOutcomes()
			want(t, r, read.Want{Ref: ref, To: other})
			requireBlob(t, other.next(t), i, 1)
			continue
		}
		if begins(t, r, read.Want{Ref: ref, To: to}) {
			begun++
		} else {
			full++
		}
	}
	if begun != 2 || full == 0 {
		t.Errorf("%d reads were begun, %d times it was full", begun, full)
	}
	if n := r.Cancel(func(read.Receiver, read.Token) bool { return true }); n != 2 {
		t.Errorf("%d have left", n)
	}
}

// outcomes is a Receiver with room for all outcomes.
type outcomes chan read.Outcome

func (c outcomes) Receive(list []read.Outcome) {
	for _, o := range list {
		c <- o
	}
}

func (outcomes) More() {}

package prefetch

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/operators"
	"bowstring/fetch/read"
	"bowstring/schema"
)

// onStack reports whether a function is among the callers.
func onStack(name string) bool {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		f, more := frames.Next()
		if strings.Contains(f.Function, name) {
			return true
		}
		if !more {
			return false
		}
	}
}

// Whose batch it is that is given back, its goroutine plans no rows and begins no read; others do, and the stream goes on.
func TestReleasePlansNothing(t *testing.T) {
	f := newFixture(t, 400, 1<<20)
	var wrong, asked atomic.Int64
	f.asks = func() {
		asked.Add(1)
		if onStack("(*batchHold).Unpin") {
			wrong.Add(1)
		}
	}
	st := f.open(t)
	rows := 0
	for {
		b, err := st.Next()
		if err != nil {
			break
		}
		rows += b.Rows
		b.Release()
	}
	if rows != 400 {
		t.Errorf("%d rows were served, want 400", rows)
	}
	if wrong.Load() > 0 || asked.Load() == 0 {
		t.Errorf("%d of %d times the goroutine that gave a batch back lastCheck what to read next", wrong.Load(), asked.Load())
	}
}

// Peer reads begin in other goroutines than the one that reads the node's connection.
func TestPeerReadsPlansNothing(t *testing.T) {
	f := newFixture(t, 20, 1<<20)
	var wrong, tried atomic.Int64
	f.tries = func() {
		tried.Add(1)
		if onStack("(*Requester).") {
			wrong.Add(1)
		}
	}
	answers := make(chan Answer, 20)
	b := f.NewRequester(func(a Answer) { answers <- a })
	defer b.Close()
	rows, err := f.job.Manifest().At(t.Context(), []int64{0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		ref, _ := row.Blob(0)
		if err := b.Read(t.Context(), PeerRead{ID: uint32(i), Ref: ref}); err != nil {
			t.Fatal(err)
		}
	}
	for range rows {
		a := <-answers
		if a.Err != nil {
			t.Error(a.Err)
		}
		a.Blob.Release()
	}
	if wrong.Load() > 0 || tried.Load() == 0 {
		t.Errorf("%d of %d times the goroutine that asked began a read", wrong.Load(), tried.Load())
	}
}

// Memory that is given back after the set was closed plans nothing.
func TestReleaseAfterClose(t *testing.T) {
	f := newFixture(t, 40, 1<<20)
	st := f.open(t)
	b, err := st.Next()
	if err != nil {
		t.Fatal(err)
	}
	st.Close()
	f.Close()
	f.Wait()
	b.Release()
}

// released counts how often a blob is released.
type released struct{ n atomic.Int64 }

// Unpin implements schema.Owner.
func (r *released) Unpin() { r.n.Add(1) }

// A closed stream releases blobs that arrive, and no caller waits for it.
func TestClosedStreamTakesNothing(t *testing.T) {
	f := newFixture(t, 40, 1<<20)
	st := f.open(t)
	st.Close()
	var r released
	blob := schema.NewBlob([]byte{1}, &r)
	st.Receive([]read.Outcome{{Token: read.Token{Of: &run{}}, Blob: blob}})
	if task := (&operators.Task{Cell: blob, Data: &making{run: &run{}}}); st.Room(task, 10) {
		t.Error("a stream that is closed has room")
	}
	st.Made(&operators.Task{Cell: blob, Data: &making{run: &run{}}}, operators.Outcome{Blob: blob})
	st.ask(func(*owner) { t.Error("a stream that is closed does something") })
	if n := r.n.Load(); n != 4 {
		t.Errorf("%d of 4 blobs are released", n)
	}
	if _, err := st.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("a stream that is closed hands out a batch: %v", err)
	}
}

// Whatever goroutines do with a stream, among them one that closes it, each call returns, and all is given back.
func TestCloseWhileAsked(t *testing.T) {
	for range 20 {
		f := newFixture(t, 100, 1<<20)
		st := f.open(t)
		var all sync.WaitGroup
		for _, do := range []func(){
			func() { st.giveBack(0) }, func() { st.freeIdle() }, func() { st.Ready() }, func() { f.reclaim(st.tenant, 1<<20) },
			func() { f.cramped() }, st.recheck, st.Close,
		} {
			all.Go(do)
		}
		for {
			b, err := st.Next()
			if err != nil {
				break
			}
			all.Go(b.Release)
		}
		all.Wait()
	}
}

// A stream gives back all that it has read ahead, and reads it again.
func TestGiveBack(t *testing.T) {
	f := newFixture(t, 600, 64<<20)
	hold := make(chan struct{})
	var reads atomic.Int64
	f.gate = func(ctx context.Context) error {
		reads.Add(1)
		select {
		case <-hold:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	st := f.open(t)
	for reads.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	var runs, cells, left, queued int
	var used int64
	st.ask(func(s *owner) {
		for s.plan() { // as many runs as there are where samples are large: a row each
		}
		runs, cells = len(s.pipeline.runs), s.pipeline.inFlight
		s.drop(0, 0)
		left, used, queued = len(s.pipeline.runs), s.window.used, s.place.Waiting()
	})
	if runs < 3 || cells == 0 {
		t.Fatalf("%d runs and %d cells under way", runs, cells)
	}
	if used != 0 || queued != 0 {
		t.Errorf("%d runs are left, %d bytes, %d cells wait", left, used, queued)
	}
	close(hold)
	rows := 0
	for {
		b, err := st.Next()
		if err != nil {
			break
		}
		rows += b.Rows
		b.Release()
	}
	if rows != 600 {
		t.Errorf("%d rows were served after what was read ahead was given back, want 600", rows)
	}
}

// A stream that is to ask for more, and has not yet, has a use for the way to the store.
func TestBehindIsNotIdle(t *testing.T) {
	f := newFixture(t, 8, 1<<20)
	s := f.open(t)
	for {
		b, err := s.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		b.Release()
	}
	var idle bool
	s.ask(func(o *owner) {
		o.More()
		idle = f.Idle()
	})
	if idle {
		t.Error("the way is idle though the stream is to ask for more")
	}
	for i := 0; !f.Idle(); i++ { // what More has posted has its turn before long
		if i == 1000 {
			t.Fatal("the way is not idle though the stream has asked for all")
		}
		s.ask(func(*owner) {})
	}
}

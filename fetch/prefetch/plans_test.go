package prefetch

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"bowstring/fetch/operators"
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
		t.Errorf("%d of %d times the goroutine that gave a batch back looked what to read next", wrong.Load(), asked.Load())
	}
}

// What another node asks for is read by other goroutines than the one that reads its connection.
func TestLendPlansNothing(t *testing.T) {
	f := newFixture(t, 20, 1<<20)
	var wrong, tried atomic.Int64
	f.tries = func() {
		tried.Add(1)
		if onStack("(*Borrower).") {
			wrong.Add(1)
		}
	}
	answers := make(chan Answer, 20)
	b := f.Borrow(func(a Answer) { answers <- a })
	defer b.Close()
	rows, err := f.job.Manifest().At(t.Context(), []int64{0, 1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		ref, _ := row.Blob(0)
		if err := b.Lend(t.Context(), Loan{ID: uint32(i), Ref: ref}); err != nil {
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

// A stream that is closed has nothing made any more, when a worker comes to it: what is hungry stays for Close to release.
func TestClosedStreamFeedsNothing(t *testing.T) {
	f := newFixture(t, 40, 1<<20)
	st := f.open(t)
	st.Close()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.stage = f.opts.Stage.Open("", "")
	st.stage.Close()
	r := &run{guess: []int64{0}, state: make([]rowState, 1)}
	st.ahead.hungry = []*operators.Task{{Of: &making{run: r}}}
	st.refillLocked()
	if len(st.ahead.hungry) != 1 {
		t.Error("a cell was put at a place that is closed, and lost")
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
	st.mu.Lock()
	// As many runs as there are where samples are large: a row each.
	for st.planLocked() {
	}
	runs, cells := len(st.ahead.runs), st.ahead.inFlight
	st.giveBackLocked(0, 0)
	left, used, queued := len(st.ahead.runs), st.window.used, st.place.Waiting()
	st.mu.Unlock()
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

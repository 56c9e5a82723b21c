package manifest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"bowstring/schema"
)

// A walk returns the error at the least position, whichever page fails first.
func TestFirstErrorByPosition(t *testing.T) {
	rng := random(t)
	for i := range 30 {
		t.Run(fmt.Sprint(i), func(t *testing.T) { firstError(t, rng) })
	}
}

func firstError(t *testing.T, rng *rand.Rand) {
	w := makeWorld(t, rng, 400, 8)
	t.Run("visited", func(t *testing.T) {
		m, _ := w.open(t, 1<<20, -1)
		first := rng.Int64N(300)
		bad := map[int64]bool{first: true}
		for range 20 {
			bad[first+rng.Int64N(400-first)] = true
		}
		err := m.Walk(t.Context(), 0, m.Rows(), nil, func(_ context.Context, start int64, p *schema.Page) error {
			for pos := start; pos < start+int64(p.Rows()); pos++ {
				if bad[pos] {
					return fmt.Errorf("at %d", pos)
				}
				if pos%3 == 0 {
					runtime.Gosched()
				}
			}
			return nil
		})
		if err == nil || err.Error() != fmt.Sprintf("at %d", first) {
			t.Fatalf("%v, want that at %d", err, first)
		}
	})
	t.Run("read", func(t *testing.T) {
		lost := w.pages[len(w.pages)/2:]
		for _, p := range lost {
			delete(w.blobs, p.Key)
		}
		var begin int64
		for _, p := range w.pages[:len(w.pages)/2] {
			begin += p.Rows
		}
		m, _ := w.open(t, 1<<20, -1)
		err := m.Walk(t.Context(), 0, m.Rows(), nil, func(context.Context, int64, *schema.Page) error { return nil })
		if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(),
			fmt.Sprintf("positions %d to", begin)) {
			t.Fatalf("%v, want that at position %d", err, begin)
		}
	})
}

// Walk does not read a page that is not needed, nor a list of pages if none of them is
// needed.
func TestWalkOfWhatIsNeeded(t *testing.T) {
	rng := random(t)
	w := makeWorld(t, rng, 500, 8)
	m, _ := w.open(t, 1<<20, -1)
	var mu sync.Mutex
	var want, got []int64
	skipped := map[schema.Key]bool{}
	need := func(start int64, run *schema.Chunk) bool {
		mu.Lock()
		defer mu.Unlock()
		yes := start%3 != 0
		if run.Pages > 0 {
			yes = start%5 != 0
		}
		if !yes {
			skipped[run.Key] = true
		} else if run.Pages == 0 {
			want = append(want, start)
		}
		return yes
	}
	w.before = func(_ context.Context, ref schema.BlobRef) error {
		mu.Lock()
		defer mu.Unlock()
		if skipped[ref.Key] {
			return fmt.Errorf("%s is read", ref.Key)
		}
		return nil
	}
	err := m.Walk(t.Context(), 0, m.Rows(), need, func(_ context.Context, start int64, _ *schema.Page) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, start)
		return nil
	})
	slices.Sort(want)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, want) || len(skipped) == 0 || len(got) == 0 {
		t.Errorf("pages at %v were visited, want %v: %v", got, want, err)
	}
}

// No page of a manifest that was read whole is read again.
func TestWholeStays(t *testing.T) {
	w := makeWorld(t, random(t), 300, 8)
	m, _ := w.open(t, 1<<20, 1<<20)
	if !m.Resident() {
		t.Fatal("it was not read whole")
	}
	m.cache.Trim()
	before := w.reads
	if err := m.Walk(t.Context(), 0, m.Rows(), nil, func(context.Context, int64, *schema.Page) error {
		return nil
	}); err != nil {
		t.Error(err)
	}
	if w.reads != before {
		t.Errorf("%d reads", w.reads-before)
	}
}

// However many pages are waited for, a goroutine reads each that is on its way, and the others take none.
func TestWaitingTakesNoGoroutines(t *testing.T) {
	w := makeWorld(t, random(t), 600, 1)
	m, _ := w.open(t, 8<<20, -1)
	m.cache.most = 4
	var busy, most atomic.Int64
	goOn := make(chan struct{})
	var began sync.Once
	begun := make(chan struct{})
	w.before = func(ctx context.Context, ref schema.BlobRef) error {
		if slices.ContainsFunc(w.snap.Chunks, func(c schema.Chunk) bool { return c.Pages > 0 && c.Key == ref.Key }) {
			return nil
		}
		n := busy.Add(1)
		defer busy.Add(-1)
		for {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		if n == 4 {
			began.Do(func() { close(begun) })
		}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	before := runtime.NumGoroutine()
	const calls = 3
	done := make(chan error, calls)
	for call := range int64(calls) {
		positions := make([]int64, 200)
		for i := range positions {
			positions[i] = call*200 + int64(i)
		}
		m.Start(t.Context(), positions, func(rows []schema.Row, err error) {
			if err == nil {
				check(t, positions, rows)
			}
			done <- err
		})
	}
	<-begun
	if n := runtime.NumGoroutine() - before; n > calls+4+2 {
		t.Errorf("%d goroutines for %d calls and 4 reads", n, calls)
	}
	close(goOn)
	for range calls {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() > 4 {
		t.Errorf("%d reads at the same time", most.Load())
	}
}

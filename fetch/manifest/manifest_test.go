package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

func random(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// check compares rows with what was put.
func check(t *testing.T, positions []int64, rows []schema.Row) {
	t.Helper()
	if len(rows) != len(positions) {
		t.Fatalf("%d rows at %d positions", len(rows), len(positions))
	}
	for i, pos := range positions {
		r := rows[i]
		if r.ID() != idOf(pos) {
			t.Fatalf("position %d has the id of another row", pos)
		}
		ref, ok := r.Blob(0)
		if want := refOf(pos); ok != (pos%7 != 0) || ok && ref != want {
			t.Fatalf("position %d: %v, %v; want %v", pos, ref, ok, want)
		}
		names := r.Page.Column(1).(*array.String)
		if want, ok := nameOf(pos); names.IsNull(r.At) == ok || ok && names.Value(r.At) != want {
			t.Fatalf("position %d: name %q, want %q", pos, names.Value(r.At), want)
		}
	}
}

// Whatever of a manifest is in memory, its rows are the same, and no more memory is taken than there is.
func TestRowsAreTheSameHoweverTheyAreRead(t *testing.T) {
	rng := random(t)
	for range 60 {
		n := 1 + rng.Int64N(400)
		w := makeWorld(t, rng, n, 1+rng.IntN(20))
		var largest int64
		for _, c := range append(slices.Clone(w.pages), w.snap.Chunks...) {
			largest = max(largest, 2*c.Size)
		}
		resident := []int64{-1, 1 << 20}[rng.IntN(2)]
		most := 2*largest + rng.Int64N(8*largest)
		m, _ := w.open(t, most, resident)
		if m.Rows() != n {
			t.Fatalf("%d rows, want %d", m.Rows(), n)
		}
		var all sync.WaitGroup
		for range 4 {
			var positions []int64
			begin := rng.Int64N(n)
			for i := range rng.Int64N(100) {
				pos := rng.Int64N(n)
				if begin%2 == 0 { // a run, with repeats
					pos = min(begin+i/2, n-1)
				}
				positions = append(positions, pos)
			}
			all.Go(func() {
				m.Prefetch(t.Context(), positions)
				rows, err := m.At(t.Context(), positions)
				if err != nil {
					t.Error(err)
					return
				}
				check(t, positions, rows)
			})
		}
		all.Wait()
		from := rng.Int64N(n)
		to := from + rng.Int64N(n-from+1)
		var mu sync.Mutex
		var seen []int64
		err := m.Walk(t.Context(), from, to, nil, func(_ context.Context, start int64, p *schema.Page) error {
			mu.Lock()
			defer mu.Unlock()
			for row := range p.Rows() {
				pos := start + int64(row)
				check(t, []int64{pos}, []schema.Row{{Page: p, At: row}})
				if pos >= from && pos < to {
					seen = append(seen, pos)
				}
			}
			return nil
		})
		slices.Sort(seen)
		if err != nil || int64(len(seen)) != to-from || len(slices.Compact(seen)) != int(to-from) {
			t.Fatalf("a walk from %d to %d saw %d rows: %v", from, to, len(seen), err)
		}
		var ids []schema.ID
		var want []int64
		for range 20 {
			pos := rng.Int64N(n + 5)
			ids, want = append(ids, idOf(pos)), append(want, pos)
			if pos >= n {
				want[len(want)-1] = -1
			}
		}
		if got, err := m.Find(t.Context(), ids); err != nil || !slices.Equal(got, want) {
			t.Fatalf("ids of %v were found at %v: %v", want, got, err)
		}
	}
}

// A blob that is flipped, cut short or missing is a data loss that says which rows it has, and harms no others.
func TestDamage(t *testing.T) {
	rng := random(t)
	w := makeWorld(t, rng, 300, 10)
	for name, breakIt := range map[string]func([]byte) []byte{
		"flipped": func(b []byte) []byte { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8); return b },
		"cut":     func(b []byte) []byte { return b[:rng.IntN(len(b))] },
		"missing": func([]byte) []byte { return nil },
	} {
		for _, chunk := range []bool{true, false} {
			victim := w.pages[len(w.pages)/2].Key
			if chunk {
				victim = w.snap.Chunks[len(w.snap.Chunks)/2].Key
			}
			whole := w.blobs[victim]
			if w.blobs[victim] = breakIt(bytes.Clone(whole)); w.blobs[victim] == nil {
				delete(w.blobs, victim)
			}
			t.Run(fmt.Sprint(name, chunk), func(t *testing.T) { w.damaged(t, victim, whole) })
			w.blobs[victim] = whole
		}
	}
}

// damaged checks the errors of a manifest after one of its intact blobs was damaged.
func (w *world) damaged(t *testing.T, victim schema.Key, whole []byte) {
	t.Run("whole", func(t *testing.T) {
		if _, _, err := w.tryOpen(t, 1<<20, 1<<20); !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("read whole: %v", err)
		}
	})
	m, _ := w.open(t, 1<<20, -1)
	lost := 0
	for pos := range m.Rows() {
		rows, err := m.At(t.Context(), []int64{pos})
		if err == nil {
			check(t, []int64{pos}, rows)
			continue
		}
		if lost++; !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), "manifest of d@1") {
			t.Fatalf("position %d: %v", pos, err)
		}
	}
	if lost == 0 || lost > 40 {
		t.Errorf("%d rows are lost", lost)
	}
	// A page that is whole again is read again.
	w.blobs[victim] = whole
	for pos := range m.Rows() {
		if _, err := m.At(t.Context(), []int64{pos}); err != nil {
			t.Fatal(err)
		}
	}
}

// A caller whose context ends returns at once. A read ends with its last waiting caller,
// and a caller that still waits gets the page.
func TestCancel(t *testing.T) {
	w := makeWorld(t, random(t), 100, 10)
	m, _ := w.open(t, 1<<20, -1)
	begun, ended := make(chan struct{}, 100), make(chan error, 100)
	goOn := make(chan struct{})
	w.before = func(ctx context.Context, _ schema.BlobRef) error {
		begun <- struct{}{}
		select {
		case <-goOn:
			return nil
		case <-ctx.Done():
			ended <- context.Cause(ctx)
			return context.Cause(ctx)
		}
	}
	gone := errors.New("gone")
	one, leave := context.WithCancelCause(t.Context())
	left := make(chan error)
	go func() {
		_, err := m.At(one, []int64{5})
		left <- err
	}()
	<-begun
	leave(gone)
	if err := <-left; !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, errUnwanted) {
		t.Errorf("the read that no caller waits for ended with %v", err)
	}
	two, leave := context.WithCancelCause(t.Context())
	go func() {
		_, err := m.At(two, []int64{5})
		left <- err
	}()
	<-begun
	stays := make(chan error)
	go func() {
		rows, err := m.At(t.Context(), []int64{5})
		if err == nil {
			check(t, []int64{5}, rows)
		}
		stays <- err
	}()
	for joined := false; !joined; { // until both wait for it
		m.cache.mu.Lock()
		for _, e := range m.cache.entries {
			joined = joined || e.users == 2
		}
		m.cache.mu.Unlock()
	}
	leave(gone)
	if err := <-left; !errors.Is(err, gone) {
		t.Error(err)
	}
	close(goOn)
	if err := <-stays; err != nil {
		t.Error(err)
	}
}

// An index of ids larger than the memory for it is refused by name.
func TestLimits(t *testing.T) {
	w := makeWorld(t, random(t), 200, 100)
	m, _ := w.open(t, 1<<20, 1<<20)
	hold, ok := m.cache.ledger.Try(admission.Evaluation, m.cache.ledger.Free(admission.Evaluation)-100)
	if !ok {
		t.Fatal("no room")
	}
	if _, err := m.Find(t.Context(), []schema.ID{idOf(1)}); !errors.Is(err, schema.ErrLimit) ||
		!strings.Contains(err.Error(), "by id") {
		t.Errorf("an index without room for it: %v", err)
	}
	hold.Release()
	if got, err := m.Find(t.Context(), []schema.ID{idOf(1)}); err != nil || got[0] != 1 {
		t.Errorf("with room: %v, %v", got, err)
	}
}

// Opening reads no page of a manifest that is not small, and a page that several want is read once.
func TestReadsNoMoreThanNeeded(t *testing.T) {
	w := makeWorld(t, rand.New(rand.NewPCG(3, 0)), 4000, 10)
	m, _ := w.open(t, 8<<20, 1000)
	if w.reads != 0 || m.Resident() {
		t.Fatalf("%d reads to open", w.reads)
	}
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if _, err := m.At(t.Context(), []int64{7, 3, 5}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	most := 1
	for _, c := range w.snap.Chunks[:1] {
		most += min(c.Pages, 8)
	}
	if w.reads > most {
		t.Errorf("%d reads for three neighbours, want %d at most", w.reads, most)
	}
	if err := m.Walk(t.Context(), 0, m.Rows(), nil, func(context.Context, int64, *schema.Page) error {
		return fmt.Errorf("enough")
	}); err == nil || err.Error() != "enough" {
		t.Errorf("a walk whose visit fails: %v", err)
	}
}

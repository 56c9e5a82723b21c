package resolve_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"bowstring/fetch/admission"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/internal/rounds"
	"bowstring/schema"
)

func positions(j *resolve.Job) (list []int64) {
	for i := range j.Selection().Len() {
		list = append(list, j.Selection().At(i))
	}
	return list
}

// The selections that a request names are intersected, in every combination.
func TestSelection(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 200)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var list []int64
	for p := range int64(200) {
		if rng.IntN(3) == 0 {
			list = append(list, p)
		}
	}
	name, err := f.SaveSelection(t.Context(), "d", 1, list)
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range []string{"", "train", "val"} {
		for _, where := range []string{"", "label < 3"} {
			for _, ref := range []*schema.SelectionRef{nil, {Name: name}, {Positions: list}} {
				j := f.open(t, schema.Request{Dataset: "d", Split: split, Where: where, Selection: ref})
				var want []int64
				for p := range int64(200) {
					if (split == "" || (split == "train") == (p < 180)) && (where == "" || p%10 < 3) &&
						(ref == nil || slices.Contains(list, p)) {
						want = append(want, p)
					}
				}
				if got := positions(j); !slices.Equal(got, want) {
					t.Errorf("split %q, where %q, selection %v: %v, want %v", split, where, ref, got, want)
				}
			}
		}
	}
	_, err = f.Open(t.Context(), schema.Request{Dataset: "d", Selection: &schema.SelectionRef{Positions: []int64{200}}})
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "200") {
		t.Errorf("a position beyond the end: %v", err)
	}
}

// A computation that its caller has left holds the snapshot until it has ended:
// nothing is unmapped under it.
func TestComputationHoldsSnapshot(t *testing.T) {
	f := newFixture(t, resolve.Options{IdleSnapshots: 1}, admission.Limits{})
	f.put(t, "d", 100)
	name, err := f.SaveSelection(t.Context(), "d", 1, []int64{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	f.open(t, schema.Request{Dataset: "d"}).Close()
	begun, over := make(chan struct{}), make(chan struct{})
	f.mu.Lock()
	f.gate = func(context.Context, schema.BlobRef) error { close(begun); <-over; return nil } // as a disk that hangs
	f.mu.Unlock()
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-begun; cancel(errGone) }()
	if _, err := f.Open(ctx, schema.Request{Dataset: "d", Selection: &schema.SelectionRef{Name: name}}); !errors.Is(err,
		errGone) {
		t.Fatal(err)
	}
	f.CloseIdle()
	if n := f.pinned(); n != 1 {
		t.Errorf("%d chunks are open while a selection of the snapshot is computed", n)
	}
	if n := len(f.InUse()); n != 1 {
		t.Errorf("%d snapshots are in use, and a collection may free the one that is read", n)
	}
	close(over)
	f.Close()
	if n := f.pinned(); n != 0 {
		t.Errorf("%d chunks are open in the end", n)
	}
}

// Between two epochs of a mixture no job holds its snapshots. The next epoch finds all of them open.
func TestSnapshotsOfAMixtureStayOpen(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	for i := range schema.MaxSources {
		dataset := fmt.Sprintf("d%d", i)
		f.put(t, dataset, 1)
		f.open(t, schema.Request{Dataset: dataset}).Close()
	}
	if n := f.OpenSnapshots(); n != schema.MaxSources {
		t.Errorf("%d snapshots are open, want %d", n, schema.MaxSources)
	}
	f.CloseIdle()
	if n := f.OpenSnapshots(); n != 0 {
		t.Errorf("%d snapshots are open after CloseIdle", n)
	}
}

// After Close no job is opened, also on a snapshot that is open for another one.
func TestNoneAfterClose(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	held := f.open(t, schema.Request{Dataset: "d"})
	f.Close()
	for _, number := range []int64{0, 1} {
		j, err := f.Open(t.Context(), schema.Request{Dataset: "d", Snapshot: number})
		if !errors.Is(err, schema.ErrUnavailable) {
			t.Errorf("after Close a job on snapshot %d is opened: %v", number, err)
		}
		if err == nil {
			j.Close()
		}
	}
	held.Close()
}

// Callers come and go while expressions are evaluated and bytes added up, and the
// snapshots that they read are dropped and collected. A page that is unmapped
// under one of them would end the process.
func TestCallersLeave(t *testing.T) {
	f := newFixture(t, resolve.Options{IdleSnapshots: 1}, admission.Limits{})
	list := "[" + strings.TrimSuffix(strings.Repeat("1,", 150), ",") + "]"
	for i := range rounds.Count(2, 6) {
		dataset := fmt.Sprintf("d%d", i)
		f.put(t, dataset, 3000)
		for k := range 8 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(k)*3*time.Millisecond)
			j, err := f.Open(ctx, schema.Request{Dataset: dataset,
				Where: fmt.Sprintf("all(%s, # != label + %d) and len(name) > %d", list, k, i)})
			if err == nil {
				_, err = f.TotalBytes(ctx, j)
				j.Close()
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			cancel()
			f.CloseIdle()
		}
		if err := f.store.Drop(t.Context(), dataset, 0); err != nil {
			t.Fatal(err)
		}
		f.Doubt(dataset)
		if _, err := f.store.GC(t.Context(), store.GCOptions{}, f.InUse); err != nil {
			t.Fatal(err)
		}
	}
}

// A panic below is an error of the call, and the next call is none the worse.
func TestPanic(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 10)
	name, err := f.SaveSelection(t.Context(), "d", 1, []int64{3})
	if err != nil {
		t.Fatal(err)
	}
	f.CloseIdle()
	for _, ref := range []*schema.SelectionRef{nil, {Name: name}} {
		panics := func(on bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.gate = nil; on {
				f.gate = func(context.Context, schema.BlobRef) error { panic("a defect") }
			}
		}
		panics(true)
		_, err := f.Open(t.Context(), schema.Request{Dataset: "d", Selection: ref})
		if _, ok := errors.AsType[*schema.DefectError](err); !ok {
			t.Errorf("selection %v: %v", ref, err)
		}
		for _, known := range []error{schema.ErrInvalid, schema.ErrNotFound, schema.ErrLimit, schema.ErrUnavailable,
			schema.ErrDataLoss} {
			if errors.Is(err, known) {
				t.Errorf("a panic is said to be %v", known)
			}
		}
		panics(false)
		f.open(t, schema.Request{Dataset: "d", Selection: ref}).Close()
	}
}

// A selection's memory is accounted for as long as a job holds it. Unused selections make
// room for others; if jobs hold all of it, the next selection is refused by name.
func TestMemoryOfSelections(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{Evaluation: 1<<20 + 600})
	f.put(t, "d", 1000)
	used := func() int64 { return f.ledger.Accounts()[admission.Evaluation].Used }
	var open []*resolve.Job
	for i := range 20 {
		j, err := f.Open(t.Context(), schema.Request{Dataset: "d", Where: fmt.Sprintf("label == %d", i)})
		if err != nil {
			if !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "running jobs have") {
				t.Fatal(err)
			}
			break
		}
		open = append(open, j)
	}
	if len(open) < 2 || len(open) == 20 {
		t.Fatalf("%d selections at once", len(open))
	}
	if used() == 0 {
		t.Error("nothing is counted")
	}
	for _, j := range open {
		j.Retain()
		j.Close()
	}
	if _, err := f.Open(t.Context(), schema.Request{Dataset: "d", Where: "label > 1"}); !errors.Is(err,
		schema.ErrLimit) {
		t.Errorf("a stream holds each job: %v", err)
	}
	for _, j := range open {
		j.Release()
	}
	for i := range 20 {
		f.open(t, schema.Request{Dataset: "d", Where: fmt.Sprintf("label != %d", i)}).Close()
	}
}

// TotalBytes counts the served rows, with the dropped ones left out and repeated ones as
// often as served.
func TestTotalBytes(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 100)
	sizes := func(j *resolve.Job, rows int64) (sum int64) {
		for i := range rows {
			ref := refAt(t, j, j.Plan().Position(i))
			sum += ref.Size
		}
		return sum
	}
	for _, remainder := range []string{schema.RemainderDrop, schema.RemainderPad, schema.RemainderUneven} {
		for _, batch := range []int64{1, 7, 100, 101, 256, 999} {
			for epoch := range uint64(2) {
				j := f.open(t, schema.Request{Dataset: "d", Split: "train", Columns: []string{"image"}, Batch: batch,
					Remainder: remainder,
					Shuffle:   &schema.Shuffle{Seed: 5, Epoch: epoch}})
				got, err := f.TotalBytes(t.Context(), j)
				if err != nil {
					t.Fatal(err)
				}
				if want := sizes(j, j.Plan().Rows()); got != want {
					t.Errorf("%s, batch %d, epoch %d: %d bytes, want %d", remainder, batch, epoch, got, want)
				}
			}
		}
	}
	// 2^31 rows, which no code iterates over.
	j := f.open(t, schema.Request{Dataset: "d", Columns: []string{"image"}, Batch: schema.MaxBatch,
		Remainder: schema.RemainderPad})
	got, err := f.TotalBytes(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if want := schema.MaxBatch/100*sizes(j, 100) + sizes(j, schema.MaxBatch%100); got != want {
		t.Errorf("%d bytes of %d rows, want %d", got, j.Plan().Rows(), want)
	}
}

// An id needs no row, nor that the snapshot is still there.
func TestID(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 100)
	req := schema.Request{Dataset: "d", Where: "label < 5"}
	j := f.open(t, req)
	defer f.busy(t)() // nothing is evaluated
	for _, r := range []schema.Request{req, j.Request()} {
		if id, err := f.ID(t.Context(), r); err != nil || id != j.ID() {
			t.Errorf("%+v: id %s, want %s: %v", r, id, j.ID(), err)
		}
	}
	if err := f.store.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	f.Doubt("d")
	if id, err := f.ID(t.Context(), j.Request()); err != nil || id != j.ID() {
		t.Errorf("dropped: id %s, want %s: %v", id, j.ID(), err)
	}
	if _, err := f.ID(t.Context(), req); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("dropped, and no number: %v", err)
	}
}

// A resolved request is what a job would be, and opens nothing.
func TestResolve(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 100)
	snap, err := f.store.Snapshot(t.Context(), "d", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []schema.Request{{Dataset: "d"}, {Dataset: "d", Split: "val"},
		{Dataset: "d", Columns: []string{"label"}, Batch: 7}} {
		f.CloseIdle()
		before := f.OpenSnapshots() // what was computed for the job before may still end
		o, err := f.Resolve(t.Context(), snap, req)
		if err != nil {
			t.Fatal(err)
		}
		if n := f.OpenSnapshots(); n > before {
			t.Errorf("%+v: %d snapshots are open, %d were before", req, n, before)
		}
		if n, ok := f.KnownBytes(o); ok {
			t.Errorf("%+v: %d bytes are known of rows that were not read", req, n)
		}
		j := f.open(t, req)
		if o.ID != j.ID() || o.Plan.Rows() != j.Plan().Rows() || o.Plan.Steps() != j.Plan().Steps() ||
			!o.Projection.Schema.Equal(j.Projection().Schema) {
			t.Errorf("%+v: %+v, and the job is %+v", req, o, j)
		}
		want, err := f.TotalBytes(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := f.KnownBytes(o); !ok || n != want {
			t.Errorf("%+v: %d bytes are known, want %d", req, n, want)
		}
		j.Close()
	}
	if _, err := f.Resolve(t.Context(), snap, schema.Request{Dataset: "d", Where: "label < 1"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("where: %v", err)
	}
}

// TestSelectionDroppedMeanwhile: a selection whose bitmap a collection has freed since it
// was looked up, because it was dropped, is not found. Nothing is lost.
func TestSelectionDroppedMeanwhile(t *testing.T) {
	f := newFixture(t, resolve.Options{}, admission.Limits{})
	f.put(t, "d", 20)
	name, err := f.SaveSelection(t.Context(), "d", 1, []int64{1, 5})
	if err != nil {
		t.Fatal(err)
	}
	saved, err := f.store.Selection(t.Context(), "d", name)
	if err != nil {
		t.Fatal(err)
	}
	drop := true
	f.mu.Lock()
	f.gate = func(ctx context.Context, ref schema.BlobRef) error {
		if ref.Key != saved.Bitmap.Key {
			return nil
		}
		if drop {
			if err := f.store.Drop(ctx, "d", 0); err != nil {
				t.Error(err)
			}
		}
		return fmt.Errorf("%w: no blob %s", schema.ErrDataLoss, ref.Key)
	}
	f.mu.Unlock()
	req := schema.Request{Dataset: "d", Selection: &schema.SelectionRef{Name: name}}
	if _, err := f.Open(t.Context(), req); !errors.Is(err, schema.ErrNotFound) || errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("dropped meanwhile: got %v, want %v", err, schema.ErrNotFound)
	}

	drop = false
	f.put(t, "d", 20)
	snap, err := f.store.Snapshot(t.Context(), "d", 0)
	if err != nil {
		t.Fatal(err)
	}
	if req.Selection.Name, err = f.SaveSelection(t.Context(), "d", snap.Number, []int64{1, 5}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open(t.Context(), req); !errors.Is(err, schema.ErrDataLoss) {
		t.Errorf("not dropped: got %v, want %v", err, schema.ErrDataLoss)
	}
}

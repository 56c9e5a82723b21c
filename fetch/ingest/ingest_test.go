package ingest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestCreate(t *testing.T) {
	store := openStore(t)
	parts := []part{{"train", 0, 100}, {"train", 100, 130}, {"val", 130, 150}}
	snap := mustWrite(t, store, Create, parts...)
	if snap.Number != 1 || snap.Source != "test" || snap.Rows() != 150 {
		t.Errorf("snapshot %d of %q with %d rows", snap.Number, snap.Source, snap.Rows())
	}
	splits := []schema.Split{{Name: "train", Ranges: []schema.Range{{Start: 0, End: 130}}},
		{Name: "val", Ranges: []schema.Range{{Start: 130, End: 150}}}}
	if !reflect.DeepEqual(snap.Splits, splits) {
		t.Errorf("splits %v, want %v", snap.Splits, splits)
	}
	same(t, contents(t, store, snap), want(parts...))

	if _, _, err := write(t, store, Create, parts...); !errors.Is(err, schema.ErrExists) {
		t.Errorf("second create: %v, want ErrExists", err)
	}
}

// TestAnyCalls writes the same rows in calls of random lengths, across chunks.
func TestAnyCalls(t *testing.T) {
	const n = schema.ChunkRows + 1000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	store := openStore(t)
	first := mustWrite(t, store, Replace, part{"train", 0, n})
	if len(first.Chunks) != 2 || first.Chunks[0].Rows != schema.ChunkRows {
		t.Fatalf("chunks %v, want a full one and the rest", first.Chunks)
	}
	var parts []part
	for at := 0; at < n; {
		next := min(n, at+1+random.IntN(30_000))
		parts = append(parts, part{"train", at, next})
		at = next
	}
	again, changed, err := write(t, store, Replace, parts...)
	if err != nil || changed || again.Number != 1 {
		t.Errorf("again: snapshot %v, changed %v, error %v; want 1, unchanged", again.Number, changed, err)
	}
}

func TestReplace(t *testing.T) {
	store := openStore(t)
	mustWrite(t, store, Replace, part{"train", 0, 10})
	snap := mustWrite(t, store, Replace, part{"train", 5, 15})
	if snap.Number != 2 || snap.Parent != 1 {
		t.Errorf("snapshot %d on %d, want 2 on 1", snap.Number, snap.Parent)
	}
	same(t, contents(t, store, snap), want(part{"train", 5, 15}))
	// The same rows in other splits are another snapshot.
	mustWrite(t, store, Replace, part{"train", 5, 10}, part{"val", 10, 15})
}

// TestReplaceByNothing: an upload that broke off before its first row must not empty the dataset.
func TestReplaceByNothing(t *testing.T) {
	store := openStore(t)
	mustWrite(t, store, Create, part{"a", 0, 10})
	for name, parts := range map[string][]part{"no call": nil, "calls without rows": {{"a", 0, 0}, {"b", 3, 3}}} {
		_, _, err := write(t, store, Replace, parts...)
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(),
			"no rows came to replace those of dataset d") {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if snap, err := store.Snapshot(t.Context(), "d", 0); err != nil || snap.Number != 1 || snap.Rows() != 10 {
		t.Errorf("the newest snapshot is %+v, %v; want number 1 of 10 rows", snap, err)
	}
	// Appending nothing to an empty dataset changes nothing.
	if snap, changed, err := write(t, store, Append); err != nil || changed || snap.Number != 1 {
		t.Errorf("appending nothing: %+v, %t, %v", snap, changed, err)
	}
}

func TestAppend(t *testing.T) {
	store := openStore(t)
	if _, _, err := write(t, store, Append, part{"train", 0, 1}); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("append to nothing: %v, want ErrNotFound", err)
	}
	base := mustWrite(t, store, Create, part{"train", 0, 10}, part{"val", 10, 12})
	snap := mustWrite(t, store, Append, part{"train", 20, 25}, part{"test", 25, 27})
	if !slices.EqualFunc(base.Chunks, snap.Chunks[:len(base.Chunks)], func(a, b schema.Chunk) bool {
		return a.BlobRef == b.BlobRef
	}) {
		t.Error("the base's chunks were rewritten")
	}
	same(t, contents(t, store, snap), want(part{"train", 0, 10}, part{"val", 10, 12}, part{"train", 20, 25},
		part{"test", 25, 27}))
	train := []schema.Range{{Start: 0, End: 10}, {Start: 12, End: 17}}
	if !reflect.DeepEqual(snap.Splits[0].Ranges, train) {
		t.Errorf("train is %v, want %v", snap.Splits[0].Ranges, train)
	}
	// Repeated, it finds itself.
	again, changed, err := write(t, store, Append, part{"train", 20, 25}, part{"test", 25, 27})
	if err != nil || changed || again.Number != snap.Number {
		t.Errorf("repeated append: changed %v, error %v", changed, err)
	}
	// Ranges that touch become one.
	snap = mustWrite(t, store, Append, part{"test", 30, 31})
	if got := snap.Splits[2].Ranges; len(got) != 1 {
		t.Errorf("test is %v, want one range", got)
	}
	// An append without rows is no change.
	if _, changed, err = write(t, store, Append); err != nil || changed {
		t.Errorf("append of nothing: changed %v, error %v", changed, err)
	}
}

func TestAppendOtherSchema(t *testing.T) {
	store := openStore(t)
	mustWrite(t, store, Create, part{"train", 0, 10})
	label := schema.ClassField("label", []string{"ant", "cat"})
	for name, c := range map[string]struct {
		meta, blobs []arrow.Field
		message     string
	}{
		"missing": {metaFields, blobFields[:1], `column "mask" is missing`},
		"more": {metaFields, append(slices.Clone(blobFields), schema.BlobField("x", "", true)),
			`it has no column "x"`},
		"classes": {[]arrow.Field{label, metaFields[1]}, blobFields, `of the 2 classes ["ant" "cat"]`},
		"name": {[]arrow.Field{metaFields[0], {Name: "title", Type: arrow.BinaryTypes.String}}, blobFields,
			`it has no column "title"; leave the column out`},
		"order": {[]arrow.Field{metaFields[1], metaFields[0]}, blobFields, `column 1 is "label", not "name"`},
	} {
		s, err := schema.NewSchema(c.meta, c.blobs)
		if err != nil {
			t.Fatal(err)
		}
		_, err = New(t.Context(), store, Options{Dataset: "d", Schema: s, Mode: Append})
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want ErrInvalid with %q", name, err, c.message)
		}
	}
}

func TestDuplicates(t *testing.T) {
	store := openStore(t)
	first := func(i int) string { return fmt.Sprintf("%x", schema.SampleID("d", fmt.Sprint(i)))[:8] }
	_, _, err := write(t, store, Create, part{"train", 0, 10}, part{"val", 9, 12})
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), first(9)) {
		t.Errorf("twice in one: %v, want ErrInvalid with the id %s", err, first(9))
	}
	if list, err := store.Datasets(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("datasets %v, error %v, want none", list, err)
	}
	mustWrite(t, store, Create, part{"train", 0, 10})
	_, _, err = write(t, store, Append, part{"train", 3, 20})
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "7 ids are in d@1 already") ||
		!strings.Contains(err.Error(), "2 more") {
		t.Errorf("in the base: %v, want ErrInvalid with 7 ids, 5 of them named", err)
	}
}

func TestWrongRows(t *testing.T) {
	store := openStore(t)
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	r := makeRows(mem, 0, 4)
	defer r.meta.Release()
	narrow := array.NewRecord(arrow.NewSchema(metaFields[:1], nil), r.meta.Columns()[:1], 4)
	defer narrow.Release()
	swapped := array.NewRecord(arrow.NewSchema([]arrow.Field{metaFields[1], metaFields[0]}, nil),
		[]arrow.Array{r.meta.Column(1), r.meta.Column(0)}, 4)
	defer swapped.Release()
	noImage := [][][]byte{{nil, {1}, {2}, {3}}, r.blobs[1]}
	nulls := array.MakeArrayOfNull(mem, arrow.BinaryTypes.String, 4)
	defer nulls.Release()
	noName := array.NewRecord(arrow.NewSchema(metaFields, nil), []arrow.Array{r.meta.Column(0), nulls}, 4)
	defer noName.Release()
	for name, c := range map[string]struct {
		split   string
		rows    rows
		message string
	}{
		"ids":     {"train", rows{r.ids[:3], r.meta, r.blobs}, "3 ids for 4 rows of metadata"},
		"no meta": {"train", rows{r.ids, nil, r.blobs}, "lack their 2 metadata columns"},
		"columns": {"train", rows{r.ids, narrow, r.blobs}, "1 metadata columns, the schema has 2"},
		"order":   {"train", rows{r.ids, swapped, r.blobs}, `is "name", the schema has "label"`},
		"blobs":   {"train", rows{r.ids, r.meta, r.blobs[:1]}, "1 blob columns, the schema has 2"},
		"rows": {"train", rows{r.ids, r.meta, [][][]byte{r.blobs[0][:3], r.blobs[1]}},
			`4 ids for 3 blobs of column "image"`},
		"null":    {"train", rows{r.ids, r.meta, noImage}, `column "image" is null in row 0`},
		"no name": {"train", rows{r.ids, noName, r.blobs}, `column "name" has 4 nulls`},
		"split":   {"not a name", r, "split"},
	} {
		w, err := New(t.Context(), store, Options{Dataset: "d", Schema: testSchema(t), Mem: mem})
		if err != nil {
			t.Fatal(err)
		}
		err = w.Write(t.Context(), c.split, c.rows.ids, c.rows.meta, c.rows.blobs)
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want ErrInvalid with %q", name, err, c.message)
		}
		if _, _, again := w.Commit(t.Context()); !errors.Is(again, err) {
			t.Errorf("%s: commit after an error: %v, want that error", name, again)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if list, err := store.Datasets(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("datasets %v, error %v, want none", list, err)
	}
}

func TestWithoutMetadata(t *testing.T) {
	store := openStore(t)
	s, err := schema.NewSchema(nil, blobFields[:1])
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(t.Context(), store, Options{Dataset: "d", Schema: s})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if err := w.Write(t.Context(), "", []schema.ID{{1}, {2}}, nil, [][][]byte{{{1}, {2}}}); err != nil {
		t.Fatal(err)
	}
	snap, _, err := w.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if snap.Rows() != 2 || snap.Splits[0].Name != DefaultSplit {
		t.Errorf("%d rows in %v", snap.Rows(), snap.Splits)
	}
}

func TestTooManyRanges(t *testing.T) {
	store := openStore(t)
	w, err := New(t.Context(), store, Options{Dataset: "d", Schema: testSchema(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	for i := range maxRanges {
		w.splits = addRange(w.splits, fmt.Sprint(i%2), schema.Range{Start: int64(i), End: int64(i + 1)})
	}
	w.rows = maxRanges
	r := makeRows(memory.DefaultAllocator, 0, 1)
	defer r.meta.Release()
	if err := w.Write(t.Context(), "0", r.ids, r.meta, r.blobs); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("%v, want ErrLimit", err)
	}
}

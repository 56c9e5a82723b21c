package ingest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// TestMergeColumns adds a column, changes another one, and leaves blobs and positions as they are.
func TestMergeColumns(t *testing.T) {
	st := openStore(t)
	before := mustWrite(t, st, Create, part{"train", 0, 3000}, part{"val", 3000, 3100})
	old := table(t, st, before)
	writes := st.Stats().BlobWrites

	f := (&frame{ids: idsOf(3099, 5, 6, 1024)}).
		column("score", 0.5, nil, 2.0, 3.0).column("name", "last", "five", nil2("six"), "page two")
	snap, done := mustAlter(t, st, AlterOptions{On: "id"}, f)
	if done != (Altered{Changed: true, Matched: 4}) || snap.Number != 2 || snap.Parent != 1 {
		t.Fatalf("%+v, snapshot %d on %d", done, snap.Number, snap.Parent)
	}
	got := table(t, st, snap)
	for i, line := range old {
		want := strings.Replace(line, " image=", " score=null image=", 1)
		switch i {
		case 3099:
			want = strings.NewReplacer("name=row 3099", "name=last", "score=null", "score=0.5").Replace(want)
		case 5:
			want = strings.Replace(want, "name=row 5", "name=five", 1)
		case 6:
			want = strings.NewReplacer("name=row 6", "name=six", "score=null", "score=2").Replace(want)
		case 1024:
			want = strings.NewReplacer("name=row 1024", "name=page two", "score=null", "score=3").Replace(want)
		}
		if got[i] != want {
			t.Fatalf("position %d: %s\nwant %s", i, got[i], want)
		}
	}
	// Pages and their index were written, and no blob of a sample.
	if n := st.Stats().BlobWrites - writes; n > 5 {
		t.Errorf("%d blobs were written", n)
	}
	if now := table(t, st, before); !slices.Equal(now, old) {
		t.Error("the snapshot before reads otherwise")
	}
	// The same alteration again changes nothing, and reports that.
	again, done := mustAlter(t, st, AlterOptions{On: "id"}, f)
	if done.Changed || done.Matched != 4 || again.Number != 2 {
		t.Errorf("again: %+v, snapshot %d", done, again.Number)
	}
	// A value that is there already, of a column that is.
	present := (&frame{}).column("name", "five").column("score", nil)
	if _, done = mustAlter(t, st, AlterOptions{On: "name"}, present); done.Changed {
		t.Errorf("by name: %+v", done)
	}
}

func nil2(s string) any { return s }

// TestMergeShares: only pages and chunks whose samples change are written again.
func TestMergeShares(t *testing.T) {
	st := openStore(t)
	const n = 2*schema.ChunkRows + 100
	before := mustWrite(t, st, Create, part{"train", 0, n})
	writes := st.Stats().BlobWrites
	snap, _ := mustAlter(t, st, AlterOptions{}, (&frame{ids: idsOf(schema.ChunkRows + 3000)}).column("name", "changed"))
	if got := st.Stats().BlobWrites - writes; got != 2 {
		t.Errorf("%d blobs were written, want a page and an index", got)
	}
	for i, shared := range []bool{true, false, true} {
		if (snap.Chunks[i].BlobRef == before.Chunks[i].BlobRef) != shared {
			t.Errorf("chunk %d: shared %t, want %t", i, !shared, shared)
		}
	}
	// Rows that are deleted shorten their page, and the others stay.
	writes = st.Stats().BlobWrites
	gone, done := mustAlter(t, st, AlterOptions{Delete: true}, &frame{ids: idsOf(10, schema.ChunkRows+5)})
	if done.Deleted != 2 || gone.Rows() != n-2 || gone.Chunks[2].BlobRef != before.Chunks[2].BlobRef {
		t.Errorf("%+v, %d rows", done, gone.Rows())
	}
	if got := st.Stats().BlobWrites - writes; got != 4 {
		t.Errorf("%d blobs were written, want two pages and two indexes", got)
	}
	got, all := table(t, st, gone), table(t, st, snap)
	all = slices.Delete(all, schema.ChunkRows+5, schema.ChunkRows+6)
	if all = slices.Delete(all, 10, 11); !slices.Equal(got, all) {
		t.Error("other samples are left")
	}
}

func TestInsert(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 5}, part{"val", 5, 7})
	f := (&frame{split: "val"}).column("name", "row 6", "new", "newer").column("label", "bee", "cow", nil).
		column("image", nil, []byte("one"), []byte("two"))
	if _, _, err := alter(t, st, AlterOptions{On: "name"}, f); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), `2 rows have keys in column "name" that no sample of d@1 has: "new" (row 1), `+
			`"newer" (row 2)`) {
		t.Error(err)
	}
	_, done := mustAlter(t, st, AlterOptions{On: "name", Missing: MissingIgnore}, f)
	if done != (Altered{Changed: true, Matched: 1, Ignored: 2}) {
		t.Errorf("%+v", done)
	}
	snap, done := mustAlter(t, st, AlterOptions{On: "name", Missing: MissingInsert}, f)
	if done != (Altered{Changed: true, Matched: 1, Inserted: 2}) {
		t.Errorf("%+v", done)
	}
	got := table(t, st, snap)
	for i, name := range []string{"new", "newer"} {
		want := fmt.Sprintf("%s val label=%s name=%s image=%x mask=null", schema.FormatID(schema.SampleID("d", name)),
			[]string{"2", "null"}[i], name, []string{"one", "two"}[i])
		if got[7+i] != want {
			t.Errorf("%s\nwant %s", got[7+i], want)
		}
	}
	// New classes have numbers behind the others.
	if classes := schema.Classes(snap.Schema.Field(1)); !slices.Equal(classes, []string{"ant", "bee", "cow"}) {
		t.Errorf("classes %v", classes)
	}
	if _, done = mustAlter(t, st, AlterOptions{On: "name", Missing: MissingInsert}, f); done.Changed || done.Matched != 3 {
		t.Errorf("again: %+v", done)
	}
	// The new samples are found by their ids.
	if _, done = mustAlter(t, st, AlterOptions{Delete: true},
		&frame{ids: []schema.ID{schema.SampleID("d", "new")}}); done.Deleted != 1 {
		t.Errorf("deleted: %+v", done)
	}
}

func TestMergeRefuses(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 10})
	mustAlter(t, st, AlterOptions{}, (&frame{ids: idsOf(0, 1, 2, 3)}).column("group", int64(1), int64(1), int64(2), nil).
		column("ratio", 0.5, nil, nil, nil))
	for name, c := range map[string]struct {
		opts AlterOptions
		rows *frame
		want string
	}{
		"nothing":     {AlterOptions{}, nil, "nothing is to be altered"},
		"a key twice": {AlterOptions{}, &frame{ids: idsOf(1, 2, 1)}, "rows 0 and 2 have the same key"},
		"a sample twice": {AlterOptions{On: "group"}, (&frame{}).column("group", int64(1)),
			`positions 0 and 1 have the same key "1" in column "group"`},
		"a null key": {AlterOptions{On: "group"}, (&frame{}).column("group", int64(2), nil),
			`column "group", row 1: got null`},
		"no key":            {AlterOptions{On: "nme"}, (&frame{}).column("nme", "x"), `did you mean "name"?`},
		"a key that is not": {AlterOptions{On: "nme"}, (&frame{}).column("name", "x"), `on: got "nme"`},
		"a float key": {AlterOptions{On: "ratio"}, (&frame{}).column("ratio", 0.5),
			"want integers, text or bytes"},
		"another key type": {AlterOptions{On: "group"}, (&frame{}).column("group", "1"),
			"want the dataset's type, int64"},
		"no ids": {AlterOptions{}, (&frame{}).column("name", "x"), `want a column "id" in the rows`},
		"text for numbers": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("group", "x"),
			`column "group": got utf8`},
		"a fraction": {AlterOptions{}, (&frame{ids: idsOf(1, 2)}).column("group", 1.0, 1.5),
			`column "group", row 1: got 1.5 (float64)`},
		"a null too many": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("name", nil),
			`column "name", row 0: got null`},
		"a class too many": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("label", int64(2)), "class number 2"},
		"a blob for text": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("name", []byte("x")),
			"as it is a metadata column"},
		"text for a blob": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("image", "x"), "as it is a blob column"},
		"a part of a blob": {AlterOptions{}, (&frame{ids: idsOf(1)}).column("image.size", int64(1)),
			"it is the size"},
		"insert, no blob": {AlterOptions{Missing: MissingInsert}, (&frame{ids: idsOf(77)}).column("name", "x"),
			`no blob for column "image"`},
		"insert, no value": {AlterOptions{Missing: MissingInsert},
			(&frame{ids: idsOf(77)}).column("image", []byte("x")),
			`no value for column "name"`},
		"insert of an id": {AlterOptions{Missing: MissingInsert, On: "name"},
			(&frame{ids: idsOf(3)}).column("name", "x").column("image", []byte("x")),
			"which the sample at position 3 has"},
		"another id": {AlterOptions{On: "name"}, (&frame{ids: idsOf(3)}).column("name", "row 4"),
			"ids stay as they are"},
		"drop of nothing":   {AlterOptions{Drop: []string{"grup"}}, nil, `drop_columns: got "grup"`},
		"drop of the id":    {AlterOptions{Drop: []string{"id"}}, nil, `drop_columns: got "id"`},
		"a name twice":      {AlterOptions{Rename: map[string]string{"group": "name"}}, nil, `two columns are named "name"`},
		"where it is wrong": {AlterOptions{DeleteWhere: "grup > 1"}, nil, "grup"},
		"all rows":          {AlterOptions{DeleteWhere: "position >= 0"}, nil, "all samples of d would be deleted"},
		"rows missing":      {AlterOptions{Delete: true}, &frame{ids: idsOf(99)}, "1 rows have keys"},
	} {
		_, _, err := alter(t, st, c.opts, c.rows)
		if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
	if _, _, err := alter(t, st, AlterOptions{Dataset: "e", Drop: []string{"x"}}, nil); !errors.Is(err,
		schema.ErrNotFound) {
		t.Errorf("no dataset: %v", err)
	}
	if snap, err := st.Snapshot(t.Context(), "d", 0); err != nil || snap.Number != 2 {
		t.Errorf("%+v, %v", snap, err)
	}
}

// TestAlterColumns drops and renames, blob columns too.
func TestAlterColumns(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 10})
	snap, done := mustAlter(t, st, AlterOptions{Drop: []string{"mask"}, Rename: map[string]string{"image": "photo",
		"label": "class"}, DeleteWhere: "name == 'row 3' or position > 7"}, nil)
	if done.Deleted != 3 || snap.Schema.Field(3).Name != "photo" || snap.Schema.NumFields() != 4 {
		t.Errorf("%+v, %v", done, snap.Schema)
	}
	want := fmt.Sprintf("%s train class=0 name=row 4 photo=%x", schema.FormatID(idOf(4)), image(4))
	if got := table(t, st, snap); len(got) != 7 || got[3] != want {
		t.Errorf("%v\nwant %s", got, want)
	}
	// A column of another type by the same name, in one snapshot.
	f := (&frame{ids: idsOf(0)}).column("class", "red")
	snap, _ = mustAlter(t, st, AlterOptions{Drop: []string{"class"}}, f)
	if field := snap.Schema.Field(2); field.Name != "class" || field.Type.ID() != arrow.STRING {
		t.Errorf("%v", snap.Schema)
	}
	if _, done = mustAlter(t, st, AlterOptions{Drop: []string{"class"}}, f); done.Changed {
		t.Error("the same again makes a snapshot")
	}
}

// TestMergeMeanwhile: an alteration is repeated on the snapshot of another writer, even if
// the snapshot that it read is gone.
func TestMergeMeanwhile(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 10})
	next := 100
	o := &other{Store: st, before: func() {
		mustWrite(t, st, Append, part{"val", next, next + 5})
		next += 5
		if err := st.Drop(t.Context(), "d", int64(next/5-20)); err != nil {
			t.Error(err)
		}
		if _, err := st.GC(t.Context(), store.GCOptions{}, nil); err != nil {
			t.Error(err)
		}
	}}
	o.n.Store(2)
	snap, done := mustAlter(t, o, AlterOptions{}, (&frame{ids: idsOf(3, 4)}).column("score", 1.5, 2.5))
	if got := table(t, st, snap); done.Matched != 2 || len(got) != 20 || !strings.Contains(got[3], "score=1.5") ||
		!strings.Contains(got[12], "name=row 102 score=null") {
		t.Errorf("%+v, %v", done, got)
	}
	o.before = func() {
		next++
		mustAlter(t, st, AlterOptions{}, (&frame{ids: idsOf(5)}).column("score", float64(next)))
	}
	o.n.Store(1000)
	if _, _, err := alter(t, o, AlterOptions{}, (&frame{ids: idsOf(3)}).column("score", 9.5)); !errors.Is(err,
		schema.ErrConflict) {
		t.Errorf("%v, want ErrConflict", err)
	}
}

// TestAlteredBlobsStay: collections keep blobs that a new snapshot took over from one that is dropped, and one that runs
// while rows are merged.
func TestAlteredBlobsStay(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 2000})
	collected := &other{Store: st, before: func() {
		if _, err := st.GC(t.Context(), store.GCOptions{}, nil); err != nil {
			t.Error(err)
		}
	}}
	collected.n.Store(1)
	f := (&frame{ids: idsOf(1, 2)}).column("score", 1.5, 2.5).column("image", []byte("another"), nil)
	snap, _ := mustAlter(t, collected, AlterOptions{}, f)
	before := table(t, st, snap)
	if err := st.Drop(t.Context(), "d", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := st.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if got := table(t, st, snap); !slices.Equal(got, before) ||
		!strings.Contains(got[1], fmt.Sprintf("image=%x", "another")) ||
		!strings.Contains(got[2], fmt.Sprintf("image=%x", image(2))) {
		t.Error("blobs are not what they were")
	}
}

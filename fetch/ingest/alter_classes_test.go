package ingest

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// TestKeysOfOtherClasses: numbers of classes of another table name other classes, so rows are not found by them.
func TestKeysOfOtherClasses(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 2})
	field := schema.ClassField("label", []string{"bee", "ant"})
	b := array.NewInt64Builder(memory.DefaultAllocator)
	b.Append(1)
	note := array.NewStringBuilder(memory.DefaultAllocator)
	note.Append("about ants")
	fields := []arrow.Field{field, {Name: "note", Type: arrow.BinaryTypes.String, Nullable: true}}
	rows, err := schema.NewSchema(fields, nil)
	if err != nil {
		t.Fatal(err)
	}
	merge := func() (*schema.Snapshot, error) {
		a, err := Alter(t.Context(), st, AlterOptions{Dataset: "d", On: "label", Rows: rows})
		if err != nil {
			return nil, err
		}
		defer a.Close()
		rec := record(fields, []arrow.Array{b.NewArray(), note.NewArray()}, 1)
		if err := a.Write(t.Context(), "", nil, rec, nil); err != nil {
			return nil, err
		}
		snap, _, err := a.Commit(t.Context())
		return snap, err
	}
	snap, err := merge()
	if !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), "classes") {
		if err == nil {
			t.Logf("%q", table(t, st, snap))
		}
		t.Errorf("%v, want an error", err)
	}
}

// TestMergeOfEqualNumbers: a value that compares as equal and is written otherwise is stored.
func TestMergeOfEqualNumbers(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 3})
	mustAlter(t, st, AlterOptions{}, (&frame{ids: idsOf(0, 1)}).column("score", 0.0, math.NaN()))
	f := (&frame{ids: idsOf(0)}).column("score", math.Copysign(0, -1))
	snap, done := mustAlter(t, st, AlterOptions{}, f)
	if got := table(t, st, snap); !done.Changed || !strings.Contains(got[0], "score=-0") {
		t.Errorf("%+v, %s", done, got[0])
	}
	if _, done := mustAlter(t, st, AlterOptions{}, f); done.Changed {
		t.Error("the same again makes a snapshot")
	}
	if _, done := mustAlter(t, st, AlterOptions{}, (&frame{ids: idsOf(1)}).column("score", math.NaN())); done.Changed {
		t.Error("the same NaN makes a snapshot")
	}
}

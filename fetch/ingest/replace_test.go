package ingest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// replaced replaces a dataset by two rows of other columns.
func replaced(t *testing.T, st store.Store, drop []string, meta, blobs []arrow.Field) ([]string, error) {
	t.Helper()
	s, err := schema.NewSchema(meta, blobs)
	if err != nil {
		t.Fatal(err)
	}
	w, err := New(t.Context(), st, Options{Dataset: "d", Schema: s, Mode: Replace, Drop: drop})
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	columns := make([]arrow.Array, len(meta))
	for i, f := range meta {
		b := schema.NewColumnBuilder(f)
		if err := b.AppendNulls(2); err != nil {
			t.Fatal(err)
		}
		columns[i] = b.Array()
	}
	content := make([][][]byte, len(blobs))
	for i := range content {
		content[i] = [][]byte{{1}, {2}}
	}
	if err := w.Write(t.Context(), "train", idsOf(0, 1), record(meta, columns, 2), content); err != nil {
		return nil, err
	}
	_, _, err = w.Commit(t.Context())
	return w.Notes(), err
}

// TestReplaceKeepsColumns: a replacement may drop or change a column of the dataset only if
// the caller names it.
func TestReplaceKeepsColumns(t *testing.T) {
	st := openStore(t)
	mustWrite(t, st, Create, part{"train", 0, 4}, part{"val", 4, 5})
	label, name := schema.ClassField("label", []string{"bee", "wasp", "ant"}), arrow.Field{Name: "name", Nullable: true}
	name.Type = arrow.BinaryTypes.String
	large, number := name, name
	large.Type, number.Type = arrow.BinaryTypes.LargeString, arrow.PrimitiveTypes.Int64
	image, mask := blobFields[0], blobFields[1]
	plain, text := schema.BlobField("image", "", false), arrow.Field{Name: "image", Type: arrow.BinaryTypes.Binary, Nullable: true}
	for what, c := range map[string]struct {
		drop        []string
		meta, blobs []arrow.Field
		want        string
	}{
		"a blob column": {nil, []arrow.Field{label, name}, []arrow.Field{image},
			`would drop "mask" (blob or null) for all of its readers`},
		"two columns": {nil, []arrow.Field{label}, []arrow.Field{image}, `would drop "name" (utf8), "mask" (blob or null) for`},
		"a type": {nil, []arrow.Field{label, number}, []arrow.Field{image, mask},
			`would change "name" from utf8 to int64 or null for all of its readers; the mode "merge"`},
		"blobs for metadata": {[]string{"mask"}, []arrow.Field{label, name, text}, nil,
			`would change "image" from blob (image) to binary or null`},
		"a medium": {[]string{"mask"}, []arrow.Field{label, name}, []arrow.Field{plain}, `change "image" from blob (image) to blob`},
	} {
		if _, err := replaced(t, st, c.drop, c.meta, c.blobs); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v\nwant %s", what, err, c.want)
		}
	}
	notes, err := replaced(t, st, []string{"mask", "no such column"}, []arrow.Field{label, large}, []arrow.Field{image})
	want := []string{"splits that are gone: val (1 rows)",
		"column label: classes with another number: ant from 0 to 2, bee from 1 to 0"}
	if err != nil || !slices.Equal(notes, want) {
		t.Errorf("%q, %v, want %q", notes, err, want)
	}
	if snap, err := st.Snapshot(t.Context(), "d", 0); err != nil || snap.Number != 2 {
		t.Errorf("%+v, %v", snap, err)
	}
}

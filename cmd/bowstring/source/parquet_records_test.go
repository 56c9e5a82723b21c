package source

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
)

// nestedFields are columns of each shape.
var nestedFields = []arrow.Field{
	{Name: "image", Type: hfImage, Nullable: true},
	{Name: "required", Type: arrow.StructOf(arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int32})},
	{Name: "deep", Type: arrow.StructOf(
		arrow.Field{Name: "a", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float64,
			Nullable: true}), Nullable: true},
		arrow.Field{Name: "b", Type: arrow.BinaryTypes.String, Nullable: true}), Nullable: true},
	{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	{Name: "boxes", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "w", Type: arrow.PrimitiveTypes.Int64,
		Nullable: true})), Nullable: true},
	{Name: "lists", Type: arrow.StructOf(arrow.Field{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int16),
		Nullable: true}), Nullable: true},
}

func writeNested(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.parquet")
	writeParquet(t, path, "", nestedFields,
		`[{"bytes": "YQ==", "path": "a"}, null, {"bytes": null, "path": null}, {"bytes": "Yg==", "path": null}]`,
		`[{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}]`,
		`[{"a": {"x": 1.5}, "b": "s"}, null, {"a": null, "b": null}, {"a": {"x": null}, "b": "t"}]`,
		`[["a", null], [], null, ["b"]]`,
		`[[{"w": 1}, null], [], null, [{"w": null}, {"w": 4}]]`,
		`[{"l": [1, 2]}, null, {"l": null}, {"l": []}]`)
	return path
}

// TestParquetRecords holds what is read to what Arrow's own reader makes of it.
func TestParquetRecords(t *testing.T) {
	f, err := openParquetFile(writeNested(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.close() }()
	for _, rows := range []int64{1, 3, 64} {
		f.arrow.Props.BatchSize = rows
		want, err := f.arrow.GetRecordReader(t.Context(), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.records(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read := int64(0)
		for {
			rec, err := got.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if !want.Next() || !array.RecordEqual(rec, want.Record()) {
				t.Fatalf("%d rows at a time, after %d: %v, want %v", rows, read, rec, want.Record())
			}
			read += rec.NumRows()
		}
		if read != 4 || want.Next() {
			t.Errorf("%d rows at a time: %d rows were read, want 4", rows, read)
		}
		want.Release()
		got.release()
	}
}

// TestParquetPagesWithoutHeaders gives each page in turn a type whose header is not there. Arrow
// takes it for granted, also in goroutines that are its own.
func TestParquetPagesWithoutHeaders(t *testing.T) {
	path := writeNested(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := openParquetFile(path)
	if err != nil {
		t.Fatal(err)
	}
	group := f.file.MetaData().RowGroup(0)
	leaves := f.file.MetaData().Schema.NumColumns()
	var pages []int64
	for i := range leaves {
		chunk, err := group.ColumnChunk(i)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, chunk.DataPageOffset())
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	for leaf, at := range pages {
		damaged := bytes.Clone(whole)
		if damaged[at] != 0x15 || damaged[at+1] != 0 { // field 1, an i32: 0, a data page of version 1
			t.Fatalf("leaf %d: no page header at %d: % x", leaf, at, damaged[at:at+8])
		}
		damaged[at+1] = 6 // 3: a data page of version 2
		if err := os.WriteFile(path, damaged, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := openParquetFile(path)
		if err != nil {
			t.Fatal(err)
		}
		records, err := f.records(t.Context())
		if err == nil {
			_, err = records.next()
			records.release()
		}
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("leaf %d: %v", leaf, err)
		}
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}
}

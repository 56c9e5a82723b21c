package source

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
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

// oldReader is the reader of the Arrow version that the rest of the program uses.
func oldReader(t *testing.T, path string) *pqarrow.FileReader {
	t.Helper()
	r, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	f, err := pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{BatchSize: 4}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestParquetRecords compares the records with those of Arrow's own reader.
func TestParquetRecords(t *testing.T) {
	path := writeNested(t)
	whole, err := oldReader(t, path).ReadTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Release()
	lines := func(rec arrow.Record) []string {
		var b bytes.Buffer
		if err := array.RecordToJSON(rec, &b); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(b.String()), "\n")
	}
	table := array.NewTableReader(whole, 0)
	defer table.Release()
	table.Next()
	want := lines(table.Record())
	for _, rows := range []int{1, 3, 64} {
		f, err := localFiles(path).openParquet(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		columns := make([]int, len(nestedFields))
		for i := range columns {
			columns[i] = i
		}
		records, err := f.Records(columns, make([]bool, len(columns)), rows)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for {
			rec, err := records.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, lines(rec)...)
			rec.Release()
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d rows at a time: %q, want %q", rows, got, want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestParquetPagesWithoutHeaders gives each page in turn a type without its header. Arrow
// assumes that the header exists, also in its own goroutines.
func TestParquetPagesWithoutHeaders(t *testing.T) {
	path := writeNested(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data := oldReader(t, path).ParquetReader().MetaData()
	group := data.RowGroup(0)
	leaves := data.Schema.NumColumns()
	var pages []int64
	for i := range leaves {
		chunk, err := group.ColumnChunk(i)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, chunk.DataPageOffset())
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
		l := newParquetLayout(localFiles(path), nil)
		if err := l.inspect(t.Context(), "x", path); err != nil {
			t.Fatal(err)
		}
		for _, err := range l.settle() {
			t.Fatal(err)
		}
		records, err := l.openRecords(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = records.next(t.Context()); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("leaf %d: %v", leaf, err)
		}
		if err := records.close(); err != nil {
			t.Error(err)
		}
	}
}

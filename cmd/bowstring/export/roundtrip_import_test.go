package export_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/export"
	"bowstring/cmd/bowstring/source"
	"bowstring/schema"
)

var (
	roundTrips = flag.Int("roundtrips", 150, "random datasets that are exported and imported, for each format")
	tripSeed   = flag.Uint64("roundtrip-seed", 0, "seed of the first of them; 0 for any")
)

// TestRoundTrip exports random datasets and imports them again. Rows, types, classes,
// splits and ids are the same in each format.
func TestRoundTrip(t *testing.T) {
	first := *tripSeed
	if first == 0 {
		first = rand.Uint64() >> 1
	}
	n := uint64(*roundTrips)
	if testing.Short() {
		n /= 5
	}
	for seed := first; seed < first+n; seed++ {
		d := generator{rand.New(rand.NewPCG(seed, 0))}.dataset(t)
		for _, format := range export.Formats {
			if why := tripOnce(t, format, d, seed); why != "" {
				t.Fatalf("-roundtrip-seed=%d -roundtrips=1, %s: %s", seed, format, why)
			}
		}
	}
}

// tripOnce returns how the imported dataset differs; "" if it does not.
func tripOnce(t *testing.T, format string, d dataset, seed uint64) string {
	t.Helper()
	root, err := os.MkdirTemp(t.TempDir(), "trip")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "out."+format)
	open := map[string]func(string, *arrow.Schema, export.Options) (export.Sink, error){
		"parquet": export.Parquet, "arrow": export.Arrow, "folder": export.Folder}[format]
	sink, err := open(path, d.schema, export.Options{SplitFolders: seed%2 == 0})
	if err != nil {
		return err.Error()
	}
	defer sink.Close()
	// A stream has several records.
	for at := int64(0); at < d.rec.NumRows(); {
		end := min(at+1+int64(seed%7), d.rec.NumRows())
		part := d.rec.NewSlice(at, end)
		err := sink.Write(part)
		part.Release()
		if err != nil {
			return "write: " + err.Error()
		}
		at = end
	}
	if err := sink.Commit(); err != nil {
		return "commit: " + err.Error()
	}
	back, why := importBack(t, path)
	if why != "" {
		return why
	}
	return differ(d, back)
}

// importBack reads a file or folder as an import does.
func importBack(t *testing.T, path string) (dataset, string) {
	t.Helper()
	if strings.HasSuffix(path, ".arrow") {
		return readArrow(t, path), ""
	}
	src, err := source.Open(t.Context(), path, source.Options{})
	if err != nil {
		return dataset{}, "open: " + err.Error()
	}
	r, err := source.NewReader(src, source.ReadOptions{Dataset: "other", Split: "of none", Verify: source.VerifyNone})
	if err != nil {
		return dataset{}, "read: " + err.Error()
	}
	fields := append(slices.Clone(r.Schema().Fields()),
		arrow.Field{Name: schema.SplitColumn, Type: arrow.BinaryTypes.String})
	out := dataset{schema: arrow.NewSchema(fields, nil)}
	var parts [][]arrow.Array
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			return out, "read: " + err.Error()
		}
		if len(b.Bad) > 0 {
			return out, fmt.Sprintf("bad items: %q", b.Bad)
		}
		if b.Meta.NumRows() > 0 {
			parts = append(parts, columnsOf(out.schema, b))
		}
	}
	var columns []arrow.Array
	for i := range fields {
		var chunks []arrow.Array
		for _, p := range parts {
			chunks = append(chunks, p[i])
		}
		c, err := array.Concatenate(chunks, memory.DefaultAllocator)
		if err != nil {
			return out, err.Error()
		}
		columns = append(columns, c)
	}
	out.rec = array.NewRecord(out.schema, columns, -1)
	return out, ""
}

// readArrow reads an Arrow file with Arrow's own reader: no import reads such files.
func readArrow(t *testing.T, path string) (out dataset) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := ipc.NewFileReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var records []arrow.Record
	for i := range r.NumRecords() {
		rec, err := r.RecordAt(i)
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		records = append(records, rec)
	}
	out.schema = r.Schema()
	table := array.NewTableFromRecords(out.schema, records)
	defer table.Release()
	var columns []arrow.Array
	for i := range out.schema.Fields() {
		c, err := array.Concatenate(table.Column(i).Data().Chunks(), memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		columns = append(columns, c)
	}
	out.rec = array.NewRecord(out.schema, columns, -1)
	return out
}

// columnsOf are the columns of a batch: id, metadata, blobs, split.
func columnsOf(s *arrow.Schema, b *source.Batch) (columns []arrow.Array) {
	ids := array.NewFixedSizeBinaryBuilder(memory.DefaultAllocator, s.Field(0).Type.(*arrow.FixedSizeBinaryType))
	splits := array.NewStringBuilder(memory.DefaultAllocator)
	for _, id := range b.IDs {
		ids.Append(id[:])
		splits.Append(b.Split)
	}
	columns = append(columns, ids.NewArray())
	for _, c := range b.Meta.Columns() {
		c.Retain()
		columns = append(columns, c)
	}
	for _, blobs := range b.Blobs {
		content := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.LargeBinary)
		for _, data := range blobs {
			if data == nil {
				content.AppendNull()
			} else {
				content.Append(data)
			}
		}
		columns = append(columns, content.NewArray())
	}
	return append(columns, splits.NewArray())
}

// differ describes the difference of two datasets, whose rows may be in any order; "" if
// there is none.
func differ(want, got dataset) string {
	shown := func(s *arrow.Schema) (fields []string) {
		for _, f := range s.Fields() {
			name := strings.ReplaceAll(f.Type.String(), "list<list: ", "list<item: ") // the name of an element differs
			fields = append(fields, fmt.Sprintf("%q %s blob=%t media=%q classes=%q", f.Name, name, schema.IsBlob(f),
				schema.Media(f), schema.Classes(f)))
		}
		return fields
	}
	if a, b := shown(want.schema), shown(got.schema); !slices.Equal(a, b) {
		return fmt.Sprintf("columns\n%s\nwant\n%s", strings.Join(b, "\n"), strings.Join(a, "\n"))
	}
	a, b := want.rows(), got.rows()
	for _, id := range slices.Sorted(maps.Keys(a)) {
		if a[id] != b[id] {
			return fmt.Sprintf("row %s:\n%s\nwant\n%s", id, b[id], a[id])
		}
	}
	if len(a) != len(b) || want.rec.NumRows() != got.rec.NumRows() {
		return fmt.Sprintf("%d rows, want %d", got.rec.NumRows(), want.rec.NumRows())
	}
	return ""
}

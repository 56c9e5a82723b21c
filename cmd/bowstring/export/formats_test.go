package export_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

func openSink(t *testing.T, format, path string, opts export.Options) export.Sink {
	t.Helper()
	sink, err := openFormat(format, path, opts)
	if err != nil {
		t.Fatal(err)
	}
	return sink
}

func openFormat(format, path string, opts export.Options) (export.Sink, error) {
	switch format {
	case "parquet":
		return export.Parquet(path, sampleSchema(), opts)
	case "arrow":
		return export.Arrow(path, sampleSchema(), opts)
	default:
		return export.Folder(path, sampleSchema(), opts)
	}
}

func TestForce(t *testing.T) {
	rec := record(t, sample{"a.jpg", 0, jpeg, nil, "train"})
	for _, name := range export.Formats {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "out")
			write(t, openSink(t, name, path, export.Options{}), nil, rec)
			if _, err := openFormat(name, path, export.Options{}); !errors.Is(err, schema.ErrExists) {
				t.Errorf("over an earlier export: %v, want ErrExists", err)
			}
			sink := openSink(t, name, path, export.Options{Force: true})
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the earlier export is gone before Commit: %v", err)
			}
			write(t, sink, nil, rec, rec)
			if left := tree(t, filepath.Dir(path)); name != "folder" && len(left) != 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
	t.Run("a folder of something else", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := export.Folder(dir, sampleSchema(), export.Options{Force: true}); !errors.Is(err,
			schema.ErrExists) {
			t.Errorf("got %v, want ErrExists", err)
		}
	})
}

func TestArrow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.arrow")
	rec := record(t, sample{"a.jpg", 0, jpeg, nil, "train"}, sample{nil, nil, nil, png, "train"})
	sink, err := export.Arrow(path, sampleSchema(), export.Options{})
	write(t, sink, err, rec, rec)
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
	if !r.Schema().Equal(sampleSchema()) || r.NumRecords() != 2 {
		t.Fatalf("%d records of %s", r.NumRecords(), r.Schema())
	}
	for i := range r.NumRecords() {
		got, err := r.Record(i)
		if err != nil || !array.RecordEqual(rec, got) {
			t.Errorf("record %d: %v, %v", i, got, err)
		}
	}
}

func TestParquet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.parquet")
	s := sampleSchema()
	meta := arrow.NewMetadata([]string{"huggingface"}, []string{`{"info": {}}`})
	withMeta := arrow.NewSchema(s.Fields(), &meta)
	large := bytes.Repeat(jpeg, export.RowGroupBytes/len(jpeg)/3)
	rec := record(t, sample{"a.jpg", 0, large, nil, "train"}, sample{nil, nil, nil, png, "train"})
	rec = array.NewRecord(withMeta, rec.Columns(), rec.NumRows())
	defer rec.Release()
	const records = 5
	sink, err := export.Parquet(path, withMeta, export.Options{})
	write(t, sink, err, slices.Repeat([]arrow.Record{rec}, records)...)

	pf, err := file.OpenParquetFile(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer pf.Close()
	if got := pf.MetaData().KeyValueMetadata().FindValue("huggingface"); got == nil || *got != `{"info": {}}` {
		t.Errorf("metadata of Hugging Face: %v", got)
	}
	// Each record is a third of the bound: two fit under it, and the third reaches it.
	if n := pf.NumRowGroups(); n != 3 {
		t.Errorf("%d row groups, want 3", n)
	}
	r, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	table, err := r.ReadTable(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer table.Release()
	if table.NumRows() != records*rec.NumRows() {
		t.Fatalf("%d rows, want %d", table.NumRows(), records*rec.NumRows())
	}
	for i, f := range s.Fields() {
		got, err := array.Concatenate(table.Column(i).Data().Chunks(), memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		want, err := array.Concatenate(slices.Repeat([]arrow.Array{rec.Column(i)}, records), memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		if !array.Equal(got, want) {
			t.Errorf("column %s: read back other values", f.Name)
		}
		got.Release()
		want.Release()
	}
}

func TestFormatOf(t *testing.T) {
	for path, want := range map[string]string{
		"a.parquet": "parquet", "a.PQ": "parquet", "a.arrow": "arrow", "a.feather": "arrow",
		"a": "", "a/": "folder", "a.b/": "folder", "a.csv": "",
	} {
		if got := export.FormatOf(path); got != want {
			t.Errorf("FormatOf(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestRow(t *testing.T) {
	rec := record(t, sample{"a<b>.jpg", 0, []byte{1}, nil, "train"})
	got, err := json.Marshal(export.Row(rec, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"id":"` + id(0) +
		`","file_name":"a\u003cb\u003e.jpg","label":0,"width":100,"image":"AQ==","mask":null,"split":"train"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

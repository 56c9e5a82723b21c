package export_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
	"go.uber.org/goleak"

	"bowstring/cmd/bowstring/export"
	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var classes = []string{"tench", "n/a", ".hidden"}

// sampleSchema has a column of each kind that a folder treats in its own way.
func sampleSchema() *arrow.Schema {
	return arrow.NewSchema([]arrow.Field{
		schema.IDField(),
		{Name: "file_name", Type: arrow.BinaryTypes.String, Nullable: true},
		schema.ClassField("label", classes),
		{Name: "width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		schema.BlobField("image", schema.MediaImage, true),
		schema.BlobField("mask", schema.MediaImage, true),
		{Name: "split", Type: arrow.BinaryTypes.String},
	}, nil)
}

type sample struct {
	name  any // nil: null
	label any
	image []byte // nil: null
	mask  []byte
	split string
}

var (
	jpeg = []byte("\xff\xd8\xff\xe0 a JPEG as far as its first bytes go")
	png  = []byte("\x89PNG\x0d\x0a\x1a\x0a a PNG as far as its first bytes go")
)

func record(t *testing.T, samples ...sample) arrow.Record {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, sampleSchema())
	defer b.Release()
	for i, s := range samples {
		id := schema.SampleID("test", fmt.Sprint(i))
		b.Field(0).(*array.FixedSizeBinaryBuilder).Append(id[:])
		if s.name == nil {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(s.name.(string))
		}
		if s.label == nil {
			b.Field(2).AppendNull()
		} else {
			b.Field(2).(*array.Int64Builder).Append(int64(s.label.(int)))
		}
		b.Field(3).(*array.Int32Builder).Append(int32(100 + i))
		for j, blob := range [][]byte{s.image, s.mask} {
			if blob == nil {
				b.Field(4 + j).AppendNull()
			} else {
				b.Field(4 + j).(*array.BinaryBuilder).Append(blob)
			}
		}
		b.Field(6).(*array.StringBuilder).Append(s.split)
	}
	rec := b.NewRecord()
	t.Cleanup(rec.Release)
	return rec
}

func id(i int) string { return schema.FormatID(schema.SampleID("test", fmt.Sprint(i))) }

func write(t *testing.T, sink export.Sink, err error, recs ...arrow.Record) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range recs {
		if err := sink.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
}

// tree lists the files below dir with slashes, in order.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	sink, err := export.Folder(dir, sampleSchema(), export.Options{SplitFolders: true})
	write(t, sink, err, record(t,
		sample{"train/tench/a.JPEG", 0, jpeg, png, "train"},         // keeps its name
		sample{"elsewhere/b.jpg", 0, jpeg, nil, "train"},            // into the folder of its class
		sample{nil, 1, png, nil, "train"},                           // named by id; the class is no name of a folder
		sample{"../../escape.jpg", 2, jpeg, nil, "train"},           // not out of the folder, and not hidden
		sample{"tench/a.JPEG", 0, jpeg, nil, "train"},               // the name is taken
		sample{"tench/a.JPEG", 0, []byte{0, 1, 2, 3}, nil, "valid"}, // but not in the other split
		sample{"gone.jpg", 0, nil, nil, "valid"},                    // no file
		sample{"loose.png", nil, png, nil, "valid"},                 // no class
		sample{"metadata.jsonl", nil, []byte("text"), nil, "valid"}, // not over the metadata
	))
	want := []string{
		"train/%2Ehidden/" + id(3) + ".jpg",
		"train/metadata.jsonl",
		"train/n%2Fa/" + id(2) + ".png",
		"train/tench/" + id(4) + ".jpg",
		"train/tench/a.JPEG",
		"train/tench/a.mask.png",
		"train/tench/b.jpg",
		"valid/" + id(8) + ".txt",
		"valid/loose.png",
		"valid/metadata.jsonl",
		"valid/tench/a.JPEG",
	}
	slices.Sort(want)
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("files:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got, err := os.ReadFile(filepath.Join(dir, "valid/tench/a.JPEG")); err != nil ||
		!bytes.Equal(got, []byte{0, 1, 2, 3}) {
		t.Errorf("content: %v, %v", got, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "train/metadata.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	first := `{"file_name":"tench/a.JPEG","mask_file_name":"tench/a.mask.png","label":"tench","width":100}`
	if len(lines) != 5 || lines[0] != first {
		t.Errorf("metadata of train:\n%s\nwant 5 lines, the first\n%s", data, first)
	}
	if data, err = os.ReadFile(filepath.Join(dir, "valid/metadata.jsonl")); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		if i == 1 && row["file_name"] != nil {
			t.Errorf("a null image has file_name %v, want null", row["file_name"])
		}
		if i == 2 && row["label"] != nil {
			t.Errorf("a null label is %v, want null", row["label"])
		}
	}
}

// Names in data are anybody's: nothing is written outside of the folder, over other rows' files or as
// metadata, and no name makes an export fail.
func TestFolderOfHostileNames(t *testing.T) {
	names := []string{"../../../x.jpg", "/etc/x.jpg", "a/../../x.jpg", "metadata.csv", "tench/metadata.parquet",
		"metadata.jsonl/x.jpg", "nul\x00.jpg", "line\nfeed.jpg",
		strings.Repeat("n", 300) + ".jpg", strings.Repeat("d/", 3000) + "x.jpg", "a", "a/b.jpg", "a/b.jpg",
		".hidden.jpg", ".", "..", "\xff.jpg", ""}
	kept := classes
	defer func() { classes = kept }()
	classes = []string{"..", "nul\x00", strings.Repeat("c", 300), "a/../../b", "."}
	parent := t.TempDir()
	dir := filepath.Join(parent, "out")
	var rows []sample
	for i, name := range names {
		rows = append(rows, sample{name, i % len(classes), jpeg, png, "train"})
	}
	sink, err := export.Folder(dir, sampleSchema(), export.Options{SplitFolders: true})
	write(t, sink, err, record(t, rows...))
	files := tree(t, parent)
	for _, file := range files {
		if !strings.HasPrefix(file, "out/train/") {
			t.Errorf("written to %q", file)
		}
		if strings.HasPrefix(filepath.Base(file), "metadata.") && file != "out/train/metadata.jsonl" {
			t.Errorf("written as metadata: %q", file)
		}
	}
	if len(files) != 2*len(names)+1 {
		t.Errorf("%d files, want 2 of each row and the metadata: %q", len(files), files)
	}
	data, err := os.ReadFile(filepath.Join(dir, "train/metadata.jsonl"))
	if err != nil || bytes.Count(data, []byte("\n")) != len(names) {
		t.Errorf("%d lines, %v", bytes.Count(data, []byte("\n")), err)
	}
}

// FuzzFolder writes two rows of any names, and finds all that was written within the folder.
func FuzzFolder(f *testing.F) {
	f.Add("a.jpg", "cat", []byte("\xff\xd8\xff"))
	f.Add("../x", "..", []byte{})
	f.Add("train/metadata.csv", "metadata.jsonl", []byte("x"))
	f.Add("a/b", "a/b\x00", []byte("RIFF"))
	kept := classes
	f.Cleanup(func() { classes = kept })
	f.Fuzz(func(t *testing.T, name, class string, data []byte) {
		encoded, err := json.Marshal([]string{class})
		if err != nil || json.Unmarshal(encoded, &classes) != nil {
			t.Fatal(err)
		}
		parent := t.TempDir()
		sink, err := export.Folder(filepath.Join(parent, "out"), sampleSchema(),
			export.Options{SplitFolders: len(data)%2 == 0})
		write(t, sink, err, record(t, sample{name, 0, data, data, "train"}, sample{name, nil, data, nil, "train"}))
		for _, file := range tree(t, parent) {
			if !strings.HasPrefix(file, "out/") {
				t.Errorf("written to %q", file)
			}
		}
	})
}

// Without split folders a file keeps the path that it had at its source, and
// the metadata lies where importers look for it.
func TestFolderOfOneSplit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	sink, err := export.Folder(dir, sampleSchema(), export.Options{})
	write(t, sink, err, record(t,
		sample{"train/tench/a.jpg", 0, jpeg, nil, "train"},
		sample{"tench/deep/b.jpg", 0, jpeg, nil, "train"},
	))
	want := []string{"metadata.jsonl", "tench/deep/b.jpg", "train/metadata.jsonl", "train/tench/a.jpg"}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("files: %v, want %v", got, want)
	}
	data, err := os.ReadFile(filepath.Join(dir, "train/metadata.jsonl"))
	if err != nil || !strings.HasPrefix(string(data), `{"file_name":"tench/a.jpg"`) {
		t.Errorf("metadata of train: %s, %v", data, err)
	}
}

// A failed or abandoned export leaves nothing, whatever its format.
func TestAtomic(t *testing.T) {
	for _, name := range export.Formats {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "out")
			sink := openSink(t, name, path, export.Options{})
			if err := sink.Write(record(t, sample{"a.jpg", 0, jpeg, nil, "train"})); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("before Commit: %v, want nothing under the name", err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			if left := tree(t, dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

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

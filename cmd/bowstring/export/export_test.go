package export_test

import (
	"bytes"
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
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/cmd/bowstring/export"
	"bowstring/internal/leaktest"
	"bowstring/schema"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

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

// metadataLines reads the metadata of an export: each row as JSON.
func metadataLines(t *testing.T, path string) (lines []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := pqarrow.ReadTable(t.Context(), f, nil, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Release()
	rows := array.NewTableReader(all, -1)
	defer rows.Release()
	for rows.Next() {
		for row := range int(rows.Record().NumRows()) {
			line, err := json.Marshal(export.Row(rows.Record(), row))
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, string(line))
		}
	}
	return lines
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
		sample{"metadata.jsonl", nil, []byte("text"), nil, "valid"}, // must not overwrite the metadata
	))
	want := []string{
		"train/%2Ehidden/" + id(3) + ".jpg",
		"train/metadata.parquet",
		"train/n%2Fa/" + id(2) + ".png",
		"train/tench/" + id(4) + ".jpg",
		"train/tench/a.JPEG",
		"train/tench/a.mask.png",
		"train/tench/b.jpg",
		"valid/" + id(8) + ".txt",
		"valid/loose.png",
		"valid/metadata.parquet",
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
	lines := metadataLines(t, filepath.Join(dir, "train/metadata.parquet"))
	first := `{"file_name":"tench/a.JPEG","mask_file_name":"tench/a.mask.png","id":"` + id(0) +
		`","file_name_":"train/tench/a.JPEG","label":0,"width":100,"split":"train"}`
	if len(lines) != 5 || lines[0] != first {
		t.Errorf("metadata of train:\n%s\nwant 5 lines, the first\n%s", lines, first)
	}
	for i, line := range metadataLines(t, filepath.Join(dir, "valid/metadata.parquet")) {
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

// Names in data may be hostile. Nothing is written outside the folder, over files of
// other rows or as metadata, and no name makes an export fail.
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
		if strings.HasPrefix(filepath.Base(file), "metadata.") && file != "out/train/metadata.parquet" {
			t.Errorf("written as metadata: %q", file)
		}
	}
	if len(files) != 2*len(names)+1 {
		t.Errorf("%d files, want 2 of each row and the metadata: %q", len(files), files)
	}
	if lines := metadataLines(t, filepath.Join(dir, "train/metadata.parquet")); len(lines) != len(names) {
		t.Errorf("%d lines, want %d", len(lines), len(names))
	}
}

// FuzzFolder writes two rows with any names, and finds everything within the folder.
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

// Without split folders a file keeps the path that it had at its source, and the metadata
// is where importers look for it.
func TestFolderOfOneSplit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	sink, err := export.Folder(dir, sampleSchema(), export.Options{})
	write(t, sink, err, record(t,
		sample{"train/tench/a.jpg", 0, jpeg, nil, "train"},
		sample{"tench/deep/b.jpg", 0, jpeg, nil, "train"},
	))
	want := []string{"metadata.parquet", "tench/deep/b.jpg", "train/metadata.parquet", "train/tench/a.jpg"}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("files: %v, want %v", got, want)
	}
	lines := metadataLines(t, filepath.Join(dir, "train/metadata.parquet"))
	if len(lines) != 1 || !strings.HasPrefix(lines[0], `{"file_name":"tench/a.jpg"`) {
		t.Errorf("metadata of train: %s", lines)
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

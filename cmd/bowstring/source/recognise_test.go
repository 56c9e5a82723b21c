package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

func TestList(t *testing.T) {
	root := tree(t, map[string]string{"img/1.jpg": jpg(t, 1), "img/2.jpg": jpg(t, 2),
		"3.png": string(picture(t, "png", 3, 2, 2)), "e.jpg": "",
		"labels.csv": "path,label,split,score\nimg/1.jpg,cat,train,0.5\nimg/2.jpg,ant,test,1\n./3.png,ant,train,\n",
		"bad.csv":    "file,label\nimg/1.jpg,cat\nimg/../img/1.jpg,cat\n,ant\n3.png,\nnone.jpg,ant\ne.jpg,ant\n",
		"x.tsv":      "name\tn\nimg/1.jpg\t1\n", "x.jsonl": `{"file_name": "img/1.jpg", "n": 1}`,
		"quote.csv": "path\n\"img", "empty.csv": "", "ragged.csv": "path,a\nimg/1.jpg\n", "broken.jsonl": "{}\n{",
		"audio.csv": "path\na.wav\n", "a.wav": "RIFF"})
	writeParquet(t, filepath.Join(root, "x.parquet"), "", []arrow.Field{{Name: "path", Type: arrow.BinaryTypes.String},
		{Name: "at", Type: arrow.FixedWidthTypes.Date32, Nullable: true}},
		`["img/2.jpg", "img/1.jpg"]`, `["2024-02-29", null]`)
	if err := os.WriteFile(filepath.Join(root, "abs.csv"), []byte("path\n"+filepath.Join(root, "img/1.jpg")+"\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]Options{"labels.csv": {}, "bad.csv": {}, "x.tsv": {PathColumn: "name"},
		"x.jsonl": {}, "x.parquet": {}, "audio.csv": {}} {
		golden(t, "list-"+name, readAll(t, filepath.Join(root, name), opts, ReadOptions{}).text())
	}
	if r := readAll(t, filepath.Join(root, "abs.csv"), Options{}, ReadOptions{}); len(r.rows) != 1 {
		t.Errorf("absolute path: bad items %v", r.bad)
	}
	for name, message := range map[string]string{
		"x.tsv":     "no column of paths (path, file_name, filename, file), only name, n; say which with --path-column",
		"quote.csv": "extraneous", "empty.csv": "the file is empty", "ragged.csv": "wrong number of fields",
		"broken.jsonl": "line 2: bad JSON", "none.csv": "no such file",
	} {
		_, err := Open(t.Context(), filepath.Join(root, name), Options{Format: "list"})
		if err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", name, err, message)
		}
	}
}

func TestMDSBad(t *testing.T) {
	for encoding, message := range map[string]string{"pkl": "encoding pkl is pickle", "pil": "bare pixels"} {
		if _, err := Open(t.Context(), "testdata/mds/"+encoding, Options{}); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", encoding, err, message)
		}
	}
	copyOf := func(dir string) string {
		root := t.TempDir()
		if err := os.CopyFS(root, os.DirFS(filepath.Join("testdata/mds", dir))); err != nil {
			t.Fatal(err)
		}
		return root
	}
	change := func(path string, f func(b []byte) []byte) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f(b), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		dir, file string
		change    func(b []byte) []byte
		rows      int
		bad       string
	}{
		"cut": {"plain/val", "shard.00000.mds", func(b []byte) []byte {
			return b[:len(b)/2]
		}, 1, "shard.00000.mds: cut short"},
		"gone": {"plain/val", "shard.00000.mds", nil, 1, "shard.00000.mds: unreadable: no such file"},
		"count": {"plain/val", "shard.00000.mds", func(b []byte) []byte {
			b[0] = 9
			return b
		}, 1, "shard.00000.mds: it holds 9 samples, the index says 4"},
		"offset": {"plain/val", "shard.00000.mds", func(b []byte) []byte {
			b[9] ^= 0x40
			return b
		}, 1, "shard.00000.mds: "},
		"size": {"plain/val", "shard.00001.mds", func(b []byte) []byte {
			at := binary.LittleEndian.Uint32(b[4:])
			b[at]++
			return b
		}, 4, "4: column"},
		"zstd": {"zstd", "shard.00000.mds.zstd", func(b []byte) []byte {
			b[len(b)/2] ^= 0x55
			return b
		}, -1, "shard.00000.mds: "},
		"snappy": {"snappy", "shard.00000.mds.snappy", func(b []byte) []byte {
			b[0] ^= 1
			return b
		}, 1, "shard.00000.mds: snappy"},
		"no zstd": {"zstd", "index.json", func(b []byte) []byte {
			return bytes.ReplaceAll(b, []byte("zstd:7"), []byte("lz77:7"))
		}, -1, `compression "lz77:7"; want zstd`},
	} {
		root := copyOf(c.dir)
		if c.change == nil {
			if err := os.Remove(filepath.Join(root, c.file)); err != nil {
				t.Fatal(err)
			}
		} else {
			change(filepath.Join(root, c.file), c.change)
		}
		r := readAll(t, root, Options{}, ReadOptions{})
		var bad []string
		for _, b := range r.bad {
			bad = append(bad, b.Key+": "+b.Reason)
		}
		if c.rows >= 0 && len(r.rows) != c.rows || !strings.Contains(strings.Join(bad, "\n"), c.bad) {
			t.Errorf("%s: %d rows, bad %q; want %d and %q", name, len(r.rows), bad, c.rows, c.bad)
		}
	}
	for name, c := range map[string]struct{ from, to, message string }{
		"version": {`"version": 2, "zip`, `"version": 3, "zip`, "version 3; want mds, version 2"},
		"format":  {`"format": "mds"`, `"format": "xsv"`, `format "xsv"`},
		"escape":  {`"basename": "shard.00000.mds"`, `"basename": "../x"`, `file "../x"`},
		"columns": {`["big", "box"`, `["box"`, "names"},
		"json":    {`{"shards"`, `{"shards`, "invalid character"},
	} {
		root := copyOf("plain/val")
		change(filepath.Join(root, "index.json"), func(b []byte) []byte {
			return bytes.Replace(b, []byte(c.from), []byte(c.to), 1)
		})
		if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
			!strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
	}
}

func TestRecognise(t *testing.T) {
	root := tree(t, map[string]string{"tars/a.tar": "", "images/a/1.jpg": "", "empty/readme": "", "two/a.tar": "",
		"two/b.jpg": "", "pq/data/train.parquet": "", "mds/train/index.json": "{}",
		"meta/metadata.parquet": "", "meta/1.jpg": "", "x.csv": "", "y.tar": "", "z.bin": "", "one.jpg": ""})
	for path, want := range map[string]string{
		"tars": "webdataset", "images": "imagefolder", "pq": "parquet", "mds": "mds", "meta": "imagefolder",
		"x.csv": "list", "y.tar": "webdataset", "tars/*.tar": "webdataset", "tars/{a,b}.tar": "webdataset",
	} {
		f, err := choose(filepath.Join(root, path), Options{})
		if err != nil || f.name != want {
			t.Errorf("%s: %v, %v; want %s", path, f, err, want)
		}
	}
	for path, message := range map[string]string{"empty": "looked for", "z.bin": "looked for", "one.jpg": "looked for",
		"two": "may be webdataset or imagefolder; say which with --format", "gone": "no such file"} {
		if _, err := choose(filepath.Join(root, path), Options{}); err == nil ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", path, err, message)
		}
	}
	if _, err := choose(root, Options{Format: "tfrecord"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("format tfrecord: %v", err)
	}
}

func TestSplitOfFile(t *testing.T) {
	for rel, want := range map[string]string{
		"data/train-00000-of-00002.parquet": "train", "data/my_set-00000-of-00002.parquet": "my_set",
		"validation.parquet": "validation", "default/test/0000.parquet": "test",
		"imagenet-train-000012.tar": "train", "train/shard-0.tar": "train", "shard-0.tar": "", "trainer.tar": "",
		"val_3.tar.gz": "val", "test/train-0.tar": "train",
	} {
		if got := splitOfFile(rel); got != want {
			t.Errorf("%s: %q, want %q", rel, got, want)
		}
	}
}

func TestInfer(t *testing.T) {
	for s, want := range map[string]any{"": nil, "1": int64(1), "-12": int64(-12), "0": int64(0), "007": "007",
		"0.5": 0.5, "-.5": -0.5, "1e3": 1000.0, "True": true, "false": false, "1_000": "1_000",
		"0x10": "0x10", "nan": "nan", "inf": "inf", "-": "-", "9223372036854775808": 9223372036854775808.0,
		"1.2.3": "1.2.3", " 1": " 1"} {
		if got := textValue(s); got != want {
			t.Errorf("%q: %T %v, want %T %v", s, got, got, want, want)
		}
	}
	for name, c := range map[string]struct {
		values []any
		typ    string
		last   string // the last value converted
	}{
		"none":   {[]any{nil}, "utf8", "<nil>"},
		"int":    {[]any{nil, int64(1)}, "int64", "1"},
		"float":  {[]any{0.5, int64(1)}, "float64", "1"},
		"bool":   {[]any{true}, "bool", "true"},
		"text":   {[]any{"x", int64(1)}, "utf8", "1"},
		"mixed":  {[]any{true, int64(1)}, "utf8", "1"},
		"list":   {[]any{[]any{int64(1)}, []any{}, []any{0.5}}, "list<item: float64, nullable>", "[0.5]"},
		"listed": {[]any{"x", []any{int64(1), nil}}, "utf8", "[1,null]"},
	} {
		var typ inferred
		for _, v := range c.values {
			typ.observe(v)
		}
		if got := typ.dataType().String(); got != c.typ {
			t.Errorf("%s: %s, want %s", name, got, c.typ)
		}
		if got := fmt.Sprint(typ.convert(c.values[len(c.values)-1])); got != c.last {
			t.Errorf("%s: the last value is %s, want %s", name, got, c.last)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a": {"b": [1, 2.5, null, {"c": true}]}, "d": "x"}`, `{`, `[]`,
		`{"a": {"b": 1}, "a_b": 2}`, `{"x": 1e999}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		object, err := parseObject(data)
		if err != nil {
			return
		}
		for name, v := range object {
			var typ inferred
			typ.observe(v)
			b := array.NewBuilder(memory.DefaultAllocator, typ.dataType())
			if err := appendValue(b, typ.convert(v)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			b.Release()
		}
	})
}

func FuzzCSV(f *testing.F) {
	f.Add("path,a\nx,1\ny,\n")
	f.Fuzz(func(t *testing.T, s string) {
		table := &looseTable{index: map[string]int{}}
		if table.readCSV("x.csv", strings.NewReader(s)) != nil {
			return
		}
		built, err := table.build()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range built.columns {
			if c.Len() != built.rows {
				t.Errorf("%d values in %d rows", c.Len(), built.rows)
			}
		}
	})
}

// FuzzTar: whatever the bytes, reading ends, and yields nothing that is not there.
func FuzzTar(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "a.txt", Size: 3})
	_, _ = w.Write([]byte("abc"))
	_ = w.Close()
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "x.tar")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		src, err := Open(t.Context(), path, Options{})
		if err != nil {
			return
		}
		r, err := NewReader(src, ReadOptions{Dataset: "d"})
		if err != nil {
			return
		}
		for b, err := range r.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if b.Bytes > int64(len(data)) {
				t.Errorf("%d bytes of samples from %d", b.Bytes, len(data))
			}
		}
	})
}

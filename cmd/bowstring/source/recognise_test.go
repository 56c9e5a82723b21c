package source

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

func TestList(t *testing.T) {
	root := tree(t, map[string]string{"img/1.jpg": jpg(t, 1), "img/2.jpg": jpg(t, 2),
		"3.png": string(picture(t, "png", 3, 2, 2)), "e.jpg": "",
		"labels.csv": "path,label,split,score\nimg/1.jpg,cat,train,0.5\nimg/2.jpg,ant,test,1\n./3.png,ant,train,\n",
		"bad.csv":    "file,label\nimg/1.jpg,cat\nimg/../img/1.jpg,cat\n,ant\n3.png,\nnone.jpg,ant\ne.jpg,ant\n",
		"x.tsv":      "name\tn\nimg/1.jpg\t1\n", "x.jsonl": `{"file_name": "img/1.jpg", "n": 1}`,
		"quote.csv": "path\n\"img", "empty.csv": "", "ragged.csv": "path,a\nimg/1.jpg\n", "broken.jsonl": "{\n{",
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
		"x.tsv": "no column of paths (path, file_name, filename, file), only name, n; say which with " +
			"--path-column",
		"quote.csv":    "quote.csv:2: a quotation mark opens a cell that does not end",
		"empty.csv":    "the file is empty",
		"ragged.csv":   "ragged.csv:2: the number of its cells is 1, and that of columns 2",
		"broken.jsonl": "broken.jsonl:1: bad JSON", "none.csv": "no such file",
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
		"lit/index.json": `{"chunks": []}`, "tf/val.tfrecord-00000-of-00001": "", "b.tfrecords.gz": "",
		"meta/metadata.parquet": "", "meta/1.jpg": "", "x.csv": "", "y.tar": "", "z.bin": "", "one.jpg": ""})
	for path, want := range map[string]string{
		"tars": "webdataset", "images": "imagefolder", "pq": "parquet", "mds": "mds", "meta": "imagefolder",
		"lit": "litdata", "lit/index.json": "litdata", "mds/train/index.json": "mds", "tf": "tfrecord",
		"b.tfrecords.gz": "tfrecord",
		"x.csv":          "list", "y.tar": "webdataset", "tars/*.tar": "webdataset", "tars/{a,b}.tar": "webdataset",
	} {
		f, err := chosen(t, filepath.Join(root, path), Options{})
		if err != nil || f.name != want {
			t.Errorf("%s: %v, %v; want %s", path, f, err, want)
		}
	}
	for path, message := range map[string]string{"empty": "looked for", "z.bin": "looked for", "one.jpg": "looked for",
		"two": "may be webdataset or imagefolder; say which with --format", "gone": "no such file"} {
		if _, err := chosen(t, filepath.Join(root, path), Options{}); err == nil ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", path, err, message)
		}
	}
	if _, err := chosen(t, root, Options{Format: "arrayrecord"}); !errors.Is(err, schema.ErrInvalid) {
		t.Errorf("format arrayrecord: %v", err)
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

// FuzzTar: for any bytes, reading ends, and yields only what the tar contains.
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

// chosen returns the format that is recognised for a path.
func chosen(t *testing.T, path string, opts Options) (*format, error) {
	t.Helper()
	opts.files = localFiles(path)
	return choose(t.Context(), path, opts)
}

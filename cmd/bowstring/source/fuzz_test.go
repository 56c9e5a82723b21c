package source

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// readFuzzed reads a fuzzed data set to its end, and checks what every import relies on.
// It returns the number of bytes in samples.
func readFuzzed(t *testing.T, path, format string) (n int64) {
	t.Helper()
	src, err := Open(t.Context(), path, Options{Format: format})
	if err != nil {
		return 0
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
	if err != nil {
		return 0
	}
	ids := map[schema.ID]string{}
	at := map[string]string{}
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		checkPlaces(t, src.Files(), plainOnly(b), false)
		placesOf(b, at)
		if schema.CheckName("split", b.Split) != nil && len(b.Keys) > 0 {
			t.Errorf("split %q", b.Split)
		}
		for i, id := range b.IDs {
			if other, ok := ids[id]; ok && format != "list" {
				t.Errorf("%q and %q have one id", other, b.Keys[i])
			}
			ids[id] = b.Keys[i]
		}
		for c, f := range b.Meta.Schema().Fields() {
			for row := range int(b.Meta.NumRows()) {
				if !validText(Cell{b.Meta.Column(c), row}) {
					t.Errorf("column %q of %q is no UTF-8", f.Name, b.Keys[row])
				}
			}
		}
		for _, bad := range b.Bad {
			if bad.Reason == "" || len(Quoted(bad.Key)) > 4*longestName+100 {
				t.Errorf("bad item %q: %q", bad.Key, bad.Reason)
			}
		}
		n += b.Bytes
	}
	if len(at) > 0 {
		walkFuzzed(t, path, format, at)
	}
	return n
}

// plainOnly returns a batch without extents in units: a damaged unit may be readable up
// to the damage, but cannot be decoded.
func plainOnly(b *Batch) *Batch {
	out := *b
	out.At = make([][]Extent, len(b.At))
	for c := range b.At {
		for _, at := range b.At[c] {
			if at.Unit != nil {
				at = Extent{}
			}
			out.At[c] = append(out.At[c], at)
		}
	}
	return &out
}

// placesOf adds the extents of the blobs of a batch, by key.
func placesOf(b *Batch, at map[string]string) {
	for row, key := range b.Keys {
		for c := range b.At {
			e, unit := b.At[c][row], schema.Unit{}
			if e.Unit != nil {
				unit = *e.Unit
			}
			at[key] += fmt.Sprintf("%s %d %d %+v;", e.File, e.Offset, e.Length, unit)
		}
	}
}

// walkFuzzed walks the same data set in a bucket. Each readable sample has the same
// extents.
func walkFuzzed(t *testing.T, path, format string, want map[string]string) {
	t.Helper()
	src, err := Open(t.Context(), fileURL(path), Options{Format: format, Walk: true})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		checkPlaces(t, src.Files(), plainOnly(b), true)
		placesOf(b, got)
	}
	for key, at := range want {
		if format != "list" && got[key] != at {
			t.Errorf("%q is at %s, and walked at %s", key, at, got[key])
		}
	}
}

// writeFuzzed writes files below a new directory.
func writeFuzzed(t *testing.T, files map[string][]byte) string {
	t.Helper()
	root := t.TempDir()
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(root, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// FuzzTarMembers makes tars of names and contents, so that fuzzing gets past the headers.
func FuzzTarMembers(f *testing.F) {
	f.Add("a.jpg\x00a.txt\x00b.jpg\x00b.txt", []byte("text"), byte(0))
	f.Add("a.jpg\x00b.jpg\x00a.txt\x00b.txt", []byte("x"), byte(1))
	f.Add("v1.5.beta.jpg\x00v1.6.beta.jpg\x00w.jpg", []byte{}, byte(0))
	f.Add("john.smith.jpg\x00jane.doe.jpg\x00../../x.jpg\x00/abs.jpg", []byte("\xff"), byte(2))
	f.Add("a.json\x00b.json\x00a.cls\x00b.cls", []byte(`{"n": 1, "label": [1, "x"], "txt": {"a": 1}}`), byte(0))
	f.Add("a.mask.png\x00a.width.png\x00a.0.jpg\x00a.\xff\x00.hidden.jpg\x00__meta__.json", []byte("12"), byte(3))
	f.Fuzz(func(t *testing.T, names string, content []byte, kind byte) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		total := int64(0)
		for i, name := range strings.Split(names, "\x00") {
			h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}
			if i == 2 && kind%4 == 2 {
				h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, "x", 0
			}
			if w.WriteHeader(h) != nil {
				return // a name that no tar can hold
			}
			if h.Size > 0 {
				_, _ = w.Write(content)
			}
			total += h.Size
		}
		_ = w.Close()
		root := writeFuzzed(t, map[string][]byte{"x.tar": b.Bytes()})
		if n := readFuzzed(t, root, "webdataset"); n > total {
			t.Errorf("%d bytes of samples from %d", n, total)
		}
	})
}

func FuzzMDSIndex(f *testing.F) {
	index, err := os.ReadFile("testdata/mds/plain/val/index.json")
	if err != nil {
		f.Fatal(err)
	}
	shard, err := os.ReadFile("testdata/mds/plain/val/shard.00000.mds")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index, shard)
	f.Add(bytes.ReplaceAll(index, []byte("null"), []byte("-1")), shard)
	f.Add(bytes.Replace(index, []byte(`"mds"`), []byte(`"MDS"`), 1), shard[:len(shard)/2])
	f.Add([]byte(`{"shards":[{"format":"mds","version":2,"column_names":["x"],"column_encodings":["bytes"],"column_sizes":[null],"samples":1,"raw_data":{"basename":"shard.00000.mds","bytes":20}}]}`),
		[]byte("\x01\x00\x00\x00\x0c\x00\x00\x00\x14\x00\x00\x00\x04\x00\x00\x00abcd"))
	f.Fuzz(func(t *testing.T, index, shard []byte) {
		root := writeFuzzed(t, map[string][]byte{"index.json": index, "shard.00000.mds": shard})
		if n := readFuzzed(t, root, "mds"); n > int64(len(shard)) {
			t.Errorf("%d bytes of samples from %d", n, len(shard))
		}
	})
}

// FuzzMDSValue: a decoder accepts any bytes, and its values fit the builder of the
// column.
func FuzzMDSValue(f *testing.F) {
	for encoding := range mdsScalars {
		f.Add(encoding, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	}
	for _, encoding := range []string{"ndarray:uint8:2,2,2", "ndarray:float64:1", "ndarray:int8:0",
		"ndarray:int8:99999,99999,99999", "ndarray:x", "str_int", "str_float", "json", "str", "pkl"} {
		f.Add(encoding, []byte("12345678"))
	}
	f.Fuzz(func(t *testing.T, encoding string, b []byte) {
		typ, decode, err := mdsDecoder(encoding)
		if err != nil || typ == nil {
			return
		}
		v, err := decode(b)
		if err != nil {
			return
		}
		col := column{builder: array.NewBuilder(memory.DefaultAllocator, typ)}
		defer col.release()
		if err := col.add(v); err != nil {
			t.Errorf("%s: %v", encoding, err)
		}
	})
}

func FuzzParquet(f *testing.F) {
	for _, name := range []string{"huggingface/data/train-00000-of-00002.parquet",
		"huggingface/data/test-00000-of-00001.parquet", "parquet/pages-1.parquet", "parquet/pages-2.parquet"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
		f.Add(bytes.ReplaceAll(b, []byte("struct"), []byte("strukt")))
		for at := 0; at < len(b); at += len(b) / 20 {
			damaged := bytes.Clone(b)
			damaged[at] ^= 0x41
			f.Add(damaged)
		}
	}
	f.Add([]byte("PAR1PAR1"))
	// Levels and pages on which Arrow's library loops, and a schema that claims 240 GB.
	for _, name := range []string{"levels", "header", "schema"} {
		b, err := os.ReadFile(filepath.Join("testdata/parquet/damaged", name+".parquet"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		readFuzzed(t, writeFuzzed(t, map[string][]byte{"x.parquet": b}), "parquet")
	})
}

// FuzzTables reads one text as each kind of table, for paths and for metadata.
func FuzzTables(f *testing.F) {
	for _, s := range []string{"path,label,split\na.jpg,x,train\na.jpg,y,val\n", "path\tn\na.jpg\t1\n",
		"{\"path\": \"a.jpg\", \"n\": [1, \"x\"]}\n{\"path\": \"../a.jpg\"}\n",
		"file_name,split\n\"a.jpg\nb\",\"../x\"\n", "path,path\n", "path,\n/etc/passwd,1\n",
		"\ufefffile_name,a\na.jpg,\xff\n", "{\"file_name\": 1}\n", "file_name,id,position,width\na.jpg,1,2,3\n"} {
		f.Add([]byte(s))
	}
	image := picture(f, "jpeg", 1, 3, 3)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, kind := range []string{"csv", "tsv", "jsonl"} {
			root := writeFuzzed(t, map[string][]byte{"a.jpg": image, "x." + kind: b})
			readFuzzed(t, filepath.Join(root, "x."+kind), "list")
			root = writeFuzzed(t, map[string][]byte{"a.jpg": image, "metadata." + kind: b})
			readFuzzed(t, root, "imagefolder")
		}
	})
}

// FuzzFolder makes files with any names that the file system allows.
func FuzzFolder(f *testing.F) {
	f.Add("a/1.jpg\x00b/1.jpg\x00b.jpg/2.jpg\x00c/readme")
	f.Add("train/a/1.jpg\x00val/b/1.jpg\x00stray.jpg")
	f.Add("Train/1.jpg\x00train/1.jpg\x00\xff/1.jpg\x00\x1b[2J/1.jpg\x00.x/1.jpg")
	f.Fuzz(func(t *testing.T, names string) {
		root := t.TempDir()
		image := picture(t, "jpeg", 1, 3, 3)
		for name := range strings.SplitSeq(names, "\x00") {
			if name = filepath.Clean(name); filepath.IsLocal(name) &&
				os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755) == nil {
				_ = os.WriteFile(filepath.Join(root, name), image, 0o644) // some names are not allowed
			}
		}
		readFuzzed(t, root, "imagefolder")
	})
}

func FuzzPatterns(f *testing.F) {
	for _, s := range []string{"a-{0..3}.tar", "{a,b}{1..2}", "{}", "{{", "{9..1}", "train-00001-of-00002.parquet",
		"x-000000000-of-999999999.tar", "{0..1048575}{a,b}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		all, err := expandBraces(s)
		if err == nil && (len(all) == 0 || len(all) > maxExpanded) {
			t.Errorf("%d paths", len(all))
		}
		split := splitOfFile(s)
		if split != "" && !utf8.ValidString(split) {
			t.Errorf("split %q", split)
		}
		for _, sh := range addMissing([]shard{{rel: s}}, nil)[1:] {
			if sh.missing == "" || len(sh.missing) > 20*longestName {
				t.Errorf("missing %q", sh.missing)
			}
		}
	})
}

package source

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// entry is a member of a tar: name and content.
type entry struct{ name, content string }

func makeTar(t *testing.T, files ...entry) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func gzipped(t *testing.T, s string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func zstandard(t *testing.T, s string) string {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(w.EncodeAll([]byte(s), nil))
}

func TestWebDataset(t *testing.T) {
	one := makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.cls", "1\n"}, entry{"b.jpg", jpg(t, 2)}, entry{"b.cls", "0"})
	for name, files := range map[string]map[string]string{
		"webdataset-members": {"x.tar": makeTar(t,
			entry{"dir/a.jpg", jpg(t, 1)}, entry{"dir/a.mask.png", string(picture(t, "png", 1, 3, 3))},
			entry{"dir/a.txt", "text"}, entry{"dir/a.left.npy", "\x93NUMPY"},
			entry{"dir/a.json", `{"n": 1, "label": "x", "txt": 3, "id": 7, "width": 4.5}`}, entry{"dir/a.index", "12"},
			entry{"dir/a.wav", "RIFF"},
			entry{"./dir/b.png", string(picture(t, "png", 2, 4, 4))}, entry{"dir/b.json", `{"n": 2.5}`},
			entry{"__meta__.json", "{"}, entry{"README", "?"})},
		"webdataset-two-images": {"x.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)},
			entry{"a.png", string(picture(t, "png", 1, 3, 3))}, entry{"b.jpg", jpg(t, 2)})},
		"webdataset-compressed": {"train-0.tar.gz": gzipped(t, one), "val-0.tar.zst": zstandard(t, one),
			"test-0.tgz": gzipped(t, one)},
		"webdataset-bad": {
			"train-0.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{"a.cls", "1"}, entry{"b.jpg", jpg(t, 2)},
				entry{"b.cls", "two"}, entry{"c.jpg", jpg(t, 3)},
				entry{"d.cls", "3"}, entry{"e.jpg", ""}, entry{"e.cls", "1"}, entry{"f.jpg", jpg(t, 4)},
				entry{"f.jpg", jpg(t, 4)}, entry{"f.cls", "1"}, entry{"g.jpg", jpg(t, 5)}, entry{"g.cls", "1"},
				entry{"g.json", `{"a": `}, entry{"h.jpg", jpg(t, 6)}, entry{"h.cls", "4"},
				entry{"h.json", `{"a": 1} {}`}, entry{"i.txt", "\xff"}, entry{"i.jpg", jpg(t, 1)}, entry{"i.cls", "1"}),
			"train-1.tar": makeTar(t, entry{"a.jpg", jpg(t, 7)}, entry{"a.cls", "1"}, entry{"k.jpg", jpg(t, 8)},
				entry{"k.cls", "1"}),
			"train-2.tar": one[:1024+512+700], "train-3.tar": strings.TrimRight(makeTar(t, entry{"m.jpg", jpg(t, 9)},
				entry{"m.cls", "2"}), "\x00") + strings.Repeat("\x00", 511),
			"train-4.tar": "no tar at all", "train-5.tar.gz": "no gzip", "train-6.tar.gz": gzipped(t, one)[:200],
			"train-7.tar": ""},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, name, readAll(t, tree(t, files), Options{}, ReadOptions{}).text())
		})
	}
	// A cut at any offset is found.
	root := tree(t, map[string]string{"train.tar": one})
	path := filepath.Join(root, "train.tar")
	for cut := len(one) - 1; cut > 0; cut -= 97 {
		if err := os.WriteFile(path, []byte(one[:cut]), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), path, Options{}); err != nil {
			if cut >= 512 {
				t.Errorf("cut to %d of %d bytes: %v", cut, len(one), err)
			}
			continue
		}
		r := readAll(t, path, Options{}, ReadOptions{})
		if !slices.ContainsFunc(r.bad, func(b BadItem) bool { return b.Key == "train.tar" }) {
			t.Errorf("cut to %d of %d bytes: bad items %v", cut, len(one), r.bad)
		}
	}
}

func TestExpandBraces(t *testing.T) {
	for pattern, want := range map[string][]string{
		"a.tar":                {"a.tar"},
		"x-{08..11}.tar":       {"x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"},
		"{a,b}/{1..2}.tar":     {"a/1.tar", "a/2.tar", "b/1.tar", "b/2.tar"},
		"{}.tar":               {".tar"},
		"{1..":                 nil,
		"{2..1}":               nil,
		"{a,{b}}":              nil,
		"{0..9999999999}":      nil,
		"{0..999999}{0..9999}": nil,
	} {
		got, err := expandBraces(pattern)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %q, %v; want %q", pattern, got, err, want)
		}
	}
}

// writeParquet writes a table as the `datasets` library does, with its schema metadata.
func writeParquet(t *testing.T, path, huggingface string, fields []arrow.Field, columns ...string) {
	t.Helper()
	var md arrow.Metadata
	if huggingface != "" {
		md = arrow.MetadataFrom(map[string]string{"huggingface": huggingface})
	}
	s := arrow.NewSchema(fields, &md)
	var arrays []arrow.Array
	for i, c := range columns {
		a, _, err := array.FromJSON(memory.DefaultAllocator, fields[i].Type, strings.NewReader(c))
		if err != nil {
			t.Fatal(err)
		}
		arrays = append(arrays, a)
	}
	rec := array.NewRecord(s, arrays, int64(arrays[0].Len()))
	var b bytes.Buffer
	w, err := pqarrow.NewFileWriter(s, &b, parquet.NewWriterProperties(),
		pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

var hfImage = arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
	arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true})

func jsonText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParquet(t *testing.T) {
	const info = `{"info": {"features": {"image": {"_type": "Image"}, "speech": {"sampling_rate": 16000, "_type": "Audio"}, "label": {"names": ["ant", "bee"], "_type": "ClassLabel"}, "tags": [{"dtype": "string", "_type": "Value"}]}}}`
	text := arrow.BinaryTypes.String
	fields := []arrow.Field{
		{Name: "image", Type: hfImage, Nullable: true}, {Name: "speech", Type: hfImage, Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "tags", Type: arrow.ListOf(text), Nullable: true},
		{Name: "when", Type: arrow.FixedWidthTypes.Timestamp_us, Nullable: true},
		{Name: "raw", Type: arrow.BinaryTypes.LargeBinary, Nullable: true},
	}
	one, two := picture(t, "png", 1, 3, 4), []byte(jpg(t, 2))
	type cell struct {
		Bytes []byte  `json:"bytes"`
		Path  *string `json:"path"`
	}
	name := "one.png"
	root := t.TempDir()
	writeParquet(t, filepath.Join(root, "data/test-00000-of-00001.parquet"), info, fields,
		jsonText(t, []any{cell{one, &name}, cell{two, nil}, nil, cell{nil, &name}, cell{two[:100], nil},
			cell{[]byte{}, nil}, cell{one, nil}}),
		jsonText(t, []any{cell{[]byte("RIFF"), nil}, nil, nil, nil, nil, nil, nil}), `[0, 1, 0, 0, 0, 0, null]`,
		`[["a", null], [], null, null, null, null, null]`,
		`["2024-01-02 03:04:05", null, null, null, null, null, null]`,
		jsonText(t, []any{one, nil, []byte{}, nil, nil, nil, nil}))
	golden(t, "parquet-made", readAll(t, root, Options{}, ReadOptions{}).text())

	// Without that metadata, the content decides.
	plain := []arrow.Field{{Name: "pic", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "n", Type: arrow.PrimitiveTypes.Uint8, Nullable: true},
		{Name: "empty", Type: arrow.Null, Nullable: true}}
	writeParquet(t, filepath.Join(root, "plain/validation.parquet"), "", plain, jsonText(t, []any{nil, one}), `[1, 2]`,
		`[null, null]`)
	golden(t, "parquet-plain", readAll(t, filepath.Join(root, "plain"), Options{}, ReadOptions{}).text())

	// A shard with other columns, a truncated one, and a file that is no Parquet.
	bad := filepath.Join(root, "bad")
	writeParquet(t, filepath.Join(bad, "train-00000-of-00004.parquet"), "", plain, jsonText(t, []any{one}), `[1]`,
		`[null]`)
	writeParquet(t, filepath.Join(bad, "train-00001-of-00004.parquet"), "", plain[:2], jsonText(t, []any{one}), `[1]`)
	whole, err := os.ReadFile(filepath.Join(bad, "train-00000-of-00004.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"train-00002-of-00004.parquet": whole[:len(whole)-20],
		"train-00003-of-00004.parquet": nil} {
		if err := os.WriteFile(filepath.Join(bad, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "parquet-bad", readAll(t, bad, Options{}, ReadOptions{}).text())
}

// TestDamagedParquet damages a file at many places. Reading may succeed or fail, but must
// neither panic nor hang.
func TestDamagedParquet(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "x.parquet")
	fields := []arrow.Field{{Name: "pic", Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: "n", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}
	writeParquet(t, path, "", fields, jsonText(t, []any{picture(t, "png", 1, 1, 1), nil}), `[1, 2]`)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(whole); i += 11 {
		b := bytes.Clone(whole)
		b[i] ^= 0x55
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		src, err := Open(t.Context(), root, Options{})
		if err != nil {
			continue
		}
		if r, err := NewReader(src, ReadOptions{Dataset: "d"}); err == nil {
			for _, err := range r.Batches(t.Context()) {
				if err != nil {
					break
				}
			}
		}
	}
}

package source

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"bowstring/schema"
)

func TestParseObject(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	deepList := func(n int) string { return `{"a":` + strings.Repeat(`[`, n) + strings.Repeat("]", n) + "}" }
	for text, want := range map[string]string{
		`{"a": {"b": [1, 2.5, null, {"c": true}]}, "d": "x"}`: "",
		deep(maxDepth):                             "",
		deep(maxDepth + 1):                         "nested more than 16 deep",
		deepList(maxDepth - 1):                     "",
		deepList(maxDepth):                         "nested more than 16 deep",
		deepList(1 << 20):                          "nested more than 16 deep",
		`{"a": 1, "a": 1}`:                         "two values for column a",
		`{"a": {"b": 1}, "a_b": 2}`:                "two values for column a_b",
		`{"a": [{"b": 1, "b": 2}]}`:                "two values for b",
		`{"` + strings.Repeat("k", 1025) + `": 1}`: "a column would have a name of 1025 bytes",
		`{"a": 1,}`:                                "bad JSON",
		`{"a": [1,]}`:                              "bad JSON",
		`{"a" 1}`:                                  "bad JSON",
		`{"a": 1} {}`:                              "more than one value",
		`[1]`:                                      "want an object",
		``:                                         "bad JSON: unexpected EOF",
		`{"a": [1`:                                 "bad JSON: unexpected EOF",
		`{"a": tru}`:                               "bad JSON",
	} {
		object, err := parseObject(text)
		if want == "" && (err != nil || len(object) == 0) || want != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.60s: %v, %v; want %q", text, object, err, want)
		}
	}
}

// TestTableOfGaps: each line has its own key, or the last of many lines has a new one.
func TestTableOfGaps(t *testing.T) {
	read := func(lines int, key func(i int) int) error {
		var b bytes.Buffer
		for i := range lines {
			fmt.Fprintf(&b, "{\"k%d\":1}\n", key(i))
		}
		return newLooseTable(tableOptions{}).readJSON(t.Context(), "x.jsonl", bufio.NewReader(&b))
	}
	if err := read(2000, func(i int) int {
		return i
	}); !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(),
		"line 1001: there are more than 1000 different keys") {
		t.Errorf("a key for each line: %v", err)
	}
	if err := read(300_000, func(i int) int {
		return max(i-299_500, 0)
	}); !errors.Is(err, schema.ErrLimit) || !strings.Contains(err.Error(), "cells are empty in the lines before") {
		t.Errorf("keys that come late: %v", err)
	}
	if err := read(2000, func(i int) int { return i % 900 }); err != nil {
		t.Errorf("few keys: %v", err)
	}
}

// TestTextThatIsNone: Arrow's readers assume that text is valid UTF-8.
func TestTextThatIsNone(t *testing.T) {
	root := tree(t, map[string]string{"1.jpg": jpg(t, 1), "2.jpg": jpg(t, 2),
		"metadata.csv": "file_name,text\n1.jpg,fine\n2.jpg,\xff\n"})
	r := readAll(t, root, Options{}, ReadOptions{})
	if want := []string{"2.jpg: no row of the metadata (metadata.csv) names it",
		"metadata.csv:3: cell 2 is not valid UTF-8"}; !slices.Equal(badOf(r), want) || len(r.rows) != 1 {
		t.Errorf("CSV: %d rows, bad %q; want %q", len(r.rows), badOf(r), want)
	}
	root = t.TempDir()
	text := arrow.BinaryTypes.String
	fields := []arrow.Field{{Name: "s", Type: text}, {Name: "l", Type: arrow.ListOf(text)}}
	path := filepath.Join(root, "x.parquet")
	writeParquet(t, path, "", fields, `["good one", "evil one", "good two", "evil two"]`,
		`[["a"], ["b"], ["c", "vile"], []]`)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole = bytes.ReplaceAll(bytes.ReplaceAll(whole, []byte("evil one"), []byte("\xff\xfeil one")), []byte("vile"),
		[]byte("\xc3\x28le"))
	if err := os.WriteFile(path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	r = readAll(t, root, Options{}, ReadOptions{})
	if want := []string{"x.parquet#1: s is not valid UTF-8",
		"x.parquet#2: l is not valid UTF-8"}; !slices.Equal(badOf(r), want) || len(r.rows) != 2 {
		t.Errorf("%d rows, bad %q; want %q", len(r.rows), badOf(r), want)
	}
}

// mdsDir writes a directory of MDS with one shard.
func mdsDir(t testing.TB, index map[string]any, name string, shard []byte) string {
	t.Helper()
	root := t.TempDir()
	entry := map[string]any{"format": "mds", "version": 2, "column_names": []string{"x"},
		"column_encodings": []string{"bytes"}, "column_sizes": []any{nil},
		"samples": 1, "raw_data": map[string]any{"basename": "s.mds", "bytes": len(shard)}}
	for k, v := range index {
		entry[k] = v
	}
	b, err := json.Marshal(map[string]any{"version": 2, "shards": []any{entry}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(root, "index.json"), b, 0o644),
		os.WriteFile(filepath.Join(root, name), shard, 0o644)); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestMDSBombs: sizes that an index or a shard claims take no memory before the bytes
// exist.
func TestMDSBombs(t *testing.T) {
	zip := func(name string, n int) map[string]any { return map[string]any{"basename": name, "bytes": n} }
	raw := func(n int64) map[string]any { return map[string]any{"basename": "s.mds", "bytes": n} }
	block := binary.AppendUvarint(nil, 1<<31) // 2 GiB, in a block of some bytes
	zeros := func() []byte {                  // a shard of 2^32-1 samples, whose offsets are zeros
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(append(binary.LittleEndian.AppendUint32(nil, 1<<32-1), make([]byte, 64<<20)...), nil)
	}()
	window := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00} // a window of 2 GiB
	far := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 1),
		12), 1<<31)
	for name, c := range map[string]struct {
		index   map[string]any
		file    string
		shard   []byte
		message string
	}{
		"snappy": {map[string]any{"compression": "snappy", "raw_data": raw(1 << 31),
			"zip_data": zip("s.snappy", len(block))}, "s.snappy", block, "cannot hold"},
		"samples": {map[string]any{"compression": "zstd", "samples": 1<<32 - 1, "raw_data": raw(1 << 35),
			"zip_data": zip("s.zstd", len(zeros))}, "s.zstd", zeros,
			"samples, more than the 16777216 that a shard may have"},
		"window": {map[string]any{"compression": "zstd", "raw_data": raw(1 << 31),
			"zip_data": zip("s.zstd", len(window))}, "s.zstd", window, "window size exceeded"},
		"offset": {nil, "s.mds", far, "cut short at sample 0 of 1"},
		"array": {map[string]any{"column_encodings": []string{"ndarray:uint8:2000,1000000"}}, "s.mds", far,
			"more than the 16777216 bytes that metadata may have"},
		"text": {map[string]any{"column_encodings": []string{"str"}, "column_sizes": []any{1 << 40}}, "s.mds",
			append(bytes.Clone(far[:8]), 16, 0, 0, 0, 1, 2, 3, 4), "more than the 16777216 that metadata may have"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := inChild(t, VerifyNone, mdsDir(t, c.index, c.file, c.shard)); !strings.Contains(strings.Join(got,
				"\n"), c.message) {
				t.Errorf("got %q, want %q", got, c.message)
			}
		})
	}
	if _, err := snappy.Decode(nil, snappy.Encode(nil, make([]byte, 1<<20))); err != nil ||
		len(snappy.Encode(nil, make([]byte, 1<<20)))*snappyRatio < 1<<20 {
		t.Errorf("the ratio refuses what the encoder makes: %v", err)
	}
	root := mdsDir(t, nil, "s.mds", far)
	path := filepath.Join(root, "index.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.IndexByte(b, '[')
	twice := slices.Concat(b[:i+1], b[i+1:bytes.LastIndexByte(b, ']')], []byte(","), b[i+1:])
	if err := os.WriteFile(path, twice, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), "lists s.mds twice") {
		t.Errorf("a shard twice: %v", err)
	}
}

// TestTarBombs: a compressed tar may hold any number of zeros.
func TestTarBombs(t *testing.T) {
	name := strings.Repeat("n", 5000)
	long := makeTar(t, entry{"a.jpg", jpg(t, 1)}, entry{name + ".jpg", jpg(t, 2)})
	r := readAll(t, tree(t, map[string]string{"x.tar": long}), Options{}, ReadOptions{})
	if bad := badOf(r); len(bad) != 1 || !strings.Contains(bad[0], "a member's name has 5004 bytes, more than 4096") ||
		len(bad[0]) > 1000 {
		t.Errorf("a long name: %q", bad)
	}
	// Members that are too large together are rejected before the last is read.
	source := &webDataset{members: map[string]member{"two": {memberBlob, 0}}}
	samples := &tarSamples{source: source, group: group{has: map[string]bool{}},
		filled: make([]bool, 1), sample: Sample{Size: maxBlob - 10, Blobs: make([][]byte, 1)}}
	if err := samples.member(nil, tarMember{name: "a.two", ext: "two", size: 11}); err != nil {
		t.Fatal(err)
	}
	want := "with member a.two it has 2147483649 bytes, more than the 2147483648 that a sample may have"
	if samples.sample.Bad != want {
		t.Errorf("got %q, want %q", samples.sample.Bad, want)
	}
}

// TestLinksOut: a link may lead to any file of the importing user, which is not part of
// the data set.
func TestLinksOut(t *testing.T) {
	outside := tree(t, map[string]string{"private.jpg": jpg(t, 1), "secrets.csv": "file_name,a\n1.jpg,password\n"})
	root := tree(t, map[string]string{"a/1.jpg": jpg(t, 2)})
	if err := errors.Join(
		os.Symlink(filepath.Join(outside, "private.jpg"), filepath.Join(root, "a/2.jpg")),
		os.Symlink("2.jpg", filepath.Join(root, "a/3.jpg")),
		os.Symlink("../a/1.jpg", filepath.Join(root, "a/4.jpg")),
	); err != nil {
		t.Fatal(err)
	}
	why := "a link out of the folder, to " + filepath.Join(outside, "private.jpg") + "; --allow-outside takes it"
	if r := readAll(t, root, Options{}, ReadOptions{}); !slices.Equal(r.keys, []string{"a/1.jpg", "a/4.jpg"}) ||
		!slices.Equal(badOf(r), []string{"a/2.jpg: " + why, "a/3.jpg: " + why}) {
		t.Errorf("keys %q, bad %q", r.keys, badOf(r))
	}
	if r := readAll(t, root, Options{Outside: true}, ReadOptions{}); len(r.keys) != 4 || r.bad != nil {
		t.Errorf("keys %q, bad %q", r.keys, badOf(r))
	}
	// The folder itself may be one.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	if r := readAll(t, link, Options{}, ReadOptions{}); len(r.keys) != 2 {
		t.Errorf("keys %q", r.keys)
	}
	// Each cell of a metadata file would become part of a column.
	if err := os.Symlink(filepath.Join(outside, "secrets.csv"), filepath.Join(root, "a/metadata.csv")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), root, Options{}); !errors.Is(err, schema.ErrInvalid) ||
		!strings.Contains(err.Error(), "a/metadata.csv is a link out of the folder, to ") {
		t.Errorf("metadata: %v", err)
	}
	if _, err := Open(t.Context(), root, Options{Outside: true}); err != nil {
		t.Errorf("metadata: %v", err)
	}
}

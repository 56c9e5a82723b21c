package source

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

var update = flag.Bool("update", false, "write the golden files anew")

// readAll reads a source to its end and returns its schema, its rows, each as
// JSON, and its bad items.
type readResult struct {
	schema  *arrow.Schema
	splits  []string
	notes   []string
	rows    []string
	keys    []string
	ids     []schema.ID
	blobs   [][]byte // of the first blob column
	bad     []BadItem
	placed  int               // blobs that have a place
	at      map[string]string // places by key
	blobsOf map[string]bool   // keys of samples whose blobs were read
}

func readAll(t *testing.T, path string, opts Options, read ReadOptions) *readResult {
	t.Helper()
	out := readOnce(t, path, opts, read)
	out.sameInBucket(t, path, opts, read)
	return out
}

func readOnce(t *testing.T, path string, opts Options, read ReadOptions) *readResult {
	t.Helper()
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	read.Dataset, read.Mem = "d", mem
	if read.Split == "" {
		read.Split = "train"
	}
	src, err := Open(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(src, read)
	if err != nil {
		t.Fatal(err)
	}
	out := &readResult{at: map[string]string{}, blobsOf: map[string]bool{}, schema: r.Schema(), splits: src.Splits(), notes: src.Notes()}
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		out.add(t, b)
		out.placed += checkPlaces(t, src.Files(), b, src.Walked())
	}
	return out
}

func (r *readResult) add(t *testing.T, b *Batch) {
	t.Helper()
	r.bad = append(r.bad, b.Bad...)
	if len(b.Keys) != int(b.Meta.NumRows()) || len(b.IDs) != len(b.Keys) {
		t.Fatalf("%d keys, %d ids, %d rows", len(b.Keys), len(b.IDs), b.Meta.NumRows())
	}
	for row, key := range b.Keys {
		var cells []string
		for c, f := range b.Meta.Schema().Fields() {
			cells = append(cells, fmt.Sprintf("%s=%s", f.Name, b.Meta.Column(c).ValueStr(row)))
		}
		for c, f := range schema.BlobFields(r.schema) {
			if b.Blobs[c][row] == nil {
				cells = append(cells, f.Name+"=null")
			} else {
				cells = append(cells, fmt.Sprintf("%s=%d bytes, %s", f.Name, len(b.Blobs[c][row]),
					schema.Checksum(b.Blobs[c][row])))
			}
		}
		r.rows = append(r.rows, fmt.Sprintf("%s %s: %s", b.Split, key, strings.Join(cells, " ")))
		r.keys = append(r.keys, key)
		var at []string
		for c := range b.At {
			if e := b.At[c][row]; e.IsZero() {
				at = append(at, "nowhere")
			} else {
				at = append(at, fmt.Sprintf("%s %d %d %v", e.File, e.Offset, e.Length, e.Unit != nil))
			}
			r.blobsOf[key] = r.blobsOf[key] || b.Blobs[c][row] != nil
		}
		r.at[key] = strings.Join(at, ", ")
		r.ids = append(r.ids, b.IDs[row])
		if len(b.Blobs) > 0 {
			r.blobs = append(r.blobs, bytes.Clone(b.Blobs[0][row]))
		}
	}
}

// text returns the rows in the form of the golden files.
func (r *readResult) text() string {
	var b strings.Builder
	for _, f := range r.schema.Fields() {
		fmt.Fprintf(&b, "%s: %s", f.Name, f.Type)
		if schema.IsBlob(f) {
			fmt.Fprintf(&b, " blob %s", schema.Media(f))
		}
		if f.Nullable {
			b.WriteString(" nullable")
		}
		if c := schema.Classes(f); c != nil {
			fmt.Fprintf(&b, " classes %q", c)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "splits %q\n", r.splits)
	for _, n := range r.notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, row := range r.rows {
		b.WriteString(row + "\n")
	}
	for _, bad := range r.bad {
		fmt.Fprintf(&b, "bad %s: %s\n", bad.Key, bad.Reason)
	}
	return b.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

// TestRealFiles reads files of the libraries that define the formats (testdata/make.py).
func TestRealFiles(t *testing.T) {
	for _, c := range []struct {
		name, path string
		opts       Options
	}{
		{"mds", "mds/plain", Options{}},
		{"mds-val", "mds/plain", Options{Split: "val"}},
		{"mds-zstd", "mds/zstd", Options{}},
		{"huggingface", "huggingface", Options{}},
		{"huggingface-file", "huggingface/data/test-00000-of-00001.parquet", Options{}},
		{"webdataset", "webdataset", Options{}},
		{"litdata", "litdata/plain", Options{}},
		{"litdata-val", "litdata/plain", Options{Split: "val", Columns: []string{"image", "pair_*"}}},
		{"litdata-bare", "litdata/bare", Options{}},
		{"tfrecord", "tfrecord/records", Options{}},
		{"tfrecord-spread", "tfrecord/records/val.tfrecord-00000-of-00001", Options{
			Spread: map[string]int{"views": 3}, LeaveOut: []string{"image/*"}}},
		{"webdataset-braces", "webdataset/train-{0000..0001}.tar", Options{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			golden(t, c.name, readAll(t, filepath.Join("testdata", c.path), c.opts,
				ReadOptions{Verify: VerifyDecode}).text())
		})
	}
}

// Chunks have the same rows however they are compressed.
func TestLitDataCompressions(t *testing.T) {
	want := readAll(t, "testdata/litdata/chunk", Options{}, ReadOptions{}).text()
	for _, c := range []string{"batch", "sample"} {
		if got := readAll(t, "testdata/litdata/"+c, Options{}, ReadOptions{}).text(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c, got, want)
		}
	}
}

func TestMDSCompressions(t *testing.T) {
	want := readAll(t, "testdata/mds/zstd", Options{}, ReadOptions{}).text()
	for _, c := range []string{"gz", "br", "bz2", "snappy"} {
		if got := readAll(t, "testdata/mds/"+c, Options{}, ReadOptions{}).text(); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c, got, want)
		}
	}
}

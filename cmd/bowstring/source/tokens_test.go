package source

import (
	"encoding/binary"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
)

// mdsTokens writes a shard of one column, a value a sample.
func mdsTokens(t *testing.T, encoding string, values ...[]byte) string {
	t.Helper()
	at := 4 + 4*(len(values)+1)
	offsets, content := []int{at}, []byte{}
	for _, v := range values {
		content = append(append(content, uint32s(len(v))...), v...)
		offsets = append(offsets, at+len(content))
	}
	return mdsDir(t, map[string]any{"column_names": []string{"tokens"}, "column_encodings": []string{encoding},
		"samples": len(values)}, "s.mds", slices.Concat(uint32s(len(values)), uint32s(offsets...), content))
}

// array is a vector of uint16 as MDS writes it: the number of dimensions and the width of
// each, the shape, the values.
func mdsVector(values ...uint16) []byte {
	b := []byte{1 << 2, byte(len(values))}
	for _, v := range values {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}

func TestMDSTokens(t *testing.T) {
	long := []byte{1, 0, 2, 0, 255, 255}
	for name, c := range map[string]struct {
		encoding string
		opts     Options
		values   [][]byte
		typ      arrow.DataType
		rows     []string
		bad      string
	}{
		"vectors": {"ndarray:uint16", Options{}, [][]byte{mdsVector(1, 65535), mdsVector(7)},
			arrow.ListOf(arrow.PrimitiveTypes.Uint16),
			[]string{"train 0: tokens=[1,65535] n_tokens=2", "train 1: tokens=[7] n_tokens=1"}, ""},
		"vectors of one length": {"ndarray:uint32:2", Options{}, [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}},
			arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Uint32), []string{"train 0: tokens=[1,2] n_tokens=2"}, ""},
		"bytes": {"bytes", Options{Tokens: map[string]string{"tokens": "uint16"}}, [][]byte{long, {}, {9, 0}},
			arrow.ListOf(arrow.PrimitiveTypes.Uint16), []string{"train 0: tokens=[1,2,65535] n_tokens=3",
				"train 1: tokens=[] n_tokens=0", "train 2: tokens=[9] n_tokens=1"}, ""},
		"bytes as they are not": {"bytes", Options{Tokens: map[string]string{"tokens": "int32"}}, [][]byte{long, long[:4]},
			arrow.ListOf(arrow.PrimitiveTypes.Int32), []string{"train 1: tokens=[131073] n_tokens=1"},
			"0: tokens: 6 bytes are no whole number of int32, of 4 bytes each"},
	} {
		t.Run(name, func(t *testing.T) {
			r := readAll(t, mdsTokens(t, c.encoding, c.values...), c.opts, ReadOptions{Count: "tokens"})
			if !slices.Equal(r.rows, c.rows) || !arrow.TypeEqual(r.schema.Field(1).Type, c.typ) ||
				strings.Join(badOf(r), "\n") != c.bad {
				t.Errorf("%s: %q, bad %q; want %s: %q, %q", r.schema.Field(1).Type, r.rows, badOf(r), c.typ, c.rows, c.bad)
			}
		})
	}
	root := mdsTokens(t, "bytes", long)
	for names, message := range map[string]string{"tokens=float32": "--tokens tokens=float32: want uint16",
		"none=int32": "--tokens: there is no column none of bytes"} {
		name, typ, _ := strings.Cut(names, "=")
		if _, err := Open(t.Context(), root, Options{Tokens: map[string]string{name: typ}}); err == nil ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", names, err, message)
		}
	}
}

// TestTokenCounts: lists of Parquet are counted, unless the source counts them itself.
func TestTokenCounts(t *testing.T) {
	for name, c := range map[string]struct {
		field arrow.Field
		extra arrow.Field
		value string
		want  string
	}{
		"input_ids": {arrow.Field{Name: "input_ids", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
			arrow.Field{}, "[[1, 2], [], null]", "n_tokens=2;n_tokens=0;n_tokens=(null)"},
		"uint16": {arrow.Field{Name: "input_ids", Type: arrow.ListOf(arrow.PrimitiveTypes.Uint16)}, arrow.Field{},
			"[[1], [2, 3], []]", "n_tokens=1;n_tokens=2;n_tokens=0"},
		"texts": {arrow.Field{Name: "input_ids", Type: arrow.ListOf(arrow.BinaryTypes.String)}, arrow.Field{},
			`[["a"], ["b", "c"], []]`, "n_tokens=1;n_tokens=2;n_tokens=0"},
		"its own": {arrow.Field{Name: "input_ids", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)},
			arrow.Field{Name: "n_tokens", Type: arrow.BinaryTypes.String}, "[[1], [2], [3]]", "n_tokens=x;n_tokens=y;n_tokens=z"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			fields, columns := []arrow.Field{c.field}, []string{c.value}
			if c.extra.Name != "" {
				fields, columns = append(fields, c.extra), append(columns, `["x", "y", "z"]`)
			}
			writeParquet(t, filepath.Join(root, "x.parquet"), "", fields, columns...)
			r := readAll(t, root, Options{}, ReadOptions{Count: "input_ids"})
			var got []string
			for _, row := range r.rows {
				if _, count, ok := strings.Cut(row, "n_tokens="); ok {
					got = append(got, "n_tokens="+count)
				}
			}
			if strings.Join(got, ";") != c.want || len(r.rows) != 3 {
				t.Errorf("%q, want %q", r.rows, c.want)
			}
		})
	}
}

func TestTokenCountRefused(t *testing.T) {
	src, err := Open(t.Context(), megatronDir(t, "x", 8, [][]int{{1}}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, message := range map[string]string{"none": "--count-tokens: there is no column none of lists",
		"n_tokens": "--count-tokens: column n_tokens is int64, and no list"} {
		if _, err := NewReader(src, ReadOptions{Dataset: "d", Count: name}); err == nil ||
			!strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v, want %q", name, err, message)
		}
	}
}

// TestLongLists: without blobs, the size of lists bounds batches.
func TestLongLists(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	documents := make([][]int, 60)
	for i := range documents {
		documents[i] = []int{rng.IntN(400_000)}
	}
	src, err := Open(t.Context(), megatronDir(t, "x", 4, documents), Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(src, ReadOptions{Dataset: "d", Split: "train"})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for i := range b.Keys {
			n += 4 * documents[rows+i][0]
		}
		if n > batchBytes+4*400_000 {
			t.Errorf("a batch of %d rows has %d bytes", len(b.Keys), n)
		}
		rows += len(b.Keys)
	}
	if rows != len(documents) {
		t.Errorf("%d rows of %d", rows, len(documents))
	}
}

package parquet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/compress"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/fetch/store/extent"
	"bowstring/schema"
)

// decoded decodes a unit as a server does.
func decoded(t *testing.T, file []byte, u *schema.Unit) []byte {
	t.Helper()
	out := make([]byte, u.Size)
	if err := extent.Decode(u.Codec, file[u.Offset:u.Offset+u.Length], out); err != nil {
		t.Fatalf("unit %+v: %v", *u, err)
	}
	return out
}

// checkPlaces reads a file, and compares the bytes at the place of each value with the
// value. It returns how many values are in the file, in units, and not in one piece.
func checkPlaces(t *testing.T, path string, column, rows int) (plain, packed, none int, why string) {
	t.Helper()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	r, err := f.Records([]int{column}, []bool{false}, rows)
	if err != nil {
		t.Fatal(err)
	}
	r.Locate(0)
	units := map[schema.Unit][]byte{}
	for {
		rec, err := r.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return plain, packed, none, why
		}
		if err != nil {
			t.Fatal(err)
		}
		places := r.Places(0)
		for row := range int(rec.NumRows()) {
			eachValue(rec.Column(0), row, func(element int, want []byte) {
				at := places.At(row, element)
				if want == nil {
					if at.Why == "" {
						t.Errorf("a null has the place %+v", at)
					}
					return
				}
				if at.Why != "" {
					none, why = none+1, at.Why
					return
				}
				from := whole
				if at.Unit != nil {
					packed++
					if units[*at.Unit] == nil {
						units[*at.Unit] = decoded(t, whole, at.Unit)
					}
					from = units[*at.Unit]
				} else {
					plain++
				}
				if at.Offset < 0 || at.Offset+at.Length > int64(len(from)) ||
					!bytes.Equal(from[at.Offset:at.Offset+at.Length], want) {
					t.Fatalf("row %d, element %d: other bytes at %+v", row, element, at)
				}
			})
		}
		rec.Release()
	}
}

// eachValue calls f for the values of a row, nil for nulls.
func eachValue(a arrow.Array, row int, f func(element int, v []byte)) {
	first, last := row, row+1
	if list, ok := a.(array.ListLike); ok {
		if a.IsNull(row) {
			return
		}
		start, end := list.ValueOffsets(row)
		a, first, last = list.ListValues(), int(start), int(end)
	}
	if s, ok := a.(*array.Struct); ok {
		a = s.Field(0)
	}
	for i := first; i < last; i++ {
		if a.IsNull(i) {
			f(i-first, nil)
			continue
		}
		switch a := a.(type) {
		case *array.LargeBinary:
			f(i-first, append([]byte{}, a.Value(i)...))
		case *array.String:
			f(i-first, []byte(a.Value(i)))
		case *array.Binary:
			f(i-first, append([]byte{}, a.Value(i)...))
		}
	}
}

// randomColumn makes an array of a type that holds bytes; values repeat, so that
// dictionaries are of use.
func randomColumn(rng *rand.Rand, typ arrow.DataType, rows int) arrow.Array {
	b := array.NewBuilder(memory.DefaultAllocator, typ)
	defer b.Release()
	var pool [][]byte
	for range 1 + rng.IntN(20) {
		v := make([]byte, rng.IntN(300)*rng.IntN(2))
		for i := range v {
			v[i] = byte(rng.Uint32()) & 0x3f
		}
		pool = append(pool, v)
	}
	var add func(b array.Builder)
	add = func(b array.Builder) {
		if rng.IntN(5) == 0 {
			b.AppendNull()
			return
		}
		switch b := b.(type) {
		case *array.BinaryBuilder:
			b.Append(pool[rng.IntN(len(pool))])
		case *array.StringBuilder:
			b.Append("name")
		case *array.StructBuilder:
			b.Append(true)
			for i := range b.NumField() {
				add(b.FieldBuilder(i))
			}
		case *array.ListBuilder:
			b.Append(true)
			for range rng.IntN(4) {
				add(b.ValueBuilder())
			}
		}
	}
	for range rows {
		add(b)
	}
	return b.NewArray()
}

// The bytes at the place of each value are the value, for every codec, encoding, page
// version and nesting.
func TestPlaces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	content := arrow.StructOf(arrow.Field{Name: "bytes", Type: arrow.BinaryTypes.Binary, Nullable: true},
		arrow.Field{Name: "path", Type: arrow.BinaryTypes.String, Nullable: true})
	types := []arrow.DataType{arrow.BinaryTypes.Binary, content, arrow.ListOf(arrow.BinaryTypes.Binary),
		arrow.ListOf(content)}
	all := []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Gzip,
		compress.Codecs.Zstd, compress.Codecs.Brotli, lz4Raw}
	for i := range 150 {
		typ, codec := types[rng.IntN(len(types))], all[rng.IntN(len(all))]
		version := []pq.DataPageVersion{pq.DataPageV1, pq.DataPageV2}[rng.IntN(2)]
		encoding := []pq.Encoding{pq.Encodings.Plain, pq.Encodings.DeltaLengthByteArray}[rng.IntN(2)]
		dict := rng.IntN(2) == 0
		props := []pq.WriterProperty{pq.WithCompression(codec), pq.WithDataPageVersion(version),
			pq.WithDictionaryDefault(dict), pq.WithDataPageSize(int64(200 + rng.IntN(4000))),
			pq.WithBatchSize(int64(1 + rng.IntN(20))), pq.WithMaxRowGroupLength(int64(20 + rng.IntN(200)))}
		if !dict {
			props = append(props, pq.WithEncoding(encoding))
		}
		what := fmt.Sprintf("%d: %s, %s, pages %v, encoding %s, dictionary %t", i, typ, codec, version, encoding, dict)
		rows := 1 + rng.IntN(300)
		column := randomColumn(rng, typ, rows)
		s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ, Nullable: true}}, nil)
		rec := array.NewRecord(s, []arrow.Array{column}, int64(rows))
		var b bytes.Buffer
		w, err := pqarrow.NewFileWriter(s, &b, pq.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
		if err == nil {
			err = errors.Join(w.Write(rec), w.Close())
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		path := filepath.Join(t.TempDir(), "x.parquet")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		plain, packed, none, why := checkPlaces(t, path, 0, 1+rng.IntN(100))
		if t.Failed() || none > 0 || codec == compress.Codecs.Uncompressed && packed > 0 ||
			codec != compress.Codecs.Uncompressed && version == pq.DataPageV1 && plain > 0 {
			t.Fatalf("%s: %d plain, %d packed, %d nowhere (%s)", what, plain, packed, none, why)
		}
	}
}

// Encodings that do not keep values whole are reported.
func TestPlacesNowhere(t *testing.T) {
	for _, name := range []string{"pages-1.parquet", "pages-2.parquet"} {
		plain, packed, none, why := checkPlaces(t, filepath.Join("../testdata/parquet", name), 2, 3)
		if plain != 0 || packed != 0 || none == 0 || !strings.Contains(why, "DELTA_BYTE_ARRAY") {
			t.Errorf("%s: %d plain, %d packed, %d nowhere: %q", name, plain, packed, none, why)
		}
	}
	l := &locator{from: &stream{}, codec: compress.Codecs.Snappy}
	if at := l.base(MaxPage+1, 0, true, false); !strings.Contains(at.Why, "import it instead") {
		t.Errorf("a page that is too large: %+v", at)
	}
	if at := l.base(MaxPage+1, 0, false, false); at.Why != "" {
		t.Errorf("a large page that is not compressed: %+v", at)
	}
}

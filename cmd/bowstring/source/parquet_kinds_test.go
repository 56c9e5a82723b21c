package source

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
)

// TestParquetKinds reads encodings, codecs and types that Arrow's Go library does not
// write.
func TestParquetKinds(t *testing.T) {
	for _, version := range []string{"1", "2"} {
		path := filepath.Join("testdata/parquet", "pages-"+version+".parquet")
		golden(t, "parquet-kinds-"+version, readAll(t, path, Options{Format: "parquet"}, ReadOptions{}).text())
	}
}

// TestParquetOfChangedBytes changes some bytes of files. The result is rows or errors, in
// bounded time and memory.
func TestParquetOfChangedBytes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		b, err := os.ReadFile(fmt.Sprintf("testdata/parquet/pages-%d.parquet", 1+r.IntN(2)))
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + r.IntN(4) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		readFuzzed(t, writeFuzzed(t, map[string][]byte{"x.parquet": bytes.Clone(b)}), "parquet")
	}
}

func TestUnify(t *testing.T) {
	types := func(s string) arrow.DataType {
		return map[string]arrow.DataType{"null": arrow.Null, "i8": arrow.PrimitiveTypes.Int8,
			"u8": arrow.PrimitiveTypes.Uint8, "i16": arrow.PrimitiveTypes.Int16, "u32": arrow.PrimitiveTypes.Uint32,
			"i64": arrow.PrimitiveTypes.Int64, "u64": arrow.PrimitiveTypes.Uint64, "f32": arrow.PrimitiveTypes.Float32,
			"f64": arrow.PrimitiveTypes.Float64, "text": arrow.BinaryTypes.String,
			"large": arrow.BinaryTypes.LargeString, "bytes": arrow.BinaryTypes.Binary,
			"ms": &arrow.TimestampType{Unit: arrow.Millisecond}, "us": &arrow.TimestampType{Unit: arrow.Microsecond},
			"utc": arrow.FixedWidthTypes.Timestamp_us, "date": arrow.FixedWidthTypes.Date32,
			"d5": &arrow.Decimal128Type{Precision: 5, Scale: 2}, "d9": &arrow.Decimal128Type{Precision: 9, Scale: 4},
			"d38": &arrow.Decimal128Type{Precision: 38, Scale: 0}, "d42": &arrow.Decimal256Type{Precision: 42, Scale: 4},
			"[i8]": arrow.ListOf(arrow.PrimitiveTypes.Int8), "[i64]": arrow.ListOf(arrow.PrimitiveTypes.Int64),
			"[i8]2": arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8)}[s]
	}
	for pair, want := range map[string]string{
		"null text": "text", "i8 i64": "i64", "i8 u8": "i16", "i64 u32": "i64", "u8 u32": "u32", "u64 i8": "",
		"f32 f64": "f64", "i8 f64": "", "i64 f64": "", "text large": "large", "text bytes": "", "text i8": "",
		"ms us": "us", "us utc": "", "date us": "", "d5 d9": "d9", "d38 d9": "d42", "d5 i8": "", "[i8] [i64]": "[i64]",
		"[i8]2 [i64]": "[i64]", "[i8]2 [i8]": "[i8]", "[i8] i8": "", "null [i8]": "[i8]",
	} {
		left, right, _ := strings.Cut(pair, " ")
		for _, p := range [][2]string{{left, right}, {right, left}} {
			got, ok := unify(types(p[0]), types(p[1]))
			if ok != (want != "") || ok && !arrow.TypeEqual(got, types(want)) {
				t.Errorf("%s and %s: %v, %t; want %q", p[0], p[1], got, ok, want)
			}
		}
	}
}

package schema

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/apache/arrow/go/v17/arrow/decimal256"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// everyField has a metadata column of every supported type.
func everyField() []arrow.Field {
	types := []arrow.DataType{
		arrow.FixedWidthTypes.Boolean,
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32,
		arrow.PrimitiveTypes.Uint64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
		arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary,
		&arrow.FixedSizeBinaryType{ByteWidth: 3}, &arrow.FixedSizeBinaryType{ByteWidth: 16},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64,
		arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time64us,
		&arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, arrow.FixedWidthTypes.Duration_ms,
		&arrow.Decimal128Type{Precision: 20, Scale: 3}, &arrow.Decimal256Type{Precision: 60, Scale: 2},
		arrow.ListOf(arrow.BinaryTypes.String),
		arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32),
		arrow.FixedSizeListOf(2, arrow.FixedWidthTypes.Boolean),
		arrow.StructOf(
			arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int16, Nullable: true},
			arrow.Field{Name: "b", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int32)), Nullable: true},
			arrow.Field{Name: "c", Type: arrow.FixedSizeListOf(2, arrow.BinaryTypes.LargeString), Nullable: true}),
		arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Boolean, Nullable: true})),
	}
	var fields []arrow.Field
	for i, dt := range types {
		fields = append(fields,
			arrow.Field{Name: fmt.Sprintf("n%02d_%s", i, dt.ID()), Type: dt, Nullable: true},
			arrow.Field{Name: fmt.Sprintf("v%02d_%s", i, dt.ID()), Type: dt, Nullable: false})
	}
	return append(fields, ClassField("label", []string{"cat", "dog"}),
		arrow.Field{Name: PathColumn, Type: arrow.BinaryTypes.String, Nullable: true})
}

func everySchema(t testing.TB) *arrow.Schema {
	s, err := NewSchema(everyField(), []arrow.Field{
		BlobField("image", MediaImage, true), BlobField("audio", MediaAudio, false), BlobField("raw", "", true)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// appendRandom adds a value to b, whatever its type.
func appendRandom(r *rand.Rand, b array.Builder, nullable bool) {
	if nullable && r.IntN(4) == 0 {
		b.AppendNull()
		return
	}
	word := func() string { return strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(7)) }
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(r.IntN(2) == 0)
	case *array.Int8Builder:
		b.Append(int8(r.Int()))
	case *array.Int16Builder:
		b.Append(int16(r.Int()))
	case *array.Int32Builder:
		b.Append(int32(r.Int()))
	case *array.Int64Builder:
		b.Append(int64(r.IntN(2)))
	case *array.Uint8Builder:
		b.Append(uint8(r.Int()))
	case *array.Uint16Builder:
		b.Append(uint16(r.Int()))
	case *array.Uint32Builder:
		b.Append(uint32(r.Int()))
	case *array.Uint64Builder:
		b.Append(r.Uint64())
	case *array.Float16Builder:
		b.Append(float16.New(r.Float32()))
	case *array.Float32Builder:
		b.Append(r.Float32())
	case *array.Float64Builder:
		b.Append(r.Float64())
	case *array.StringBuilder:
		b.Append(word())
	case *array.LargeStringBuilder:
		b.Append(word())
	case *array.BinaryBuilder:
		b.Append([]byte(word()))
	case *array.FixedSizeBinaryBuilder:
		v := make([]byte, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth)
		for i := range v {
			v[i] = byte(r.Int())
		}
		b.Append(v)
	case *array.Date32Builder:
		b.Append(arrow.Date32(r.IntN(20000)))
	case *array.Date64Builder:
		b.Append(arrow.Date64(int64(r.IntN(20000)) * 86400000))
	case *array.Time32Builder:
		b.Append(arrow.Time32(r.IntN(86400)))
	case *array.Time64Builder:
		b.Append(arrow.Time64(r.IntN(86400000)))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(r.Int64N(1 << 50)))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(r.Int64N(1 << 50)))
	case *array.Decimal256Builder:
		b.Append(decimal256.FromI64(-r.Int64N(1 << 50)))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(r.Int64N(1 << 50)))
	case *array.ListBuilder:
		b.Append(true)
		for range r.IntN(4) {
			appendRandom(r, b.ValueBuilder(), true)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range b.Type().(*arrow.FixedSizeListType).Len() {
			appendRandom(r, b.ValueBuilder(), true)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			appendRandom(r, b.FieldBuilder(i), true)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func randomRecord(r *rand.Rand, mem memory.Allocator, fields []arrow.Field, rows int) arrow.Record {
	b := array.NewRecordBuilder(mem, arrow.NewSchema(fields, nil))
	defer b.Release()
	for range rows {
		for i, f := range fields {
			appendRandom(r, b.Field(i), f.Nullable)
		}
	}
	return b.NewRecord()
}

type pin struct{ held *int }

func (p pin) Unpin() { *p.held-- }

// dataset is a snapshot in memory with what it was made of.
type dataset struct {
	snap   Snapshot
	chunks [][]byte
	meta   []arrow.Record // by chunk
	ids    []ID
	blobs  [][][]byte // [blob column][position]
}

func (d *dataset) open(t testing.TB, held *int) *Manifest {
	t.Helper()
	m, err := OpenManifest(&d.snap, d.pins(held))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (d *dataset) pins(held *int) []Blob {
	out := make([]Blob, len(d.chunks))
	for i, c := range d.chunks {
		*held++
		out[i] = NewBlob(c, pin{held})
	}
	return out
}

func makeDataset(t testing.TB, r *rand.Rand, mem memory.Allocator, s *arrow.Schema, chunkRows ...int) *dataset {
	t.Helper()
	d := &dataset{snap: Snapshot{Dataset: "test", Number: 1, Schema: s}}
	cols := BlobFields(s)
	d.blobs = make([][][]byte, len(cols))
	b := NewChunkBuilder(mem, s)
	defer b.Release()
	for _, rows := range chunkRows {
		rec := randomRecord(r, mem, MetaFields(s), rows)
		d.meta = append(d.meta, rec)
		ids := make([]ID, rows)
		refs := make([][]*BlobRef, len(cols))
		for i := range ids {
			ids[i] = SampleID("test", fmt.Sprint(len(d.ids)+i))
			for c := range cols {
				var blob []byte
				if !cols[c].Nullable || r.IntN(4) > 0 {
					blob = []byte(strings.Repeat(fmt.Sprint(r.IntN(10)), r.IntN(30)))
				}
				d.blobs[c] = append(d.blobs[c], blob)
				if blob == nil {
					refs[c] = append(refs[c], nil)
				} else {
					ref := RefOf(blob)
					refs[c] = append(refs[c], &ref)
				}
			}
		}
		d.ids = append(d.ids, ids...)
		if r.IntN(2) == 0 {
			if err := b.AppendBatch(ids, rec, refs); err != nil {
				t.Fatal(err)
			}
		} else {
			for i, id := range ids {
				row := make([]*BlobRef, len(cols))
				for c := range cols {
					row[c] = refs[c][i]
				}
				if err := b.Append(id, rec, i, row); err != nil {
					t.Fatal(err)
				}
			}
		}
		if b.Rows() != rows {
			t.Fatalf("builder has %d rows, want %d", b.Rows(), rows)
		}
		data, c, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.BlobRef = RefOf(data)
		d.chunks = append(d.chunks, data)
		d.snap.Chunks = append(d.snap.Chunks, c)
	}
	if n := d.snap.Rows(); n > 1 {
		d.snap.Splits = []Split{
			{Name: "train", Ranges: []Range{{0, n / 2}}},
			{Name: "val", Ranges: []Range{{n - n/4, n}}}}
	}
	return d
}

func (d *dataset) release() {
	for _, r := range d.meta {
		r.Release()
	}
}

func checked(t testing.TB) *memory.CheckedAllocator {
	mem := memory.NewCheckedAllocator(memory.NewGoAllocator())
	t.Cleanup(func() { mem.AssertSize(t, 0) })
	return mem
}

func bigDataset(tb testing.TB, rows int) *dataset {
	s, err := NewSchema([]arrow.Field{
		ClassField("label", []string{"a", "b"}),
		{Name: "width", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "file_name", Type: arrow.BinaryTypes.String, Nullable: true},
	}, []arrow.Field{BlobField("image", MediaImage, true)})
	if err != nil {
		tb.Fatal(err)
	}
	d := &dataset{snap: Snapshot{Dataset: "big", Number: 1, Schema: s}}
	b := NewChunkBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(MetaFields(s), nil))
	defer rb.Release()
	for at := 0; at < rows; {
		n := min(ChunkRows, rows-at)
		ids := make([]ID, n)
		refs := [][]*BlobRef{make([]*BlobRef, n)}
		for i := range ids {
			ids[i] = SampleID("big", fmt.Sprint(at+i))
			refs[0][i] = &BlobRef{Key: Key{byte(i), byte(i >> 8)}, Size: 110_000}
			rb.Field(0).(*array.Int64Builder).Append(int64(i & 1))
			rb.Field(1).(*array.Int32Builder).Append(int32(i & 1023))
			rb.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("n%08d/image_%08d.jpg", i&1023, at+i))
		}
		rec := rb.NewRecord()
		if err := b.AppendBatch(ids, rec, refs); err != nil {
			tb.Fatal(err)
		}
		rec.Release()
		data, c, err := b.Finish()
		if err != nil {
			tb.Fatal(err)
		}
		c.BlobRef = RefOf(data)
		d.chunks, d.snap.Chunks = append(d.chunks, data), append(d.snap.Chunks, c)
		at += n
	}
	return d
}

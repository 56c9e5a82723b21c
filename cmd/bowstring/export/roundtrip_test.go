package export_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// generator makes random datasets as a server serves them.
type generator struct{ *rand.Rand }

var plainTypes = []arrow.DataType{
	arrow.FixedWidthTypes.Boolean,
	arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
	arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
	arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary,
	&arrow.FixedSizeBinaryType{ByteWidth: 1}, &arrow.FixedSizeBinaryType{ByteWidth: 16},
	arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64,
	arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us,
	arrow.FixedWidthTypes.Time64ns,
	&arrow.TimestampType{Unit: arrow.Second}, &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"},
	&arrow.TimestampType{Unit: arrow.Microsecond}, &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "+02:00"},
	&arrow.TimestampType{Unit: arrow.Second, TimeZone: "Europe/Berlin"},
	arrow.FixedWidthTypes.Duration_s, arrow.FixedWidthTypes.Duration_ms, arrow.FixedWidthTypes.Duration_us,
	arrow.FixedWidthTypes.Duration_ns,
	&arrow.Decimal128Type{Precision: 5, Scale: 2}, &arrow.Decimal128Type{Precision: 38, Scale: 0},
}

func (g generator) dataType(depth int) arrow.DataType {
	if depth == 0 || g.IntN(4) > 0 {
		return plainTypes[g.IntN(len(plainTypes))]
	}
	switch g.IntN(3) {
	case 0:
		return arrow.ListOf(g.dataType(depth - 1))
	case 1:
		return arrow.FixedSizeListOf(int32(1+g.IntN(3)), g.dataType(depth-1))
	}
	var fields []arrow.Field
	for i := range 1 + g.IntN(3) {
		fields = append(fields, arrow.Field{Name: fmt.Sprintf("f%d", i), Type: g.dataType(depth - 1), Nullable: true})
	}
	return arrow.StructOf(fields...)
}

func pick[T any](g generator, values ...T) T { return values[g.IntN(len(values))] }

// integer returns an extreme value in many cases.
func (g generator) integer() int64 {
	return pick(g, 0, 1, -1, math.MaxInt64, math.MinInt64, int64(g.Uint64()), int64(g.IntN(1000)), 1<<53+1)
}

func (g generator) text() string {
	return pick(g, "", "x", "1.10", "007", "1e5", "True", "null", "NaN", " ", "a\nb", `"q", 'r'`, "größe", "gro\u0308\u00dfe",
		"日本", "-", "a,b;c\td", strings.Repeat("long ", 50), fmt.Sprint(g.IntN(100)))
}

// value appends a random value. Times are within the range of their type.
func (g generator) value(b array.Builder) {
	if g.IntN(5) == 0 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(g.IntN(2) == 0)
	case *array.Int8Builder:
		b.Append(int8(g.integer()))
	case *array.Int16Builder:
		b.Append(int16(g.integer()))
	case *array.Int32Builder:
		b.Append(int32(g.integer()))
	case *array.Int64Builder:
		b.Append(g.integer())
	case *array.Uint8Builder:
		b.Append(uint8(g.integer()))
	case *array.Uint16Builder:
		b.Append(uint16(g.integer()))
	case *array.Uint32Builder:
		b.Append(uint32(g.integer()))
	case *array.Uint64Builder:
		b.Append(uint64(g.integer()))
	case *array.Float16Builder:
		b.Append(float16.FromBits(uint16(g.Uint32())))
	case *array.Float32Builder:
		b.Append(pick(g, 0, 1, float32(math.NaN()), float32(math.Inf(-1)), math.Float32frombits(g.Uint32()), 1.1))
	case *array.Float64Builder:
		b.Append(pick(g, 0, 1, math.NaN(), math.Inf(1), math.Float64frombits(g.Uint64()), 1.1, 1e300, math.Copysign(0, -1)))
	case *array.StringBuilder:
		b.Append(g.text())
	case *array.LargeStringBuilder:
		b.Append(g.text())
	case *array.BinaryBuilder:
		b.Append([]byte(pick(g, "", "\x00", "\xff\xfe", g.text())))
	case *array.FixedSizeBinaryBuilder:
		bytes := make([]byte, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth)
		for i := range bytes {
			bytes[i] = byte(g.Uint32())
		}
		b.Append(bytes)
	case *array.Date32Builder:
		b.Append(arrow.Date32(int32(g.integer())))
	case *array.Date64Builder:
		b.Append(arrow.Date64(86400000 * (g.integer() % 100_000)))
	case *array.Time32Builder:
		b.Append(arrow.Time32(g.IntN(86400)))
	case *array.Time64Builder:
		b.Append(arrow.Time64(g.Int64N(86400_000_000)))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(g.integer() % (1 << pick(g, 33, 40, 45))))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(g.integer()))
	case *array.Decimal128Builder:
		n := decimal128.FromI64(g.integer())
		if b.Type().(*arrow.Decimal128Type).Precision == 5 {
			n = decimal128.FromI64(g.integer() % 100_000)
		}
		b.Append(n)
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range b.Type().(*arrow.FixedSizeListType).Len() {
			g.value(b.ValueBuilder())
		}
	case *array.ListBuilder:
		b.Append(true)
		for range g.IntN(4) {
			g.value(b.ValueBuilder())
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			g.value(b.FieldBuilder(i))
		}
	default:
		panic(fmt.Sprintf("no value for %s", b.Type()))
	}
}

// oddNames are names of classes and split folders that file systems, readers or people
// may confuse.
var oddNames = []string{"", "cat", "Cat", "CAT", "a/b", "a%2Fb", "..", ".hidden", "-1", "0", "007", "1.0", "true",
	"null",
	"größe", "gro\u0308\u00dfe", "日本", " ", "a\nb", "metadata.parquet", "metadata.jsonl", "train", "test",
	"x.jpg", `back\slash`, "a\x00b", strings.Repeat("n", 300), "__MACOSX", "CON", "é", "e\u0301"}

// sourceNames are values of file_name.
var sourceNames = []string{"a.jpg", "cat/a.jpg", "train/cat/a.jpg", "../x.jpg", "/etc/passwd", "", "b", "A.JPG",
	"a.mask.jpg", "metadata.parquet", ".hidden.jpg", "größe.png", "gro\u0308\u00dfe.png", "x\x00.jpg", `c\d.jpg`, "dir.jpg/e.jpg",
	"dir.jpg"}

// dataset is a schema and its rows.
type dataset struct {
	schema *arrow.Schema
	rec    arrow.Record
}

// dataset makes a random dataset. fields are those of a projection to all columns and the
// split.
func (g generator) dataset(t *testing.T) dataset {
	fields := []arrow.Field{schema.IDField()}
	names := []string{"n", "text", "label_file_name", "image_file_name", "file_names", "width", "größe", "gro\u0308\u00dfe", "A",
		"a", "x y", "source_id", "path", strings.Repeat("n", 128), "id_", "mask_x", "split_", "bytes", "a.b", "format"}
	g.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names[:g.IntN(6)] {
		fields = append(fields, arrow.Field{Name: name, Type: g.dataType(2), Nullable: true})
	}
	if g.IntN(2) == 0 {
		fields = append(fields, arrow.Field{Name: schema.PathColumn, Type: pick[arrow.DataType](g, arrow.BinaryTypes.String,
			arrow.BinaryTypes.LargeString, arrow.PrimitiveTypes.Int32), Nullable: true})
	}
	for _, name := range []string{"label", "other_label"}[:g.IntN(3)] {
		odd := slices.Clone(oddNames)
		g.Shuffle(len(odd), func(i, j int) { odd[i], odd[j] = odd[j], odd[i] })
		f := schema.ClassField(name, odd[:g.IntN(6)])
		if g.IntN(4) == 0 {
			f.Type = arrow.PrimitiveTypes.Int8
		}
		fields = append(fields, f)
	}
	blobs := []string{"image", "mask", "audio", "data", "file", "größe_2", "x/y", ".z"}
	g.Shuffle(len(blobs), func(i, j int) { blobs[i], blobs[j] = blobs[j], blobs[i] })
	for _, name := range blobs[:1+g.IntN(3)] {
		fields = append(fields, schema.BlobField(name, pick(g, "", schema.MediaImage, schema.MediaAudio), true))
	}
	fields = append(fields, arrow.Field{Name: schema.SplitColumn, Type: arrow.BinaryTypes.String})
	out := dataset{schema: arrow.NewSchema(fields, nil)}
	b := array.NewRecordBuilder(memory.DefaultAllocator, out.schema)
	defer b.Release()
	splits := []string{"train", "val", "fold0", "0", "Train"}[:pick(g, 1, 1, 2, 5)]
	for row := range 1 + g.IntN(12) {
		for i, f := range fields {
			switch b := b.Field(i); {
			case i == 0:
				id := schema.SampleID("test", fmt.Sprint(row))
				b.(*array.FixedSizeBinaryBuilder).Append(id[:])
			case f.Name == schema.SplitColumn:
				b.(*array.StringBuilder).Append(pick(g, splits...))
			case f.Name == schema.PathColumn && g.IntN(4) > 0:
				if text, ok := b.(array.StringLikeBuilder); ok {
					text.Append(pick(g, sourceNames...))
				} else {
					g.value(b)
				}
			case schema.Classes(f) != nil:
				n := int64(g.IntN(len(schema.Classes(f))+3)) - 1 // also -1, and beyond the last
				switch b := b.(type) {
				case *array.Int64Builder:
					b.AppendValues([]int64{n}, []bool{g.IntN(5) > 0})
				case *array.Int8Builder:
					b.AppendValues([]int8{int8(n)}, []bool{g.IntN(5) > 0})
				}
			case schema.IsBlob(f):
				if g.IntN(4) == 0 {
					b.AppendNull()
				} else {
					b.(*array.BinaryBuilder).Append([]byte(pick(g, "", "text", string(jpeg), string(png), "RIFF....WAVE", "\x00\x01")))
				}
			default:
				g.value(b)
			}
		}
	}
	out.rec = b.NewRecord()
	t.Cleanup(out.rec.Release)
	return out
}

// rows are the rows as text, by id.
func (d dataset) rows() map[string]string {
	out := map[string]string{}
	for row := range int(d.rec.NumRows()) {
		var cells []string
		for i, f := range d.schema.Fields()[1:] {
			cells = append(cells, fmt.Sprintf("%s=%s", f.Name, cell(d.rec.Column(i+1), row)))
		}
		out[schema.FormatID(schema.ID(d.rec.Column(0).(*array.FixedSizeBinary).Value(row)))] = strings.Join(cells, "\n")
	}
	return out
}

// cell is a value as text that differs for all values of a type.
func cell(a arrow.Array, row int) string {
	if a.IsNull(row) {
		return "null"
	}
	list := func(values arrow.Array, from, to int64) string {
		var cells []string
		for i := from; i < to; i++ {
			cells = append(cells, cell(values, int(i)))
		}
		return "[" + strings.Join(cells, ", ") + "]"
	}
	switch a := a.(type) {
	case *array.Float64:
		if math.IsNaN(a.Value(row)) { // readers do not keep the payload of NaN
			return "NaN"
		}
		return fmt.Sprintf("%x", math.Float64bits(a.Value(row)))
	case *array.Float32:
		if math.IsNaN(float64(a.Value(row))) {
			return "NaN"
		}
		return fmt.Sprintf("%x", math.Float32bits(a.Value(row)))
	case *array.Float16:
		return fmt.Sprintf("%x", a.Value(row).Uint16())
	case *array.Timestamp:
		return fmt.Sprint(int64(a.Value(row)))
	case array.ListLike:
		from, to := a.ValueOffsets(row)
		return list(a.ListValues(), from, to)
	case *array.Struct:
		var cells []string
		for i := range a.NumField() {
			cells = append(cells, cell(a.Field(i), row))
		}
		return "{" + strings.Join(cells, ", ") + "}"
	}
	return strconv.Quote(a.ValueStr(row))
}

package where

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/decimal128"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// decideSchema is testSchema without the column that hides the function date.
func decideSchema(t *testing.T) *arrow.Schema {
	s := testSchema(t)
	var fields []arrow.Field
	for _, f := range s.Fields() {
		if f.Name != "date" {
			fields = append(fields, f)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// oddSchema is decideSchema with times that do not fit into a time.Time, and a field that is null only where its
// struct is.
func oddSchema(t *testing.T) *arrow.Schema {
	fields := decideSchema(t).Fields()
	return arrow.NewSchema(slices.Insert(slices.Clone(fields), len(fields)-1,
		arrow.Field{Name: "when", Type: arrow.FixedWidthTypes.Timestamp_s, Nullable: true},
		arrow.Field{Name: "pt", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32}),
			Nullable: true},
	), nil)
}

// filler fills columns of a page with values near to each other, or odd ones.
type filler struct {
	*rand.Rand
	center int
	nulls  int // of ten
	odd    int // of ten
}

var oddFloats = []float64{math.NaN(), math.Copysign(0, -1), 0, math.Inf(1), math.Inf(-1), math.MaxFloat32}

var oddTexts = []string{
	"", "\xff", strings.Repeat("\xff", 40), "train/" + strings.Repeat("x", 40), "train/" + strings.Repeat("x", 41),
	"train/" + strings.Repeat("x", 25) + "\xff\xff",
	"train/" + strings.Repeat("x", 30) + "é",
}

func (f *filler) int() int64 { return int64(f.center + f.IntN(4)) }

func (f *filler) text() string {
	if f.IntN(10) < f.odd {
		return oddTexts[f.IntN(len(oddTexts))]
	}
	return fmt.Sprintf("train/%d/%s", f.int(), strings.Repeat("y", f.IntN(40)))
}

func (f *filler) oddInt(normal int64, odd ...int64) int64 {
	if f.IntN(10) < f.odd {
		return odd[f.IntN(len(odd))]
	}
	return normal
}

func (f *filler) fill(b array.Builder, nullable bool) {
	if nullable && f.IntN(10) < f.nulls {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.Int64Builder:
		b.Append(f.oddInt(f.int(), math.MinInt64, math.MaxInt64, 1<<53, 1<<53+1))
	case *array.Int32Builder:
		b.Append(int32(f.oddInt(f.int(), math.MinInt32, math.MaxInt32)))
	case *array.Int16Builder:
		b.Append(int16(f.oddInt(f.int(), math.MinInt16, math.MaxInt16)))
	case *array.Int8Builder:
		b.Append(int8(f.oddInt(f.int(), -128, 127)))
	case *array.Uint16Builder:
		b.Append(uint16(f.oddInt(max(f.int(), 0), 0, 65535)))
	case *array.Uint64Builder:
		b.Append(uint64(f.oddInt(max(f.int(), 0), 0, -1, math.MaxInt64, math.MinInt64)))
	case *array.Float32Builder:
		if f.IntN(10) < f.odd {
			b.Append(float32(oddFloats[f.IntN(len(oddFloats))]))
		} else {
			b.Append(float32(f.int()) / 2)
		}
	case *array.Float64Builder:
		b.Append(float64(f.int()))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(f.oddInt(25*f.int(), 9999999999, -9999999999)))
	case *array.BooleanBuilder:
		b.Append(f.IntN(4) < f.center%5)
	case *array.StringBuilder:
		b.Append(f.text())
	case *array.BinaryBuilder:
		b.Append([]byte(f.text()))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(f.oddInt(86_400_000*f.int(), -1, 1, math.MaxInt64, math.MinInt64)))
	case *array.Date32Builder:
		b.Append(arrow.Date32(f.oddInt(f.int(), -1, math.MaxInt32, math.MinInt32)))
	case *array.DurationBuilder:
		b.Append(arrow.Duration(f.oddInt(f.int(), -1, math.MaxInt64, 1<<35)))
	case *array.ListBuilder:
		b.Append(true)
		for range f.IntN(3) {
			f.fill(b.ValueBuilder(), true)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range 2 {
			f.fill(b.ValueBuilder(), true)
		}
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			f.fill(b.FieldBuilder(i), b.Type().(*arrow.StructType).Field(i).Nullable)
		}
	default:
		panic(fmt.Sprintf("%T", b))
	}
}

func (f *filler) record(s *arrow.Schema, n int) arrow.Record {
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(schema.MetaFields(s), nil))
	defer b.Release()
	f.center, f.nulls, f.odd = f.IntN(12)-2, []int{0, 2, 10}[f.IntN(3)], []int{0, 0, 0, 2, 10}[f.IntN(5)]
	for i, field := range b.Schema().Fields() {
		for range n {
			f.fill(b.Field(i), field.Nullable)
		}
	}
	return b.NewRecord()
}

// expression makes one up.
func (f *filler) expression(depth int) string {
	if depth > 0 {
		switch f.IntN(8) {
		case 0, 1:
			return f.expression(depth-1) + " and " + f.expression(depth-1)
		case 2, 3:
			return "(" + f.expression(depth-1) + " or " + f.expression(depth-1) + ")"
		case 4:
			return "not (" + f.expression(depth-1) + ")"
		case 5:
			return "(" + f.expression(0) + " ? " + f.expression(0) + " : " + f.expression(depth-1) + ")"
		}
	}
	pick := func(of ...string) string { return of[f.IntN(len(of))] }
	number := func() string { return fmt.Sprint(f.IntN(14) - 3) }
	compare := func() string { return pick(" < ", " <= ", " > ", " >= ", " == ", " != ") }
	whole := pick("label", "width", "height", "big", `$env["odd name"]`, "box.w", "image.size", "position", "box?.w",
		"pt.x")
	numeric := pick(whole, "score", "price", "score", "vec[0]")
	text := pick("file_name", "raw", "box.tag", "split")
	literal := pick(`""`, `"train"`, `"train/`+number()+`"`, `"train/`+number()+`/yy"`,
		`"train/`+strings.Repeat("x", 36)+`"`, `"val"`, `"x"`)
	day := fmt.Sprintf(`date("1970-01-%02d")`, 1+f.IntN(14))
	switch f.IntN(22) {
	case 0, 1, 2, 3:
		return numeric + compare() + number()
	case 4:
		return number() + compare() + numeric
	case 5:
		return numeric + compare() + number() + ".5"
	case 6:
		return whole + pick(" in ", " not in ") + number() + ".." + number()
	case 7:
		return numeric + pick(" in ", " not in ") + "[" + number() + ", " + number() + "]"
	case 8, 9:
		return text + compare() + literal
	case 10:
		return text + pick(" in ", " not in ") + "[" + literal + ", " + literal + "]"
	case 11:
		return text + pick(" startsWith ", " startsWith ", " contains ", " endsWith ", " matches ") + literal
	case 12:
		return pick(numeric, text, "ok", "taken", "box", "tags", "box.w", "boxes", "image.key", "pt", "pt.x",
			"score ?? nil") + pick(" == nil", " != nil")
	case 13:
		return pick("ok", "not ok", "ok == true", "ok != false", "(ok ?? true)")
	case 14:
		return pick("taken", "day", "when") + compare() + day
	case 15:
		return "took" + compare() + `duration("` + number() + `s")`
	case 16:
		return "(" + pick(whole, "score", "score", "price") + " ?? " + pick(number(), "score", "1.5") + ")" +
			compare() + number()
	case 17:
		return numeric + compare() + numeric
	case 18:
		return pick("any", "all", "none") + "(tags, # startsWith " + literal + ")"
	case 19:
		// they may fail
		return pick("12 % height == 0", "tags[0] == "+literal, "width % (height - 3) == 1", "boxes[0].w > 1")
	case 20:
		return whole + " * 2 + 1" + compare() + number() + " * 2"
	}
	return "label" + compare() + pick("9223372036854775807", "9007199254740993", "9007199254740992.0",
		"-9223372036854775807", "big")
}

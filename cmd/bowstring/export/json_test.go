package export_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/export"
)

// TestRowOfNumbers: a row with any numbers is valid JSON.
func TestRowOfNumbers(t *testing.T) {
	f64 := arrow.PrimitiveTypes.Float64
	s := arrow.NewSchema([]arrow.Field{
		{Name: "half", Type: arrow.FixedWidthTypes.Float16}, {Name: "single", Type: arrow.PrimitiveTypes.Float32},
		{Name: "double", Type: f64}, {Name: "none", Type: f64, Nullable: true},
		{Name: "list", Type: arrow.ListOf(f64)}, {Name: "fixed", Type: arrow.FixedSizeListOf(2,
			arrow.PrimitiveTypes.Float32)},
		{Name: "nested", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: f64}))},
		{Name: "struct", Type: arrow.StructOf(arrow.Field{Name: "x", Type: f64}, arrow.Field{Name: "l",
			Type: arrow.ListOf(f64)})},
		{Name: "large", Type: arrow.PrimitiveTypes.Uint64}, {Name: "small", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	values := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0.1}
	for i, v := range values {
		b.Field(0).(*array.Float16Builder).Append(float16.New(float32(v)))
		b.Field(1).(*array.Float32Builder).Append(float32(v))
		b.Field(2).(*array.Float64Builder).Append(v)
		b.Field(3).AppendNull()
		list := b.Field(4).(*array.ListBuilder)
		list.Append(true)
		list.ValueBuilder().(*array.Float64Builder).AppendValues(values[:i], nil)
		fixed := b.Field(5).(*array.FixedSizeListBuilder)
		fixed.Append(true)
		fixed.ValueBuilder().(*array.Float32Builder).AppendValues([]float32{float32(v), 1}, nil)
		nested := b.Field(6).(*array.ListBuilder)
		nested.Append(true)
		nested.ValueBuilder().(*array.StructBuilder).Append(true)
		nested.ValueBuilder().(*array.StructBuilder).FieldBuilder(0).(*array.Float64Builder).Append(v)
		st := b.Field(7).(*array.StructBuilder)
		st.Append(true)
		st.FieldBuilder(0).(*array.Float64Builder).Append(v)
		st.FieldBuilder(1).AppendNull()
		b.Field(8).(*array.Uint64Builder).Append(math.MaxUint64)
		b.Field(9).(*array.Int64Builder).Append(math.MinInt64)
	}
	rec := b.NewRecord()
	defer rec.Release()
	sliced := rec.NewSlice(1, 4) // slices have an offset
	defer sliced.Release()
	for row, want := range []string{
		`{"half":"NaN","single":"NaN","double":"NaN","none":null,"list":[],"fixed":["NaN",1],"nested":[{"x":"NaN"}],` +
			`"struct":{"l":null,"x":"NaN"},"large":18446744073709551615,"small":-9223372036854775808}`,
		`{"half":"Infinity","single":"Infinity","double":"Infinity","none":null,"list":["NaN"],"fixed":["Infinity",1],` +
			`"nested":[{"x":"Infinity"}],"struct":{"l":null,"x":"Infinity"},"large":18446744073709551615,` +
			`"small":-9223372036854775808}`,
		`{"half":"-Infinity","single":"-Infinity","double":"-Infinity","none":null,"list":["NaN","Infinity"],` +
			`"fixed":["-Infinity",1],"nested":[{"x":"-Infinity"}],"struct":{"l":null,"x":"-Infinity"},` +
			`"large":18446744073709551615,"small":-9223372036854775808}`,
		`{"half":0.099975586,"single":0.1,"double":0.1,"none":null,"list":["NaN","Infinity","-Infinity"],` +
			`"fixed":[0.1,1],"nested":[{"x":0.1}],"struct":{"l":null,"x":0.1},"large":18446744073709551615,` +
			`"small":-9223372036854775808}`,
	} {
		got, err := json.Marshal(export.Row(rec, row))
		if err != nil || string(got) != want {
			t.Errorf("row %d: %v\n%s\nwant\n%s", row, err, got, want)
		}
		if row > 0 {
			if got, err := json.Marshal(export.Row(sliced, row-1)); err != nil || string(got) != want {
				t.Errorf("row %d of a slice: %v\n%s\nwant\n%s", row-1, err, got, want)
			}
		}
	}
}

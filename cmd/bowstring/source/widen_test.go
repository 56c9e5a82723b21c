package source

import (
	"math"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// float16 and wider floats in files of one folder keep values, signs and nulls.
func TestWidenHalves(t *testing.T) {
	b := array.NewFloat16Builder(memory.DefaultAllocator)
	defer b.Release()
	values := []float32{0, 1.5, float32(math.Copysign(0, -1)), -65504, float32(math.Inf(1))}
	for _, v := range values {
		b.Append(float16.New(v))
	}
	b.AppendNull()
	whole := b.NewArray()
	defer whole.Release()
	halves := array.NewSlice(whole, 1, int64(whole.Len()))
	defer halves.Release()
	for _, other := range []arrow.DataType{arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64} {
		to, ok := unify(arrow.FixedWidthTypes.Float16, other)
		if !ok || !arrow.TypeEqual(to, other) {
			t.Fatalf("float16 and %s are %v", other, to)
		}
		wide, err := widen(t.Context(), halves, to)
		if err != nil {
			t.Fatalf("float16 to %s: %v", to, err)
		}
		for i, want := range values[1:] {
			var got float64
			switch a := wide.(type) {
			case *array.Float32:
				got = float64(a.Value(i))
			case *array.Float64:
				got = a.Value(i)
			}
			if math.Float64bits(got) != math.Float64bits(float64(want)) {
				t.Errorf("%s: %v became %v", to, want, got)
			}
		}
		if n := wide.Len(); n != len(values) || !wide.IsNull(n-1) || wide.NullN() != 1 {
			t.Errorf("%s: %v", to, wide)
		}
		wide.Release()
	}
}

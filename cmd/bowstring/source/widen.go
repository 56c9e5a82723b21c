package source

import (
	"context"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/compute"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// unify returns the narrowest type that holds the values of both types without loss; ok
// is false if there is none. null unifies with any type, and integers do not unify with
// floats, which round large ones.
func unify(a, b arrow.DataType) (arrow.DataType, bool) {
	switch {
	case arrow.TypeEqual(a, b):
		return a, true
	case a.ID() == arrow.NULL:
		return b, true
	case b.ID() == arrow.NULL:
		return a, true
	case isWhole(a) && isWhole(b):
		return unifyIntegers(a, b)
	// Every float16 is a float32, and every float32 a float64.
	case isReal(a) && isReal(b):
		return wider(a, b), true
	case isText(a) && isText(b), isBytes(a) && isBytes(b):
		return wider(a, b), true
	}
	return unifyTyped(a, b)
}

// unifyTyped is unify for types with parameters: units, digits, fields, elements.
func unifyTyped(a, b arrow.DataType) (arrow.DataType, bool) {
	switch a := a.(type) {
	// The finer unit may not reach all values of the coarser one. widen fails for those.
	case *arrow.TimestampType:
		if b, ok := b.(*arrow.TimestampType); ok && a.TimeZone == b.TimeZone {
			return &arrow.TimestampType{Unit: max(a.Unit, b.Unit), TimeZone: a.TimeZone}, true
		}
	case *arrow.DurationType:
		if b, ok := b.(*arrow.DurationType); ok {
			return &arrow.DurationType{Unit: max(a.Unit, b.Unit)}, true
		}
	case *arrow.Time32Type, *arrow.Time64Type:
		if b.ID() == arrow.TIME32 || b.ID() == arrow.TIME64 {
			return finer(a, b), true
		}
	case arrow.DecimalType:
		if b, ok := b.(arrow.DecimalType); ok {
			return unifyDecimals(a, b)
		}
	case *arrow.StructType:
		if b, ok := b.(*arrow.StructType); ok {
			return unifyStructs(a, b)
		}
	// Lists of different fixed sizes, or of fixed and variable size, become variable.
	case arrow.ListLikeType:
		if b, ok := b.(arrow.ListLikeType); ok {
			elem, ok := unify(a.Elem(), b.Elem())
			return arrow.ListOf(elem), ok
		}
	}
	return nil, false
}

// isText reports whether t is a string type.
func isText(t arrow.DataType) bool { return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING }

// isWhole reports whether t is an integer type.
func isWhole(t arrow.DataType) bool { return arrow.IsInteger(t.ID()) }

// isReal reports whether t is a floating-point type.
func isReal(t arrow.DataType) bool { return arrow.IsFloating(t.ID()) }

// wider returns the wider of two types of one kind. Arrow numbers the types of a kind
// from narrow to wide.
func wider(a, b arrow.DataType) arrow.DataType {
	if a.ID() < b.ID() {
		return b
	}
	return a
}

// unifyIntegers returns the narrowest integer type for both. uint64 and a signed type
// have none.
func unifyIntegers(a, b arrow.DataType) (arrow.DataType, bool) {
	if arrow.IsSignedInteger(a.ID()) == arrow.IsSignedInteger(b.ID()) {
		return wider(a, b), true
	}
	if arrow.IsUnsignedInteger(a.ID()) {
		a, b = b, a
	}
	// A signed type must be twice as wide as the unsigned one.
	bits := max(a.(arrow.FixedWidthDataType).BitWidth(), 2*b.(arrow.FixedWidthDataType).BitWidth())
	for _, t := range []arrow.DataType{arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32,
		arrow.PrimitiveTypes.Int64} {
		if t.(arrow.FixedWidthDataType).BitWidth() == bits {
			return t, true
		}
	}
	return nil, false
}

// finer returns the type of times of day with the smaller unit.
func finer(a, b arrow.DataType) arrow.DataType {
	if a.(arrow.TemporalWithUnit).TimeUnit() < b.(arrow.TemporalWithUnit).TimeUnit() {
		return b
	}
	return a
}

// unifyDecimals returns the decimal with enough digits before and after the point.
func unifyDecimals(a, b arrow.DecimalType) (arrow.DataType, bool) {
	scale := max(a.GetScale(), b.GetScale())
	precision := max(a.GetPrecision()-a.GetScale(), b.GetPrecision()-b.GetScale()) + scale
	switch {
	case precision <= 38 && a.ID() == arrow.DECIMAL128 && b.ID() == arrow.DECIMAL128:
		return &arrow.Decimal128Type{Precision: precision, Scale: scale}, true
	case precision <= 76:
		return &arrow.Decimal256Type{Precision: precision, Scale: scale}, true
	}
	return nil, false
}

// unifyStructs unifies fields by name. The order is that of a.
func unifyStructs(a, b *arrow.StructType) (arrow.DataType, bool) {
	if a.NumFields() != b.NumFields() {
		return nil, false
	}
	var fields []arrow.Field
	for _, f := range a.Fields() {
		other, ok := b.FieldByName(f.Name)
		if !ok {
			return nil, false
		}
		t, ok := unify(f.Type, other.Type)
		if !ok {
			return nil, false
		}
		fields = append(fields, arrow.Field{Name: f.Name, Type: t, Nullable: f.Nullable || other.Nullable})
	}
	return arrow.StructOf(fields...), true
}

// storedType returns the type in a dataset for values of a type. null becomes text,
// because another import may have values. Bytes within other values get 32-bit offsets;
// only blob columns need more.
func storedType(t arrow.DataType, top bool) arrow.DataType {
	elem := func(f arrow.Field) arrow.Field {
		return arrow.Field{Name: f.Name, Type: storedType(f.Type, false), Nullable: f.Nullable}
	}
	switch t := t.(type) {
	case *arrow.NullType:
		return arrow.BinaryTypes.String
	case *arrow.LargeBinaryType:
		if !top {
			return arrow.BinaryTypes.Binary
		}
	// The rule applies to elements and fields as well.
	case *arrow.ListType:
		return arrow.ListOfField(elem(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), elem(t.ElemField()))
	case *arrow.StructType:
		var fields []arrow.Field
		for _, f := range t.Fields() {
			fields = append(fields, elem(f))
		}
		return arrow.StructOf(fields...)
	}
	return t
}

// widen converts an array to a type that unify or storedType returned. It fails if a
// value does not fit, as a timestamp may not fit a finer unit. The caller releases the
// result, which may share memory with a.
func widen(ctx context.Context, a arrow.Array, to arrow.DataType) (arrow.Array, error) {
	from := a.DataType()
	if arrow.TypeEqual(from, to) {
		a.Retain()
		return a, nil
	}
	if from.ID() == arrow.NULL {
		return array.MakeArrayOfNull(memory.DefaultAllocator, to, a.Len()), nil
	}
	var (
		data = a.Data()
		kids []arrow.ArrayData
		bufs = data.Buffers()
	)
	defer func() {
		for _, k := range kids {
			k.Release()
		}
	}()
	// Children are converted, and the validity and offsets of the array itself stay.
	kid := func(a arrow.Array, to arrow.DataType) error {
		wide, err := widen(ctx, a, to)
		if err == nil {
			wide.Data().Retain()
			kids = append(kids, wide.Data())
			wide.Release()
		}
		return err
	}
	switch a := a.(type) {
	case *array.Struct:
		was, is := from.(*arrow.StructType), to.(*arrow.StructType)
		for _, f := range is.Fields() {
			i, ok := was.FieldIdx(f.Name)
			if !ok {
				return nil, fmt.Errorf("no field %q", f.Name)
			}
			whole := array.MakeFromData(data.Children()[i])
			err := kid(whole, f.Type)
			whole.Release()
			if err != nil {
				// A slice keeps its offset in data, so the whole child is converted.
				return nil, err
			}
		}
	// A fixed list has no offsets, which a variable one needs.
	case *array.FixedSizeList:
		if to.ID() == arrow.LIST {
			if bufs = []*memory.Buffer{bufs[0], fixedOffsets(a)}; a.Len() == 0 {
				return array.MakeArrayOfNull(memory.DefaultAllocator, to, 0), nil
			}
		}
		if err := kid(a.ListValues(), to.(arrow.ListLikeType).Elem()); err != nil {
			return nil, err
		}
	case *array.Float16:
		return widenHalves(a, to)
	case *array.List:
		if err := kid(a.ListValues(), to.(arrow.ListLikeType).Elem()); err != nil {
			return nil, err
		}
	// The library's cast is used in its safe mode, in which a value that does not fit is
	// an error.
	default:
		return compute.CastArray(ctx, a, compute.SafeCastOptions(to))
	}
	wide := array.NewData(to, data.Len(), bufs, kids, data.NullN(), data.Offset())
	defer wide.Release()
	return array.MakeFromData(wide), nil
}

// fixedOffsets returns the offsets of lists that all have the same length. They start
// with the first list in the array's memory, because the offset of the array stays.
func fixedOffsets(a *array.FixedSizeList) *memory.Buffer {
	n := a.DataType().(*arrow.FixedSizeListType).Len()
	offsets := make([]int32, a.Data().Offset()+a.Len()+1)
	for i := range offsets {
		offsets[i] = int32(i) * n
	}
	return memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets))
}

// widenHalves converts float16, which the library's cast lacks.
func widenHalves(a *array.Float16, to arrow.DataType) (arrow.Array, error) {
	b := array.NewBuilder(memory.DefaultAllocator, to)
	defer b.Release()
	var add func(float32)
	switch b := b.(type) {
	case *array.Float32Builder:
		add = b.Append
	case *array.Float64Builder:
		add = func(v float32) { b.Append(float64(v)) }
	default:
		return nil, fmt.Errorf("%s is no wider than float16", to)
	}
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
		} else {
			add(a.Value(i).Float32())
		}
	}
	return b.NewArray(), nil
}

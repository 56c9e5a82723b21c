package ingest

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema"
)

// misfit is a value that a type cannot hold unchanged. It names one value only: the first
// one is enough to find the cause.
type misfit struct {
	row  int    // -1 if no value of the type would fit
	what string // the value, for a message
}

// fit converts a column to another type if that changes no value: numbers of another
// width or kind that are equal, times of another unit that are equal, texts and bytes
// with other offsets, and lists and structs of these. A column of nulls fits every type.
// Rounding or truncating is never an option: it would change training data silently.
func fit(a arrow.Array, to arrow.DataType) (arrow.Array, *misfit) {
	from := a.DataType()
	switch {
	case arrow.TypeEqual(from, to):
		return a, nil
	// A column of nulls is often of type null, or of whatever type its source infers.
	case a.NullN() == a.Len():
		return array.MakeArrayOfNull(memory.DefaultAllocator, to, a.Len()), nil
	// Numbers are compared as values. The kind of a number in a source often depends on how
	// it was parsed, not on what it means.
	case isNumber(from) && isNumber(to):
		return fitNumbers(a, to)
	// Text and bytes are not converted into each other: bytes need not be UTF-8.
	case keyKind(from) == "text" && keyKind(to) == "text", keyKind(from) == "bytes" && keyKind(to) == "bytes":
		return fitBytes(a, to)
	}
	switch to := to.(type) {
	case *arrow.TimestampType:
		// A time without a zone is another thing than an instant.
		if from, ok := from.(*arrow.TimestampType); ok && (from.TimeZone == "") == (to.TimeZone == "") {
			return fitTimes(a, from.Unit, to.Unit, to)
		}
	case *arrow.DurationType:
		if from, ok := from.(*arrow.DurationType); ok {
			return fitTimes(a, from.Unit, to.Unit, to)
		}
	case *arrow.ListType, *arrow.FixedSizeListType, *arrow.StructType:
		return fitNested(a, to)
	}
	return nil, &misfit{row: -1}
}

// kind is the representation of a number.
type kind uint8

// The representations. Integers of 8 to 64 bits are int64 or uint64, and floats of 16 to
// 64 bits float64, without a change of value.
const (
	kindInt kind = iota
	kindUint
	kindFloat
)

// number is a number in its representation, in the field of its kind. A single float64
// would not do: it cannot hold all integers of 64 bits.
type number struct {
	kind kind
	i    int64
	u    uint64
	f    float64
}

// String returns the number for a message.
func (n number) String() string {
	switch n.kind {
	case kindUint:
		return fmt.Sprint(n.u)
	case kindFloat:
		return fmt.Sprint(n.f)
	}
	return fmt.Sprint(n.i)
}

// integer converts the number to an int64; ok is false if that would change it. -0.0 is
// no integer.
func (n number) integer() (int64, bool) {
	switch n.kind {
	case kindUint:
		return int64(n.u), n.u <= math.MaxInt64
	case kindFloat:
		ok := n.f == math.Trunc(n.f) && n.f >= -(1<<63) && n.f < 1<<63
		if !ok {
			return 0, false
		}
		return int64(n.f), !(n.f == 0 && math.Signbit(n.f))
	}
	return n.i, true
}

// unsigned converts the number to a uint64; ok is false if that would change it. As in
// integer, -0.0 is not an unsigned number.
func (n number) unsigned() (uint64, bool) {
	switch n.kind {
	case kindInt:
		return uint64(n.i), n.i >= 0
	case kindFloat:
		ok := n.f == math.Trunc(n.f) && n.f >= 0 && n.f < 1<<64
		if !ok {
			return 0, false
		}
		return uint64(n.f), !(n.f == 0 && math.Signbit(n.f))
	}
	return n.u, true
}

// float converts the number to a float64; ok is false if that would change it. The
// conversion rounds, so it is checked by converting back; 2^63 itself does not convert
// back.
func (n number) float() (float64, bool) {
	switch n.kind {
	case kindInt:
		f := float64(n.i)
		return f, f < 1<<63 && int64(f) == n.i
	case kindUint:
		f := float64(n.u)
		return f, f < 1<<64 && uint64(f) == n.u
	}
	return n.f, true
}

// isNumber reports whether a type is an integer or a float of any width.
func isNumber(t arrow.DataType) bool { return arrow.IsInteger(t.ID()) || arrow.IsFloating(t.ID()) }

// numbersOf returns a function of an array's values. For null rows its results have no
// meaning. The type is examined once for the column and not for each value.
func numbersOf(a arrow.Array) func(i int) number {
	switch a := a.(type) {
	case *array.Int8:
		return func(i int) number { return number{i: int64(a.Value(i))} }
	case *array.Int16:
		return func(i int) number { return number{i: int64(a.Value(i))} }
	case *array.Int32:
		return func(i int) number { return number{i: int64(a.Value(i))} }
	case *array.Int64:
		return func(i int) number { return number{i: a.Value(i)} }
	case *array.Uint8:
		return func(i int) number { return number{kind: kindUint, u: uint64(a.Value(i))} }
	case *array.Uint16:
		return func(i int) number { return number{kind: kindUint, u: uint64(a.Value(i))} }
	case *array.Uint32:
		return func(i int) number { return number{kind: kindUint, u: uint64(a.Value(i))} }
	case *array.Uint64:
		return func(i int) number { return number{kind: kindUint, u: a.Value(i)} }
	case *array.Float16:
		return func(i int) number { return number{kind: kindFloat, f: float64(a.Value(i).Float32())} }
	case *array.Float32:
		return func(i int) number { return number{kind: kindFloat, f: float64(a.Value(i))} }
	case *array.Float64:
		return func(i int) number { return number{kind: kindFloat, f: a.Value(i)} }
	}
	panic("no numbers: " + a.DataType().String()) // the callers have checked isNumber
}

// fitNumbers converts numbers to another type.
func fitNumbers(a arrow.Array, to arrow.DataType) (arrow.Array, *misfit) {
	b := array.NewBuilder(memory.DefaultAllocator, to)
	defer b.Release()
	b.Reserve(a.Len())
	at, put := numbersOf(a), putNumber(b)
	for i := range a.Len() {
		if a.IsNull(i) {
			b.AppendNull()
		} else if n := at(i); !put(n) {
			return nil, &misfit{i, n.String()}
		}
	}
	return b.NewArray(), nil
}

// putNumber returns a function that appends a number to a builder, and reports whether
// the builder's type can hold it.
func putNumber(b array.Builder) func(number) bool {
	switch b := b.(type) {
	case *array.Int8Builder:
		return putInt(b.Append)
	case *array.Int16Builder:
		return putInt(b.Append)
	case *array.Int32Builder:
		return putInt(b.Append)
	case *array.Int64Builder:
		return putInt(b.Append)
	case *array.Uint8Builder:
		return putUint(b.Append)
	case *array.Uint16Builder:
		return putUint(b.Append)
	case *array.Uint32Builder:
		return putUint(b.Append)
	case *array.Uint64Builder:
		return putUint(b.Append)
	case *array.Float16Builder:
		return putFloat(func(f float64) (float64, func()) {
			// Two roundings give another result than one only if the number is not a
			// float16, which fails anyway.
			h := float16.New(float32(f))
			return float64(h.Float32()), func() { b.Append(h) }
		})
	case *array.Float32Builder:
		return putFloat(func(f float64) (float64, func()) { return float64(float32(f)), func() { b.Append(float32(f)) } })
	case *array.Float64Builder:
		return putFloat(func(f float64) (float64, func()) { return f, func() { b.Append(f) } })
	}
	panic("no numbers: " + b.Type().String()) // the callers have checked isNumber
}

// putInt appends to a builder of signed integers. The conversion to T and back detects a
// value that is out of range.
func putInt[T int8 | int16 | int32 | int64](add func(T)) func(number) bool {
	return func(n number) bool {
		v, ok := n.integer()
		if ok = ok && int64(T(v)) == v; ok {
			add(T(v))
		}
		return ok
	}
}

// putUint appends to a builder of unsigned integers.
func putUint[T uint8 | uint16 | uint32 | uint64](add func(T)) func(number) bool {
	return func(n number) bool {
		v, ok := n.unsigned()
		if ok = ok && uint64(T(v)) == v; ok {
			add(T(v))
		}
		return ok
	}
}

// putFloat appends to a builder of floats. as returns the value that a float has in that
// type, and a function that appends it. All NaNs count as equal.
func putFloat(as func(float64) (float64, func())) func(number) bool {
	return func(n number) bool {
		f, ok := n.float()
		if !ok {
			return false
		}
		is, add := as(f)
		if is != f && !(math.IsNaN(is) && math.IsNaN(f)) {
			return false
		}
		add()
		return true
	}
}

// fitBytes converts texts or bytes to another width of offsets, or to a fixed size.
// Fixed-size values must have exactly the size: padding would change them.
func fitBytes(a arrow.Array, to arrow.DataType) (arrow.Array, *misfit) {
	b := array.NewBuilder(memory.DefaultAllocator, to)
	defer b.Release()
	at := keysOf(a)
	var text []byte
	for i := range a.Len() {
		var ok bool
		if text, ok = at(text[:0], i); !ok {
			b.AppendNull()
			continue
		}
		switch b := b.(type) {
		case *array.StringBuilder:
			b.Append(string(text))
		case *array.LargeStringBuilder:
			b.Append(string(text))
		case *array.BinaryBuilder:
			b.Append(text)
		case *array.FixedSizeBinaryBuilder:
			if len(text) != to.(*arrow.FixedSizeBinaryType).ByteWidth {
				return nil, &misfit{i, fmt.Sprintf("a value of %d bytes", len(text))}
			}
			b.Append(text)
		default:
			return nil, &misfit{row: -1}
		}
	}
	return b.NewArray(), nil
}

// fitTimes converts 64-bit times or durations to another unit. It works on the integers:
// a conversion through time.Time would overflow earlier.
func fitTimes(a arrow.Array, from, to arrow.TimeUnit, dt arrow.DataType) (arrow.Array, *misfit) {
	// The integers share the buffers of a.
	values := array.NewInt64Data(array.NewData(arrow.PrimitiveTypes.Int64, a.Len(), a.Data().Buffers(), nil,
		a.Data().NullN(), a.Data().Offset()))
	b := array.NewInt64Builder(memory.DefaultAllocator)
	defer b.Release()
	// Exactly one of the two factors is larger than 1, unless the units are equal.
	mul, div := int64(1), int64(1)
	if per := int64(from.Multiplier()) / int64(to.Multiplier()); per > 1 {
		mul = per
	} else {
		div = int64(to.Multiplier()) / int64(from.Multiplier())
	}
	for i := range values.Len() {
		if values.IsNull(i) {
			b.AppendNull()
			continue
		}
		v := values.Value(i)
		// To a coarser unit without remainder, to a finer one without overflow.
		if v%div != 0 || v > math.MaxInt64/mul || v < math.MinInt64/mul {
			return nil, &misfit{i, a.ValueStr(i)}
		}
		b.Append(v / div * mul)
	}
	// The integers' buffers become those of the times.
	made := b.NewArray()
	return array.MakeFromData(array.NewData(dt, made.Len(), made.Data().Buffers(), nil, made.NullN(), 0)), nil
}

// fitNested converts lists and structs whose items or fields have other types. Their own
// offsets and validity are shared with a.
func fitNested(a arrow.Array, to arrow.DataType) (arrow.Array, *misfit) {
	none := &misfit{row: -1}
	d := a.Data()
	var children []arrow.ArrayData
	child := func(c arrow.Array, f arrow.Field) *misfit {
		// The row of a child's misfit is not that of the list, so it is not reported.
		made, bad := fit(c, f.Type)
		if bad != nil {
			return &misfit{-1, bad.what}
		}
		if !f.Nullable && made.NullN() > 0 {
			return &misfit{-1, "a null in " + schema.Quote(f.Name)}
		}
		children = append(children, made.Data())
		return nil
	}
	// Types must agree in their structure: names and the order of fields decide which value
	// is meant.
	var bad *misfit
	switch to := to.(type) {
	case *arrow.ListType:
		if list, ok := a.(*array.List); ok {
			bad = child(list.ListValues(), to.ElemField())
		} else {
			return nil, none
		}
	case *arrow.FixedSizeListType:
		list, ok := a.(*array.FixedSizeList)
		if !ok || list.DataType().(*arrow.FixedSizeListType).Len() != to.Len() {
			return nil, none
		}
		bad = child(list.ListValues(), to.ElemField())
	case *arrow.StructType:
		st, ok := a.(*array.Struct)
		if !ok || st.NumField() != to.NumFields() {
			return nil, none
		}
		for i, f := range to.Fields() {
			if st.DataType().(*arrow.StructType).Field(i).Name != f.Name {
				return nil, none
			}
			c := array.MakeFromData(st.Data().Children()[i])
			if bad = child(c, f); bad != nil {
				break
			}
		}
	}
	if bad != nil {
		return nil, bad
	}
	return array.MakeFromData(array.NewData(to, a.Len(), d.Buffers(), children, d.NullN(), d.Offset())), nil
}

// describeMisfit is the error for a column of rows that does not fit the dataset's. first
// is the number of its first row.
func describeMisfit(name string, first int, from, to arrow.DataType, bad *misfit) error {
	row := ""
	if bad.row >= 0 {
		row = fmt.Sprintf(", row %d", first+bad.row)
	}
	got := schema.ShownType(from)
	if bad.what != "" {
		got = fmt.Sprintf("%.200s (%s)", bad.what, got)
	}
	return &schema.FieldError{Field: fmt.Sprintf("column %s%s", schema.Quote(name), row), Got: got,
		Want: fmt.Sprintf("values that the dataset's type %s holds as they are; to make another column of it, name it "+
			"in drop_columns (--drop-column), too", schema.ShownType(to))}
}

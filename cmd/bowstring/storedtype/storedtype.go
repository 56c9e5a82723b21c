// Package storedtype maps Arrow types that Parquet lacks to types that it has, and
// converts values between the two. The file's ARROW:schema names the original types.
// pyarrow restores the types by it as well. Export uses Stored and Convert, import uses
// Restored and Convert.
//
// All functions are pure and safe for concurrent use. Types and arrays are immutable.
package storedtype

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// millisecondsADay is the unit of date64: by Arrow's format each value is a multiple of
// it.
const millisecondsADay = 24 * 60 * 60 * 1000

// Stored returns the type in which a Parquet file stores values of type t. It returns t
// itself, unless Parquet lacks t. Parquet has no duration, its date has days, and its
// times and timestamps begin at milliseconds.
func Stored(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.DurationType:
		return arrow.PrimitiveTypes.Int64
	case *arrow.Date64Type:
		return arrow.FixedWidthTypes.Date32
	case *arrow.Time32Type:
		if t.Unit == arrow.Second {
			return arrow.FixedWidthTypes.Time32ms
		}
	case *arrow.TimestampType:
		if t.Unit == arrow.Second {
			return &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: t.TimeZone}
		}
	case *arrow.FixedSizeListType: // Parquet's writer accepts these only without nulls
		f := t.ElemField()
		f.Type = Stored(f.Type)
		return arrow.ListOfField(f)
	case arrow.NestedType:
		return nested(t, Stored)
	}
	return t
}

// nested returns a copy of a list or struct type whose inner types are mapped by within.
// It calls within in the order of the fields, and Restored relies on that. Other nested
// types, such as maps, are returned as they are.
func nested(t arrow.NestedType, within func(arrow.DataType) arrow.DataType) arrow.DataType {
	inner := func(f arrow.Field) arrow.Field {
		f.Type = within(f.Type)
		return f
	}
	switch t := t.(type) {
	case *arrow.ListType:
		return arrow.ListOfField(inner(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(inner(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), inner(t.ElemField()))
	case *arrow.StructType:
		fields := make([]arrow.Field, t.NumFields())
		for i, f := range t.Fields() {
			fields[i] = inner(f)
		}
		return arrow.StructOf(fields...)
	}
	return t
}

// Restored returns the type that values should have after an import. Parquet reads them
// as type read, and the file's ARROW:schema names the type said. Restored returns said if
// the two differ only by what Parquet lacks, and read otherwise. The schema is metadata
// that another program may have written wrong, so that it is never trusted beyond that.
func Restored(read, said arrow.DataType) arrow.DataType {
	switch said := said.(type) {
	case *arrow.DurationType, *arrow.Date64Type, *arrow.Time32Type:
		if arrow.TypeEqual(read, Stored(said)) {
			return said
		}
	// Parquet has one binary type, which this module's reader may return with offsets of
	// 64 bits.
	case *arrow.BinaryType:
		if read.ID() == arrow.LARGE_BINARY {
			return said
		}
	case *arrow.TimestampType:
		got, ok := read.(*arrow.TimestampType)
		if ok && said.Unit == arrow.Second && got.Unit == arrow.Millisecond && (got.TimeZone == "") ==
			(said.TimeZone == "") {
			return said
		}
	case arrow.NestedType:
		// Both must have the same shape, because the fields are matched by their order.
		got, ok := read.(arrow.NestedType)
		if !ok || got.ID() != said.ID() || len(got.Fields()) != len(said.Fields()) {
			return read
		}
		i := -1 // within is called once for each field, in order
		return nested(got, func(t arrow.DataType) arrow.DataType {
			i++
			return Restored(t, said.Fields()[i].Type)
		})
	}
	return read
}

// Convert returns the values of a as type to. The type must be that of a with the changes
// of Stored, or the reverse. The caller releases the result, which may share buffers with
// a. It returns an error if a value does not fit, such as a date64 that is not a whole
// day.
func Convert(a arrow.Array, to arrow.DataType) (arrow.Array, error) {
	data, err := convert(a.Data(), to)
	if err != nil {
		return nil, err
	}
	defer data.Release()
	return array.MakeFromData(data), nil
}

// convert is Convert for the data of an array. The caller releases the result. An error
// means that a value does not fit, or that the pair of types is none that Stored makes.
func convert(d arrow.ArrayData, to arrow.DataType) (arrow.ArrayData, error) {
	from := d.DataType()
	if arrow.TypeEqual(from, to) {
		d.Retain()
		return d, nil
	}
	switch t := to.(type) {
	// A duration is an int64 with a unit in its type, so that the buffers stay.
	case *arrow.DurationType, *arrow.Int64Type:
		return array.NewData(to, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset()), nil
	case *arrow.BinaryType:
		return smallOffsets(d)
	case *arrow.Date32Type:
		return scale(d, to, 8, 4, func(v int64) (int64, bool) {
			return v / millisecondsADay, v%millisecondsADay == 0 && v/millisecondsADay == int64(int32(v/millisecondsADay))
		})
	case *arrow.Date64Type:
		return scale(d, to, 4, 8, func(v int64) (int64, bool) { return v * millisecondsADay, true })
	case *arrow.Time32Type:
		if t.Unit == arrow.Second {
			return scale(d, to, 4, 4, func(v int64) (int64, bool) { return v / 1000, v%1000 == 0 })
		}
		return scale(d, to, 4, 4, func(v int64) (int64, bool) { return v * 1000, v*1000 == int64(int32(v*1000)) })
	case *arrow.TimestampType:
		if t.Unit == arrow.Second {
			return scale(d, to, 8, 8, func(v int64) (int64, bool) { return v / 1000, v%1000 == 0 })
		}
		return scale(d, to, 8, 8, func(v int64) (int64, bool) {
			return v * 1000, v <= math.MaxInt64/1000 && v >= math.MinInt64/1000
		})
	case *arrow.ListType:
		if d.DataType().ID() == arrow.FIXED_SIZE_LIST {
			return listOfFixed(d, t)
		}
		return convertNested(d, t)
	case arrow.NestedType:
		return convertNested(d, t)
	}
	return nil, fmt.Errorf("no way from %s to %s", from, to)
}

// listOfFixed converts lists of fixed size to lists. A null of fixed size has slots in
// its values, but a null list has none. The values of rows between nulls are therefore
// concatenated. The result has offset 0 and shares no buffer with d.
func listOfFixed(d arrow.ArrayData, to *arrow.ListType) (arrow.ArrayData, error) {
	fixed := array.NewFixedSizeListData(d)
	defer fixed.Release()
	size := int(d.DataType().(*arrow.FixedSizeListType).Len())
	offsets := make([]byte, 4*(d.Len()+1))
	var parts []arrow.Array
	// Slices hold references to the child. They are released at each return, also after
	// an error.
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	n, first := 0, 0 // elements, and the row at which a run of lists begins
	run := func(end int) {
		if end > first {
			from := (d.Offset() + first) * size
			parts = append(parts, array.NewSlice(fixed.ListValues(), int64(from), int64(from+(end-first)*size)))
		}
	}
	for row := range d.Len() {
		if fixed.IsNull(row) {
			run(row)
			first = row + 1
		} else {
			n += size
		}
		// Offsets of a list are int32. A larger batch would wrap around without an error.
		if n > math.MaxInt32 {
			return nil, fmt.Errorf("more than %d elements in a batch", math.MaxInt32)
		}
		binary.LittleEndian.PutUint32(offsets[4*(row+1):], uint32(n))
	}
	run(d.Len())
	// Concatenate rejects an empty list of arrays, and takes the type from the first one.
	if parts == nil {
		parts = append(parts, array.NewSlice(fixed.ListValues(), 0, 0))
	}
	elements, err := array.Concatenate(parts, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	defer elements.Release()
	child, err := convert(elements.Data(), to.Elem())
	if err != nil {
		return nil, err
	}
	defer child.Release()
	var valid *memory.Buffer
	nulls := fixed.NullN() // d itself may not have counted them yet
	if nulls > 0 {
		bits := make([]byte, bitutil.BytesForBits(int64(d.Len())))
		for row := range d.Len() {
			bitutil.SetBitTo(bits, row, fixed.IsValid(row))
		}
		valid = memory.NewBufferBytes(bits)
	}
	return array.NewData(to, d.Len(), []*memory.Buffer{valid, memory.NewBufferBytes(offsets)},
		[]arrow.ArrayData{child}, nulls, 0), nil
}

// convertNested converts the children and keeps the buffers of d, because offsets and
// validity do not change.
func convertNested(d arrow.ArrayData, to arrow.NestedType) (arrow.ArrayData, error) {
	children := make([]arrow.ArrayData, len(d.Children()))
	for i, child := range d.Children() {
		c, err := convert(child, to.Fields()[i].Type)
		if err != nil {
			return nil, err
		}
		defer c.Release()
		children[i] = c
	}
	return array.NewData(to, d.Len(), d.Buffers(), children, d.NullN(), d.Offset()), nil
}

// smallOffsets converts large_binary to binary, by a copy. It returns an error if the
// values exceed what 32-bit offsets can address.
func smallOffsets(d arrow.ArrayData) (arrow.ArrayData, error) {
	large := array.NewLargeBinaryData(d)
	defer large.Release()
	b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
	defer b.Release()
	for row, total := 0, 0; row < large.Len(); row++ {
		if large.IsNull(row) {
			b.AppendNull()
			continue
		}
		value := large.Value(row)
		if total += len(value); total > math.MaxInt32 {
			return nil, fmt.Errorf("its values have more than %d bytes together", math.MaxInt32)
		}
		b.Append(value)
	}
	// The array owns one reference to its data and releases it with itself. The second
	// reference is the caller's.
	a := b.NewArray()
	defer a.Release()
	a.Data().Retain()
	return a.Data(), nil
}

// scale converts integers of from bytes to integers of size bytes by the function by. The
// function returns false if a value has no equal. Slots of nulls are skipped, because
// they hold arbitrary values. The result keeps the offset of d, so that it can share the
// validity buffer.
func scale(d arrow.ArrayData, to arrow.DataType, from, size int, by func(int64) (int64, bool)) (arrow.ArrayData,
	error) {
	end := d.Offset() + d.Len()
	out := make([]byte, end*size)
	var values, valid []byte
	if b := d.Buffers()[0]; b != nil {
		valid = b.Bytes()
	}
	if b := d.Buffers()[1]; b != nil {
		values = b.Bytes()
	}
	for i := d.Offset(); i < end; i++ {
		if valid != nil && !bitutil.BitIsSet(valid, i) {
			continue
		}
		v := int64(int32(binary.LittleEndian.Uint32(values[i*from:])))
		if from == 8 {
			v = int64(binary.LittleEndian.Uint64(values[i*from:]))
		}
		w, ok := by(v)
		if !ok {
			return nil, fmt.Errorf("the value %d of type %s has no equal of type %s", v, d.DataType(), to)
		}
		if size == 8 {
			binary.LittleEndian.PutUint64(out[i*size:], uint64(w))
		} else {
			binary.LittleEndian.PutUint32(out[i*size:], uint32(w))
		}
	}
	buffers := []*memory.Buffer{d.Buffers()[0], memory.NewBufferBytes(out)}
	return array.NewData(to, d.Len(), buffers, nil, d.NullN(), d.Offset()), nil
}

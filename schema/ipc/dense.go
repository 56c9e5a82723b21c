package ipc

import (
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// Dense makes a plain column of a dictionary column. A few one-byte indices may expand to
// any number of bytes, so the size is counted before anything is allocated.
func Dense(a *array.Dictionary, mem memory.Allocator, counted Memory) (arrow.Array, error) {
	switch dict := a.Dictionary().(type) {
	case *array.String:
		return denseTexts(a, array.NewStringBuilder(mem), func(i int) string { return dict.Value(i) }, math.MaxInt32)
	case *array.LargeString:
		return denseTexts(a, array.NewLargeStringBuilder(mem), func(i int) string {
			return dict.Value(i)
		}, math.MaxInt64)
	case *array.Binary:
		return denseTexts(a, bytesBuilder{array.NewBinaryBuilder(mem, arrow.BinaryTypes.Binary)}, dict.ValueString,
			math.MaxInt32)
	case *array.LargeBinary:
		return denseTexts(a, bytesBuilder{array.NewBinaryBuilder(mem, arrow.BinaryTypes.LargeBinary)},
			dict.ValueString, math.MaxInt64)
	}
	return denseAny(a, mem, counted)
}

// textBuilder is a builder of texts, or of bytes in the form of texts.
type textBuilder interface {
	array.Builder
	Append(string)
	ReserveData(int)
}

type bytesBuilder struct{ *array.BinaryBuilder }

// Append implements textBuilder.
func (b bytesBuilder) Append(s string) { b.AppendString(s) }

// denseTexts sums up the lengths first, and then copies. most is the limit of the offsets
// of the type.
func denseTexts(a *array.Dictionary, b textBuilder, value func(int) string, most int64) (arrow.Array, error) {
	defer b.Release()
	var sum int64
	for i := range a.Len() {
		if a.IsValid(i) {
			sum += int64(len(value(a.GetValueIndex(i))))
		}
	}
	if sum > most {
		return nil, tooMuch("the values of %d rows have %d bytes, more than a column of type %s can", a.Len(), sum, a.Dictionary().DataType())
	}
	b.Reserve(a.Len())
	b.ReserveData(int(sum))
	for i := range a.Len() {
		if a.IsNull(i) || a.Dictionary().IsNull(a.GetValueIndex(i)) {
			b.AppendNull()
		} else {
			b.Append(value(a.GetValueIndex(i)))
		}
	}
	return b.NewArray(), nil
}

// sliceCost is the memory of a one-row slice of an array, in bytes.
const sliceCost = 512

// denseAny is Dense for values of any other type, by concatenating slices of one row.
func denseAny(a *array.Dictionary, mem memory.Allocator, counted Memory) (arrow.Array, error) {
	dict := a.Dictionary()
	if a.Len() == 0 {
		return array.NewSlice(dict, 0, 0), nil
	}
	if err := counted.Grow(int64(a.Len()) * sliceCost); err != nil {
		return nil, err
	}
	defer counted.Shrink(int64(a.Len()) * sliceCost)
	null := array.MakeArrayOfNull(mem, dict.DataType(), 1)
	defer null.Release()
	pieces := make([]arrow.Array, a.Len())
	defer func() {
		for _, p := range pieces {
			if p != nil {
				p.Release()
			}
		}
	}()
	for i := range pieces {
		if a.IsNull(i) {
			null.Retain()
			pieces[i] = null
			continue
		}
		at := int64(a.GetValueIndex(i))
		pieces[i] = array.NewSlice(dict, at, at+1)
	}
	return array.Concatenate(pieces, mem)
}

// Integers returns the values of an integer array. For null rows they have no meaning. A
// uint64 beyond int64 is returned as a negative number.
func Integers(a arrow.Array) (func(int) int64, error) {
	switch a := a.(type) {
	case *array.Int64:
		return a.Value, nil
	case *array.Int32:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Int16:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Int8:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint64:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint32:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint16:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	case *array.Uint8:
		return func(i int) int64 { return int64(a.Value(i)) }, nil
	}
	return nil, broken("type %s is no integer", shown(a.DataType()))
}

package flight

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/flight/wire"
	"bowstring/schema"
)

// gather strings the values of a dictionary column together, row by row. A few
// indices of one byte can stand for any number of bytes, so that what it takes
// is counted before any of it is there.
func gather(a *array.Dictionary, mem memory.Allocator, lease *wire.Lease) (arrow.Array, error) {
	switch dict := a.Dictionary().(type) {
	case *array.String:
		return gatherTexts(a, array.NewStringBuilder(mem), func(i int) string { return dict.Value(i) }, math.MaxInt32)
	case *array.LargeString:
		return gatherTexts(a, array.NewLargeStringBuilder(mem), func(i int) string {
			return dict.Value(i)
		}, math.MaxInt64)
	case *array.Binary:
		return gatherTexts(a, bytesBuilder{array.NewBinaryBuilder(mem, arrow.BinaryTypes.Binary)}, dict.ValueString,
			math.MaxInt32)
	case *array.LargeBinary:
		return gatherTexts(a, bytesBuilder{array.NewBinaryBuilder(mem, arrow.BinaryTypes.LargeBinary)},
			dict.ValueString, math.MaxInt64)
	}
	return gatherAny(a, mem, lease)
}

// textBuilder is a builder of texts, or of bytes as if they were.
type textBuilder interface {
	array.Builder
	Append(string)
	ReserveData(int)
}

type bytesBuilder struct{ *array.BinaryBuilder }

// Append implements textBuilder.
func (b bytesBuilder) Append(s string) { b.AppendString(s) }

func gatherTexts(a *array.Dictionary, b textBuilder, value func(int) string, most int64) (arrow.Array, error) {
	defer b.Release()
	var sum int64
	for i := range a.Len() {
		if a.IsValid(i) {
			sum += int64(len(value(a.GetValueIndex(i))))
		}
	}
	if sum > most {
		return nil, fmt.Errorf("%w: the values of %d rows have %d bytes, more than a column of type %s can",
			schema.ErrLimit, a.Len(), sum, a.Dictionary().DataType())
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

// sliceCost is what a slice of an array of one row takes, in bytes.
const sliceCost = 512

// gatherAny does it for values of any type.
func gatherAny(a *array.Dictionary, mem memory.Allocator, lease *wire.Lease) (arrow.Array, error) {
	dict := a.Dictionary()
	if a.Len() == 0 {
		return array.NewSlice(dict, 0, 0), nil
	}
	if err := rowsTake(lease, a.Len(), sliceCost); err != nil {
		return nil, err
	}
	defer lease.Shrink(int64(a.Len()) * sliceCost)
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

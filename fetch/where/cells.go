package where

import (
	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
)

// cellSize is the size of the cells of a type, where all have the same.
func cellSize(t arrow.DataType) (float64, bool) {
	switch t := t.(type) {
	case *arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.ListType:
		return 0, false
	case *arrow.FixedSizeBinaryType:
		return textSize(t.ByteWidth), true
	case *arrow.FixedSizeListType:
		n, fixed := cellSize(t.Elem())
		return 1 + float64(t.Len())*n, fixed
	case *arrow.StructType:
		sum := 1.0
		for _, f := range t.Fields() {
			n, fixed := cellSize(f.Type)
			if !fixed {
				return 0, false
			}
			sum += 4 + n
		}
		return sum, true
	}
	return 1, true
}

// countOf is the number of items of a cell, or else its size.
func countOf(a arrow.Array, i int, size float64) float64 {
	if list, ok := a.(array.ListLike); ok {
		from, to := list.ValueOffsets(i)
		return float64(to - from)
	}
	return size
}

// sizeOf is the size of a cell of an array.
func sizeOf(a arrow.Array, i int) float64 {
	if n, fixed := cellSize(a.DataType()); fixed {
		return n
	}
	switch a := a.(type) {
	case *array.String:
		return textSize(len(a.Value(i)))
	case *array.LargeString:
		return textSize(len(a.Value(i)))
	case *array.Binary:
		return textSize(a.ValueLen(i))
	case array.ListLike:
		from, to := a.ValueOffsets(i)
		items := a.ListValues()
		if n, fixed := cellSize(items.DataType()); fixed {
			return 1 + n*float64(to-from)
		}
		sum := 1.0
		for ; from < to; from++ {
			sum += sizeOf(items, int(from))
		}
		return sum
	case *array.Struct:
		sum := 1.0
		for f := range a.NumField() {
			sum += 4 + sizeOf(a.Field(f), i)
		}
		return sum
	}
	return 1
}

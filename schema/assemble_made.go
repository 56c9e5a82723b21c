package schema

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
)

// zeroCells is what stands in the place of null tensors, which have a size where all do.
var zeroCells = alignedBytes(64 << 10)

// madeColumn lays out cells that operators have made, without copying them.
func madeColumn(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	if form.Elements() >= 0 {
		return fixedTensors(a, form, dt, blobs)
	}
	return variableTensors(a, form, dt, blobs)
}

// missing is the validity of cells; nil if there are all.
func missing(a *arena, blobs []Blob) (validity []byte, nulls int) {
	for i := range blobs {
		if blobs[i].Made() != nil {
			continue
		}
		if validity == nil {
			validity = ones(a, len(blobs))
		}
		validity[i>>3] &^= 1 << (i & 7)
		nulls++
	}
	return validity, nulls
}

func fixedTensors(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	size := form.CellBytes()
	values := Buffer{Pieces: make([][]byte, 0, len(blobs)), Len: size * int64(len(blobs))}
	validity, nulls := missing(a, blobs)
	for i := range blobs {
		if blobs[i].Made() == nil {
			for left := size; left > 0; {
				n := min(left, int64(len(zeroCells)))
				values.Pieces = append(values.Pieces, zeroCells[:n])
				left -= n
			}
			continue
		}
		b := blobs[i].Bytes()
		if int64(len(b)) != size {
			return Vector{}, fmt.Errorf("%w: a tensor has %d bytes, its column's have %d", ErrInvalid, len(b), size)
		}
		values.Pieces = append(values.Pieces, b)
	}
	child := Vector{Type: elements[form.DType], Len: int(form.Elements()) * len(blobs), Buffers: []Buffer{{}, values}}
	return Vector{Type: dt, Len: len(blobs), Nulls: nulls, Buffers: []Buffer{pieces(validity)},
		Children: []Vector{child}}, nil
}

func variableTensors(a *arena, form *MadeForm, dt arrow.DataType, blobs []Blob) (Vector, error) {
	n, axes := len(blobs), len(form.Shape)
	validity, nulls := missing(a, blobs)
	offsets := cast[int32](a.bytes(4 * (n + 1)))
	shapes := cast[int32](a.zeroed(4 * n * axes))
	values := Buffer{Pieces: make([][]byte, 0, n)}
	at := int64(0)
	for i := range blobs {
		offsets[i] = int32(at)
		cell := blobs[i].Made()
		if cell == nil {
			continue
		}
		b := blobs[i].Bytes()
		if at += int64(len(b)) / form.ElementBytes(); at > math.MaxInt32 || len(cell.Shape) != axes {
			return Vector{}, fmt.Errorf("%w: %d tensors have more than 2^31-1 elements, the most of a batch; ask for "+
				"a smaller batch or batch_bytes", ErrLimit, n)
		}
		if len(b) > 0 {
			values.Pieces, values.Len = append(values.Pieces, b), values.Len+int64(len(b))
		}
		copy(shapes[i*axes:], cell.Shape)
	}
	offsets[n] = int32(at)
	fields := dt.(*arrow.StructType).Fields()
	data := Vector{Type: fields[0].Type, Len: n, Buffers: []Buffer{{}, pieces(asBytes(offsets))},
		Children: []Vector{{Type: elements[form.DType], Len: int(at), Buffers: []Buffer{{}, values}}}}
	shape := Vector{Type: fields[1].Type, Len: n, Buffers: []Buffer{{}},
		Children: []Vector{{Type: arrow.PrimitiveTypes.Int32, Len: n * axes,
			Buffers: []Buffer{{}, pieces(asBytes(shapes))}}}}
	return Vector{Type: dt, Len: n, Nulls: nulls, Buffers: []Buffer{pieces(validity)}, Children: []Vector{data, shape}},
		nil
}

// paramsColumn is what was drawn for each cell, as JSON.
func paramsColumn(a *arena, blobs []Blob) (Vector, error) {
	n := len(blobs)
	validity, nulls := missing(a, blobs)
	offsets := cast[int32](a.bytes(4 * (n + 1)))
	total := 0
	for i := range blobs {
		offsets[i] = int32(total)
		if cell := blobs[i].Made(); cell != nil {
			total += len(cell.Params)
		}
		if total > math.MaxInt32 {
			return Vector{}, fmt.Errorf("%w: a batch holds more than 2^31-1 bytes of drawn parameters", ErrLimit)
		}
	}
	offsets[n] = int32(total)
	text := a.bytes(total)
	for i := range blobs {
		if cell := blobs[i].Made(); cell != nil {
			copy(text[offsets[i]:], cell.Params)
		}
	}
	return Vector{Type: arrow.BinaryTypes.String, Len: n, Nulls: nulls,
		Buffers: []Buffer{pieces(validity), pieces(asBytes(offsets)), pieces(text)}}, nil
}

// lengthColumn is the size of each cell along an axis.
func lengthColumn(a *arena, blobs []Blob, axis int) Vector {
	validity, nulls := missing(a, blobs)
	dst := cast[int64](a.zeroed(8 * len(blobs)))
	for i := range blobs {
		if cell := blobs[i].Made(); cell != nil && axis < len(cell.Shape) {
			dst[i] = int64(cell.Shape[axis])
		}
	}
	return Vector{Type: arrow.PrimitiveTypes.Int64, Len: len(blobs), Nulls: nulls,
		Buffers: []Buffer{pieces(validity), pieces(asBytes(dst))}}
}

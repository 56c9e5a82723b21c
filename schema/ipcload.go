package schema

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	flatbuffers "github.com/google/flatbuffers/go"
)

func rootTable(b []byte) *flatbuffers.Table {
	return &flatbuffers.Table{Bytes: b, Pos: flatbuffers.GetUOffsetT(b)}
}

// pairList returns a vector of structs of two 64-bit integers, as bytes.
func pairList(t *flatbuffers.Table, slot flatbuffers.VOffsetT) []byte {
	o := flatbuffers.UOffsetT(t.Offset(slot))
	if o == 0 {
		return nil
	}
	start := int(t.Vector(o))
	return t.Bytes[start : start+16*t.VectorLen(o)]
}

// loader takes the nodes and buffers of a record batch in order.
type loader struct {
	body           []byte
	nodes, buffers []byte
}

func takePair(list *[]byte) (a, b int64, ok bool) {
	if len(*list) < 16 {
		return 0, 0, false
	}
	a = int64(binary.LittleEndian.Uint64(*list))
	b = int64(binary.LittleEndian.Uint64((*list)[8:]))
	*list = (*list)[16:]
	return a, b, true
}

func (l *loader) buffer() ([]byte, error) {
	at, n, ok := takePair(&l.buffers)
	if !ok {
		return nil, fmt.Errorf("%w: record batch has fewer buffers than its schema", ErrDataLoss)
	}
	if at < 0 || n < 0 || at%8 != 0 || at > int64(len(l.body)) || n > int64(len(l.body))-at {
		return nil, fmt.Errorf("%w: buffer at %d of %d bytes in a body of %d", ErrDataLoss, at, n, len(l.body))
	}
	return l.body[at : at+n : at+n], nil
}

// load reads and checks the next column. n is how many rows it must have, -1
// for any number.
func (l *loader) load(f arrow.Field, n int) (view, error) {
	length, nulls, ok := takePair(&l.nodes)
	if !ok {
		return view{}, fmt.Errorf("%w: record batch has fewer columns than its schema", ErrDataLoss)
	}
	if length < 0 || length > math.MaxInt32 || n >= 0 && length != int64(n) {
		return view{}, fmt.Errorf("%w: %d rows, want %d", ErrDataLoss, length, n)
	}
	if nulls < 0 || nulls > length || nulls > 0 && !f.Nullable {
		return view{}, fmt.Errorf("%w: %d nulls in %d rows, nullable is %t", ErrDataLoss, nulls, length, f.Nullable)
	}
	n = int(length)
	v := view{dt: f.Type, n: n, nulls: int(nulls)}
	v.shape, v.width = shapeOf(f.Type)
	validity, err := l.buffer()
	if err != nil {
		return view{}, err
	}
	if nulls > 0 {
		if len(validity) < (n+7)/8 {
			return view{}, fmt.Errorf("%w: validity bitmap of %d bytes for %d rows", ErrDataLoss, len(validity), n)
		}
		if got := n - bitutil.CountSetBits(validity, 0, n); got != v.nulls {
			return view{}, fmt.Errorf("%w: %d nulls in the validity bitmap, want %d", ErrDataLoss, got, v.nulls)
		}
		v.validity = validity
	}
	switch v.shape {
	case shapeBits, shapeFixed:
		if v.values, err = l.buffer(); err != nil {
			return view{}, err
		}
		need := uint64(n+7) / 8
		if v.shape == shapeFixed {
			hi, lo := bits.Mul64(uint64(n), uint64(v.width))
			if hi != 0 {
				lo = math.MaxUint64
			}
			need = lo
		}
		if uint64(len(v.values)) < need {
			return view{}, fmt.Errorf("%w: %d bytes of values for %d rows of %s", ErrDataLoss, len(v.values), n,
				ShownType(v.dt))
		}
		v.values = v.values[:need]
	case shapeBytes, shapeBytes8:
		offsets, err := l.buffer()
		if err != nil {
			return view{}, err
		}
		if v.values, err = l.buffer(); err != nil {
			return view{}, err
		}
		if v.shape == shapeBytes {
			v.off32, err = checkOffsets(cast[int32](offsets), n, len(v.values))
		} else {
			v.off64, err = checkOffsets(cast[int64](offsets), n, len(v.values))
		}
		if err != nil {
			return view{}, err
		}
	case shapeList:
		offsets, err := l.buffer()
		if err != nil {
			return view{}, err
		}
		child, err := l.load(f.Type.(*arrow.ListType).ElemField(), -1)
		if err != nil {
			return view{}, err
		}
		if v.off32, err = checkOffsets(cast[int32](offsets), n, child.n); err != nil {
			return view{}, err
		}
		v.children = []view{child}
	case shapeFixedList:
		if v.width != 0 && n > math.MaxInt32/v.width {
			return view{}, fmt.Errorf("%w: %d rows of %s", ErrDataLoss, n, ShownType(v.dt))
		}
		child, err := l.load(f.Type.(*arrow.FixedSizeListType).ElemField(), n*v.width)
		if err != nil {
			return view{}, err
		}
		v.children = []view{child}
	case shapeStruct:
		for _, sub := range f.Type.(*arrow.StructType).Fields() {
			child, err := l.load(sub, n)
			if err != nil {
				return view{}, err
			}
			v.children = append(v.children, child)
		}
	default:
		return view{}, fmt.Errorf("%w: type %s", ErrDataLoss, ShownType(v.dt))
	}
	return v, nil
}

// checkOffsets returns the n+1 offsets of n rows if they ascend within limit.
func checkOffsets[T int32 | int64](off []T, n, limit int) ([]T, error) {
	if n == 0 && len(off) == 0 {
		return make([]T, 1), nil // the format lets the single offset be left out
	}
	if len(off) < n+1 {
		return nil, fmt.Errorf("%w: %d offsets for %d rows", ErrDataLoss, len(off), n)
	}
	off = off[:n+1]
	last := off[0]
	descends := last < 0
	for _, o := range off {
		descends = descends || o < last
		last = o
	}
	if descends || int64(last) > int64(limit) {
		return nil, fmt.Errorf("%w: offsets do not ascend within %d", ErrDataLoss, limit)
	}
	return off, nil
}

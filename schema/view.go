package schema

import (
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/schema/ipc"
)

// shape is the layout of a type's values in memory; many types share one.
type shape uint8

const (
	shapeNone      shape = iota
	shapeBits            // one bit a value
	shapeFixed           // a fixed number of bytes a value
	shapeBytes           // 32-bit offsets into bytes
	shapeBytes8          // 64-bit offsets into bytes
	shapeList            // 32-bit offsets into a child
	shapeFixedList       // a fixed number of the child's values
	shapeStruct          // one value of each child
)

// shapeOf returns the shape of a type. The number is the bytes of a value for shapeFixed,
// and the values of a list for shapeFixedList.
func shapeOf(dt arrow.DataType) (shape, int) {
	switch dt := dt.(type) {
	case *arrow.BooleanType:
		return shapeBits, 0
	case *arrow.FixedSizeBinaryType:
		return shapeFixed, dt.ByteWidth
	case *arrow.StringType, *arrow.BinaryType:
		return shapeBytes, 0
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return shapeBytes8, 0
	case *arrow.ListType:
		return shapeList, 0
	case *arrow.FixedSizeListType:
		return shapeFixedList, int(dt.Len())
	case *arrow.StructType:
		return shapeStruct, 0
	case arrow.FixedWidthDataType:
		return shapeFixed, dt.Bytes()
	}
	return shapeNone, 0
}

// view is a read-only view of an array's memory. Its buffers were checked once, so
// reading rows in [0, n) needs no checks. It is used instead of Arrow's arrays because it
// allocates nothing for a row and has no reference counts.
type view struct {
	dt       arrow.DataType
	shape    shape
	width    int // second result of shapeOf
	n        int // rows
	nulls    int
	bit      int    // index of row 0 in validity and in the values of shapeBits
	validity []byte // nil if no row is null
	values   []byte // from row 0 on, except for shapeBits; the content for shapeBytes
	off32    []int32
	off64    []int64
	children []view
}

// null reports whether row i is null.
func (v *view) null(i int) bool {
	return v.validity != nil && !bitutil.BitIsSet(v.validity, v.bit+i)
}

// array makes an Arrow array over the same memory. It needs no Release.
func (v *view) array() arrow.Array {
	data := v.data()
	defer data.Release()
	return array.MakeFromData(data)
}

// data makes Arrow array data over the same memory.
func (v *view) data() arrow.ArrayData {
	bufs := make([]*memory.Buffer, 1, 3)
	if v.validity != nil {
		bufs[0] = memory.NewBufferBytes(v.validity)
	}
	switch v.shape {
	case shapeBits, shapeFixed:
		bufs = append(bufs, memory.NewBufferBytes(v.values))
	case shapeBytes:
		bufs = append(bufs, memory.NewBufferBytes(asBytes(v.off32)), memory.NewBufferBytes(v.values))
	case shapeBytes8:
		bufs = append(bufs, memory.NewBufferBytes(asBytes(v.off64)), memory.NewBufferBytes(v.values))
	case shapeList:
		bufs = append(bufs, memory.NewBufferBytes(asBytes(v.off32)))
	}
	children := make([]arrow.ArrayData, len(v.children))
	for i := range v.children {
		children[i] = v.children[i].data()
		defer children[i].Release()
	}
	return array.NewData(v.dt, v.n, bufs, children, v.nulls, 0)
}

// viewOf makes a view of rows [start, start+n) of an Arrow array that is known to be
// valid, such as one of a builder or a checked reader.
func viewOf(d arrow.ArrayData, start, n int) view {
	at := d.Offset() + start
	v := view{dt: d.DataType(), n: n, bit: at}
	v.shape, v.width = shapeOf(v.dt)
	bufs := d.Buffers()
	get := func(i int) []byte {
		if i >= len(bufs) || bufs[i] == nil {
			return nil
		}
		return bufs[i].Bytes()
	}
	if d.NullN() != 0 { // may be unknown, which is negative
		if b := get(0); b != nil {
			if v.nulls = n - bitutil.CountSetBits(b, at, n); v.nulls > 0 {
				v.validity = b
			}
		}
	}
	if n == 0 {
		// Buffers may be missing; the children are still needed for their types.
		for _, c := range d.Children() {
			v.children = append(v.children, viewOf(c, 0, 0))
		}
		v.off32, v.off64 = []int32{0}, []int64{0}
		return v
	}
	switch v.shape {
	case shapeBits:
		v.values = get(1)
	case shapeFixed:
		v.values = get(1)[at*v.width : (at+n)*v.width]
	case shapeBytes:
		v.off32, v.values = cast[int32](get(1))[at:at+n+1], get(2)
	case shapeBytes8:
		v.off64, v.values = cast[int64](get(1))[at:at+n+1], get(2)
	case shapeList:
		v.off32 = cast[int32](get(1))[at : at+n+1]
		v.children = []view{viewOf(d.Children()[0], 0, d.Children()[0].Len())}
	case shapeFixedList:
		v.children = []view{viewOf(d.Children()[0], at*v.width, n*v.width)}
	case shapeStruct:
		for _, c := range d.Children() {
			v.children = append(v.children, viewOf(c, at, n))
		}
	}
	return v
}

// columnView makes a view of a column that package ipc has read and checked.
func columnView(c *ipc.Column) view {
	v := view{dt: c.Type, n: c.Rows, nulls: c.Nulls, values: c.Values}
	v.shape, v.width = shapeOf(v.dt)
	if c.Nulls > 0 {
		v.validity = c.Validity
	}
	switch v.shape {
	case shapeBytes, shapeList:
		v.off32 = cast[int32](c.Offsets)
	case shapeBytes8:
		v.off64 = cast[int64](c.Offsets)
	}
	if len(c.Children) > 0 {
		v.children = make([]view, len(c.Children))
		for i := range c.Children {
			v.children[i] = columnView(&c.Children[i])
		}
	}
	return v
}

// run is a range of rows of one page; chunk is its index among the views.
type run struct {
	chunk    int
	start, n int
}

// longRun is the mean length of runs from which on the values of a column are sent in
// pieces that point into the pages. Shorter runs are copied, because each piece costs an
// entry in the system call that sends it.
const longRun = 2048

// gather makes a vector of n rows, named by runs, from the views of a column's pages.
// Copied values go into a; the rest of the vector points at the views.
func gather(a *arena, views []*view, runs []run, n int) (Vector, error) {
	if len(views) == 0 {
		return Vector{}, fmt.Errorf("%w: rows of a column without chunks", ErrInvalid)
	}
	v0 := views[0]
	out := Vector{Type: v0.dt, Len: n}
	validity, nulls := gatherValidity(a, views, runs, n)
	out.Nulls = nulls
	scatter := len(runs) <= 1 || n/len(runs) >= longRun
	switch v0.shape {
	case shapeBits:
		out.Buffers = []Buffer{validity, gatherBits(a, views, runs, n)}
	case shapeFixed:
		out.Buffers = []Buffer{validity, gatherFixed(a, views, runs, n, v0.width, scatter)}
	case shapeBytes:
		offsets, values, err := gatherBytes(a, views, runs, n, scatter, func(v *view) []int32 { return v.off32 })
		if err != nil {
			return Vector{}, err
		}
		out.Buffers = []Buffer{validity, offsets, values}
	case shapeBytes8:
		offsets, values, err := gatherBytes(a, views, runs, n, scatter, func(v *view) []int64 { return v.off64 })
		if err != nil {
			return Vector{}, err
		}
		out.Buffers = []Buffer{validity, offsets, values}
	case shapeList:
		offsets, below, total, err := gatherOffsets(a, views, runs, n, func(v *view) []int32 { return v.off32 })
		if err != nil {
			return Vector{}, err
		}
		out.Buffers = []Buffer{validity, offsets}
		if err := out.gatherChild(a, views, 0, below, int(total)); err != nil {
			return Vector{}, err
		}
	case shapeFixedList:
		below := arenaRuns(a, len(runs))
		for i, r := range runs {
			below[i] = run{r.chunk, r.start * v0.width, r.n * v0.width}
		}
		out.Buffers = []Buffer{validity}
		if err := out.gatherChild(a, views, 0, below, n*v0.width); err != nil {
			return Vector{}, err
		}
	case shapeStruct:
		out.Buffers = []Buffer{validity}
		for i := range v0.children {
			if err := out.gatherChild(a, views, i, runs, n); err != nil {
				return Vector{}, err
			}
		}
	default:
		return Vector{}, fmt.Errorf("%w: column of type %s", ErrInvalid, ShownType(v0.dt))
	}
	return out, nil
}

// gatherChild gathers a child of a nested column.
func (v *Vector) gatherChild(a *arena, views []*view, child int, runs []run, n int) error {
	// Only the needed pages are collected: a snapshot may have thousands.
	below := make([]*view, 0, len(runs)+1)
	renamed := arenaRuns(a, len(runs))
	at := make(map[int]int, min(len(runs), len(views)))
	for i, r := range runs {
		c, ok := at[r.chunk]
		if !ok {
			c = len(below)
			at[r.chunk] = c
			below = append(below, &views[r.chunk].children[child])
		}
		renamed[i] = run{c, r.start, r.n}
	}
	if len(below) == 0 {
		below = append(below, &views[0].children[child])
	}
	sub, err := gather(a, below, renamed, n)
	if err != nil {
		return err
	}
	v.Children = append(v.Children, sub)
	return nil
}

// gatherValidity gathers the validity bitmap; it is empty if no gathered row is null.
func gatherValidity(a *arena, views []*view, runs []run, n int) (Buffer, int) {
	some := false
	for _, r := range runs {
		if views[r.chunk].validity != nil {
			some = true
			break
		}
	}
	if !some {
		return Buffer{}, 0
	}
	bits := a.zeroed((n + 7) / 8)
	at := 0
	for _, r := range runs {
		v := views[r.chunk]
		switch {
		case r.n == 1:
			if !v.null(r.start) {
				bits[at>>3] |= 1 << (at & 7)
			}
		case v.validity == nil:
			bitutil.SetBitsTo(bits, int64(at), int64(r.n), true)
		default:
			bitutil.CopyBitmap(v.validity, v.bit+r.start, r.n, bits, at)
		}
		at += r.n
	}
	nulls := n - bitutil.CountSetBits(bits, 0, n)
	if nulls == 0 {
		return Buffer{}, 0
	}
	return pieces(bits), nulls
}

// gatherBits gathers bools.
func gatherBits(a *arena, views []*view, runs []run, n int) Buffer {
	bits := a.zeroed((n + 7) / 8)
	at := 0
	for _, r := range runs {
		v := views[r.chunk]
		if r.n == 1 {
			if bitutil.BitIsSet(v.values, v.bit+r.start) {
				bits[at>>3] |= 1 << (at & 7)
			}
		} else if r.n > 0 {
			bitutil.CopyBitmap(v.values, v.bit+r.start, r.n, bits, at)
		}
		at += r.n
	}
	return pieces(bits)
}

// gatherFixed gathers values of a fixed width: in pieces if scatter is set, else by
// copying.
func gatherFixed(a *arena, views []*view, runs []run, n, width int, scatter bool) Buffer {
	if scatter {
		out := make([][]byte, 0, len(runs))
		for _, r := range runs {
			if r.n > 0 {
				out = append(out, views[r.chunk].values[r.start*width:(r.start+r.n)*width])
			}
		}
		return pieces(out...)
	}
	out := a.bytes(n * width)
	switch width {
	case 1:
		gatherAs[uint8](out, views, runs)
	case 2:
		gatherAs[uint16](out, views, runs)
	case 4:
		gatherAs[uint32](out, views, runs)
	case 8:
		gatherAs[uint64](out, views, runs)
	case 16:
		gatherAs[[2]uint64](out, views, runs)
	default:
		at := 0
		for _, r := range runs {
			at += copy(out[at:], views[r.chunk].values[r.start*width:(r.start+r.n)*width])
		}
	}
	return pieces(out)
}

// gatherAs copies values as machine words. Single rows are the common case of a shuffled
// order, and a call of copy for each would take several times as long.
func gatherAs[T fixed](out []byte, views []*view, runs []run) {
	dst, at := cast[T](out), 0
	for _, r := range runs {
		src := cast[T](views[r.chunk].values)
		if r.n == 1 {
			dst[at] = src[r.start]
			at++
			continue
		}
		at += copy(dst[at:], src[r.start:r.start+r.n])
	}
}

// gatherOffsets copies offsets, rebased to 0, and returns the runs of the values that
// they refer to, and their total length.
func gatherOffsets[T int32 | int64](a *arena, views []*view, runs []run, n int,
	offsets func(*view) []T) (Buffer, []run, int64, error) {
	var size T
	width := 8
	if _, ok := any(size).(int32); ok {
		width = 4
	}
	if len(runs) == 1 { // unchanged
		if off := offsets(views[runs[0].chunk])[runs[0].start:]; off[0] == 0 { // as they are
			total := int64(off[n])
			return pieces(asBytes(off[:n+1])), []run{{runs[0].chunk, 0, int(total)}}, total, nil
		}
	}
	dst := cast[T](a.bytes((n + 1) * width))
	below := arenaRuns(a, len(runs))[:0]
	at, total := 0, int64(0)
	for _, r := range runs {
		off := offsets(views[r.chunk])[r.start : r.start+r.n+1]
		first, length := off[0], int64(off[r.n])-int64(off[0])
		if width == 4 && total+length > math.MaxInt32 {
			return Buffer{}, nil, 0, fmt.Errorf("%w: a batch holds more than 2^31-1 bytes or items of a column of "+
				"type %s; ask for a smaller batch",
				ErrLimit, views[r.chunk].dt)
		}
		shift := T(total) - first
		for i, o := range off[:r.n] {
			dst[at+i] = o + shift
		}
		at += r.n
		total += length
		below = append(below, run{r.chunk, int(first), int(length)})
	}
	dst[at] = T(total)
	return pieces(asBytes(dst)), below, total, nil
}

// gatherBytes gathers texts or bytes: offsets are copied, and values are copied or
// referenced.
func gatherBytes[T int32 | int64](a *arena, views []*view, runs []run, n int, scatter bool,
	offsets func(*view) []T) (Buffer, Buffer, error) {
	offs, below, total, err := gatherOffsets(a, views, runs, n, offsets)
	if err != nil {
		return Buffer{}, Buffer{}, err
	}
	if scatter {
		out := make([][]byte, 0, len(below))
		for _, r := range below {
			if r.n > 0 {
				out = append(out, views[r.chunk].values[r.start:r.start+r.n])
			}
		}
		return offs, pieces(out...), nil
	}
	out := a.bytes(int(total))
	at := 0
	for _, r := range below {
		at += copy(out[at:], views[r.chunk].values[r.start:r.start+r.n])
	}
	return offs, pieces(out), nil
}

package parquet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"unsafe"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
)

// Records reads the rows of a file as Arrow records. It belongs to its File and to the
// same goroutine.
type Records struct {
	columns []*node
	micro   []bool  // whether INT96 timestamps of the column are microseconds
	leaves  []*leaf // by number; nil if no column that is read has it
	schema  *arrow.Schema
	// rows is the number of rows of each record but the last.
	rows   int
	places []*Places // by column, of the record that Next returned last
}

// Records starts reading some columns, rows at a time.
//
// columns are numbers of columns in the file. micro says for each of them whether its
// INT96 timestamps become microseconds instead of nanoseconds. It is an error if a column
// cannot be read, or if there is none.
func (f *File) Records(columns []int, micro []bool, rows int) (_ *Records, err error) {
	defer caught(&err)
	r := &Records{leaves: make([]*leaf, len(f.leaves)), micro: micro, rows: max(rows, 1)}
	var fields []arrow.Field
	for i, c := range columns {
		n := f.columns[c]
		if err := n.problem(); err != nil {
			return nil, fmt.Errorf("column %q: %w", n.name, err)
		}
		r.columns = append(r.columns, n)
		fields = append(fields, arrow.Field{Name: n.name, Type: n.dataType(micro[i]), Nullable: true})
		// A nested column has several leaves, which are read side by side.
		for i := n.first; i < n.first+n.leaves(); i++ {
			r.leaves[i] = f.leaf(f.leaves[i])
		}
	}
	if len(r.columns) == 0 {
		return nil, errors.New("no column of it is read")
	}
	r.schema = arrow.NewSchema(fields, nil)
	return r, nil
}

// Next returns the next record, or io.EOF. The caller releases the record. After any
// other error Records must not be used.
//
// A record copies what it holds: it stays valid after the next call. A cancelled ctx ends
// Next before the next leaf.
func (r *Records) Next(ctx context.Context) (_ arrow.Record, err error) {
	defer caught(&err)
	// Each leaf is filled on its own: row groups and pages of different leaves end at
	// different rows.
	batches := make([]batch, len(r.leaves))
	for i, l := range r.leaves {
		if l == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		levels, err := l.fill(r.rows)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", l.node.column.Path(), err)
		}
		batches[i] = batch{leaf: l, def: l.def[:levels]}
		if len(l.rep) > 0 {
			batches[i].rep = l.rep[:levels]
		}
	}
	var columns []arrow.Array
	defer func() {
		for _, a := range columns {
			a.Release()
		}
	}()
	for i, n := range r.columns {
		data, err := n.build(batches, r.micro[i])
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", n.name, err)
		}
		columns = append(columns, array.MakeFromData(data))
		data.Release()
	}
	// The metadata may be wrong about the rows of a chunk. Leaves that disagree are
	// malformed.
	rows := columns[0].Len()
	for i, a := range columns {
		if a.Len() != rows {
			return nil, fmt.Errorf("column %q has %d rows where %q has %d", r.columns[i].name, a.Len(),
				r.columns[0].name, rows)
		}
	}
	if rows == 0 {
		return nil, io.EOF
	}
	// Places are matched before the values are dropped, with which they are compared.
	r.places = make([]*Places, len(r.columns))
	for i, n := range r.columns {
		if r.places[i], err = n.located(batches); err != nil {
			return nil, fmt.Errorf("column %q: %w", n.name, err)
		}
	}
	for i := range batches {
		if b := &batches[i]; b.leaf != nil {
			b.leaf.drop(len(b.def), b.used)
		}
	}
	return array.NewRecord(r.schema, columns, int64(rows)), nil
}

// batch is the buffered levels of a leaf that become rows of the current record. The
// slices are the leaf's own.
type batch struct {
	leaf     *leaf
	def, rep []int16
	used     int // number of values, set when they are part of an array
}

// slots calls f for each slot that the node has in its array, with the definition level
// of that slot. The levels are those of the first leaf below the node: all leaves below
// it agree about the node itself.
func (n *node) slots(b *batch, f func(def int16)) {
	// A level below above means that the list around the node is empty or null, so that
	// the node has no slot. A higher repetition level continues a list within the node.
	for i, d := range b.def {
		if d >= n.at.above && (b.rep == nil || b.rep[i] <= n.at.rep) {
			f(d)
		}
	}
}

// validity returns the number of slots, the number of nulls, and Arrow's validity bitmap.
// The bitmap is nil if no slot is null, as Arrow allows.
func (n *node) validity(b *batch) (slots, nulls int, bits *memory.Buffer) {
	var set []bool
	n.slots(b, func(def int16) {
		if set = append(set, def >= n.def); def < n.def {
			nulls++
		}
	})
	if nulls == 0 {
		return len(set), 0, nil
	}
	bitmap := make([]byte, bitutil.BytesForBits(int64(len(set))))
	for i, valid := range set {
		bitutil.SetBitTo(bitmap, i, valid)
	}
	return len(set), nulls, memory.NewBufferBytes(bitmap)
}

// build makes the array of a node from the levels and values of its leaves. The caller
// releases it.
func (n *node) build(batches []batch, micro bool) (arrow.ArrayData, error) {
	b := &batches[n.first]
	switch n.kind {
	case kindLeaf:
		return n.buildLeaf(b, n.dataType(micro))
	case kindStruct:
		return n.buildStruct(b, batches, micro)
	}
	return n.buildList(b, batches, micro)
}

// buildStruct builds the children and the validity of the struct itself. A child has a
// slot for each slot of the struct, also where the struct is null.
func (n *node) buildStruct(b *batch, batches []batch, micro bool) (arrow.ArrayData, error) {
	slots, nulls, bits := n.validity(b)
	var children []arrow.ArrayData
	defer func() {
		for _, c := range children {
			c.Release()
		}
	}()
	for _, child := range n.children {
		// Each child derives its slots from its own levels, which may disagree in a
		// damaged file.
		data, err := child.build(batches, micro)
		if err != nil {
			return nil, fmt.Errorf("%q in it: %w", child.name, err)
		}
		children = append(children, data)
		if data.Len() != slots {
			return nil, fmt.Errorf("%q in it has %d rows, not %d", child.name, data.Len(), slots)
		}
	}
	return array.NewData(n.dataType(micro), slots, []*memory.Buffer{bits}, children, nulls, 0), nil
}

// buildList builds the elements and the offsets of lists. A list that is null or empty
// has a level, but no element.
func (n *node) buildList(b *batch, batches []batch, micro bool) (arrow.ArrayData, error) {
	slots, nulls, bits := n.validity(b)
	child, err := n.children[0].build(batches, micro)
	if err != nil {
		return nil, fmt.Errorf("its elements: %w", err)
	}
	defer child.Release()
	offsets := make([]int32, 1, slots+1)
	count := int32(0)
	for i, d := range b.def {
		switch r := b.rep[i]; {
		case r <= n.at.rep && d >= n.at.above: // a list begins
			if d >= n.element {
				count++
			}
			offsets = append(offsets, count)
		case r == n.at.rep+1 && d >= n.element: // a list continues
			if len(offsets) == 1 {
				return nil, errors.New("a list that goes on before it has begun")
			}
			count++
			offsets[len(offsets)-1] = count
		}
	}
	if len(offsets) != slots+1 || int(count) != child.Len() {
		return nil, fmt.Errorf("%d lists with %d elements, where there are %d with %d", len(offsets)-1, count, slots,
			child.Len())
	}
	if n.kind == kindFixedList {
		return n.fixed(offsets, bits, nulls, child, micro)
	}
	return array.NewData(n.dataType(micro), slots, []*memory.Buffer{bits, memory.NewBufferBytes(bytesOf(offsets))},
		[]arrow.ArrayData{child}, nulls, 0), nil
}

// fixed makes lists of fixed size. Arrow stores elements also for a list that is null,
// and Parquet does not: fixed inserts null elements there.
func (n *node) fixed(offsets []int32, bits *memory.Buffer, nulls int, child arrow.ArrayData,
	micro bool) (arrow.ArrayData, error) {
	elements := array.MakeFromData(child)
	defer elements.Release()
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	slots, start := len(offsets)-1, int32(0)
	for i := range slots {
		length := offsets[i+1] - offsets[i]
		if bits != nil && !bitutil.BitIsSet(bits.Bytes(), i) {
			// Existing elements up to here, then null elements for the null list.
			parts = append(parts, array.NewSlice(elements, int64(start), int64(offsets[i])),
				array.MakeArrayOfNull(memory.DefaultAllocator, elements.DataType(), int(n.length)))
			start = offsets[i]
		} else if length != n.length {
			return nil, fmt.Errorf("a list of %d elements, where its type says %d", length, n.length)
		}
	}
	if nulls > 0 {
		parts = append(parts, array.NewSlice(elements, int64(start), int64(elements.Len())))
		whole, err := array.Concatenate(parts, memory.DefaultAllocator)
		if err != nil {
			return nil, err
		}
		defer whole.Release()
		child = whole.Data()
	}
	return array.NewData(n.dataType(micro), slots, []*memory.Buffer{bits}, []arrow.ArrayData{child}, nulls, 0), nil
}

// buildLeaf makes the array of a leaf: it spreads the dense values over the slots that
// have one.
func (n *node) buildLeaf(b *batch, typ arrow.DataType) (arrow.ArrayData, error) {
	slots, nulls, bits := n.validity(b)
	b.used = 0
	for _, d := range b.def {
		if d == n.def {
			b.used++
		}
	}
	// A column of type null has levels, and no values.
	if typ.ID() == arrow.NULL {
		if b.used > 0 {
			return nil, fmt.Errorf("it holds %d values, and its type is null", b.used)
		}
		return array.NewData(typ, slots, []*memory.Buffer{nil}, nil, slots, 0), nil
	}
	at := make([]int, 0, b.used) // slots of the values
	i := 0
	n.slots(b, func(def int16) {
		if def >= n.def {
			at = append(at, i)
		}
		i++
	})
	if len(at) != b.used {
		return nil, fmt.Errorf("%d values for %d places", b.used, len(at))
	}
	rest, err := buffersOf(b.leaf.values, at, slots, typ)
	if err != nil {
		return nil, err
	}
	return array.NewData(typ, slots, append([]*memory.Buffer{bits}, rest...), nil, nulls, 0), nil
}

// buffersOf returns the buffers of an array without its validity. at[i] is the slot of
// value i; other slots stay zero.
func buffersOf(from values, at []int, slots int, typ arrow.DataType) ([]*memory.Buffer, error) {
	switch v := from.(type) {
	case *dense[bool]:
		bitmap := make([]byte, bitutil.BytesForBits(int64(slots)))
		for i, to := range at {
			bitutil.SetBitTo(bitmap, to, v.v[i])
		}
		return []*memory.Buffer{memory.NewBufferBytes(bitmap)}, nil
	case *dense[int32]:
		return ints32(v.v, at, slots, typ)
	case *dense[int64]:
		// Parquet stores small decimals in INT32 and INT64; Arrow stores all in 16 or 32
		// bytes.
		if isDecimal(typ) {
			return place(v.v, at, slots, widthOf(typ), bigInt)
		}
		return place(v.v, at, slots, 8, func(to []byte, v int64) error {
			binary.NativeEndian.PutUint64(to, uint64(v))
			return nil
		})
	case *dense[pq.Int96]:
		// If neither unit holds all values, those beyond nanoseconds are errors.
		unit := typ.(*arrow.TimestampType).Unit
		return place(v.v, at, slots, 8, func(to []byte, v pq.Int96) error {
			t, err := int96(v, unit)
			binary.NativeEndian.PutUint64(to, uint64(t))
			return err
		})
	case *dense[float32]:
		return place(v.v, at, slots, 4, func(to []byte, v float32) error {
			binary.NativeEndian.PutUint32(to, math.Float32bits(v))
			return nil
		})
	case *dense[float64]:
		return place(v.v, at, slots, 8, func(to []byte, v float64) error {
			binary.NativeEndian.PutUint64(to, math.Float64bits(v))
			return nil
		})
	case *dense[pq.ByteArray]:
		switch typ.ID() {
		case arrow.DECIMAL128, arrow.DECIMAL256:
			return place(v.v, at, slots, widthOf(typ), func(to []byte, v pq.ByteArray) error {
				return bigEndian(to, v)
			})
		case arrow.LARGE_STRING, arrow.LARGE_BINARY:
			return variable[int64](v.v, at, slots)
		}
		return variable[int32](v.v, at, slots)
	case *dense[pq.FixedLenByteArray]:
		if isDecimal(typ) {
			return place(v.v, at, slots, widthOf(typ), func(to []byte, v pq.FixedLenByteArray) error {
				return bigEndian(to, v)
			})
		}
		return place(v.v, at, slots, widthOf(typ), func(to []byte, v pq.FixedLenByteArray) error {
			if len(v) != len(to) {
				return fmt.Errorf("a value of %d bytes, not %d", len(v), len(to))
			}
			copy(to, v)
			return nil
		})
	}
	return nil, fmt.Errorf("values of type %T", from)
}

// ints32 lays out INT32 values. INT32 is the physical type of all integers of at most 32
// bits, of dates and of times in milliseconds.
func ints32(v []int32, at []int, slots int, typ arrow.DataType) ([]*memory.Buffer, error) {
	if isDecimal(typ) {
		return place(v, at, slots, widthOf(typ), func(to []byte, v int32) error { return bigInt(to, int64(v)) })
	}
	return place(v, at, slots, widthOf(typ), func(to []byte, v int32) error {
		switch len(to) {
		case 1:
			to[0] = byte(v)
		case 2:
			binary.NativeEndian.PutUint16(to, uint16(v))
		default:
			binary.NativeEndian.PutUint32(to, uint32(v))
		}
		return inRange(v, typ)
	})
}

// inRange checks that an INT32 fits its narrower logical type. The format forbids other
// values, but a file may have them.
func inRange(v int32, typ arrow.DataType) error {
	ok := true
	switch typ.ID() {
	case arrow.INT8:
		ok = v == int32(int8(v))
	case arrow.UINT8:
		ok = v == int32(uint8(v))
	case arrow.INT16:
		ok = v == int32(int16(v))
	case arrow.UINT16:
		ok = v == int32(uint16(v))
	}
	if !ok {
		return fmt.Errorf("the value %d, which is none of %s", v, typ)
	}
	return nil
}

// bigInt writes a decimal that is stored as an integer.
func bigInt(to []byte, v int64) error {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(v))
	return bigEndian(to, b[:])
}

// bigEndian converts a big-endian two's complement number to a little-endian one of
// another length, with the sign extended. Parquet's decimals in byte arrays are
// big-endian and as short as the writer liked.
func bigEndian(to, from []byte) error {
	fill := byte(0)
	if len(from) > 0 && from[0]&0x80 != 0 {
		fill = 0xff
	}
	for len(from) > len(to) {
		if from[0] != fill || from[1]&0x80 != fill&0x80 {
			return fmt.Errorf("a decimal of %d bytes, more than %d", len(from), len(to))
		}
		from = from[1:]
	}
	for i := range to {
		to[i] = fill
		if i < len(from) {
			to[i] = from[len(from)-1-i]
		}
	}
	return nil
}

// place writes values of fixed width to their slots.
func place[T any](v []T, at []int, slots, width int, write func(to []byte, v T) error) ([]*memory.Buffer, error) {
	out := make([]byte, slots*width)
	for i, to := range at {
		if err := write(out[to*width:(to+1)*width], v[i]); err != nil {
			return nil, err
		}
	}
	return []*memory.Buffer{memory.NewBufferBytes(out)}, nil
}

// variable concatenates values of variable length. With 32-bit offsets it fails if they
// exceed 2 GiB; columns of blobs have 64-bit offsets for that reason.
func variable[O int32 | int64](v []pq.ByteArray, at []int, slots int) ([]*memory.Buffer, error) {
	// The size is known before the copy, so that it is allocated once.
	total := int64(0)
	for i := range at {
		total += int64(len(v[i]))
	}
	if int64(O(total)) != total {
		return nil, fmt.Errorf("%d bytes in %d rows, more than 2^31-1", total, slots)
	}
	data := make([]byte, 0, total)
	offsets := make([]O, slots+1)
	next := 0
	for i := range slots {
		if next < len(at) && at[next] == i {
			data = append(data, v[next]...)
			next++
		}
		offsets[i+1] = O(len(data))
	}
	return []*memory.Buffer{memory.NewBufferBytes(bytesOf(offsets)), memory.NewBufferBytes(slices.Clip(data))}, nil
}

func isDecimal(t arrow.DataType) bool {
	return t.ID() == arrow.DECIMAL128 || t.ID() == arrow.DECIMAL256
}

func widthOf(t arrow.DataType) int { return t.(arrow.FixedWidthDataType).Bytes() }

// bytesOf returns the memory of offsets as bytes, without a copy. v must have an element.
func bytesOf[O int32 | int64](v []O) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

package schema

import (
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// blobRefType is the type of a blob column in a manifest page.
var blobRefType = arrow.StructOf(
	arrow.Field{Name: "key", Type: &arrow.FixedSizeBinaryType{ByteWidth: len(Key{})}},
	arrow.Field{Name: "size", Type: arrow.PrimitiveTypes.Uint64},
	arrow.Field{Name: "sum", Type: arrow.PrimitiveTypes.Uint64},
)

// ChunkSchema is the schema of a manifest page: the logical schema with a struct of key,
// size and sum in place of each blob. It has no names of classes, which may be many:
// these are in the snapshot's record.
func ChunkSchema(s *arrow.Schema) *arrow.Schema {
	fields := slices.Clone(s.Fields())
	for i := range fields {
		f := &fields[i]
		if IsBlob(*f) {
			f.Type = blobRefType
		}
		if f.HasMetadata() && f.Metadata.FindKey(classesKey) >= 0 {
			pairs := f.Metadata.ToMap()
			delete(pairs, classesKey)
			f.Metadata = arrow.MetadataFrom(pairs)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// ChunkBuilder builds manifest pages, one after the other, from appended rows. It is not
// safe for concurrent use.
type ChunkBuilder struct {
	logical *arrow.Schema
	message []byte // of the page's schema, encoded once
	err     error  // why message could not be made; Finish returns it
	id      *columnBuilder
	meta    []*columnBuilder
	blobs   []*columnBuilder
	bytes   []int64 // sum of the sizes of blobs, by blob column
	weight  int64   // bytes of the values in the current page

	statistics *statisticsLayout
}

// NewChunkBuilder returns a builder for pages of a dataset with logical schema s. Its
// buffers come from mem; Release returns them.
func NewChunkBuilder(mem memory.Allocator, s *arrow.Schema) *ChunkBuilder {
	b := &ChunkBuilder{logical: s, statistics: newStatisticsLayout(s)}
	b.message, b.err = encodeSchema(ChunkSchema(s))
	b.id = newColumnBuilder(mem, s.Field(0))
	for _, f := range MetaFields(s) {
		b.meta = append(b.meta, newColumnBuilder(mem, f))
	}
	for _, f := range BlobFields(s) {
		f.Type = blobRefType
		b.blobs = append(b.blobs, newColumnBuilder(mem, f))
	}
	b.bytes = make([]int64, len(b.blobs))
	return b
}

// Rows is the number of rows appended since the last Finish.
func (b *ChunkBuilder) Rows() int { return b.id.n }

// Append adds one row: row number row of meta, whose columns are the metadata fields in
// order (nil if there are none), and a reference for each blob column, nil for null. It
// keeps nothing of its arguments.
func (b *ChunkBuilder) Append(id ID, meta arrow.Record, row int, blobs []*BlobRef) error {
	if err := b.checkMeta(meta, row, 1); err != nil {
		return err
	}
	if len(blobs) != len(b.blobs) {
		return fmt.Errorf("%w: %d blob columns, the schema has %d", ErrInvalid, len(blobs), len(b.blobs))
	}
	for i, ref := range blobs {
		if err := b.checkRef(i, ref); err != nil {
			return err
		}
	}
	b.id.values.append(id[:])
	b.id.valid(1)
	b.appendMeta(meta, row, 1)
	for i, ref := range blobs {
		b.appendRef(i, ref)
	}
	return nil
}

// AppendBatch adds a row for each id: the rows of meta from the first on, and blobs by
// column and row. If it fails, it has added nothing.
func (b *ChunkBuilder) AppendBatch(ids []ID, meta arrow.Record, blobs [][]*BlobRef) error {
	if meta != nil && meta.NumRows() != int64(len(ids)) {
		return fmt.Errorf("%w: %d rows of metadata for %d ids", ErrInvalid, meta.NumRows(), len(ids))
	}
	if err := b.checkMeta(meta, 0, len(ids)); err != nil {
		return err
	}
	if len(blobs) != len(b.blobs) {
		return fmt.Errorf("%w: %d blob columns, the schema has %d", ErrInvalid, len(blobs), len(b.blobs))
	}
	for i, refs := range blobs {
		if len(refs) != len(ids) {
			return fmt.Errorf("%w: %d references in blob column %q for %d ids", ErrInvalid, len(refs),
				b.blobs[i].field.Name, len(ids))
		}
		for _, ref := range refs {
			if err := b.checkRef(i, ref); err != nil {
				return err
			}
		}
	}
	b.id.values.append(asBytes(ids))
	b.id.valid(len(ids))
	b.appendMeta(meta, 0, len(ids))
	for i, refs := range blobs {
		for _, ref := range refs {
			b.appendRef(i, ref)
		}
	}
	return nil
}

// checkMeta checks that rows of metadata fit the schema. It runs before anything is
// added, so that an error leaves no part of a row.
func (b *ChunkBuilder) checkMeta(meta arrow.Record, row, n int) error {
	if b.id.n > math.MaxInt32-n {
		return fmt.Errorf("%w: a chunk of more than 2^31-1 rows", ErrLimit)
	}
	if meta == nil {
		if len(b.meta) > 0 {
			return fmt.Errorf("%w: no metadata, the schema has %d columns of it", ErrInvalid, len(b.meta))
		}
		return nil
	}
	if meta.NumCols() != int64(len(b.meta)) {
		return fmt.Errorf("%w: %d metadata columns, the schema has %d", ErrInvalid, meta.NumCols(), len(b.meta))
	}
	if row < 0 || int64(row+n) > meta.NumRows() {
		return fmt.Errorf("%w: rows %d to %d of a record of %d", ErrInvalid, row, row+n, meta.NumRows())
	}
	for i, c := range b.meta {
		arr := meta.Column(i)
		if !arrow.TypeEqual(arr.DataType(), c.field.Type) {
			return fmt.Errorf("%w: metadata column %q has type %s, the schema says %s", ErrInvalid, c.field.Name,
				ShownType(arr.DataType()), ShownType(c.field.Type))
		}
		v := viewOf(arr.Data(), row, n)
		if err := c.check(&v, 0, n); err != nil {
			return fmt.Errorf("metadata column %q: %w", c.field.Name, err)
		}
	}
	return nil
}

// appendMeta adds rows that checkMeta has checked.
func (b *ChunkBuilder) appendMeta(meta arrow.Record, row, n int) {
	w := b.weigher(meta, row, n)
	for i := range n {
		b.weight += w.row(i)
	}
	for i, c := range b.meta {
		v := viewOf(meta.Column(i).Data(), row, n)
		c.append(&v, 0, n)
	}
}

// checkRef checks a reference against the field of its column.
func (b *ChunkBuilder) checkRef(col int, ref *BlobRef) error {
	f := b.blobs[col].field
	switch {
	case ref == nil && !f.Nullable:
		return fmt.Errorf("%w: null in blob column %q, which is not nullable", ErrInvalid, f.Name)
	case ref != nil && ref.Size < 0:
		return fmt.Errorf("%w: blob of %d bytes in column %q", ErrInvalid, ref.Size, f.Name)
	}
	return nil
}

// appendRef adds a reference that checkRef has checked.
func (b *ChunkBuilder) appendRef(col int, ref *BlobRef) {
	c := b.blobs[col]
	if ref == nil {
		c.appendEmpty(1)
		return
	}
	c.valid(1)
	key, size, sum := c.children[0], c.children[1], c.children[2]
	key.values.append(ref.Key[:])
	key.valid(1)
	size.values.append(asBytes([]int64{ref.Size}))
	size.valid(1)
	sum.values.append(asBytes([]uint64{uint64(ref.Sum)}))
	sum.valid(1)
	b.bytes[col] += ref.Size
}

// Finish returns the appended rows as the bytes of a page, and begins a new one; c has
// the statistics of the rows. Equal rows give equal bytes, so equal pages are stored
// once. The caller owns data, and sets the BlobRef of c after storing data.
func (b *ChunkBuilder) Finish() (data []byte, c Chunk, err error) {
	if b.err != nil {
		return nil, Chunk{}, b.err
	}
	rows := b.id.n
	cols := []Vector{b.id.vector()}
	for _, m := range b.meta {
		cols = append(cols, m.vector())
	}
	for _, m := range b.blobs {
		cols = append(cols, m.vector())
	}
	data = encodeStream(b.message, rows, cols)
	views := make([]view, 0, len(cols))
	for _, m := range b.columns() {
		views = append(views, m.view())
	}
	c = Chunk{Rows: int64(rows), BlobBytes: slices.Clone(b.bytes), Statistics: b.statistics.make(views)}
	for _, m := range b.columns() {
		m.reset()
	}
	clear(b.bytes)
	b.weight = 0
	return data, c, nil
}

// Release returns the builder's memory. The builder cannot be used afterwards.
func (b *ChunkBuilder) Release() {
	for _, c := range b.columns() {
		c.release()
	}
}

func (b *ChunkBuilder) columns() []*columnBuilder {
	return slices.Concat([]*columnBuilder{b.id}, b.meta, b.blobs)
}

// PageBytes is the size of a page's values in bytes above which no row is added to it,
// however few rows it has. So a page exceeds it by one row at most.
const PageBytes = 1 << 20

// Full reports whether the current page is complete, at that number of rows at most.
func (b *ChunkBuilder) Full(rows int) bool { return b.id.n >= rows || b.weight >= PageBytes }

// Room is how many of the rows [start, end) of meta may be added until the page is
// complete. It depends only on the rows since the last Finish, not on how they were
// divided into calls. The columns of meta are those of the schema.
func (b *ChunkBuilder) Room(meta arrow.Record, start, end, rows int) int {
	n := min(end-start, max(rows-b.id.n, 0))
	w := b.weigher(meta, start, n)
	weight := b.weight
	for i := range n {
		if weight >= PageBytes {
			return i
		}
		weight += w.row(i)
	}
	return n
}

// weigher computes how many bytes the values of rows have.
type weigher struct {
	fixed   int64  // of columns whose values have one size, nulls included, and of references
	columns []view // all other columns
}

// weigher returns the weigher of rows [start, start+n) of meta.
func (b *ChunkBuilder) weigher(meta arrow.Record, start, n int) weigher {
	w := weigher{fixed: int64(len(ID{})) + int64(len(b.blobs))*int64(len(Key{})+16)}
	for i, c := range b.meta {
		switch c.shape {
		case shapeBits:
			w.fixed++
		case shapeFixed:
			w.fixed += int64(c.width)
		default:
			w.columns = append(w.columns, viewOf(meta.Column(i).Data(), start, n))
		}
	}
	return w
}

func (w *weigher) row(i int) int64 {
	n := w.fixed
	for c := range w.columns {
		n += w.columns[c].cellBytes(i)
	}
	return n
}

// columnBuilder builds a column in Arrow's layout. The content of null rows is normalized
// to zeros, or to nothing if the length varies, because equal rows must give equal bytes.
// Arrow's own builders do not guarantee that.
type columnBuilder struct {
	field    arrow.Field
	shape    shape
	width    int
	n, nulls int
	validity growing
	offsets  growing
	values   growing
	children []*columnBuilder
}

func newColumnBuilder(mem memory.Allocator, f arrow.Field) *columnBuilder {
	c := &columnBuilder{field: f, validity: growing{mem: mem}, offsets: growing{mem: mem}, values: growing{mem: mem}}
	c.shape, c.width = shapeOf(f.Type)
	switch dt := f.Type.(type) {
	case *arrow.ListType:
		c.children = []*columnBuilder{newColumnBuilder(mem, dt.ElemField())}
	case *arrow.FixedSizeListType:
		c.children = []*columnBuilder{newColumnBuilder(mem, dt.ElemField())}
	case *arrow.StructType:
		for _, sub := range dt.Fields() {
			c.children = append(c.children, newColumnBuilder(mem, sub))
		}
	}
	c.reset()
	return c
}

// reset begins a new column in the same memory.
func (c *columnBuilder) reset() {
	c.n, c.nulls = 0, 0
	c.validity.b, c.offsets.b, c.values.b = c.validity.b[:0], c.offsets.b[:0], c.values.b[:0]
	switch c.shape {
	case shapeBytes, shapeList:
		c.offsets.grow(4)
	case shapeBytes8:
		c.offsets.grow(8)
	}
	for _, sub := range c.children {
		sub.reset()
	}
}

func (c *columnBuilder) release() {
	c.validity.release()
	c.offsets.release()
	c.values.release()
	for _, sub := range c.children {
		sub.release()
	}
}

// valid marks n more rows as valid.
func (c *columnBuilder) valid(n int) {
	c.validity.grow((c.n+n+7)/8 - len(c.validity.b))
	bitutil.SetBitsTo(c.validity.b, int64(c.n), int64(n), true)
	c.n += n
}

// appendEmpty adds n rows without content: nulls if the field allows them. Children of
// null rows are such rows as well.
func (c *columnBuilder) appendEmpty(n int) {
	c.validity.grow((c.n+n+7)/8 - len(c.validity.b))
	if c.field.Nullable {
		c.nulls += n
	} else {
		bitutil.SetBitsTo(c.validity.b, int64(c.n), int64(n), true)
	}
	switch c.shape {
	case shapeBits:
		c.values.grow((c.n+n+7)/8 - len(c.values.b))
	case shapeFixed:
		c.values.grow(n * c.width)
	case shapeBytes, shapeList:
		last := cast[int32](c.offsets.b)[c.n]
		off := cast[int32](c.offsets.grow(4 * n))
		for i := range off {
			off[i] = last
		}
	case shapeBytes8:
		last := cast[int64](c.offsets.b)[c.n]
		off := cast[int64](c.offsets.grow(8 * n))
		for i := range off {
			off[i] = last
		}
	case shapeFixedList:
		c.children[0].appendEmpty(n * c.width)
	case shapeStruct:
		for _, sub := range c.children {
			sub.appendEmpty(n)
		}
	}
	c.n += n
}

// check returns an error if rows [start, start+n) of v cannot be appended: nulls that the
// field does not allow, or too many bytes for 32-bit offsets.
func (c *columnBuilder) check(v *view, start, n int) error {
	if n == 0 {
		return nil
	}
	if v.validity != nil && !c.field.Nullable && bitutil.CountSetBits(v.validity, v.bit+start, n) < n {
		return fmt.Errorf("%w: null in %q, which is not nullable", ErrInvalid, c.field.Name)
	}
	full := func(length int64, have int32) error {
		if length > int64(math.MaxInt32-have) {
			return fmt.Errorf("%w: a chunk holds at most 2^31-1 bytes or items of a column of type %s", ErrLimit,
				c.field.Type)
		}
		return nil
	}
	switch c.shape {
	case shapeBytes:
		return full(int64(v.off32[start+n]-v.off32[start]), cast[int32](c.offsets.b)[c.n])
	case shapeList:
		first, last := v.off32[start], v.off32[start+n]
		if err := full(int64(last-first), cast[int32](c.offsets.b)[c.n]); err != nil {
			return err
		}
		return eachValid(v, start, n, func(at, k int) error {
			return c.children[0].check(&v.children[0], int(v.off32[at]), int(v.off32[at+k]-v.off32[at]))
		})
	case shapeFixedList:
		return eachValid(v, start, n, func(at, k int) error {
			return c.children[0].check(&v.children[0], at*c.width, k*c.width)
		})
	case shapeStruct:
		return eachValid(v, start, n, func(at, k int) error {
			for i, sub := range c.children {
				if err := sub.check(&v.children[i], at, k); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return nil
}

// eachValid calls f for each maximal run of valid rows.
func eachValid(v *view, start, n int, f func(at, k int) error) error {
	if v.validity == nil {
		return f(start, n)
	}
	for at := start; at < start+n; {
		if v.null(at) {
			at++
			continue
		}
		k := 1
		for at+k < start+n && !v.null(at+k) {
			k++
		}
		if err := f(at, k); err != nil {
			return err
		}
		at += k
	}
	return nil
}

// append adds rows [start, start+n) of v, which has been checked.
func (c *columnBuilder) append(v *view, start, n int) {
	if n == 0 {
		return
	}
	at := start
	_ = eachValid(v, start, n, func(from, k int) error { // the callback does not fail
		c.appendEmpty(from - at)
		c.appendValid(v, from, k)
		at = from + k
		return nil
	})
	c.appendEmpty(start + n - at)
}

// appendValid adds rows without nulls at this level; children may have some.
func (c *columnBuilder) appendValid(v *view, start, n int) {
	switch c.shape {
	case shapeBits:
		c.values.grow((c.n+n+7)/8 - len(c.values.b))
		bitutil.CopyBitmap(v.values, v.bit+start, n, c.values.b, c.n)
	case shapeFixed:
		c.values.append(v.values[start*c.width : (start+n)*c.width])
	case shapeBytes:
		first, last := appendOffsets(c, v.off32, start, n)
		c.values.append(v.values[first:last])
	case shapeBytes8:
		first, last := appendOffsets(c, v.off64, start, n)
		c.values.append(v.values[first:last])
	case shapeList:
		first, last := appendOffsets(c, v.off32, start, n)
		c.children[0].append(&v.children[0], int(first), int(last-first))
	case shapeFixedList:
		c.children[0].append(&v.children[0], start*c.width, n*c.width)
	case shapeStruct:
		for i, sub := range c.children {
			sub.append(&v.children[i], start, n)
		}
	}
	c.valid(n)
}

// appendOffsets adds the offsets of n rows, shifted to the column's values, and returns
// the range of the values to add.
func appendOffsets[T int32 | int64](c *columnBuilder, off []T, start, n int) (first, last T) {
	have := cast[T](c.offsets.b)
	shift := have[c.n] - off[start]
	width := len(c.offsets.b) / (c.n + 1)
	dst := cast[T](c.offsets.grow(n * width))
	for i := range dst {
		dst[i] = off[start+1+i] + shift
	}
	return off[start], off[start+n]
}

// vector is a view of the appended rows. It is valid until the next change.
func (c *columnBuilder) vector() Vector {
	v := Vector{Type: c.field.Type, Len: c.n, Nulls: c.nulls, Buffers: []Buffer{{}}}
	if c.nulls > 0 {
		v.Buffers[0] = pieces(c.validity.b)
	}
	switch c.shape {
	case shapeBits, shapeFixed:
		v.Buffers = append(v.Buffers, pieces(c.values.b))
	case shapeBytes, shapeBytes8:
		v.Buffers = append(v.Buffers, pieces(c.offsets.b), pieces(c.values.b))
	case shapeList:
		v.Buffers = append(v.Buffers, pieces(c.offsets.b))
	}
	for _, sub := range c.children {
		v.Children = append(v.Children, sub.vector())
	}
	return v
}

// growing is a byte slice in memory of an allocator.
type growing struct {
	mem memory.Allocator
	b   []byte
}

// grow adds n bytes of zero and returns them.
func (g *growing) grow(n int) []byte {
	if n <= 0 {
		return nil
	}
	have := len(g.b)
	if need := have + n; need > cap(g.b) {
		size := max(need, 2*cap(g.b), 64)
		if g.b == nil {
			g.b = g.mem.Allocate(size)
		} else {
			g.b = g.mem.Reallocate(size, g.b[:cap(g.b)])
		}
	}
	g.b = g.b[:have+n]
	clear(g.b[have:])
	return g.b[have:]
}

func (g *growing) append(b []byte) { copy(g.grow(len(b)), b) }

func (g *growing) release() {
	if g.b != nil {
		g.mem.Free(g.b[:cap(g.b)])
		g.b = nil
	}
}

// ColumnBuilder builds a metadata column from rows of other arrays. It is not safe for
// concurrent use.
type ColumnBuilder struct {
	c *columnBuilder
}

// NewColumnBuilder returns a builder for a field of a type that CheckSchema allows. Its
// memory is the garbage collector's.
func NewColumnBuilder(f arrow.Field) *ColumnBuilder {
	return &ColumnBuilder{newColumnBuilder(memory.DefaultAllocator, f)}
}

// Append copies n rows of a valid array of the field's type, from row start on. It fails
// with ErrInvalid for a null that the field does not allow, and with ErrLimit for more
// values than one array can have.
func (b *ColumnBuilder) Append(a arrow.Array, start, n int) error {
	v := viewOf(a.Data(), start, n)
	if err := b.c.check(&v, 0, n); err != nil {
		return err
	}
	b.c.append(&v, 0, n)
	return nil
}

// AppendNulls adds n nulls; ErrInvalid if the field does not allow them.
func (b *ColumnBuilder) AppendNulls(n int) error {
	if !b.c.field.Nullable {
		return fmt.Errorf("%w: null in %q, which is not nullable", ErrInvalid, b.c.field.Name)
	}
	b.c.appendEmpty(n)
	return nil
}

// Array is the column. It needs no Release. Nothing may be appended afterwards.
func (b *ColumnBuilder) Array() arrow.Array {
	v := b.c.view()
	return v.array()
}

package schema

import (
	"fmt"
	"math"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// blobRefType is what a blob column is in a manifest chunk.
var blobRefType = arrow.StructOf(
	arrow.Field{Name: "key", Type: &arrow.FixedSizeBinaryType{ByteWidth: len(Key{})}},
	arrow.Field{Name: "size", Type: arrow.PrimitiveTypes.Uint64},
	arrow.Field{Name: "sum", Type: arrow.PrimitiveTypes.Uint64},
)

// ChunkSchema is the schema of a manifest page: the logical schema, with a
// struct of key, size and sum in place of each blob, and without the names of
// classes, which may be many.
func ChunkSchema(s *arrow.Schema) *arrow.Schema {
	fields := wholeChunkSchema(s).Fields()
	for i := range fields {
		if hasClasses(fields[i]) {
			fields[i].Metadata = without(fields[i].Metadata, classesKey)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// wholeChunkSchema is what it was before there were pages: with the names of classes.
func wholeChunkSchema(s *arrow.Schema) *arrow.Schema {
	fields := slices.Clone(s.Fields())
	for i := range fields {
		if IsBlob(fields[i]) {
			fields[i].Type = blobRefType
		}
	}
	return arrow.NewSchema(fields, nil)
}

func hasClasses(f arrow.Field) bool { return f.HasMetadata() && f.Metadata.FindKey(classesKey) >= 0 }

func without(m arrow.Metadata, key string) arrow.Metadata {
	pairs := m.ToMap()
	delete(pairs, key)
	return arrow.MetadataFrom(pairs)
}

// ChunkBuilder accumulates the rows of one manifest chunk after the other. It
// is not safe for concurrent use.
type ChunkBuilder struct {
	logical *arrow.Schema
	message []byte // of the chunk's schema, encoded
	err     error  // why message could not be made
	id      *columnBuilder
	meta    []*columnBuilder
	blobs   []*columnBuilder
	bytes   []int64 // by blob column
	weight  int64   // bytes of the values

	statistics *statisticsLayout
}

// NewChunkBuilder returns a builder for chunks of a dataset with logical schema
// s. Its buffers come from mem.
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

// Append adds one row: row number row of meta, whose columns are the metadata
// fields in order (nil if there are none), and a reference for each blob
// column, nil for null. Nothing is kept of the arguments.
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

// AppendBatch adds a row for each id: the rows of meta, from the first, and
// blobs by column and row. A batch with an error adds nothing.
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

// Finish returns the rows appended so far as the bytes of a chunk, and starts
// anew; c has the statistics of the rows. Equal rows make equal bytes. The caller owns data, and sets the
// BlobRef of c once data is stored.
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

// Release gives the builder's memory back. It cannot be used afterwards.
func (b *ChunkBuilder) Release() {
	for _, c := range b.columns() {
		c.release()
	}
}

func (b *ChunkBuilder) columns() []*columnBuilder {
	return slices.Concat([]*columnBuilder{b.id}, b.meta, b.blobs)
}

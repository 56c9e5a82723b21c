package jobs

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// TotalBytes is the size of everything that the plan serves, over all ranks:
// of each cell its value's bytes, that is, a blob's or a text's length, the
// width of a fixed-width type (one byte for a bool), the values of a list, and
// nothing for a null. It is exact, and leaves out what the encoding adds:
// offsets, bitmaps, padding, headers.
func (js *Jobs) TotalBytes(ctx context.Context, j *Job) (int64, error) {
	sizes, err := newCellSizes(j)
	if err != nil {
		return 0, err
	}
	// What is selected does not depend on the order, so the epochs of a job
	// share this sum.
	what := j.request
	what.Shuffle, what.World, what.Batch, what.BatchBytes, what.Order, what.Remainder, what.OnError = nil, nil, 0, 0, "", "", ""
	v, err := j.snapshot.derived.get(ctx, "bytes\x00"+string(what.Marshal()), func(ctx context.Context) (any, error) {
		return sizes.sum(ctx, j.selection.Len(), j.selection.At)
	})
	if err != nil {
		return 0, fmt.Errorf("adding up the bytes of %s: %w", j.snapshot.key, err)
	}
	total, n := v.(int64), j.selection.Len()
	if padded := j.plan.Padded(); padded > 0 {
		more, err := sizes.sum(ctx, padded, func(i int64) int64 { return j.plan.Position(n + i) })
		return total + more, err
	}
	if dropped := j.plan.Dropped(); dropped > 0 {
		cfg := j.plan.Config()
		cfg.Remainder = plan.Uneven // the same order, to its end
		whole, err := plan.New(cfg)
		if err != nil {
			return 0, err
		}
		less, err := sizes.sum(ctx, dropped, func(i int64) int64 { return whole.Position(n - dropped + i) })
		return total - less, err
	}
	return total, nil
}

// cellSizes tells the sizes of a job's rows.
type cellSizes struct {
	manifest *schema.Manifest
	starts   []int64 // the first position of each chunk
	blobs    []int   // ordinals, once for each column that shows the blob
	fixed    int64   // bytes of the columns that have as many in every row
	split    bool    // the split's name is shown
	metadata [][]arrow.Array
	parts    []blobPart
}

// blobPart is a virtual column of a blob column, and the size of its values.
type blobPart struct {
	column int
	width  int64
}

func newCellSizes(j *Job) (*cellSizes, error) {
	m := j.Manifest()
	s := &cellSizes{manifest: m}
	var start int64
	for _, c := range m.Snapshot().Chunks {
		s.starts = append(s.starts, start)
		start += c.Rows
	}
	blobs := schema.BlobFields(m.Snapshot().Schema)
	for _, f := range j.projection.Schema.Fields() {
		name := f.Name
		if i := slices.IndexFunc(blobs, func(b arrow.Field) bool { return b.Name == name }); i >= 0 {
			s.blobs = append(s.blobs, i)
			// The Hugging Face layout shows the file's name in the column too.
			if f.Type.ID() != arrow.STRUCT || !m.Snapshot().Schema.HasField(schema.PathColumn) {
				continue
			}
			name = schema.PathColumn
		}
		switch name {
		case schema.PositionColumn:
			s.fixed += 8
		case schema.SplitColumn:
			s.split = true
		default:
			if col, _, part, ok := schema.BlobPart(m.Snapshot().Schema, name); ok {
				s.parts = append(s.parts, blobPart{col, map[string]int64{schema.SizePart: 8, schema.KeyPart: int64(len(schema.Key{}))}[part]})
				continue
			}
			column, err := m.Column(name)
			if err != nil {
				return nil, err
			}
			s.metadata = append(s.metadata, column)
		}
	}
	return s, nil
}

// sum adds up n rows.
func (s *cellSizes) sum(ctx context.Context, n int64, at func(int64) int64) (int64, error) {
	var total int64
	for i := range n {
		if i&0xffff == 0 && ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		total += s.row(at(i))
	}
	return total, nil
}

// row is the size of one row.
func (s *cellSizes) row(pos int64) int64 {
	n := s.fixed
	for _, b := range s.blobs {
		ref, _ := s.manifest.Blob(b, pos)
		n += ref.Size
	}
	for _, p := range s.parts {
		if _, ok := s.manifest.Blob(p.column, pos); ok {
			n += p.width
		}
	}
	if s.split {
		n += int64(len(s.manifest.SplitOf(pos)))
	}
	if len(s.metadata) > 0 {
		chunk, found := slices.BinarySearch(s.starts, pos)
		if !found {
			chunk--
		}
		for _, column := range s.metadata {
			n += valueSize(column[chunk], int(pos-s.starts[chunk]))
		}
	}
	return n
}

// valueSize is the number of bytes of one value.
func valueSize(a arrow.Array, i int) int64 {
	if a.IsNull(i) {
		return 0
	}
	switch a := a.(type) {
	case *array.String:
		return int64(len(a.Value(i)))
	case *array.LargeString:
		return int64(len(a.Value(i)))
	case *array.Binary:
		return int64(len(a.Value(i)))
	case array.ListLike:
		start, end := a.ValueOffsets(i)
		var n int64
		for k := start; k < end; k++ {
			n += valueSize(a.ListValues(), int(k))
		}
		return n
	case *array.Struct:
		var n int64
		for f := range a.NumField() {
			n += valueSize(a.Field(f), i)
		}
		return n
	case *array.Boolean:
		return 1
	}
	return int64(a.DataType().(arrow.FixedWidthDataType).BitWidth() / 8)
}

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
	total, err := js.selectedBytes(ctx, j)
	if err == nil && j.plan.Padded()+j.plan.Dropped() > 0 {
		total, err = js.servedBytes(ctx, j, total)
	}
	if err != nil {
		return 0, fmt.Errorf("adding up the bytes of %s: %w", j.snapshot.key, err)
	}
	return total, nil
}

// KnownBytes is what TotalBytes would be of an outline, if it is known without
// reading any row: because it was asked for not long ago.
func (js *Jobs) KnownBytes(o *Outline) (int64, bool) {
	if o.Plan.Padded()+o.Plan.Dropped() > 0 {
		return 0, false
	}
	r := js.results.get(resultKey(snapshotKey{o.Request.Dataset, o.Request.Snapshot}, selectedKey(o.Request)))
	if r == nil {
		return 0, false
	}
	defer r.Release()
	return r.sum, true
}

// selectedKey names the sum over what is selected. It does not depend on the
// order, so the epochs of a job share it.
func selectedKey(req schema.Request) string {
	req.Shuffle, req.World, req.Batch, req.BatchBytes, req.Order, req.Remainder, req.OnError = nil, nil, 0, 0, "", "", ""
	return string(within(req, "bytes\x00"+string(req.Marshal())))
}

// selectedBytes is the size of all rows that are selected.
func (js *Jobs) selectedBytes(ctx context.Context, j *Job) (int64, error) {
	return js.derivedSum(ctx, j, selectedKey(j.request), func(ctx context.Context, sizes *cellSizes) (int64, error) {
		return js.sum(ctx, sizes, j.selection.Len(), j.selection.At)
	})
}

// servedBytes is the size of all rows that are served, where those selected have
// that size, and some are left out or repeated.
func (js *Jobs) servedBytes(ctx context.Context, j *Job, selected int64) (int64, error) {
	return js.derivedSum(ctx, j, string(within(j.request, "served\x00"+string(j.request.Marshal()))), func(ctx context.Context, sizes *cellSizes) (int64, error) {
		n := j.selection.Len()
		if padded := j.plan.Padded(); padded > 0 {
			// The epoch's order is gone through again, as often as it takes.
			more, err := js.sum(ctx, sizes, padded%n, func(i int64) int64 { return j.plan.Position(n + i) })
			return selected + padded/n*selected + more, err
		}
		dropped, cfg := j.plan.Dropped(), j.plan.Config()
		cfg.Remainder = plan.Uneven // the same order, to its end
		whole, err := plan.New(cfg)
		if err != nil {
			return 0, err
		}
		less, err := js.sum(ctx, sizes, dropped, func(i int64) int64 { return whole.Position(n - dropped + i) })
		return selected - less, err
	})
}

// derivedSum computes a sum once. It goes on as long as somebody waits for it, and
// holds the job until it has ended.
func (js *Jobs) derivedSum(ctx context.Context, j *Job, what string, compute func(context.Context, *cellSizes) (int64, error)) (int64, error) {
	r, err := js.derive(ctx, j.snapshot.key, what, j, func(ctx context.Context) (*result, error) {
		sizes, err := newCellSizes(j)
		if err != nil {
			return nil, err
		}
		sum, err := compute(ctx, sizes)
		return &result{sum: sum}, err
	})
	if err != nil {
		return 0, err
	}
	defer r.Release()
	return r.sum, nil
}

// sumValues is how many values are added up at a turn: some milliseconds.
const sumValues = 1 << 16

// sum adds up n rows.
func (js *Jobs) sum(ctx context.Context, sizes *cellSizes, n int64, at func(int64) int64) (total int64, err error) {
	for i := int64(0); i < n && err == nil; {
		err = js.turn(ctx, func() error {
			for sizes.visited = 0; i < n && sizes.visited < sumValues; i++ {
				total += sizes.row(at(i))
			}
			return context.Cause(ctx)
		})
	}
	return total, err
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
	visited  int64 // values looked at: what the time goes by
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
			if f.Type.ID() != arrow.STRUCT || !m.Snapshot().Schema.HasField(schema.PathColumn) || j.Hides(schema.PathColumn) {
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

// row is the size of one row.
func (s *cellSizes) row(pos int64) int64 {
	n := s.fixed
	s.visited += 1 + int64(len(s.blobs)+len(s.parts))
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
			n += s.value(column[chunk], int(pos-s.starts[chunk]))
		}
	}
	return n
}

// value is the number of bytes of one value.
func (s *cellSizes) value(a arrow.Array, i int) int64 {
	s.visited++
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
		if items := a.ListValues(); items.NullN() == 0 {
			if width, ok := fixedWidth(items.DataType()); ok {
				return (end - start) * width
			}
		}
		var n int64
		for k := start; k < end; k++ {
			n += s.value(a.ListValues(), int(k))
		}
		return n
	case *array.Struct:
		var n int64
		for f := range a.NumField() {
			n += s.value(a.Field(f), i)
		}
		return n
	}
	width, _ := fixedWidth(a.DataType())
	return width
}

// fixedWidth is the number of bytes of each value of a type that is not nested.
func fixedWidth(t arrow.DataType) (int64, bool) {
	if t.ID() == arrow.BOOL {
		return 1, true
	}
	if _, nested := t.(arrow.NestedType); nested {
		return 0, false
	}
	f, ok := t.(arrow.FixedWidthDataType)
	if !ok {
		return 0, false
	}
	return int64(f.BitWidth() / 8), true
}

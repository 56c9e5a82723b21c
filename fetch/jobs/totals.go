package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/manifest"
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
	req.Assign, req.Owners, req.Ranks = "", "", nil
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

const (
	// sumRows is how many rows are read and added up at a time, sumSlices how many
	// times that at once.
	sumRows   = 4096
	sumSlices = 8
	// sumValues is how many values are added up at a turn: some milliseconds.
	sumValues = 1 << 16
)

// sum adds up n rows.
func (js *Jobs) sum(ctx context.Context, sizes *cellSizes, n int64, at func(int64) int64) (int64, error) {
	var total atomic.Int64
	outer := ctx
	g, ctx := errgroup.WithContext(outer)
	g.SetLimit(sumSlices)
	for first := int64(0); first < n && ctx.Err() == nil; first += sumRows {
		g.Go(func() error {
			positions := make([]int64, min(sumRows, n-first))
			for i := range positions {
				positions[i] = at(first + int64(i))
			}
			rows, err := sizes.manifest.At(ctx, positions)
			for i := 0; i < len(rows) && err == nil; {
				err = js.turn(ctx, func() error {
					var some int64
					some, i, err = sizes.some(positions, rows, i)
					total.Add(some)
					return cmp.Or(err, context.Cause(ctx))
				})
			}
			return err
		})
	}
	err := g.Wait()
	if outer.Err() != nil {
		err = context.Cause(outer)
	}
	return total.Load(), err
}

// cellSizes tells the sizes of a job's rows.
type cellSizes struct {
	manifest *manifest.Manifest
	blobs    []int // ordinals, once for each column that shows the blob
	fixed    int64 // bytes of the columns that have as many in every row
	split    bool  // the split's name is shown
	metadata []int // indexes in the schema
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
			column, err := m.Form().ColumnIndex(name)
			if err != nil {
				return nil, err
			}
			s.metadata = append(s.metadata, column)
		}
	}
	return s, nil
}

// some adds up rows from row i on, as many as a turn has time for, and returns how far it came.
func (s *cellSizes) some(positions []int64, rows []schema.Row, i int) (total int64, next int, err error) {
	err = schema.Guard(func() error {
		w := weighing{cellSizes: s}
		for ; i < len(rows) && w.visited < sumValues; i++ {
			total += w.row(positions[i], rows[i])
		}
		return nil
	})
	return total, i, err
}

// weighing is some rows being added up.
type weighing struct {
	*cellSizes
	page     *schema.Page // that of the last row
	metadata []arrow.Array
	visited  int64 // values looked at: what the time goes by
}

// row is the size of one row.
func (s *weighing) row(pos int64, row schema.Row) int64 {
	n := s.fixed
	s.visited += 1 + int64(len(s.blobs)+len(s.parts))
	for _, b := range s.blobs {
		ref, _ := row.Blob(b)
		n += ref.Size
	}
	for _, p := range s.parts {
		if _, ok := row.Blob(p.column); ok {
			n += p.width
		}
	}
	if s.split {
		n += int64(len(s.manifest.Form().SplitOf(pos)))
	}
	if row.Page != s.page {
		s.page, s.metadata = row.Page, nil
		for _, column := range s.cellSizes.metadata {
			s.metadata = append(s.metadata, row.Page.Column(column))
		}
	}
	for _, column := range s.metadata {
		n += s.value(column, row.At)
	}
	return n
}

// value is the number of bytes of one value.
func (s *weighing) value(a arrow.Array, i int) int64 {
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

package resolve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/manifest"
	"bowstring/fetch/plan"
	"bowstring/schema"
)

// TotalBytes is the size of all rows that the plan serves, over all ranks. It is the sum
// over their cells. A cell counts as follows:
//
//   - a blob or a text by its length,
//   - a fixed-width value by its width (one byte for a bool),
//   - a list by the size of its values,
//   - a null as nothing.
//
// TotalBytes is exact. It leaves out what the encoding adds: offsets, bitmaps, padding,
// headers. It counts every cell that is not null in the snapshot, though on_error may
// serve some of them as null.
//
// It is -1 if the sizes are not known in advance:
//
//   - operators make cells whose sizes are not fixed,
//   - an expression makes a column that is not of bools,
//   - samples are drawn or packed, or ranks get slices of them,
//   - the request is for a mixture.
func (rv *Resolver) TotalBytes(ctx context.Context, j *Job) (int64, error) {
	if !j.sized() || j.resolved.Request.Sample != nil || j.resolved.Request.Pack != nil {
		return -1, nil
	}
	total, err := rv.selectedBytes(ctx, j)
	if err == nil && j.resolved.Plan.Padded()+j.resolved.Plan.Dropped() > 0 {
		total, err = rv.servedBytes(ctx, j, total)
	}
	if err != nil {
		return 0, fmt.Errorf("adding up the bytes of %s: %w", j.SnapshotName(), err)
	}
	return total, nil
}

// sized reports whether the manifest determines the sizes of all cells.
func (j *Job) sized() bool {
	if j.Alone() == nil {
		return false // which samples of a mixture's sources are used how often is known one by one
	}
	if j.Request().Slices != nil {
		return false // ranks that share samples get other bytes of them
	}
	if slices.ContainsFunc(j.resolved.Projection.Computed(), func(f arrow.Field) bool { return f.Type.ID() != arrow.BOOL }) {
		return false
	}
	forms := j.resolved.Operators.Forms()
	for _, f := range j.resolved.Projection.Schema.Fields() {
		if form := forms[f.Name]; form != nil && form.CellBytes() < 0 {
			return false
		}
		if _, part, ok := schema.MadePart(j.Manifest().Snapshot().Schema, forms, f.Name); ok &&
			part == schema.ParamsPart {
			return false
		}
	}
	return true
}

// KnownBytes is TotalBytes for a resolved request, if its result is cached. It reads no
// row.
func (rv *Resolver) KnownBytes(o *Resolved) (int64, bool) {
	if o.Plan.Padded()+o.Plan.Dropped() > 0 {
		return 0, false
	}
	r := rv.results.get(resultKey(snapshotKey{o.Request.Dataset, o.Request.Snapshot}, selectedKey(o.Request)))
	if r == nil {
		return 0, false
	}
	defer r.Release()
	return r.sum, true
}

// selectedKey names the sum over the selected rows. It does not depend on the order, so
// all epochs of a job share it.
func selectedKey(req schema.Request) string {
	req.Shuffle, req.World, req.Batch, req.BatchBytes, req.Order, req.Remainder, req.OnError = nil, nil, 0, 0, "", "",
		""
	req.Assign, req.Owners, req.Ranks, req.BucketByLength, req.Digest = "", "", nil, nil, false
	return string(within(req, "bytes\x00"+string(req.Marshal())))
}

// selectedBytes is the size of all selected rows.
func (rv *Resolver) selectedBytes(ctx context.Context, j *Job) (int64, error) {
	return rv.derivedSum(ctx, j, selectedKey(j.resolved.Request), func(ctx context.Context, sizes *cellSizes) (int64, error) {
		return rv.sumSelected(ctx, sizes, j.resolved.Plan.Config().Selection)
	})
}

// servedBytes is the size of all served rows. selected is the size of the selected ones.
// Some of these are dropped or repeated, and only those are read again.
func (rv *Resolver) servedBytes(ctx context.Context, j *Job, selected int64) (int64, error) {
	return rv.derivedSum(ctx, j, string(within(j.resolved.Request, "served\x00"+string(j.resolved.Request.Marshal()))),
		func(ctx context.Context, sizes *cellSizes) (int64, error) {
			n, cfg := j.resolved.Plan.Config().Selection.Len(), j.resolved.Plan.Config()
			cfg.Buckets = nil // they move nothing into the epoch, nor out of it
			if padded := j.resolved.Plan.Padded(); padded > 0 {
				// The remainder repeats the epoch's order from its beginning, as often as
				// needed.
				order, err := plan.New(cfg)
				if err != nil {
					return 0, err
				}
				more, err := rv.sum(ctx, sizes, padded%n, func(i int64) int64 { return order.Position(n + i) })
				return selected + padded/n*selected + more, err
			}
			dropped := j.resolved.Plan.Dropped()
			cfg.Remainder = plan.Uneven // the same order, to its end
			whole, err := plan.New(cfg)
			if err != nil {
				return 0, err
			}
			less, err := rv.sum(ctx, sizes, dropped, func(i int64) int64 { return whole.Position(n - dropped + i) })
			return selected - less, err
		})
}

// derivedSum computes a sum once for all callers that want it. It holds the job until it
// has ended.
func (rv *Resolver) derivedSum(ctx context.Context, j *Job, what string, compute func(context.Context, *cellSizes) (int64,
	error)) (int64, error) {
	r, err := rv.derive(ctx, j.sources[0].snapshot.key, what, j, func(ctx context.Context) (*result, error) {
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
	// sumRows is how many rows in a given order are added up together, and sumSlices how
	// many such groups at the same time.
	sumRows   = 4096
	sumSlices = 8
	// sumValues is how many values are added up in a turn, in some milliseconds.
	sumValues = 1 << 16
)

// sumSelected adds up the rows of a selection. A page or chunk is not read if all of its
// rows are selected and its statistics suffice.
func (rv *Resolver) sumSelected(ctx context.Context, sizes *cellSizes, selection plan.Selection) (int64, error) {
	var total atomic.Int64
	// Most pages are either fully selected, with sizes in their statistics, or not
	// selected at all. Only the pages at the edges are read.
	need := func(start int64, run *schema.Chunk) bool {
		switch selection.CountIn(start, start+run.Rows) {
		case 0:
			return false
		case run.Rows:
			if n, ok := sizes.known(start, run); ok {
				total.Add(n)
				return false
			}
		}
		return true
	}
	visit := func(ctx context.Context, start int64, p *schema.Page) error {
		var rows []int64
		for pos := start; pos < start+int64(p.Rows()); pos++ {
			if _, ok := selection.Index(pos); ok {
				rows = append(rows, pos)
			}
		}
		n, err := rv.sumPage(ctx, sizes, start, p, rows)
		total.Add(n)
		return err
	}
	err := sizes.manifest.Walk(ctx, 0, sizes.manifest.Rows(), need, visit)
	return total.Load(), err
}

// sum adds up n rows in any order; at returns the position of each.
func (rv *Resolver) sum(ctx context.Context, sizes *cellSizes, n int64, at func(int64) int64) (int64, error) {
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
			return sizes.manifest.Visit(ctx, positions, func(start int64, p *schema.Page, wanted []int64) error {
				n, err := rv.sumPage(ctx, sizes, start, p, wanted)
				total.Add(n)
				return err
			})
		})
	}
	err := g.Wait()
	if outer.Err() != nil {
		err = context.Cause(outer)
	}
	return total.Load(), err
}

// sumPage adds up some rows of a page that begins at start, in turns.
func (rv *Resolver) sumPage(ctx context.Context, sizes *cellSizes, start int64, p *schema.Page, rows []int64) (
	total int64, err error,
) {
	for len(rows) > 0 && err == nil {
		err = rv.turn(ctx, func() error {
			var n int64
			var done int
			n, done, err = sizes.some(start, p, rows)
			total, rows = total+n, rows[done:]
			return cmp.Or(err, context.Cause(ctx))
		})
	}
	return total, err
}

// cellSizes computes the sizes of a job's rows. It is immutable, and safe for concurrent
// use.
type cellSizes struct {
	manifest *manifest.Manifest
	blobs    []int // ordinals, once for each column that shows the blob
	fixed    int64 // bytes of the columns that have the same size in every row
	split    bool  // the split's name is served
	metadata []int // indexes in the schema
	parts    []blobPart
}

// blobPart is a virtual column of a blob column, with the size of its values.
type blobPart struct {
	column int // ordinal of the blob column
	stored int // index of the blob column in the schema
	width  int64
}

// newCellSizes classifies the served columns by how their sizes are found.
func newCellSizes(j *Job) (*cellSizes, error) {
	m := j.Alone()
	s := &cellSizes{manifest: m}
	blobs := schema.BlobFields(m.Snapshot().Schema)
	forms := j.resolved.Operators.Forms()
	s.fixed = int64(len(j.resolved.Projection.Computed())) // each is a bool
	for _, f := range j.resolved.Projection.Schema.Fields() {
		name := f.Name
		if slices.ContainsFunc(j.resolved.Projection.Computed(), func(c arrow.Field) bool { return c.Name == name }) {
			continue
		}
		made, width := name, int64(-1)
		if form := forms[name]; form != nil {
			width = form.CellBytes()
		} else if blob, _, ok := schema.MadePart(m.Snapshot().Schema, forms, name); ok {
			made, width = blob, 8 // a length: what was drawn has no size that is known
		}
		if width >= 0 {
			stored, err := m.Form().ColumnIndex(made)
			if err != nil {
				return nil, err
			}
			s.parts = append(s.parts, blobPart{slices.IndexFunc(blobs, func(b arrow.Field) bool {
				return b.Name == made
			}), stored, width})
			continue
		}
		if i := slices.IndexFunc(blobs, func(b arrow.Field) bool { return b.Name == name }); i >= 0 {
			s.blobs = append(s.blobs, i)
			// The Hugging Face layout shows the file's name in the column too.
			if f.Type.ID() != arrow.STRUCT || !m.Snapshot().Schema.HasField(schema.PathColumn) ||
				j.Hides(schema.PathColumn) {
				continue
			}
			name = schema.PathColumn
		}
		switch name {
		case schema.PositionColumn:
			s.fixed += 8
		case schema.IDColumn:
			s.fixed += int64(len(schema.ID{}))
		case schema.SplitColumn:
			s.split = true
		default:
			if col, field, part, ok := schema.BlobPart(m.Snapshot().Schema, name); ok {
				stored, err := m.Form().ColumnIndex(field.Name)
				if err != nil {
					return nil, err
				}
				s.parts = append(s.parts, blobPart{col, stored,
					map[string]int64{schema.SizePart: 8, schema.KeyPart: int64(len(schema.Key{}))}[part]})
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

// known returns the size of all rows of a chunk or a page, if its record and statistics
// determine it.
func (s *cellSizes) known(start int64, run *schema.Chunk) (int64, bool) {
	n := s.fixed * run.Rows
	for _, b := range s.blobs {
		if b >= len(run.BlobBytes) {
			return 0, false // a broken chunk is reported to its reader
		}
		n += run.BlobBytes[b]
	}
	if s.split {
		n += s.manifest.Form().SplitBytes(start, start+run.Rows)
	}
	if len(s.parts)+len(s.metadata) == 0 {
		return n, true
	}
	statistics, ok := s.manifest.Form().Statistics(run)
	if !ok {
		return 0, false
	}
	for _, p := range s.parts {
		c, ok := statistics.Column(p.stored)
		if !ok {
			return 0, false
		}
		n += p.width * (c.Rows - c.Nulls)
	}
	for _, column := range s.metadata {
		c, ok := statistics.Column(column)
		if !ok {
			return 0, false
		}
		n += c.Bytes
	}
	return n, true
}

// some adds up the first rows, as many as fit into a turn, and returns their number.
func (s *cellSizes) some(start int64, p *schema.Page, rows []int64) (total int64, done int, err error) {
	err = schema.Guard(func() error {
		visited := int64(0) // values, more or less: what the time goes by
		for ; done < len(rows) && visited < sumValues; done++ {
			n, cells := s.row(rows[done], schema.Row{Page: p, At: int(rows[done] - start)})
			visited += int64(1+len(s.blobs)+len(s.parts)+len(s.metadata)) + cells/sumBytes
			total += n
		}
		return nil
	})
	return total, done, err
}

// sumBytes is how many bytes of metadata count as one more value, because a list has
// many.
const sumBytes = 8

// row returns the size of one row, and how much of it is metadata.
func (s *cellSizes) row(pos int64, row schema.Row) (n, cells int64) {
	n = s.fixed
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
	for _, column := range s.metadata {
		cells += row.Page.CellBytes(column, row.At)
	}
	return n + cells, cells
}

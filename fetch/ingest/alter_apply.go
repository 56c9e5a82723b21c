package ingest

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/fetch/plan"
	"bowstring/fetch/store"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// application is an alteration of one snapshot.
type application struct {
	*Alteration
	*alterPlan
	out     output
	values  [][]arrow.Array // columns of the rows, by column and batch; nil for those that are not used
	deleted *plan.Bitmap    // by an expression; may be nil
	found   []int64         // by row: the position of its sample plus one, 0 for none
	sameID  map[schema.ID]int32
	taken   []int64 // by row: the position plus one of the sample that has its id
	done    Altered

	chunk int   // that the next page is of
	left  int64 // rows of it that are to come
	clean bool  // all of its pages so far are kept
	pos   int64 // of the next page

	// of the page under way, reused
	hits []int32 // by row of the page: the row that is for it, -1 for none
	gone []bool
}

// apply makes the altered snapshot of a base, but for the commit.
func (a *Alteration) apply(ctx context.Context, base *schema.Snapshot) (_ *schema.Snapshot, _ Altered, err error) {
	p, err := a.plan(base)
	if err != nil {
		return nil, Altered{}, err
	}
	w := &application{Alteration: a, alterPlan: p, found: make([]int64, len(a.added.rows))}
	w.out = newOutput(a.in, outputOptions{p.schema, a.opts.Mem, a.opts.PageRows, a.workers, a.opts.Turn})
	defer w.out.release()
	for _, s := range base.Splits { // in their order, whatever becomes of their samples
		w.out.splits = append(w.out.splits, schema.Split{Name: s.Name})
	}
	if err := w.prepare(ctx); err != nil {
		return nil, Altered{}, err
	}
	err = store.EachPage(ctx, base, base.Chunks, a.store.Get, func(page schema.Chunk, m *schema.Manifest) error {
		return w.page(ctx, page, m.Page(0))
	})
	if err != nil {
		return nil, Altered{}, fmt.Errorf("alter %s@%d: %w", base.Dataset, base.Number, err)
	}
	if err := w.finish(ctx); err != nil {
		return nil, Altered{}, err
	}
	if w.out.rows == 0 && base.Rows() > 0 {
		return nil, Altered{}, fmt.Errorf("%w: all samples of %s would be deleted; to empty a dataset, drop it",
			schema.ErrInvalid, base.Dataset)
	}
	next := &schema.Snapshot{Dataset: base.Dataset, Parent: base.Number, Source: a.opts.Source, Schema: p.schema,
		Chunks: w.out.chunks}
	if next.Source == "" {
		next.Source = base.Source
	}
	next.Splits = slices.DeleteFunc(w.out.splits, func(s schema.Split) bool { return len(s.Ranges) == 0 })
	return next, w.done, nil
}

// prepare makes what the walk over the pages needs.
func (w *application) prepare(ctx context.Context) (err error) {
	if text := w.opts.DeleteWhere; text != "" {
		turn := func(_ context.Context, piece func() error) error {
			if w.opts.Turn == nil {
				return piece()
			}
			return w.opts.Turn(piece)
		}
		expr, err := where.Compile(ctx, text, w.base.Schema, turn)
		if err != nil {
			return err
		}
		if w.deleted, err = expr.Eval(ctx, &stored{w.store, w.base, w.form}, turn); err != nil {
			return err
		}
	}
	w.values = make([][]arrow.Array, len(w.added.meta))
	for _, c := range w.meta {
		if c.rows < 0 {
			continue
		}
		if w.values[c.rows], err = w.fit(c); err != nil {
			return err
		}
	}
	if w.opts.Missing == MissingInsert && w.opts.On != schema.IDColumn {
		w.sameID = make(map[schema.ID]int32, len(w.found))
		w.taken = make([]int64, len(w.found))
		for i := range w.found {
			id := w.idOf(int32(i))
			if other, twice := w.sameID[id]; twice {
				return fmt.Errorf("%w: rows %d and %d have the same id %s", schema.ErrInvalid, other, i,
					schema.FormatID(id))
			}
			w.sameID[id] = int32(i)
		}
	}
	return nil
}

// idOf is the id of a row: its own, else one that is derived from its key.
func (w *application) idOf(row int32) schema.ID {
	at := w.added.rows[row]
	if ids := w.added.batches[at.batch].ids; ids != nil {
		return ids[at.at]
	}
	return schema.SampleID(w.base.Dataset, string(w.keyOf(row)))
}

// stored are the rows of a snapshot as package where walks over them.
type stored struct {
	store store.Store
	snap  *schema.Snapshot
	form  *schema.Form
}

// Form implements where.Rows.
func (s *stored) Form() *schema.Form { return s.form }

// Walk implements where.Rows. It visits all pages, one after the other, of chunks that are needed.
func (s *stored) Walk(ctx context.Context, _, _ int64, need func(int64, *schema.Chunk) bool,
	visit func(context.Context, int64, *schema.Page) error) error {
	var pos int64
	var chunks []schema.Chunk
	var starts, ends []int64
	for i := range s.snap.Chunks {
		c := &s.snap.Chunks[i]
		if need == nil || need(pos, c) {
			chunks, starts, ends = append(chunks, *c), append(starts, pos), append(ends, pos+c.Rows)
		}
		pos += c.Rows
	}
	at := 0
	return store.EachPage(ctx, s.snap, chunks, s.store.Get, func(page schema.Chunk, m *schema.Manifest) error {
		start := starts[at]
		if starts[at] += page.Rows; starts[at] == ends[at] {
			at++
		}
		if need != nil && !need(start, &page) {
			return nil
		}
		return visit(ctx, start, m.Page(0))
	})
}

// record makes a record of metadata columns of n rows.
func record(fields []arrow.Field, columns []arrow.Array, n int) arrow.Record {
	return array.NewRecord(arrow.NewSchema(fields, nil), columns, int64(n))
}

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

// application is the alteration of one snapshot. A commit that is repeated on a newer
// snapshot makes a new one. One goroutine uses it. It is discarded after its pass over the
// base.
type application struct {
	*Alteration
	*alterPlan
	out     output
	values  [][]arrow.Array // columns of the rows in the dataset's types, by column and batch; nil if not used
	deleted *plan.Bitmap    // samples deleted by an expression; may be nil
	// found has for each incoming row the position of its sample plus one, 0 if it has
	// none. The offset makes the zero value mean none.
	found  []int64
	sameID map[schema.ID]int32 // rows to insert, by id; nil if rows are found by id
	taken  []int64             // by row: the position plus one of the sample that already has its id
	done   Altered

	chunk int // index of the chunk with the next page
	// left counts the rows of that chunk from the next page on.
	left  int64
	clean bool  // all of its pages so far are shared
	pos   int64 // position of the next page

	// These two describe the current page, and are reused for the next.
	hits []int32 // by row of the page: the incoming row for it, -1 for none
	gone []bool  // by row of the page: deleted
}

// apply makes the altered snapshot of a base, which Commit then commits.
func (a *Alteration) apply(ctx context.Context, base *schema.Snapshot) (_ *schema.Snapshot, _ Altered, err error) {
	p, err := a.plan(base)
	if err != nil {
		return nil, Altered{}, err
	}
	// found and taken are by row of all batches together.
	w := &application{Alteration: a, alterPlan: p, found: make([]int64, len(a.added.rows))}
	w.out = newOutput(a.in, outputOptions{p.schema, a.opts.Mem, a.opts.PageRows, a.workers, a.opts.Turn})
	defer w.out.release()
	for _, s := range base.Splits { // splits keep their order, even if all their samples move
		w.out.splits = append(w.out.splits, schema.Split{Name: s.Name})
	}
	if err := w.prepare(ctx); err != nil {
		return nil, Altered{}, err
	}
	// One walk over the manifest: matching, splits and rewriting see each page once, so
	// memory does not grow with the dataset.
	err = store.EachPage(ctx, base, base.Chunks, a.store.Get, func(page schema.Chunk, m *schema.Manifest) error {
		return w.page(ctx, page, m.Page(0))
	})
	if err != nil {
		return nil, Altered{}, fmt.Errorf("alter %s@%d: %w", base.Dataset, base.Number, err)
	}
	if err := w.finish(ctx); err != nil {
		return nil, Altered{}, err
	}
	// A condition that is true everywhere is more often a mistake than a wish.
	if w.out.rows == 0 && base.Rows() > 0 {
		return nil, Altered{}, fmt.Errorf("%w: all samples of %s would be deleted; to empty a dataset, drop it",
			schema.ErrInvalid, base.Dataset)
	}
	next := &schema.Snapshot{Dataset: base.Dataset, Parent: base.Number, Source: a.opts.Source, Schema: p.schema,
		Chunks: w.out.chunks, Sets: altered(base.Sets)}
	// Without a source of its own the snapshot keeps that of its parent.
	if next.Source == "" {
		next.Source = base.Source
	}
	// A split whose samples have all gone is gone too.
	next.Splits = slices.DeleteFunc(w.out.splits, func(s schema.Split) bool { return len(s.Ranges) == 0 })
	return next, w.done, nil
}

// prepare computes what the walk over the pages needs: deleted samples, converted
// columns, and ids of rows that may be inserted.
func (w *application) prepare(ctx context.Context) (err error) {
	// The expression is evaluated for the whole base before the walk, and uses the
	// statistics of chunks to skip reads.
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
	// Only incoming columns of metadata are converted; keys stay as they are in the
	// dataset.
	w.values = make([][]arrow.Array, len(w.added.meta))
	for _, c := range w.meta {
		if c.rows < 0 {
			continue
		}
		if w.values[c.rows], err = w.fit(c); err != nil {
			return err
		}
	}
	// If another column identifies rows, a new row may still have the id of an existing
	// sample. The walk looks for that.
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

// idOf is the id of a row: its own, or one that is derived from its key. So inserting the
// same key again gives the same id.
func (w *application) idOf(row int32) schema.ID {
	at := w.added.rows[row]
	if ids := w.added.batches[at.batch].ids; ids != nil {
		return ids[at.at]
	}
	return schema.SampleID(w.base.Dataset, string(w.keyOf(row)))
}

// stored adapts a snapshot to where.Rows.
type stored struct {
	store store.Store
	snap  *schema.Snapshot
	form  *schema.Form
}

// Form implements where.Rows.
func (s *stored) Form() *schema.Form { return s.form }

// Walk implements where.Rows. It visits the pages of the needed chunks one after the
// other.
func (s *stored) Walk(ctx context.Context, _, _ int64, need func(int64, *schema.Chunk) bool,
	visit func(context.Context, int64, *schema.Page) error) error {
	var pos int64
	var chunks []schema.Chunk
	var starts, ends []int64
	for i := range s.snap.Chunks {
		c := &s.snap.Chunks[i]
		// Whole chunks first: a chunk that is not needed costs no read of its index.
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

// record makes a record of n rows of metadata columns.
func record(fields []arrow.Field, columns []arrow.Array, n int) arrow.Record {
	return array.NewRecord(arrow.NewSchema(fields, nil), columns, int64(n))
}

// page processes the next page of the base. Chunks keep their limits, so that chunks
// without a change are shared as a whole.
func (w *application) page(ctx context.Context, page schema.Chunk, p *schema.Page) error {
	if w.left == 0 {
		w.left, w.clean = w.base.Chunks[w.chunk].Rows, true
	}
	// Matching is cheap, because it reads keys only. Values are compared only on pages with
	// a match.
	changed, err := w.match(p)
	if err == nil && changed {
		changed, err = w.differs(p)
	}
	if err != nil {
		return err
	}
	chunk := w.base.Chunks[w.chunk]
	// After a deleted row, all following rows of the chunk are rewritten to other pages.
	keep := !changed && !w.rewrite && w.out.builder.Rows() == 0
	// Splits are extended for shared pages as well: deletions before them move their
	// positions.
	if err := w.addSplits(p); err != nil {
		return err
	}
	if keep {
		w.out.pages.Add(page)
		w.out.rows += page.Rows
	} else {
		w.clean = false
		if err := w.rewritten(ctx, p); err != nil {
			return err
		}
	}
	w.pos += page.Rows
	w.left -= page.Rows
	last := w.left == 0
	switch {
	// All pages of the chunk were shared, so the base's chunk and its index are too.
	case last && w.clean:
		w.out.pages = schema.PageList{}
		w.out.chunks = append(w.out.chunks, chunk)
	case last:
		err = w.out.flush(ctx)
	// After rewritten rows, a page of at least half the usual size is closed early. The
	// next page of the base can then be shared, since the builder is empty.
	case w.out.builder.Rows() >= w.out.opts.pageRows/2:
		err = w.out.flushPage(ctx)
	}
	if last {
		w.chunk++
	}
	return err
}

// match finds the incoming rows of a page's samples, and the deleted samples. It reports
// whether there are any.
func (w *application) match(p *schema.Page) (some bool, err error) {
	n := p.Rows()
	w.hits, w.gone = append(w.hits[:0], make([]int32, n)...), append(w.gone[:0], make([]bool, n)...)
	var key keyFunc
	if w.opts.Rows != nil {
		key = func(text []byte, i int) ([]byte, bool) {
			id := p.ID(i)
			return append(text, id[:]...), true
		}
		if w.key > 0 {
			key = keysOf(p.Column(w.key))
		}
	}
	// One buffer serves all keys of the page.
	var text []byte
	for i := range n {
		w.hits[i] = -1
		pos := w.pos + int64(i)
		if w.deleted != nil && w.deleted.Has(pos) {
			w.gone[i], some = true, true
			w.done.Deleted++
			continue
		}
		if key == nil {
			continue
		}
		// A row that would be inserted has the id of this sample. It is an error only if
		// no sample has the row's key.
		if row, ok := w.sameID[p.ID(i)]; ok {
			w.taken[row] = pos + 1
		}
		var ok bool
		// A null key identifies nothing.
		if text, ok = key(text[:0], i); !ok {
			continue
		}
		row, ok := w.byKey(text)
		if !ok {
			continue
		}
		if err := w.foundAt(row, pos, p.ID(i)); err != nil {
			return some, err
		}
		some = true
		w.done.Matched++
		if w.opts.Delete {
			w.gone[i] = true
			w.done.Deleted++
		} else {
			w.hits[i] = row
		}
	}
	return some, nil
}

// byKey finds an incoming row. The conversion inside the index expression does not
// allocate.
func (w *application) byKey(key []byte) (row int32, ok bool) {
	row, ok = w.added.byKey[string(key)]
	return row, ok
}

// foundAt notes the position of a row's sample. It fails if the row has one already, or
// another id.
func (w *application) foundAt(row int32, pos int64, id schema.ID) error {
	if other := w.found[row]; other != 0 {
		return fmt.Errorf("%w: the samples at positions %d and %d have the same key %s in column %s, want a column "+
			"whose values are unique, such as id", schema.ErrInvalid, other-1, pos, w.shownKey(w.keyOf(row)),
			schema.Quote(w.opts.On))
	}
	w.found[row] = pos + 1
	at := w.added.rows[row]
	if ids := w.added.batches[at.batch].ids; w.key > 0 && ids != nil && ids[at.at] != id {
		return fmt.Errorf("%w: row %d is for the sample of id %s by column %s, and has the id %s; ids stay as they are",
			schema.ErrInvalid, row, schema.FormatID(id), schema.Quote(w.opts.On), schema.FormatID(ids[at.at]))
	}
	return nil
}

// differs reports whether samples of a page change. Rows with the values that are there
// already change nothing.
func (w *application) differs(p *schema.Page) (bool, error) {
	// Deletions, splits and blobs first: they need no column to be assembled.
	for i, row := range w.hits {
		if w.gone[i] {
			return true, nil
		}
		if row < 0 {
			continue
		}
		at := w.added.rows[row]
		b := &w.added.batches[at.batch]
		if b.split != "" && b.split != w.form.SplitOf(w.pos+int64(i)) {
			return true, nil // the page could be shared if only splits change, but that is rare
		}
		for _, c := range w.blobs {
			if c.rows < 0 || c.from < 0 {
				continue
			}
			// A null in an incoming blob column leaves the sample's blob as it is.
			if ref := b.refs[c.rows][at.at]; ref != nil {
				if have, ok := p.Blob(c.from, i); !ok || have != *ref {
					return true, nil
				}
			}
		}
	}
	for _, c := range w.meta {
		if c.rows < 0 || c.from < 0 || c.key {
			continue
		}
		column, err := w.column(c, p)
		if err != nil {
			return false, err
		}
		if !array.Equal(column, p.Column(c.from)) {
			return true, nil
		}
	}
	return false, nil
}

// column assembles a metadata column of a page. It copies runs of rows with the same
// source, which are long for most changes. Deleted rows are left out. A new column is null
// for samples without an incoming row.
func (w *application) column(c columnPlan, p *schema.Page) (arrow.Array, error) {
	b := schema.NewColumnBuilder(c.field)
	n := len(w.hits)
	// isBase reports whether a row's value comes from the base: it has no incoming row,
	// or that row lacks the column.
	isBase := func(i int) bool { return !w.gone[i] && (w.hits[i] < 0 || c.rows < 0 || c.key) }
	for i := 0; i < n; {
		j := i + 1
		var err error
		switch {
		case w.gone[i]:
		case isBase(i):
			// The longest run of rows from the base is copied at once.
			for j < n && isBase(j) {
				j++
			}
			if c.from < 0 {
				err = b.AppendNulls(j - i)
			} else {
				err = b.Append(p.Column(c.from), i, j-i)
			}
		default:
			at := w.added.rows[w.hits[i]]
			// As is the longest run of consecutive incoming rows of one batch.
			for j < n && !w.gone[j] && w.hits[j] == w.hits[i]+int32(j-i) &&
				w.added.rows[w.hits[j]].batch == at.batch {
				j++
			}
			err = b.Append(w.values[c.rows][at.batch], int(at.at), j-i)
		}
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", schema.Quote(c.field.Name), err)
		}
		i = j
	}
	return b.Array(), nil
}

// rewritten adds the samples of a page in their new form. The rows go through output.add,
// which cuts new pages. Pages of the base are never modified in place: other snapshots
// share them.
func (w *application) rewritten(ctx context.Context, p *schema.Page) error {
	var ids []schema.ID
	for i, gone := range w.gone {
		if !gone {
			ids = append(ids, p.ID(i))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	columns := make([]arrow.Array, len(w.meta))
	for i, c := range w.meta {
		var err error
		if columns[i], err = w.column(c, p); err != nil {
			return err
		}
	}
	refs := make([][]*schema.BlobRef, len(w.blobs))
	for i, c := range w.blobs {
		refs[i] = w.references(c, p, len(ids))
	}
	return w.out.add(ctx, ids, record(fieldsOf(w.meta), columns, len(ids)), refs)
}

// references are the references of a blob column of a page, for the n rows that stay.
func (w *application) references(c columnPlan, p *schema.Page, n int) []*schema.BlobRef {
	// One allocation for all references that come from the base.
	slab, refs := make([]schema.BlobRef, n), make([]*schema.BlobRef, 0, n)
	for i, row := range w.hits {
		if w.gone[i] {
			continue
		}
		var ref *schema.BlobRef
		if row >= 0 && c.rows >= 0 {
			at := w.added.rows[row]
			ref = w.added.batches[at.batch].refs[c.rows][at.at]
		}
		if ref == nil && c.from >= 0 {
			if have, ok := p.Blob(c.from, i); ok {
				ref = &slab[len(refs)]
				*ref = have
			}
		}
		refs = append(refs, ref)
	}
	return refs
}

// addSplits adds the remaining samples of a page to their splits. It runs before the rows
// are added, and counts positions itself.
func (w *application) addSplits(p *schema.Page) error {
	// Rows in the unfinished page are included in out.rows.
	at := w.out.rows
	for i := range p.Rows() {
		if w.gone[i] {
			continue
		}
		split := w.form.SplitOf(w.pos + int64(i))
		if row := w.hits[i]; row >= 0 {
			if b := &w.added.batches[w.added.rows[row].batch]; b.split != "" {
				split = b.split
			}
		}
		// A sample may be in no split; it stays so.
		if split != "" {
			w.out.splits = addRange(w.out.splits, split, schema.Range{Start: at, End: at + 1})
		}
		at++
	}
	return checkRanges(w.out.splits)
}

// finish handles the rows without a sample. With MissingError it fails and names the first
// ones.
func (w *application) finish(ctx context.Context) error {
	// Rows that no sample was found for, in the order of Write.
	var missing []int32
	for row, pos := range w.found {
		if pos == 0 {
			missing = append(missing, int32(row))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	switch w.opts.Missing {
	case MissingIgnore:
		w.done.Ignored = int64(len(missing))
		return nil
	case MissingInsert:
		w.done.Inserted = int64(len(missing))
		return w.insert(ctx, missing)
	}
	var named []string
	for _, row := range missing[:min(len(missing), mostListed+1)] {
		named = append(named, fmt.Sprintf("%s (row %d)", w.shownKey(w.keyOf(row)), row))
	}
	if more := len(missing) - mostListed; more > 0 {
		named = append(named[:mostListed], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%w: %d rows have keys in column %s that no sample of %s@%d has: %s; missing=\"insert\" adds "+
		"them, and \"ignore\" leaves them out", schema.ErrInvalid, len(missing), schema.Quote(w.opts.On), w.base.Dataset,
		w.base.Number, listed(named))
}

// insert adds rows as new samples after all others, in chunks of their own: the base's
// last chunk stays shared.
func (w *application) insert(ctx context.Context, rows []int32) error {
	if err := w.checkInserts(rows); err != nil {
		return err
	}
	for len(rows) > 0 {
		// In pieces, so that columns of few rows are in memory at once.
		some := rows[:min(len(rows), rowsAtOnce)]
		rows = rows[len(some):]
		if err := w.insertSome(ctx, some); err != nil {
			return err
		}
	}
	return w.out.flush(ctx)
}

// checkInserts fails if a new sample lacks a value or has the id of another sample.
func (w *application) checkInserts(rows []int32) error {
	lacks := func(row int32, what string, f arrow.Field) error {
		return &schema.FieldError{Field: fmt.Sprintf("row %d, key %s", row, w.shownKey(w.keyOf(row))),
			Got:  fmt.Sprintf("no %s for column %s", what, schema.Quote(f.Name)),
			Want: "one, as the column has no nulls and the row is to be inserted"}
	}
	for _, c := range w.meta {
		if c.rows < 0 && !c.field.Nullable {
			return lacks(rows[0], "value", c.field)
		}
	}
	for _, row := range rows {
		at := w.added.rows[row]
		for _, c := range w.blobs {
			if !c.field.Nullable && (c.rows < 0 || w.added.batches[at.batch].refs[c.rows][at.at] == nil) {
				return lacks(row, "blob", c.field)
			}
		}
		if w.taken != nil && w.taken[row] != 0 {
			return fmt.Errorf("%w: row %d, key %s, is to be inserted with the id %s, which the sample at position %d "+
				"has", schema.ErrInvalid, row, w.shownKey(w.keyOf(row)), schema.FormatID(w.idOf(row)), w.taken[row]-1)
		}
	}
	return nil
}

// insertSome adds some of the new samples. Values are copied row by row, because missing
// rows are scattered over the batches.
func (w *application) insertSome(ctx context.Context, rows []int32) error {
	ids := make([]schema.ID, len(rows))
	at := w.out.rows
	for i, row := range rows {
		ids[i] = w.idOf(row)
		split := w.opts.Split
		if b := &w.added.batches[w.added.rows[row].batch]; b.split != "" {
			split = b.split
		}
		w.out.splits = addRange(w.out.splits, split, schema.Range{Start: at, End: at + 1})
		at++
	}
	if err := checkRanges(w.out.splits); err != nil {
		return err
	}
	columns := make([]arrow.Array, len(w.meta))
	for i, c := range w.meta {
		b := schema.NewColumnBuilder(c.field)
		for _, row := range rows {
			at := w.added.rows[row]
			var err error
			if c.rows < 0 {
				err = b.AppendNulls(1)
			} else {
				err = b.Append(w.values[c.rows][at.batch], int(at.at), 1)
			}
			if err != nil {
				return fmt.Errorf("column %s, row %d: %w", schema.Quote(c.field.Name), row, err)
			}
		}
		columns[i] = b.Array()
	}
	refs := make([][]*schema.BlobRef, len(w.blobs))
	for i, c := range w.blobs {
		refs[i] = make([]*schema.BlobRef, len(rows))
		for j, row := range rows {
			if at := w.added.rows[row]; c.rows >= 0 {
				refs[i][j] = w.added.batches[at.batch].refs[c.rows][at.at]
			}
		}
	}
	return w.out.add(ctx, ids, record(fieldsOf(w.meta), columns, len(rows)), refs)
}

// altered marks the object sets from which rows were attached: the snapshot's rows are no
// longer those of the sets' sources.
func altered(sets []schema.SetRef) []schema.SetRef {
	sets = slices.Clone(sets)
	for i := range sets {
		sets[i].Altered = sets[i].Blob != schema.BlobRef{} // a set without a blob is the store's own, from which nothing is attached
	}
	return sets
}

package ingest

import (
	"context"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// page goes over the next page of the base. Chunks stay chunks, so that those in which nothing changes are shared.
func (w *application) page(ctx context.Context, page schema.Chunk, p *schema.Page) error {
	if w.left == 0 {
		w.left, w.clean = w.base.Chunks[w.chunk].Rows, true
	}
	changed, err := w.match(p)
	if err == nil && changed {
		changed, err = w.differs(p)
	}
	if err != nil {
		return err
	}
	chunk := w.base.Chunks[w.chunk]
	// What is behind rows that are gone moves up.
	keep := !changed && !w.rewrite && w.out.builder.Rows() == 0 && (!w.classes || chunk.Pages > 0)
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
	case last && w.clean:
		w.out.pages = schema.PageList{}
		w.out.chunks = append(w.out.chunks, chunk)
	case last:
		err = w.out.flush(ctx)
	case w.out.builder.Rows() >= w.out.opts.pageRows/2:
		err = w.out.flushPage(ctx)
	}
	if last {
		w.chunk++
	}
	return err
}

// match finds the rows that are for the samples of a page, and the samples that are deleted. It reports whether there
// are any.
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
		if row, ok := w.sameID[p.ID(i)]; ok {
			w.taken[row] = pos + 1
		}
		var ok bool
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

func (w *application) byKey(key []byte) (row int32, ok bool) {
	row, ok = w.added.byKey[string(key)]
	return row, ok
}

// foundAt notes where the sample of a row is.
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

// differs reports whether the samples of a page change.
func (w *application) differs(p *schema.Page) (bool, error) {
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
			return true, nil // its page stays, if nothing else changes; but that is rare
		}
		for _, c := range w.blobs {
			if c.rows < 0 || c.from < 0 {
				continue
			}
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

// column puts a metadata column of a page together.
func (w *application) column(c columnPlan, p *schema.Page) (arrow.Array, error) {
	b := schema.NewColumnBuilder(c.field)
	n := len(w.hits)
	isBase := func(i int) bool { return !w.gone[i] && (w.hits[i] < 0 || c.rows < 0 || c.key) }
	for i := 0; i < n; {
		j := i + 1
		var err error
		switch {
		case w.gone[i]:
		case isBase(i):
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

// rewritten adds the samples of a page as they become.
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

// references are those of a blob column of a page, of n rows that stay.
func (w *application) references(c columnPlan, p *schema.Page, n int) []*schema.BlobRef {
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

// addSplits adds the samples of a page that stay to their splits.
func (w *application) addSplits(p *schema.Page) error {
	// Rows that wait in the page being built are counted already.
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
		if split != "" {
			w.out.splits = addRange(w.out.splits, split, schema.Range{Start: at, End: at + 1})
		}
		at++
	}
	return checkRanges(w.out.splits)
}

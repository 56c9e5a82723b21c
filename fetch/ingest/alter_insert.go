package ingest

import (
	"context"
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// finish deals with the rows that were not found.
func (w *application) finish(ctx context.Context) error {
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

// insert adds rows as new samples behind all others, in chunks of their own.
func (w *application) insert(ctx context.Context, rows []int32) error {
	if err := w.checkInserts(rows); err != nil {
		return err
	}
	for len(rows) > 0 {
		some := rows[:min(len(rows), rowsAtOnce)]
		rows = rows[len(some):]
		if err := w.insertSome(ctx, some); err != nil {
			return err
		}
	}
	return w.out.flush(ctx)
}

// checkInserts looks for what new samples lack.
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

package ingest

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

const (
	// maxRanges bounds the ranges of all splits together: the snapshot's record
	// holds them, and interleaved splits make one of every row.
	maxRanges = 1 << 16
	// rebases is how often a commit is tried again after another writer's.
	rebases = 8
	// rowsAtOnce is how many rows are worked on without a turn.
	rowsAtOnce = 1024
	// namedDuplicates is how many ids an error about duplicates names.
	namedDuplicates = 5
)

// Write adds rows, in this order, behind those of the calls before. meta has
// the schema's metadata columns in order (nil will do if there are none), blobs
// the content by blob column and row, nil being null. Nothing passed in is kept.
// After an error the Writer is of no more use.
func (w *Writer) Write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record, blobs [][][]byte) error {
	if w.err != nil {
		return w.err
	}
	if err := w.write(ctx, split, ids, meta, blobs); err != nil {
		w.err = err
		return err
	}
	return nil
}

func (w *Writer) write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record, blobs [][][]byte) error {
	if split == "" {
		split = w.opts.Split
	} else if err := schema.CheckName("split", split); err != nil {
		return err
	}
	if err := w.check(ids, meta, blobs); err != nil {
		return err
	}
	if len(ids) == 0 {
		return nil
	}
	if err := w.extend(split, int64(len(ids))); err != nil {
		return err
	}
	refs, err := w.put(ctx, blobs)
	if err != nil {
		return err
	}
	w.ids = append(w.ids, ids...)
	return w.add(ctx, ids, meta, refs)
}

// check compares the shape of what is written with the schema.
func (w *Writer) check(ids []schema.ID, meta arrow.Record, blobs [][][]byte) error {
	rows := len(ids)
	switch {
	case meta == nil && len(w.meta) > 0:
		return fmt.Errorf("%w: the rows lack their %d metadata columns", schema.ErrInvalid, len(w.meta))
	case meta != nil && int(meta.NumCols()) != len(w.meta):
		return fmt.Errorf("%w: the rows have %d metadata columns, the schema has %d", schema.ErrInvalid, meta.NumCols(),
			len(w.meta))
	case meta != nil && int(meta.NumRows()) != rows:
		return fmt.Errorf("%w: %d ids for %d rows of metadata", schema.ErrInvalid, rows, meta.NumRows())
	case len(blobs) != len(w.blobs):
		return fmt.Errorf("%w: the rows have %d blob columns, the schema has %d", schema.ErrInvalid, len(blobs),
			len(w.blobs))
	}
	for i, f := range w.meta {
		col := meta.Column(i)
		if name := meta.ColumnName(i); name != f.Name {
			return fmt.Errorf("%w: metadata column %d is %q, the schema has %q", schema.ErrInvalid, i, name, f.Name)
		}
		if !arrow.TypeEqual(col.DataType(), f.Type) {
			return fmt.Errorf("%w: column %q is %s, the schema says %s", schema.ErrInvalid, f.Name,
				schema.ShownType(col.DataType()), schema.ShownType(f.Type))
		}
		if !f.Nullable && col.NullN() > 0 {
			return fmt.Errorf("%w: column %q has %d nulls and must have none", schema.ErrInvalid, f.Name, col.NullN())
		}
	}
	for c, f := range w.blobs {
		if len(blobs[c]) != rows {
			return fmt.Errorf("%w: %d ids for %d blobs of column %q", schema.ErrInvalid, rows, len(blobs[c]), f.Name)
		}
		if f.Nullable {
			continue
		}
		if i := slices.IndexFunc(blobs[c], func(b []byte) bool { return b == nil }); i >= 0 {
			return fmt.Errorf("%w: column %q is null in row %d and must not be", schema.ErrInvalid, f.Name,
				w.rows+int64(i))
		}
	}
	return nil
}

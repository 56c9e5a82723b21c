package ingest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

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
	w.rows += int64(len(ids))

	// Pages and chunks are cut at the same rows whatever the calls were.
	for start := 0; start < len(ids); {
		end := start + w.builder.Room(meta, start, len(ids), w.opts.PageRows)
		if err := w.appendRows(ids, meta, refs, start, end); err != nil {
			return err
		}
		start = end
		if w.builder.Full(w.opts.PageRows) {
			if err := w.flushPage(ctx); err != nil {
				return err
			}
		}
		if w.pages.Len() == schema.ChunkPages {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Writer) appendRows(ids []schema.ID, meta arrow.Record, refs [][]*schema.BlobRef, start, end int) error {
	part := make([][]*schema.BlobRef, len(refs))
	for c := range refs {
		part[c] = refs[c][start:end]
	}
	if meta != nil {
		meta = meta.NewSlice(int64(start), int64(end))
		defer meta.Release()
	}
	return w.turn(end-start, func() error { return w.builder.AppendBatch(ids[start:end], meta, part) })
}

// turn runs a piece of work on n rows when it may.
func (w *Writer) turn(n int, piece func() error) error {
	if w.opts.Turn == nil || n <= rowsAtOnce {
		return piece()
	}
	return w.opts.Turn(piece)
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

// extend adds n rows to the end of a split.
func (w *Writer) extend(split string, n int64) error {
	rows := w.rows
	w.splits = addRange(w.splits, split, schema.Range{Start: rows, End: rows + n})
	return checkRanges(w.splits)
}

// addRange adds r, which lies behind all ranges of all splits, to the named one.
func addRange(splits []schema.Split, name string, r schema.Range) []schema.Split {
	i := slices.IndexFunc(splits, func(s schema.Split) bool { return s.Name == name })
	if i < 0 {
		return append(splits, schema.Split{Name: name, Ranges: []schema.Range{r}})
	}
	s := &splits[i]
	if last := &s.Ranges[len(s.Ranges)-1]; last.End == r.Start {
		last.End = r.End
	} else {
		s.Ranges = append(s.Ranges, r)
	}
	return splits
}

func checkRanges(splits []schema.Split) error {
	n := 0
	for _, s := range splits {
		n += len(s.Ranges)
	}
	if n > maxRanges {
		return fmt.Errorf("%w: the splits change more than %d times; write the rows split by split", schema.ErrLimit,
			maxRanges)
	}
	return nil
}

// put stores the blobs with at most opts.Workers puts at a time. The
// references are valid until the next call.
func (w *Writer) put(ctx context.Context, blobs [][][]byte) ([][]*schema.BlobRef, error) {
	w.cells = w.cells[:0]
	for _, column := range blobs {
		for _, data := range column {
			w.cells = append(w.cells, cell{data: data})
		}
	}
	defer clear(w.cells) // the caller's bytes are not kept

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(w.opts.Workers, len(w.cells)) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(w.cells) || ctx.Err() != nil {
					return
				}
				c := &w.cells[i]
				if c.data == nil {
					continue
				}
				ref, err := w.in.Put(ctx, c.data)
				if err != nil {
					cancel(fmt.Errorf("store a blob of %d bytes: %w", len(c.data), err))
					return
				}
				c.ref = ref
			}
		})
	}
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}

	refs := make([][]*schema.BlobRef, len(blobs))
	i := 0
	slab := make([]schema.BlobRef, len(w.cells))
	for c := range blobs {
		refs[c] = make([]*schema.BlobRef, len(blobs[c]))
		for row := range blobs[c] {
			if w.cells[i].data != nil {
				slab[i] = w.cells[i].ref
				refs[c][row] = &slab[i]
			}
			i++
		}
	}
	return refs, nil
}

// flush stores the chunk that was being built.
func (w *Writer) flush(ctx context.Context) error {
	if err := w.flushPage(ctx); err != nil || w.pages.Len() == 0 {
		return err
	}
	data, chunk := w.pages.Finish()
	if data != nil {
		var err error
		if chunk.BlobRef, err = w.in.Put(ctx, data); err != nil {
			return fmt.Errorf("store the index of manifest chunk %d: %w", len(w.chunks), err)
		}
	}
	w.chunks = append(w.chunks, chunk)
	return nil
}

// flushPage stores the page that was being built.
func (w *Writer) flushPage(ctx context.Context) error {
	if w.builder.Rows() == 0 {
		return nil
	}
	var data []byte
	var page schema.Chunk
	err := w.turn(w.builder.Rows(), func() (err error) {
		data, page, err = w.builder.Finish()
		return err
	})
	if err != nil {
		return fmt.Errorf("build a page of manifest chunk %d: %w", len(w.chunks), err)
	}
	if page.BlobRef, err = w.in.Put(ctx, data); err != nil {
		return fmt.Errorf("store a page of manifest chunk %d: %w", len(w.chunks), err)
	}
	w.pages.Add(page)
	return nil
}

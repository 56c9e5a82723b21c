package ingest

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// output builds the manifest of a snapshot and stores it through an ingest, together with
// the blobs of its rows. It is not safe for concurrent use. Its owner is a Writer or an
// application. Pages are stored as soon as they are full, so its memory does not grow with
// the rows except for splits, chunks and marks.
type output struct {
	putter
	opts    outputOptions
	builder *schema.ChunkBuilder
	chunks  []schema.Chunk
	pages   schema.PageList // of the chunk being built
	// marks identify all pages, in order. They are compared with the pages of a base: see
	// Writer.samePages.
	marks  []mark
	splits []schema.Split
	rows   int64 // added so far
}

// mark identifies the content of a page, wherever the page is stored.
type mark struct {
	rows, size int64
	sum        schema.Sum
}

// markOf is the mark of a page.
func markOf(page schema.Chunk) mark { return mark{page.Rows, page.Size, page.Sum} }

// outputOptions are the fields of Options that an output needs.
type outputOptions struct {
	schema   *arrow.Schema
	mem      memory.Allocator
	pageRows int
	workers  int
	turn     func(piece func() error) error
}

// newOutput returns an output, which owns the ingest from then on. Zero options mean
// their defaults.
func newOutput(in store.Ingest, opts outputOptions) output {
	if opts.mem == nil {
		opts.mem = memory.DefaultAllocator
	}
	if opts.pageRows <= 0 {
		opts.pageRows = schema.PageRows
	}
	return output{putter: newPutter(in, opts.workers), opts: opts,
		builder: schema.NewChunkBuilder(opts.mem, opts.schema)}
}

// close ends the ingest and releases memory. It may be called again. It does not store the
// unfinished page: without a commit it has no use.
func (o *output) close() error {
	o.release()
	return o.end()
}

// release returns the memory of the page being built to its allocator.
func (o *output) release() {
	if o.builder != nil {
		o.builder.Release()
		o.builder = nil
	}
}

// turn runs a piece of work on n rows within a turn, or at once if it is short.
func (o *output) turn(n int, piece func() error) error {
	if o.opts.turn == nil || n <= rowsAtOnce {
		return piece()
	}
	return o.opts.turn(piece)
}

// add adds rows. It cuts pages and chunks at the same rows for any division into calls,
// so that equal rows give equal pages.
func (o *output) add(ctx context.Context, ids []schema.ID, meta arrow.Record, refs [][]*schema.BlobRef) error {
	o.rows += int64(len(ids))
	// A call can contribute to several pages, and a page can have rows of several calls.
	for start := 0; start < len(ids); {
		// A page ends at its number of rows or at its number of bytes, whichever comes
		// first.
		end := start + o.builder.Room(meta, start, len(ids), o.opts.pageRows)
		if err := o.appendRows(ids, meta, refs, start, end); err != nil {
			return err
		}
		start = end
		if o.builder.Full(o.opts.pageRows) {
			if err := o.flushPage(ctx); err != nil {
				return err
			}
		}
		if o.pages.Len() == schema.ChunkPages {
			if err := o.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendRows adds the rows from start to end to the page being built.
func (o *output) appendRows(ids []schema.ID, meta arrow.Record, refs [][]*schema.BlobRef, start, end int) error {
	part := make([][]*schema.BlobRef, len(refs))
	for c := range refs {
		part[c] = refs[c][start:end]
	}
	if meta != nil {
		meta = meta.NewSlice(int64(start), int64(end))
		defer meta.Release()
	}
	return o.turn(end-start, func() error { return o.builder.AppendBatch(ids[start:end], meta, part) })
}

// flush stores the chunk that was being built: its last page, and the index of its pages.
func (o *output) flush(ctx context.Context) error {
	if err := o.flushPage(ctx); err != nil || o.pages.Len() == 0 {
		return err
	}
	// The pages are stored already. An index makes a chunk of many pages one reference in
	// the snapshot's record.
	data, chunk := o.pages.Finish()
	// A chunk of one page has no index.
	if data != nil {
		var err error
		if chunk.BlobRef, err = o.in.Put(ctx, data); err != nil {
			return fmt.Errorf("store the index of manifest chunk %d: %w", len(o.chunks), err)
		}
	}
	o.chunks = append(o.chunks, chunk)
	return nil
}

// flushPage stores the page that was being built. An empty page is not stored: flush is
// called again at a commit.
func (o *output) flushPage(ctx context.Context) error {
	if o.builder.Rows() == 0 {
		return nil
	}
	var data []byte
	var page schema.Chunk
	err := o.turn(o.builder.Rows(), func() (err error) {
		data, page, err = o.builder.Finish()
		return err
	})
	if err != nil {
		return fmt.Errorf("build a page of manifest chunk %d: %w", len(o.chunks), err)
	}
	if page.BlobRef, err = o.in.Put(ctx, data); err != nil {
		return fmt.Errorf("store a page of manifest chunk %d: %w", len(o.chunks), err)
	}
	o.pages.Add(page)
	o.marks = append(o.marks, markOf(page))
	return nil
}

// extend adds the next n rows to the end of a split, before they are added themselves.
func (o *output) extend(split string, n int64) error {
	o.splits = addRange(o.splits, split, schema.Range{Start: o.rows, End: o.rows + n})
	return checkRanges(o.splits)
}

// addRange adds r to the named split. r begins at or after the end of all ranges, and
// extends the split's last range if it continues it.
func addRange(splits []schema.Split, name string, r schema.Range) []schema.Split {
	i := slices.IndexFunc(splits, func(s schema.Split) bool { return s.Name == name })
	if i < 0 {
		return append(splits, schema.Split{Name: name, Ranges: []schema.Range{r}})
	}
	s := &splits[i]
	if n := len(s.Ranges); n > 0 && s.Ranges[n-1].End == r.Start {
		s.Ranges[n-1].End = r.End
	} else {
		s.Ranges = append(s.Ranges, r)
	}
	return splits
}

// checkRanges fails with schema.ErrLimit if the splits have too many ranges. A client that
// interleaves the rows of two splits would otherwise make one range of each row.
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

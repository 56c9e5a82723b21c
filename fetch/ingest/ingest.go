// Package ingest turns rows into a snapshot: it stores their blobs, writes the
// manifest in chunks, and commits. Imports and DoPut are its users.
//
// What it commits depends on the rows, their order and their splits alone, not
// on how they were divided into calls nor on how many workers stored them. So
// repeating an import finds out that nothing has changed, and commits nothing.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Mode says what a snapshot is made of.
type Mode int

const (
	// Create makes the first snapshot of a dataset: schema.ErrExists if it has one.
	Create Mode = iota
	// Append makes a snapshot of the newest one's rows and the new ones, which
	// must have the same schema: schema.ErrNotFound if there is none.
	Append
	// Replace makes a snapshot of just these rows, whatever there was before.
	Replace
)

var modes = []string{"create", "append", "replace"}

func (m Mode) String() string {
	if m < 0 || int(m) >= len(modes) {
		return fmt.Sprintf("mode %d", int(m))
	}
	return modes[m]
}

// ParseMode reads "create", "append" or "replace".
func ParseMode(s string) (Mode, error) {
	if i := slices.Index(modes, s); i >= 0 {
		return Mode(i), nil
	}
	return 0, &schema.FieldError{Field: "mode", Got: fmt.Sprintf("%q", s), Want: `"create", "append" or "replace"`}
}

// DefaultSplit is where rows go of which nobody says to which split they belong.
const DefaultSplit = "train"

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

// Options say what a Writer writes.
type Options struct {
	Dataset string
	Split   string // of rows written with no split; DefaultSplit if empty
	Source  string // for people, where the rows came from
	Schema  *arrow.Schema
	Mode    Mode
	Workers int              // blobs put at a time; 2 × GOMAXPROCS if 0
	Mem     memory.Allocator // for the manifest page being built; Go's if nil
	// PageRows is how many rows a manifest page has; schema.PageRows if 0. One whose rows are large has
	// fewer: see schema.PageBytes.
	PageRows int
	// Turn runs a piece of work that occupies a processor for some milliseconds,
	// when it may, and returns its error; nil runs it at once.
	Turn func(piece func() error) error
}

// Writer writes one snapshot. It is not safe for concurrent use. It holds one
// manifest chunk and 16 bytes for each row written.
type Writer struct {
	store store.Store
	in    store.Ingest
	opts  Options
	meta  []arrow.Field // metadata columns
	blobs []arrow.Field // blob columns

	base    *schema.Snapshot // newest snapshot when the writer was opened, or nil
	builder *schema.ChunkBuilder
	chunks  []schema.Chunk
	pages   schema.PageList // of the chunk being built
	splits  []schema.Split  // positions counted from the first row written
	ids     []schema.ID     // of all rows; Commit sorts them
	rows    int64           // written so far

	cells []cell // reused between calls
	err   error  // why the writer can no longer be used
}

// cell is a blob on its way into the store.
type cell struct {
	data []byte
	ref  schema.BlobRef
}

// New opens a Writer. The caller must Close it.
func New(ctx context.Context, store store.Store, opts Options) (*Writer, error) {
	if err := schema.CheckName("dataset", opts.Dataset); err != nil {
		return nil, err
	}
	if opts.Split == "" {
		opts.Split = DefaultSplit
	}
	if err := schema.CheckName("split", opts.Split); err != nil {
		return nil, err
	}
	if opts.Schema == nil {
		return nil, &schema.FieldError{Field: "schema", Want: "the columns of the rows"}
	}
	if err := schema.CheckSchema(opts.Schema); err != nil {
		return nil, err
	}
	if opts.Workers <= 0 {
		opts.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	if opts.Mem == nil {
		opts.Mem = memory.DefaultAllocator
	}
	if opts.PageRows <= 0 {
		opts.PageRows = schema.PageRows
	}
	w := &Writer{store: store, opts: opts}
	for _, f := range opts.Schema.Fields()[1:] {
		if schema.IsBlob(f) {
			w.blobs = append(w.blobs, f)
		} else {
			w.meta = append(w.meta, f)
		}
	}
	if err := w.findBase(ctx); err != nil {
		return nil, err
	}
	in, err := store.Begin(ctx, opts.Dataset)
	if err != nil {
		return nil, fmt.Errorf("open an ingest into %s: %w", opts.Dataset, err)
	}
	w.in = in
	w.builder = schema.NewChunkBuilder(opts.Mem, opts.Schema)
	return w, nil
}

// findBase looks up the newest snapshot and whether the mode allows for it.
func (w *Writer) findBase(ctx context.Context) error {
	base, err := w.store.Snapshot(ctx, w.opts.Dataset, 0)
	switch {
	case errors.Is(err, schema.ErrNotFound):
		base = nil
	case err != nil:
		return fmt.Errorf("look up dataset %s: %w", w.opts.Dataset, err)
	}
	switch w.opts.Mode {
	case Create:
		if base != nil {
			return fmt.Errorf("%w: dataset %s, its newest snapshot is %d; append to it or replace it", schema.ErrExists,
				w.opts.Dataset, base.Number)
		}
	case Append:
		if base == nil {
			return fmt.Errorf("append: %w", err)
		}
		if diff := schemaDiff(base.Schema, w.opts.Schema); diff != "" {
			return fmt.Errorf("%w: the rows do not fit dataset %s: %s", schema.ErrInvalid, w.opts.Dataset, diff)
		}
	case Replace:
	default:
		return &schema.FieldError{Field: "mode", Got: w.opts.Mode.String(), Want: "create, append or replace"}
	}
	w.base = base
	return nil
}

// schemaDiff says how two logical schemas differ, or "".
func schemaDiff(have, got *arrow.Schema) string {
	for i := range max(have.NumFields(), got.NumFields()) {
		switch {
		case i >= got.NumFields():
			return fmt.Sprintf("column %q is missing", have.Field(i).Name)
		case i >= have.NumFields():
			return fmt.Sprintf("it has no column %q", got.Field(i).Name)
		}
		h, g := have.Field(i), got.Field(i)
		switch {
		case h.Name != g.Name:
			return fmt.Sprintf("column %d is %q, not %q", i, h.Name, g.Name)
		case !h.Equal(g):
			return fmt.Sprintf("column %q is %s, not %s", h.Name, describeField(h), describeField(g))
		}
	}
	return ""
}

func describeField(f arrow.Field) string {
	s := f.Type.String()
	if schema.IsBlob(f) {
		s = "blob"
	}
	if f.Nullable {
		s += " or null"
	}
	if classes := schema.Classes(f); classes != nil {
		s += fmt.Sprintf(" of the %d classes %.80q", len(classes), classes)
	}
	if media := schema.Media(f); media != "" {
		s += " (" + media + ")"
	}
	return s
}

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
			return fmt.Errorf("%w: column %q is %s, the schema says %s", schema.ErrInvalid, f.Name, col.DataType(),
				f.Type)
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

// Close ends the ingest. Without a Commit nothing of it can be seen. It may be
// called again, and after Commit.
func (w *Writer) Close() error {
	if w.builder != nil {
		w.builder.Release()
		w.builder = nil
	}
	if w.err == nil {
		w.err = errors.New("the writer is closed")
	}
	if w.in == nil {
		return nil
	}
	in := w.in
	w.in = nil
	if err := in.Close(); err != nil {
		return fmt.Errorf("close the ingest: %w", err)
	}
	return nil
}

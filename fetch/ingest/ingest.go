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
	s := schema.ShownType(f.Type)
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

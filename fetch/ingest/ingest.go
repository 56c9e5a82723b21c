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
	// Drop names columns of the newest snapshot that a Replace may leave out or make another of. Any other one
	// that it would is an error, as everyone who reads it would lose it.
	Drop []string
}

// Writer writes one snapshot. It is not safe for concurrent use. It holds one
// manifest chunk and 16 bytes for each row written.
type Writer struct {
	output // of the rows written; its splits count from the first of them
	store  store.Store
	opts   Options
	meta   []arrow.Field // metadata columns
	blobs  []arrow.Field // blob columns

	base  *schema.Snapshot // newest snapshot when the writer was opened, or nil
	ids   []schema.ID      // of all rows; Commit sorts them
	notes []string         // of a commit
	err   error            // why the writer can no longer be used
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
	w.output = newOutput(in, outputOptions{opts.Schema, opts.Mem, opts.PageRows, opts.Workers, opts.Turn})
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
		if base == nil {
			break
		}
		if err := checkReplaced(base, w.opts.Schema, w.opts.Drop); err != nil {
			return err
		}
	default:
		return &schema.FieldError{Field: "mode", Got: w.opts.Mode.String(), Want: "create, append or replace"}
	}
	w.base = base
	return nil
}

// schemaDiff says how two logical schemas differ, or "".
func schemaDiff(have, got *arrow.Schema) string {
	for _, f := range got.Fields() {
		if !have.HasField(f.Name) {
			return fmt.Sprintf("it has no column %q; leave the column out, or add it by a merge first", f.Name)
		}
	}
	for _, f := range have.Fields() {
		if !got.HasField(f.Name) {
			return fmt.Sprintf("column %q is missing", f.Name)
		}
	}
	for i := range have.NumFields() {
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
	if w.err == nil {
		w.err = errors.New("the writer is closed")
	}
	return w.close()
}

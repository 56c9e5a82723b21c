package source

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// Frame is a table whose cells are all that there is: none is a path to a file that would be read.
type Frame struct {
	Schema  *arrow.Schema
	Columns []arrow.Array
	Rows    int
}

// ReadFrame reads a .csv, .tsv, .jsonl or .parquet file into memory. The columns that are named by text are text, as
// they are written. In files that have no types, cells tell the types of the others.
func ReadFrame(ctx context.Context, path string, text []string) (*Frame, error) {
	if !slices.Contains(tableExtensions, extension(path)) {
		return nil, fmt.Errorf("%w: %s is no table: want a file that ends in .csv, .tsv, .jsonl or .parquet",
			schema.ErrInvalid, Quoted(path))
	}
	t, err := readTable(ctx, filepath.Dir(path), []string{filepath.Base(path)}, tableOptions{text: text})
	if err != nil {
		return nil, err
	}
	if len(t.bad) > 0 {
		return nil, fmt.Errorf("%w: %d rows cannot be read; the first is %s: %s", schema.ErrInvalid, len(t.bad), t.bad[0].at,
			t.bad[0].reason)
	}
	return &Frame{arrow.NewSchema(t.fields, nil), t.columns, t.rows}, nil
}

// frameMessage is how many bytes of a frame a batch has, about.
const frameMessage = 8 << 20

// Batches cuts the frame into batches of a size that a connection carries well.
func (f *Frame) Batches(yield func(arrow.Record) bool) {
	var size int64
	for _, c := range f.Columns {
		size += sizeOf(c.Data())
	}
	step := max(1, int(int64(f.Rows)*frameMessage/max(size, frameMessage)))
	for start := 0; start < f.Rows; start += step {
		end := min(start+step, f.Rows)
		columns := make([]arrow.Array, len(f.Columns))
		for i, c := range f.Columns {
			columns[i] = array.NewSlice(c, int64(start), int64(end))
		}
		rec := array.NewRecord(f.Schema, columns, int64(end-start))
		for _, c := range columns {
			c.Release()
		}
		more := yield(rec)
		rec.Release()
		if !more {
			return
		}
	}
}

func sizeOf(d arrow.ArrayData) (n int64) {
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, c := range d.Children() {
		n += sizeOf(c)
	}
	return n
}

package ingest

import (
	"context"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// incoming are the rows that were added to an alteration, in memory of its own.
type incoming struct {
	meta, blobs []arrow.Field
	key         int // of the metadata columns, where it is not the id
	batches     []incomingBatch
	rows        []incomingRow
	byKey       map[string]int32 // numbers of rows
}

// incomingBatch are rows of one call.
type incomingBatch struct {
	first int    // number of its first row
	split string // "" if none was named
	ids   []schema.ID
	meta  []arrow.Array
	refs  [][]*schema.BlobRef // by column; null ones leave a sample's blob as it is
}

// incomingRow is where a row lies.
type incomingRow struct{ batch, at int32 }

const (
	// rowKept is what a row takes in memory besides its values: its place, its entry in the table of keys, where it
	// was found, and its id.
	rowKept = 160
	// refKept is what the reference of a blob takes.
	refKept = 96
)

// Write adds rows, in the form of Writer.Write. ids may be nil where rows are found by another column. A split of ""
// leaves samples in the split that they are in. Nothing passed in is kept.
func (a *Alteration) Write(ctx context.Context, split string, ids []schema.ID, meta arrow.Record,
	blobs [][][]byte) error {
	if a.err != nil {
		return a.err
	}
	if err := a.add(ctx, split, ids, meta, blobs); err != nil {
		a.err = err
		return err
	}
	return nil
}

func (a *Alteration) add(ctx context.Context, split string, ids []schema.ID, meta arrow.Record,
	blobs [][][]byte) error {
	if split != "" {
		if err := schema.CheckName("split", split); err != nil {
			return err
		}
	}
	n, err := a.count(ids, meta, blobs)
	if err != nil || n == 0 {
		return err
	}
	if len(a.added.rows) > math.MaxInt32-n {
		return fmt.Errorf("%w: more than 2^31-1 rows to merge", schema.ErrLimit)
	}
	var size int64
	for i := range a.added.meta {
		size += sizeOf(meta.Column(i).Data())
	}
	// The values twice, as they may be made to fit other types.
	if err := a.keep(2*size + int64(n)*(rowKept+refKept*int64(len(blobs)))); err != nil {
		return err
	}
	b := incomingBatch{first: len(a.added.rows), split: split, ids: append([]schema.ID(nil), ids...)}
	for i, f := range a.added.meta {
		f.Nullable = true // what the dataset allows is seen later
		column := schema.NewColumnBuilder(f)
		if err := column.Append(meta.Column(i), 0, n); err != nil {
			return fmt.Errorf("column %s: %w", schema.Quote(f.Name), err)
		}
		b.meta = append(b.meta, column.Array())
	}
	if !a.opts.Delete {
		if b.refs, err = a.put(ctx, blobs); err != nil {
			return err
		}
	}
	a.added.batches = append(a.added.batches, b)
	return a.index(&a.added.batches[len(a.added.batches)-1], n)
}

// count checks the shape of rows, and counts them.
func (a *Alteration) count(ids []schema.ID, meta arrow.Record, blobs [][][]byte) (int, error) {
	r := &a.added
	n := len(ids)
	if ids == nil && meta != nil {
		n = int(meta.NumRows())
	}
	switch {
	case a.opts.Rows == nil:
		return 0, fmt.Errorf("%w: rows for an alteration that takes none", schema.ErrInvalid)
	case ids == nil && n > 0 && a.opts.On == schema.IDColumn:
		return 0, &schema.FieldError{Field: "on", Got: `"id" for rows without ids`,
			Want: "a column \"id\" in the rows, or on=\"…\", the name of a column whose values are unique"}
	}
	if meta == nil && len(r.meta) > 0 || meta != nil && (int(meta.NumCols()) != len(r.meta) || int(meta.NumRows()) != n) ||
		len(blobs) != len(r.blobs) {
		return 0, fmt.Errorf("%w: the rows do not have the columns of their schema", schema.ErrInvalid)
	}
	for i, f := range r.meta {
		if !arrow.TypeEqual(meta.Column(i).DataType(), f.Type) {
			return 0, fmt.Errorf("%w: column %s is %s, the schema says %s", schema.ErrInvalid, schema.Quote(f.Name),
				schema.ShownType(meta.Column(i).DataType()), schema.ShownType(f.Type))
		}
	}
	for _, column := range blobs {
		if len(column) != n {
			return 0, fmt.Errorf("%w: %d rows with %d blobs", schema.ErrInvalid, n, len(column))
		}
	}
	return n, nil
}

// index enters the keys of a batch of n rows.
func (a *Alteration) index(b *incomingBatch, n int) error {
	r := &a.added
	key := keysOfIDs(b.ids)
	if a.opts.On != schema.IDColumn {
		key = keysOf(b.meta[r.key])
	}
	var text []byte
	for i := range n {
		number := len(r.rows)
		var ok bool
		if text, ok = key(text[:0], i); !ok {
			return &schema.FieldError{Field: fmt.Sprintf("column %s, row %d", schema.Quote(a.opts.On), number),
				Got: "null", Want: "a key in every row"}
		}
		if other, twice := r.byKey[string(text)]; twice {
			return fmt.Errorf("%w: rows %d and %d have the same key %s in column %s, want each key once",
				schema.ErrInvalid, other, number, a.shownKey(text), schema.Quote(a.opts.On))
		}
		r.byKey[string(text)] = int32(number)
		r.rows = append(r.rows, incomingRow{int32(len(r.batches) - 1), int32(i)})
	}
	return nil
}

// shownKey is a key as messages have it.
func (a *Alteration) shownKey(key []byte) string {
	if a.opts.On == schema.IDColumn && len(key) == len(schema.ID{}) {
		return schema.FormatID(schema.ID(key))
	}
	return schema.Quote(string(key))
}

// keyOf is the key of a row.
func (a *Alteration) keyOf(row int32) []byte {
	at := a.added.rows[row]
	b := &a.added.batches[at.batch]
	if a.opts.On == schema.IDColumn {
		return b.ids[at.at][:]
	}
	key, _ := keysOf(b.meta[a.added.key])(nil, int(at.at))
	return key
}

// sizeOf is what an array's buffers take.
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

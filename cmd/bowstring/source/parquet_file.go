package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"

	"bowstring/cmd/bowstring/source/parquet"
	"bowstring/schema"
)

const (
	// parquetRows is how many rows are decoded at a time, at most.
	parquetRows = 64
	// parquetBytes is how many bytes they have, but that one row may have more.
	parquetBytes = 16 << 20
)

func openParquetFile(path string) (*parquet.File, error) {
	in, err := openFile(path)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	return parquet.Open(in)
}

// parquetRecords reads the rows of a file as those of a layout.
type parquetRecords struct {
	file    *parquet.File
	records *parquet.Records
	fields  []arrow.Field // as the rows are handed out
}

// openRecords opens a file whose columns the layout has been told of.
func (l *parquetLayout) openRecords(path string) (_ *parquetRecords, err error) {
	f, err := openParquetFile(path)
	if err != nil {
		return nil, err
	}
	r := &parquetRecords{file: f, fields: l.fields}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	columns, err := f.Columns(func(string) bool { return false })
	if err != nil {
		return nil, err
	}
	var (
		at    []int
		micro []bool
	)
	for _, want := range l.fields {
		i := columnNamed(columns, want.Name)
		if i < 0 {
			return nil, fmt.Errorf("column %q is gone", want.Name)
		}
		at, micro = append(at, i), append(micro, l.micro(want.Name))
	}
	rows := int64(parquetRows)
	if n := f.RowBytes(); n > 0 {
		rows = min(rows, max(parquetBytes/n, 1))
	}
	r.records, err = f.Records(at, micro, int(rows))
	return r, err
}

func (r *parquetRecords) close() error { return r.file.Close() }

// next returns the next record, which is the caller's to release, or io.EOF. bad says of rows why they are not of the
// columns' types; what the record has in their place is null.
func (r *parquetRecords) next(ctx context.Context) (_ arrow.Record, bad map[int]string, err error) {
	rec, err := r.records.Next(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer rec.Release()
	var columns []arrow.Array
	defer func() {
		for _, c := range columns {
			c.Release()
		}
	}()
	for i, f := range r.fields {
		wide, err := widen(ctx, rec.Column(i), f.Type)
		if err != nil {
			if bad == nil {
				bad = map[int]string{}
			}
			if wide, err = widenRows(ctx, rec.Column(i), f, bad); err != nil {
				return nil, nil, err
			}
		}
		columns = append(columns, wide)
	}
	return array.NewRecord(arrow.NewSchema(r.fields, nil), columns, rec.NumRows()), bad, nil
}

// widenRows is widen row by row. Rows of which it makes nothing become null, and are noted in bad.
func widenRows(ctx context.Context, a arrow.Array, f arrow.Field, bad map[int]string) (arrow.Array, error) {
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for row := range a.Len() {
		one := array.NewSlice(a, int64(row), int64(row)+1)
		// Without the values of other rows, which lists leave in memory.
		alone, err := array.Concatenate([]arrow.Array{one}, memory.DefaultAllocator)
		if err == nil {
			var wide arrow.Array
			if wide, err = widen(ctx, alone, f.Type); err == nil {
				parts = append(parts, wide)
			}
			alone.Release()
		}
		if err != nil {
			bad[row] = fmt.Sprintf("%s: %s of type %s is none of %s, which other files need", Quoted(f.Name),
				one.ValueStr(0), schema.ShownType(a.DataType()), schema.ShownType(f.Type))
			parts = append(parts, array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 1))
		}
		one.Release()
	}
	return array.Concatenate(parts, memory.DefaultAllocator)
}

// readParquetTable reads Parquet files into memory, whose columns are of one layout.
func readParquetTable(ctx context.Context, root string, files []string, choice *choice) (*table, error) {
	t := &table{}
	l := newParquetLayout(choice)
	for _, name := range files {
		if err := l.look(name, filepath.Join(root, name)); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(name), err)
		}
	}
	for name, err := range l.settle() {
		return nil, fmt.Errorf("%w: %s: %w", schema.ErrInvalid, Quoted(name), err)
	}
	t.fields = l.fields
	parts := make([][]arrow.Array, len(t.fields))
	for _, name := range files {
		if err := t.readParquet(ctx, l, root, name, parts); err != nil {
			return nil, fmt.Errorf("%s: %w", Quoted(name), err)
		}
	}
	t.rows = len(t.lines)
	for c, f := range t.fields {
		if len(parts[c]) == 0 {
			t.columns = append(t.columns, array.MakeArrayOfNull(memory.DefaultAllocator, f.Type, 0))
			continue
		}
		column, err := array.Concatenate(parts[c], memory.DefaultAllocator)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", f.Name, err)
		}
		t.columns = append(t.columns, column)
		for _, p := range parts[c] {
			p.Release()
		}
	}
	return t, nil
}

func (t *table) readParquet(ctx context.Context, l *parquetLayout, root, name string, parts [][]arrow.Array) error {
	records, err := l.openRecords(filepath.Join(root, name))
	if err != nil {
		return err
	}
	defer func() { _ = records.close() }()
	for line := 0; ; {
		rec, bad, err := records.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for row, why := range bad {
			rec.Release()
			return fmt.Errorf("%w: row %d: %s", schema.ErrInvalid, line+row, why)
		}
		for c, column := range rec.Columns() {
			column.Retain()
			parts[c] = append(parts[c], column)
		}
		for range rec.NumRows() {
			t.lines = append(t.lines, place{name, line})
			line++
		}
		rec.Release()
	}
}

// recordBytes is the memory that a record holds.
func recordBytes(rec arrow.Record) (n int64) {
	for _, c := range rec.Columns() {
		n += dataBytes(c.Data())
	}
	return n
}

func dataBytes(d arrow.ArrayData) (n int64) {
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, child := range d.Children() {
		n += dataBytes(child)
	}
	return n
}

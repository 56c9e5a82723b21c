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
	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"

	"bowstring/schema"
)

const (
	// parquetRows is how many rows are decoded at a time, at most.
	parquetRows = 64
	// parquetBytes is how many bytes they have, but that one row may have more.
	parquetBytes = 16 << 20
)

// rowsAtATime is how many rows of a file are decoded at a time, by what its row groups say of their size.
func rowsAtATime(r *file.Reader) int64 {
	rows := int64(parquetRows)
	for i := range r.NumRowGroups() {
		g := r.MetaData().RowGroup(i)
		if n, size := g.NumRows(), g.TotalByteSize(); n > 0 && size > 0 {
			rows = min(rows, max(parquetBytes/(size/n+1), 1))
		}
	}
	return rows
}

// parquetFile is an open Parquet file. Its methods turn the decoder's panics
// about malformed pages into errors.
type parquetFile struct {
	file   *file.Reader
	arrow  *pqarrow.FileReader
	schema *arrow.Schema
	stored *arrow.Schema // what the file's ARROW:schema says, or nil
}

func openParquetFile(path string) (f *parquetFile, err error) {
	defer caught(&err)
	props := parquet.NewReaderProperties(memory.DefaultAllocator)
	props.BufferedStreamEnabled = true
	in, err := openFile(path)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	r, err := file.NewParquetReader(in, file.WithReadProps(props))
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	f = &parquetFile{file: r}
	if f.arrow, err = pqarrow.NewFileReader(r, pqarrow.ArrowReadProperties{BatchSize: rowsAtATime(r)},
		memory.DefaultAllocator); err == nil {
		f.schema, err = f.arrow.Schema()
	}
	if text := r.MetaData().KeyValueMetadata().FindValue("ARROW:schema"); err == nil && text != nil {
		f.stored = storedSchema(*text)
		f.schema = restoredTypes(f.schema, f.stored)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return f, nil
}

func (f *parquetFile) close() error { return f.file.Close() }

func (f *parquetFile) records(ctx context.Context) (r *parquetRecords, err error) {
	defer caught(&err)
	return newParquetRecords(ctx, f)
}

func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("malformed Parquet: %v", r)
	}
}

// readParquetTable reads Parquet files with the same columns into memory.
func readParquetTable(ctx context.Context, root string, files []string) (*table, error) {
	t := &table{}
	var parts [][]arrow.Array
	for _, name := range files {
		err := func() error {
			f, err := openParquetFile(filepath.Join(root, name))
			if err != nil {
				return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
			}
			defer func() { _ = f.close() }()
			if parts == nil {
				t.fields = plainFields(f.schema.Fields())
				parts = make([][]arrow.Array, len(t.fields))
			} else if diff := fieldsDiff(t.fields, plainFields(f.schema.Fields())); diff != "" {
				return fmt.Errorf("%w: not the columns of %s: %s", schema.ErrInvalid, Quoted(files[0]), diff)
			}
			records, err := f.records(ctx)
			if err != nil {
				return err
			}
			defer records.release()
			for line := 0; ; {
				rec, err := records.next()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				for c, column := range rec.Columns() {
					column.Retain()
					parts[c] = append(parts[c], column)
				}
				for range rec.NumRows() {
					t.lines = append(t.lines, place{name, line})
					line++
				}
			}
		}()
		if err != nil {
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

// plainFields leaves out what Parquet notes on fields, such as their ids there.
func plainFields(fields []arrow.Field) []arrow.Field {
	var out []arrow.Field
	for _, f := range fields {
		out = append(out, arrow.Field{Name: f.Name, Type: plainType(f.Type), Nullable: true})
	}
	return out
}

func plainType(t arrow.DataType) arrow.DataType {
	inner := func(f arrow.Field) arrow.Field {
		return arrow.Field{Name: f.Name, Type: plainType(f.Type), Nullable: f.Nullable}
	}
	switch t := t.(type) {
	case *arrow.ListType:
		return arrow.ListOfField(inner(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), inner(t.ElemField()))
	case *arrow.StructType:
		var fields []arrow.Field
		for _, f := range t.Fields() {
			fields = append(fields, inner(f))
		}
		return arrow.StructOf(fields...)
	case arrow.ExtensionType:
		return plainType(t.StorageType())
	}
	return t
}

func fieldsDiff(want, got []arrow.Field) string {
	for i := range max(len(want), len(got)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%q is missing", want[i].Name)
		case i >= len(want):
			return fmt.Sprintf("%q is one more", got[i].Name)
		case want[i].Name != got[i].Name || !arrow.TypeEqual(want[i].Type, got[i].Type):
			return fmt.Sprintf("%q of type %s in the place of %q of type %s", got[i].Name, got[i].Type, want[i].Name,
				want[i].Type)
		}
	}
	return ""
}

// recordBytes is the memory that a record holds.
func recordBytes(rec arrow.Record) (n int64) {
	for _, c := range rec.Columns() {
		n += dataBytes(c.Data())
	}
	return n
}

func dataBytes(d arrow.ArrayData) (n int64) {
	if d == nil {
		return 0
	}
	for _, b := range d.Buffers() {
		if b != nil {
			n += int64(b.Len())
		}
	}
	for _, child := range d.Children() {
		n += dataBytes(child)
	}
	return n + dictionaryBytes(d)
}

func dictionaryBytes(d arrow.ArrayData) int64 {
	if dict, ok := d.Dictionary().(*array.Data); ok && dict != nil {
		return dataBytes(dict)
	}
	return 0
}

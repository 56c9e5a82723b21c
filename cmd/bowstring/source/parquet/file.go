// Package parquet reads the rows of Parquet files as arrays of Arrow. Arrow's own library decodes most pages. This
// package adds the codecs and the encoding that it lacks, and puts the arrays together from levels and values: the
// library's reader of Arrow arrays loses durations and wraps timestamps, fails on lists of fixed size that are null, and
// decodes in goroutines of its own.
//
// The files are not trusted. The decoder panics about malformed pages, so all of it runs in the goroutine of the
// caller, where the panics are recovered and become errors.
package parquet

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
	pq "github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"
)

// Column is a column of a file.
type Column struct {
	arrow.Field
	// Err says why the column cannot be read, nil if it can. Field has no type then.
	Err error
	// Times says what INT96 timestamps in the column hold.
	Times Times
	// Micro is the type of the column if its INT96 timestamps are read as microseconds.
	Micro arrow.DataType
}

// input is where the bytes of a file come from.
type input struct {
	from io.ReaderAt
	size int64
	mem  memory.Allocator // for what is decoded
}

// File is an open file. Its methods are for one goroutine at a time.
type File struct {
	reader  *file.Reader
	in      input
	columns []*node
	leaves  []*node // by number of the leaf
}

// Open reads the metadata of a file. The file is closed by Close, or here if there is an error.
func Open(in *os.File) (f *File, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	defer caught(&err)
	info, err := in.Stat()
	if err != nil {
		return nil, err
	}
	mem := boundedBy(info.Size())
	props := pq.NewReaderProperties(mem)
	props.BufferedStreamEnabled = true
	r, err := file.NewParquetReader(in, file.WithReadProps(props))
	if err != nil {
		return nil, err
	}
	f = &File{reader: r, in: input{in, info.Size(), mem}}
	if err := f.grow(); err != nil {
		return nil, err
	}
	return f, nil
}

// Close closes the file.
func (f *File) Close() error { return f.reader.Close() }

// NumRows is the number of rows, as the metadata says.
func (f *File) NumRows() int64 { return f.reader.NumRows() }

// Metadata is a value of the metadata of the file, or of the Arrow schema in it; "" if there is none.
func (f *File) Metadata(key string) string {
	if v := f.reader.MetaData().KeyValueMetadata().FindValue(key); v != nil {
		return *v
	}
	s, err := f.origin()
	if err != nil || s == nil {
		return ""
	}
	md := s.Metadata()
	v, _ := md.GetValue(key)
	return v
}

// Columns lists the columns. The timestamps of type INT96 in those that wanted says are read for that: their type
// follows from what they hold.
func (f *File) Columns(wanted func(name string) bool) (_ []Column, err error) {
	defer caught(&err)
	columns := make([]Column, len(f.columns))
	for i, n := range f.columns {
		c := &columns[i]
		if c.Err = n.problem(); c.Err == nil && wanted(n.name) {
			if c.Times, c.Err = f.times(n); c.Err != nil {
				return nil, fmt.Errorf("column %q: %w", n.name, c.Err)
			}
		}
		c.Field = arrow.Field{Name: n.name, Nullable: true}
		if c.Err == nil {
			c.Type, c.Micro = n.dataType(false), n.dataType(true)
		}
	}
	return columns, nil
}

// RowBytes is how many bytes a row has in the row group whose rows have most.
func (f *File) RowBytes() int64 {
	most := int64(0)
	for i := range f.reader.NumRowGroups() {
		g := f.reader.MetaData().RowGroup(i)
		if n, size := g.NumRows(), g.TotalByteSize(); n > 0 && size > 0 {
			most = max(most, size/n+1)
		}
	}
	return most
}

// grow makes the trees of the columns.
func (f *File) grow() error {
	s := f.reader.MetaData().Schema
	was, err := f.origin()
	if err != nil {
		return err
	}
	root := s.Root()
	if was != nil && was.NumFields() != root.NumFields() {
		was = nil // of another file
	}
	g := grower{schema: s}
	for i := range root.NumFields() {
		var as arrow.DataType
		if was != nil {
			as = was.Field(i).Type
		}
		n := g.node(root.Field(i), level{}, as)
		f.columns = append(f.columns, n)
	}
	f.leaves = g.leaves
	if len(f.columns) == 0 {
		return errors.New("it has no columns")
	}
	return nil
}

// caught makes an error of a panic of the decoder.
func caught(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("malformed Parquet: %v", r)
	}
}

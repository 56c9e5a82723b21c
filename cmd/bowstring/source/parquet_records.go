package source

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/bitutil"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"github.com/apache/arrow/go/v17/parquet/file"
	"github.com/apache/arrow/go/v17/parquet/pqarrow"
)

// parquetRecords reads the rows of a file. Arrow's decoder panics about malformed pages, and
// its readers of structs decode in goroutines of their own, where nobody can recover:
// the process would end. So each leaf of a column is decoded by the calling goroutine, and structs
// are put together here.
type parquetRecords struct {
	schema  *arrow.Schema
	columns []*parquetColumn
	batch   int64 // rows at a time
	current arrow.Record
}

// parquetColumn is a column of a file, being read.
type parquetColumn struct {
	field  *pqarrow.SchemaField
	leaves []*pqarrow.ColumnReader // in the order of the tree
	// whole is Arrow's own reader, for columns with lists, or nil. Where there are structs among
	// the lists, each batch is decoded by the leaves before: what they get over, it gets over.
	whole *pqarrow.ColumnReader
}

// newParquetRecords may panic about malformed metadata.
func newParquetRecords(ctx context.Context, f *parquetFile) (_ *parquetRecords, err error) {
	r := &parquetRecords{schema: f.schema, batch: f.arrow.Props.BatchSize}
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	groups := make([]int, f.file.NumRowGroups())
	for i := range groups {
		groups[i] = i
	}
	for i := range f.arrow.Manifest.Fields {
		c := &parquetColumn{field: &f.arrow.Manifest.Fields[i]}
		r.columns = append(r.columns, c)
		lists, structs := shapeOf(c.field)
		if structs || !lists {
			if err := c.openLeaves(ctx, f.arrow, c.field, groups); err != nil {
				return nil, err
			}
		}
		if !lists {
			continue
		}
		leaves := map[int]bool{}
		leavesOf(c.field, leaves)
		if c.whole, err = f.arrow.GetFieldReader(ctx, i, leaves, groups); err != nil {
			return nil, err
		}
	}
	if len(r.columns) == 0 {
		return nil, errors.New("it has no columns")
	}
	return r, nil
}

// shapeOf says whether there are structs in a column, and what is neither struct nor leaf.
func shapeOf(field *pqarrow.SchemaField) (lists, structs bool) {
	if len(field.Children) == 0 {
		return false, false
	}
	structs = field.Field.Type.ID() == arrow.STRUCT
	lists = !structs
	for i := range field.Children {
		l, s := shapeOf(&field.Children[i])
		lists, structs = lists || l, structs || s
	}
	return lists, structs
}

func leavesOf(field *pqarrow.SchemaField, found map[int]bool) {
	if len(field.Children) == 0 {
		found[field.ColIndex] = true
	}
	for i := range field.Children {
		leavesOf(&field.Children[i], found)
	}
}

// openLeaves opens a reader for each leaf, as if it were a column of the file.
func (c *parquetColumn) openLeaves(ctx context.Context, whole *pqarrow.FileReader, field *pqarrow.SchemaField,
	groups []int) error {
	for i := range field.Children {
		if err := c.openLeaves(ctx, whole, &field.Children[i], groups); err != nil {
			return err
		}
	}
	if len(field.Children) > 0 {
		return nil
	}
	manifest, flat := *whole.Manifest, *whole
	manifest.Fields = []pqarrow.SchemaField{*field}
	flat.Manifest = &manifest
	leaf, err := flat.GetFieldReader(ctx, 0, map[int]bool{field.ColIndex: true}, groups)
	if err == nil {
		c.leaves = append(c.leaves, leaf)
	}
	return err
}

func (r *parquetRecords) release() {
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
	for _, c := range r.columns {
		for _, leaf := range c.leaves {
			leaf.Release()
		}
		if c.whole != nil {
			c.whole.Release()
		}
	}
	r.columns = nil
}

// next returns the next record, which the reader owns until then, or io.EOF. A malformed
// page is an error, after which the reader is only to be released.
func (r *parquetRecords) next() (_ arrow.Record, err error) {
	defer caught(&err)
	if r.current != nil {
		r.current.Release()
		r.current = nil
	}
	columns := make([]arrow.Array, 0, len(r.columns))
	defer func() {
		for _, a := range columns {
			a.Release()
		}
	}()
	for i, c := range r.columns {
		a, err := c.next(r.batch)
		if err != nil {
			return nil, err
		}
		if a, err = restored(a, r.schema.Field(i).Type); err != nil {
			return nil, fmt.Errorf("column %q: %w", r.schema.Field(i).Name, err)
		}
		columns = append(columns, a)
	}
	rows := columns[0].Len()
	for i, a := range columns {
		if a.Len() != rows {
			return nil, fmt.Errorf("column %q has %d rows where %q has %d", r.schema.Field(i).Name, a.Len(),
				r.schema.Field(0).Name, rows)
		}
	}
	if rows == 0 {
		return nil, io.EOF
	}
	r.current = array.NewRecord(r.schema, columns, int64(rows))
	return r.current, nil
}

// next decodes the next rows of the column.
func (c *parquetColumn) next(rows int64) (arrow.Array, error) {
	for _, leaf := range c.leaves {
		if err := leaf.LoadBatch(rows); err != nil {
			return nil, err
		}
	}
	if c.whole == nil {
		leaves := c.leaves
		return build(c.field, &leaves, rows)
	}
	chunks, err := c.whole.NextBatch(rows)
	if err != nil {
		return nil, err
	}
	defer chunks.Release()
	return oneArray(chunks)
}

// build makes the array of a leaf or a struct from the leaves, of which it takes its own.
func build(field *pqarrow.SchemaField, leaves *[]*pqarrow.ColumnReader, rows int64) (arrow.Array, error) {
	first := (*leaves)[0]
	if len(field.Children) == 0 {
		*leaves = (*leaves)[1:]
		chunks, err := first.BuildArray(rows)
		if err != nil {
			return nil, err
		}
		defer chunks.Release()
		return oneArray(chunks)
	}
	var (
		fields   []arrow.Field
		children []arrow.ArrayData
	)
	for i := range field.Children {
		child, err := build(&field.Children[i], leaves, rows)
		if err != nil {
			return nil, err
		}
		defer child.Release()
		fields = append(fields, *field.Children[i].Field)
		children = append(children, child.Data())
	}
	n, nulls := int64(children[0].Len()), int64(0)
	buffers := []*memory.Buffer{nil}
	if field.Field.Nullable {
		levels, err := first.GetDefLevels()
		if err != nil {
			return nil, err
		}
		bits := make([]byte, bitutil.BytesForBits(rows))
		out := file.ValidityBitmapInputOutput{ReadUpperBound: rows, Read: rows, ValidBits: bits}
		file.DefLevelsToBitmap(levels, field.LevelInfo, &out)
		if n, nulls = out.Read, out.NullCount; nulls > 0 {
			buffers[0] = memory.NewBufferBytes(bits)
		}
	}
	for i, child := range children {
		if int64(child.Len()) != n {
			return nil, fmt.Errorf("field %q of %q has %d rows, not %d", fields[i].Name, field.Field.Name, child.Len(),
				n)
		}
	}
	data := array.NewData(arrow.StructOf(fields...), int(n), buffers, children, int(nulls), 0)
	defer data.Release()
	return array.NewStructData(data), nil
}

// oneArray makes one array of chunks, which stay the caller's.
func oneArray(chunks *arrow.Chunked) (arrow.Array, error) {
	switch list := chunks.Chunks(); len(list) {
	case 0:
		return array.MakeArrayOfNull(memory.DefaultAllocator, chunks.DataType(), 0), nil
	case 1:
		list[0].Retain()
		return list[0], nil
	default:
		return array.Concatenate(list, memory.DefaultAllocator)
	}
}

package parquet

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
)

// Records reads the rows of a file.
type Records struct {
	columns []*node
	micro   []bool  // whether INT96 timestamps of the column are microseconds
	leaves  []*leaf // by number; nil if no column that is read has it
	schema  *arrow.Schema
	rows    int
}

// Records reads some columns, as they are numbered in the file, so many rows at a time. micro says of each of them
// whether its INT96 timestamps become microseconds, not nanoseconds.
func (f *File) Records(columns []int, micro []bool, rows int) (_ *Records, err error) {
	defer caught(&err)
	r := &Records{leaves: make([]*leaf, len(f.leaves)), micro: micro, rows: max(rows, 1)}
	var fields []arrow.Field
	for i, c := range columns {
		n := f.columns[c]
		if err := n.problem(); err != nil {
			return nil, fmt.Errorf("column %q: %w", n.name, err)
		}
		r.columns = append(r.columns, n)
		fields = append(fields, arrow.Field{Name: n.name, Type: n.dataType(micro[i]), Nullable: true})
		for i := n.first; i < n.first+n.leaves(); i++ {
			r.leaves[i] = f.leaf(f.leaves[i])
		}
	}
	if len(r.columns) == 0 {
		return nil, errors.New("no column of it is read")
	}
	r.schema = arrow.NewSchema(fields, nil)
	return r, nil
}

// Next returns the next record, which is the caller's to release, or io.EOF. After another error there is no more.
func (r *Records) Next(ctx context.Context) (_ arrow.Record, err error) {
	defer caught(&err)
	batches := make([]batch, len(r.leaves))
	for i, l := range r.leaves {
		if l == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		levels, err := l.fill(r.rows)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", l.node.column.Path(), err)
		}
		batches[i] = batch{leaf: l, def: l.def[:levels]}
		if len(l.rep) > 0 {
			batches[i].rep = l.rep[:levels]
		}
	}
	var columns []arrow.Array
	defer func() {
		for _, a := range columns {
			a.Release()
		}
	}()
	for i, n := range r.columns {
		data, err := n.build(batches, r.micro[i])
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", n.name, err)
		}
		columns = append(columns, array.MakeFromData(data))
		data.Release()
	}
	rows := columns[0].Len()
	for i, a := range columns {
		if a.Len() != rows {
			return nil, fmt.Errorf("column %q has %d rows where %q has %d", r.columns[i].name, a.Len(),
				r.columns[0].name, rows)
		}
	}
	if rows == 0 {
		return nil, io.EOF
	}
	for i := range batches {
		if b := &batches[i]; b.leaf != nil {
			b.leaf.drop(len(b.def), b.used)
		}
	}
	return array.NewRecord(r.schema, columns, int64(rows)), nil
}

package source

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/float16"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// column collects the values of a metadata column: Go values through a builder,
// cells as slices of the arrays they are in.
type column struct {
	builder array.Builder
	parts   []arrow.Array // complete runs
	last    Cell          // array and end of the run that grows, behind parts
	start   int
}

// add appends a value; see Sample.Meta for what it may be.
func (c *column) add(v any) error {
	cell, ok := v.(Cell)
	if !ok {
		c.endRun()
		return appendValue(c.builder, v)
	}
	if cell.Array == c.last.Array && cell.Row == c.last.Row {
		c.last.Row++
		return nil
	}
	c.endRun()
	c.endBuilt()
	c.last, c.start = Cell{cell.Array, cell.Row + 1}, cell.Row
	// The sample may be released before the column is finished.
	cell.Array.Retain()
	return nil
}

// endRun turns the run of cells into a part.
func (c *column) endRun() {
	if c.last.Array != nil {
		c.parts = append(c.parts, array.NewSlice(c.last.Array, int64(c.start), int64(c.last.Row)))
		c.last.Array.Release()
		c.last = Cell{}
	}
}

// endBuilt turns what was built into a part.
func (c *column) endBuilt() {
	if c.builder.Len() > 0 {
		c.parts = append(c.parts, c.builder.NewArray())
	}
}

// finish returns the values as one array, and empties the column.
func (c *column) finish(mem memory.Allocator) (arrow.Array, error) {
	c.endRun()
	c.endBuilt()
	defer c.releaseParts()
	switch len(c.parts) {
	case 0:
		return c.builder.NewArray(), nil
	case 1:
		c.parts[0].Retain()
		return c.parts[0], nil
	default:
		return array.Concatenate(c.parts, mem)
	}
}

func (c *column) releaseParts() {
	for _, p := range c.parts {
		p.Release()
	}
	c.parts = c.parts[:0]
}

func (c *column) release() {
	c.endRun()
	c.releaseParts()
	c.builder.Release()
}

// appendValue appends a Go value to the builder of its type: integers and floats
// of their very type, []any for lists, nil for null.
func appendValue(b array.Builder, v any) error {
	if v == nil {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		return appendAs(b.Append, v)
	case *array.Int8Builder:
		return appendAs(b.Append, v)
	case *array.Int16Builder:
		return appendAs(b.Append, v)
	case *array.Int32Builder:
		return appendAs(b.Append, v)
	case *array.Int64Builder:
		return appendAs(b.Append, v)
	case *array.Uint8Builder:
		return appendAs(b.Append, v)
	case *array.Uint16Builder:
		return appendAs(b.Append, v)
	case *array.Uint32Builder:
		return appendAs(b.Append, v)
	case *array.Uint64Builder:
		return appendAs(b.Append, v)
	case *array.Float16Builder:
		return appendAs(func(x float16.Num) { b.Append(x) }, v)
	case *array.Float32Builder:
		return appendAs(b.Append, v)
	case *array.Float64Builder:
		return appendAs(b.Append, v)
	case *array.StringBuilder:
		return appendAs(b.Append, v)
	case *array.FixedSizeListBuilder: // is a ListLikeBuilder too
		list, ok := v.([]any)
		if want := int(b.Type().(*arrow.FixedSizeListType).Len()); !ok || len(list) != want {
			return fmt.Errorf("got %T of length %d, want a list of %d", v, len(list), want)
		}
		b.Append(true)
		return appendAll(b.ValueBuilder(), list)
	case *array.ListBuilder:
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("got %T, want a list", v)
		}
		b.Append(true)
		return appendAll(b.ValueBuilder(), list)
	}
	return fmt.Errorf("no way to append %T to %s", v, b.Type())
}

func appendAll(b array.Builder, list []any) error {
	for _, v := range list {
		if err := appendValue(b, v); err != nil {
			return err
		}
	}
	return nil
}

func appendAs[T any](add func(T), v any) error {
	x, ok := v.(T)
	if !ok {
		return fmt.Errorf("got %T, want %T", v, x)
	}
	add(x)
	return nil
}

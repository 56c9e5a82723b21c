package schema

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// ColumnBuilder puts a metadata column together out of rows of other arrays. It is not safe for concurrent use.
type ColumnBuilder struct {
	c *columnBuilder
}

// NewColumnBuilder returns one for a field of a type that CheckSchema allows. Its memory is the garbage collector's.
func NewColumnBuilder(f arrow.Field) *ColumnBuilder {
	return &ColumnBuilder{newColumnBuilder(memory.DefaultAllocator, f)}
}

// Append copies n rows of a sound array of the field's type, from row start on. ErrInvalid if a null is among them that
// the field does not allow, ErrLimit if they are too many for one array.
func (b *ColumnBuilder) Append(a arrow.Array, start, n int) error {
	v := viewOf(a.Data(), start, n)
	if err := b.c.check(&v, 0, n); err != nil {
		return err
	}
	b.c.append(&v, 0, n)
	return nil
}

// AppendNulls adds n nulls; ErrInvalid if the field does not allow them.
func (b *ColumnBuilder) AppendNulls(n int) error {
	if !b.c.field.Nullable {
		return fmt.Errorf("%w: null in %q, which is not nullable", ErrInvalid, b.c.field.Name)
	}
	b.c.appendEmpty(n)
	return nil
}

// Array is the column. It needs no Release, and nothing may be appended afterwards.
func (b *ColumnBuilder) Array() arrow.Array {
	v := b.c.view()
	return v.array()
}

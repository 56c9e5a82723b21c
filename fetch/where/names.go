package where

import (
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/expr-lang/expr/types"

	"bowstring/schema"
)

// columns are what an expression may name. To look a name up takes the same time whatever the number of columns.
type columns struct{ schema *arrow.Schema }

// field is the column of a name, which may be a blob column.
func (c *columns) field(name string) (f arrow.Field, ok bool) {
	at := c.schema.FieldIndices(name)
	if len(at) == 0 {
		return f, false
	}
	return c.schema.Field(at[0]), true
}

// part is the blob column of which a name is a part, such as image.size.
func (c *columns) part(name string) (blob arrow.Field, part string, ok bool) {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return blob, "", false
	}
	if part = name[dot+1:]; part != schema.SizePart && part != schema.KeyPart {
		return blob, "", false
	}
	if _, taken := c.field(name); taken {
		return blob, "", false
	}
	if blob, ok = c.field(name[:dot]); !ok || !schema.IsBlob(blob) {
		return blob, "", false
	}
	return blob, part, true
}

// has reports whether an expression may name it.
func (c *columns) has(name string) bool {
	if name == schema.PositionColumn || name == schema.SplitColumn {
		return true
	}
	if f, ok := c.field(name); ok {
		return !schema.IsBlob(f)
	}
	_, _, ok := c.part(name)
	return ok
}

// isBlob reports whether it is a blob column, which has no value but its parts.
func (c *columns) isBlob(name string) bool {
	f, ok := c.field(name)
	return ok && schema.IsBlob(f)
}

// typeOf is the type of what has a value.
func (c *columns) typeOf(name string) (types.Type, error) {
	f, ok := c.field(name)
	switch {
	case ok && name == schema.IDColumn:
		return types.String, nil
	case ok:
		if t := typeOf(f.Type); t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("%w: column %q has type %s, which expressions cannot read", schema.ErrInvalid, name, f.Type)
	case name == schema.PositionColumn:
		return types.Int, nil
	case name == schema.SplitColumn:
		return types.String, nil
	}
	if _, part, _ := c.part(name); part == schema.SizePart {
		return types.Int, nil
	}
	return types.String, nil
}

// isNullable reports whether it may be null.
func (c *columns) isNullable(name string) bool {
	if f, ok := c.field(name); ok {
		return f.Nullable && name != schema.IDColumn
	}
	blob, _, ok := c.part(name)
	return ok && blob.Nullable
}

// isStruct reports whether it is a column of structs.
func (c *columns) isStruct(name string) bool {
	f, ok := c.field(name)
	return ok && f.Type.ID() == arrow.STRUCT
}

// hiding are the columns that have names of functions.
func (c *columns) hiding() (types.Map, error) {
	env := types.Map{}
	for _, name := range functions {
		if !c.has(name) {
			continue
		}
		t, err := c.typeOf(name)
		if err != nil {
			return nil, err
		}
		env[name] = t
	}
	return env, nil
}

// shownNames is how many names an error lists.
const shownNames = 64

// names lists what an expression may name.
func (c *columns) names() []string {
	meta, _ := metaNames(c.schema)
	return meta
}

// listed is a list of names as an error shows it.
func listed(names []string) string {
	if more := len(names) - shownNames; more > 0 {
		return fmt.Sprintf("%s, and %d more", schema.ShownList(names[:shownNames]), more)
	}
	return schema.ShownList(names)
}

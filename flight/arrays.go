package flight

import (
	"fmt"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
	"bowstring/schema/ipc"
)

// integers returns the values of an integer column that has no nulls.
func integers(name string, a arrow.Array) (func(int) int64, error) {
	at, err := ipc.Integers(a)
	if err != nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: schema.ShownType(a.DataType()),
			Want: "integers"}
	}
	return at, noNulls(name, a)
}

func noNulls(name string, a arrow.Array) error {
	for i := range a.Len() {
		if a.IsNull(i) {
			return &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: "null",
				Want: "a value in every row"}
		}
	}
	return nil
}

// ids returns the values of a column of sample ids that has no nulls.
func ids(name string, a arrow.Array) (func(int) (schema.ID, error), error) {
	if ext, ok := a.(array.ExtensionArray); ok {
		a = ext.Storage()
	}
	var at func(int) (schema.ID, error)
	parse := func(i int, s string) (schema.ID, error) {
		id, err := schema.ParseID(s)
		if err != nil {
			return id, &schema.FieldError{Field: fmt.Sprintf("column %q, row %d", name, i), Got: schema.Quote(s),
				Want: "a UUID such as 6ba7b811-9dad-51d1-80b4-00c04fd430c8"}
		}
		return id, nil
	}
	switch a := a.(type) {
	case *array.FixedSizeBinary:
		if a.DataType().(*arrow.FixedSizeBinaryType).ByteWidth == len(schema.ID{}) {
			at = func(i int) (schema.ID, error) { return schema.ID(a.Value(i)), nil }
		}
	case *array.String:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	case *array.LargeString:
		at = func(i int) (schema.ID, error) { return parse(i, a.Value(i)) }
	}
	if at == nil {
		return nil, &schema.FieldError{Field: fmt.Sprintf("column %q", name), Got: schema.ShownType(a.DataType()),
			Want: "fixed_size_binary[16], arrow.uuid or utf8"}
	}
	return at, noNulls(name, a)
}

// texts returns the values of a string or binary column as they lie there,
// valid as long as the array; ok is false where null.
func texts(a arrow.Array) (at func(int) (v []byte, ok bool), err error) {
	var value func(int) []byte
	switch a := a.(type) {
	case *array.Binary:
		value = a.Value
	case *array.LargeBinary:
		value = a.Value
	case *array.String:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	case *array.LargeString:
		value = func(i int) []byte { return []byte(a.Value(i)) }
	default:
		return nil, fmt.Errorf("%w: type %s is neither text nor binary", schema.ErrInvalid, a.DataType())
	}
	return func(i int) ([]byte, bool) {
		if a.IsNull(i) {
			return nil, false
		}
		return value(i), true
	}, nil
}

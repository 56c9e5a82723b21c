package ingest

import (
	"strconv"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"bowstring/schema"
)

// keyFunc appends what identifies row i to a text; ok is false where it is null.
type keyFunc func(text []byte, i int) (key []byte, ok bool)

// isKey reports whether rows can be found by the values of a type.
func isKey(t arrow.DataType) bool { return keyKind(t) != "" }

// keyKind is what values of a type are compared as; "" if they cannot be.
func keyKind(t arrow.DataType) string {
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING:
		return "text"
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.FIXED_SIZE_BINARY:
		return "bytes"
	}
	if arrow.IsInteger(t.ID()) {
		return "integers"
	}
	return ""
}

func keysOfIDs(ids []schema.ID) keyFunc {
	return func(text []byte, i int) ([]byte, bool) { return append(text, ids[i][:]...), true }
}

// keysOf are the keys of a column whose type isKey.
func keysOf(a arrow.Array) keyFunc {
	var one keyFunc
	switch a := a.(type) {
	case *array.String:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.LargeString:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.Binary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.LargeBinary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	case *array.FixedSizeBinary:
		one = func(t []byte, i int) ([]byte, bool) { return append(t, a.Value(i)...), true }
	default:
		at := numbersOf(a)
		one = func(t []byte, i int) ([]byte, bool) {
			n := at(i)
			if n.kind == kindUint {
				return strconv.AppendUint(t, n.u, 10), true
			}
			return strconv.AppendInt(t, n.i, 10), true
		}
	}
	return func(text []byte, i int) ([]byte, bool) {
		if a.IsNull(i) {
			return text, false
		}
		return one(text, i)
	}
}

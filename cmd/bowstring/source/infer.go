package source

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// kind is what a column of values without declared types can hold, from narrow to wide.
type kind int

const (
	kindNull kind = iota // no value seen
	kindBool
	kindInt
	kindFloat
	kindList
	kindText // holds anything, in writing
)

// inferred is the narrowest type that holds all values seen: bool, int64,
// float64, a list of one of these, or else utf8. The zero value has seen none.
type inferred struct {
	kind kind
	elem *inferred // of a list
}

// observe widens the type so that it holds v: nil, bool, int64, float64, string
// or []any of these.
func (t *inferred) observe(v any) {
	switch v := v.(type) {
	case nil:
	case bool:
		t.widen(kindBool)
	case int64:
		t.widen(kindInt)
	case float64:
		t.widen(kindFloat)
	case []any:
		t.widen(kindList)
		if t.elem == nil {
			t.elem = &inferred{}
		}
		for _, e := range v {
			t.elem.observe(e)
		}
	default:
		t.widen(kindText)
	}
}

func (t *inferred) widen(k kind) {
	switch {
	case t.kind == k || k == kindNull:
	case t.kind == kindNull:
		t.kind = k
	case t.kind == kindInt && k == kindFloat || t.kind == kindFloat && k == kindInt:
		t.kind = kindFloat
	default:
		t.kind = kindText
	}
}

func (t *inferred) dataType() arrow.DataType {
	switch t.kind {
	case kindBool:
		return arrow.FixedWidthTypes.Boolean
	case kindInt:
		return arrow.PrimitiveTypes.Int64
	case kindFloat:
		return arrow.PrimitiveTypes.Float64
	case kindList:
		return arrow.ListOf(t.elem.dataType())
	default:
		return arrow.BinaryTypes.String
	}
}

// convert turns an observed value into what appendValue takes for the type.
func (t *inferred) convert(v any) any {
	switch {
	case v == nil:
		return nil
	case t.kind == kindFloat:
		if i, ok := v.(int64); ok {
			return float64(i)
		}
	case t.kind == kindList:
		list := make([]any, 0)
		for _, e := range v.([]any) {
			list = append(list, t.elem.convert(e))
		}
		return list
	case t.kind == kindText:
		if _, ok := v.(string); !ok {
			return writing(v)
		}
	}
	return v
}

// writing returns a value as JSON writes it.
func writing(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v) // a float that JSON lacks
	}
	return string(b)
}

// textValue reads a cell of a CSV file: empty is null; true and false, integers and
// decimal fractions are what they look like, but that 007 stays text.
func textValue(s string) any {
	switch {
	case s == "":
		return nil
	case strings.EqualFold(s, "true"):
		return true
	case strings.EqualFold(s, "false"):
		return false
	}
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || digits[0] != '.' && (digits[0] < '0' || digits[0] > '9') ||
		len(digits) > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9' || strings.ContainsAny(s, "_xXpP") {
		return s
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		return f
	}
	return s
}

// valueBytes bounds the memory of what parseObject makes of a text: a list of single digits
// becomes the largest for its size. An array of single bytes becomes twice that.
func valueBytes(data []byte) int64 { return 16 * int64(len(data)) }

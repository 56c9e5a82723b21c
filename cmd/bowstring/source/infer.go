package source

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// form is the shape of a value in a text.
type form uint8

const (
	formNull    form = iota // no value
	formEmpty               // a quoted cell without content
	formBool                // true or false
	formWhole               // a number in digits alone
	formDecimal             // a number with a point or an exponent; NaN and Infinity in JSON
	formWord                // a word for NaN or an infinity; a number only if its column has other numbers
	formList                // a list of JSON
	formText                // anything else
)

// written is a value as a text has it. Its type is known only when all values of the
// column are. If the type becomes text, the value is kept byte for byte.
type written struct {
	text string // the value of a JSON string, and otherwise the characters in the file
	form form
}

// textOf returns a value that is text, whatever it looks like.
func textOf(s string) written { return written{s, formText} }

// cell returns the value of a CSV cell. An empty cell without quotation marks is a null.
func cell(s string, quoted bool) written {
	switch {
	case s == "" && quoted:
		return written{s, formEmpty}
	case s == "":
		return written{}
	}
	switch s {
	case "true", "false", "True", "False", "TRUE", "FALSE":
		return written{s, formBool}
	case "NaN", "nan", "inf", "-inf", "Inf", "-Inf", "+Inf", "Infinity", "-Infinity":
		return written{s, formWord}
	}
	return written{s, numberForm(s)}
}

// numberForm distinguishes numbers from text that looks similar. 007 and +1 are text,
// because a number would not keep how they are written. 77e1 is text: programs that write
// numbers put one digit before an exponent, or a point, or the sign of the exponent.
// Identifiers such as hashes look like 77e1.
func numberForm(s string) form {
	rest := strings.TrimPrefix(s, "-")
	// A leading zero means a code, not a number.
	whole := digits(rest)
	if whole > 1 && rest[0] == '0' {
		return formText
	}
	rest = rest[whole:]
	if rest == "" && whole > 0 {
		return formWhole
	}
	// Either side of the point may be empty, but not both.
	after, point := strings.CutPrefix(rest, ".")
	if point {
		fraction := digits(after)
		if whole+fraction == 0 {
			return formText
		}
		rest = after[fraction:]
	}
	if whole == 0 && !point {
		return formText
	}
	if rest == "" {
		return formDecimal
	}
	if rest[0] != 'e' && rest[0] != 'E' {
		return formText
	}
	// The exponent, with or without a sign.
	rest = rest[1:]
	signed := rest != "" && (rest[0] == '+' || rest[0] == '-')
	if signed {
		rest = rest[1:]
	}
	if n := digits(rest); n == 0 || n < len(rest) || whole > 1 && !point && !signed {
		return formText
	}
	return formDecimal
}

// digits returns the number of digits at the beginning of s.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// kind is the type of a column of written values.
type kind int

const (
	kindText kind = iota // anything, byte for byte; also if no value was seen
	kindBool
	kindInt
	kindUint
	kindFloat
	kindList
)

// inferred is the narrowest type that loses nothing of the values seen: bool, int64,
// uint64, float64, a list of one of these, or utf8. A number in digits alone is never
// rounded. A number with a point or an exponent is rounded to the nearest float64, but
// never to an infinity. The zero value has seen no value.
type inferred struct {
	// seen has a bit for each form that occurred.
	seen     uint16
	negative bool // a whole number is below 0
	large    bool // one is beyond int64
	huge     bool // one is beyond int64 and uint64
	inexact  bool // one has more digits than float64 holds
	infinite bool // a decimal is beyond float64
	// elem is the type of the elements of lists; nil before the first list.
	elem *inferred
}

// observe widens the type so that it holds v. A column that is text stays text, so
// nothing more is recorded.
func (t *inferred) observe(v written) {
	// After one text the range of the numbers does not matter.
	t.seen |= 1 << v.form
	if t.seen&(1<<formText) != 0 {
		return
	}
	switch v.form {
	case formWhole:
		t.observeWhole(v.text)
	case formDecimal:
		if _, err := strconv.ParseFloat(v.text, 64); err != nil {
			t.infinite = true
		}
	case formList:
		if t.elem == nil {
			t.elem = &inferred{}
		}
		for e := range elements(v.text) {
			t.elem.observe(e)
		}
	}
}

// observeWhole records the range of a number in digits. It parses the magnitude, because
// int64 and uint64 are both possible until all values are seen.
func (t *inferred) observeWhole(s string) {
	unsigned, negative := strings.CutPrefix(s, "-")
	u, err := strconv.ParseUint(unsigned, 10, 64)
	const most = 1 << 63 // the magnitude of the least int64
	switch {
	// More digits than 64 bits hold, or below the least int64: such a column is text.
	case err != nil || negative && u > most:
		t.huge = true
	case negative:
		t.negative = true
	case u >= most:
		t.large = true
	}
	// A float64 holds an integer if its significant bits span at most 53.
	if err != nil || bits.Len64(u)-bits.TrailingZeros64(u) > 53 && u != 0 {
		t.inexact = true
	}
}

// empty reports whether no value was seen.
func (t *inferred) empty() bool { return t.seen&^(1<<formNull|1<<formEmpty) == 0 }

// kind returns the narrowest type for the forms seen.
func (t *inferred) kind() kind {
	has := func(forms ...form) bool { // reports whether only these forms occurred
		rest := t.seen &^ (1<<formNull | 1<<formEmpty)
		for _, f := range forms {
			rest &^= 1 << f
		}
		return rest == 0
	}
	switch {
	case t.empty():
		return kindText
	case has(formBool):
		return kindBool
	case has(formList):
		return kindList
	// No integer type holds all values, and a float would round some.
	case has(formWhole) && t.huge, has(formWhole) && t.large && t.negative:
		return kindText
	case has(formWhole) && t.large:
		return kindUint
	case has(formWhole):
		return kindInt
	case has(formWord): // nan is a word in some languages
		return kindText
	// Integers and decimals together are floats only if no integer is rounded.
	case has(formWhole, formDecimal, formWord) && !t.inexact && !t.infinite:
		return kindFloat
	}
	return kindText
}

// dataType returns the Arrow type of the column.
func (t *inferred) dataType() arrow.DataType {
	switch t.kind() {
	case kindBool:
		return arrow.FixedWidthTypes.Boolean
	case kindInt:
		return arrow.PrimitiveTypes.Int64
	case kindUint:
		return arrow.PrimitiveTypes.Uint64
	case kindFloat:
		return arrow.PrimitiveTypes.Float64
	case kindList:
		return arrow.ListOf(t.elem.dataType())
	default:
		return arrow.BinaryTypes.String
	}
}

// convert returns an observed value in the form that appendValue takes for the type.
func (t *inferred) convert(v written) any {
	k := t.kind()
	switch {
	case v.form == formNull:
		return nil
	// An empty quoted cell is a text of length 0, but no number.
	case k == kindText:
		return v.text
	case v.form == formEmpty:
		return nil
	}
	switch k {
	case kindBool:
		return parsed(strconv.ParseBool, v.text)
	case kindInt:
		return parsed(func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }, v.text)
	case kindUint:
		return parsed(func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }, v.text)
	case kindFloat:
		return parsed(func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, v.text)
	}
	if v.form != formList {
		return v.text
	}
	list := []any{}
	for e := range elements(v.text) {
		list = append(list, t.elem.convert(e))
	}
	return list
}

// parsed returns the parsed text, or the text itself if it does not parse. Such a value
// was not observed, and appendValue rejects it.
func parsed[T any](parse func(string) (T, error), s string) any {
	v, err := parse(s)
	if err != nil {
		return s
	}
	return v
}

// valueBytes bounds the memory of what parseObject makes of a text. A list of single
// digits grows the most: 16 bytes for each byte of text.
func valueBytes(data []byte) int64 { return 16 * int64(len(data)) }

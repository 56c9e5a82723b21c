package source

import (
	"math/bits"
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// form is what a value looks like in a text.
type form uint8

const (
	formNull    form = iota // no value
	formEmpty               // a cell that holds nothing, in quotation marks
	formBool                // true or false
	formWhole               // a number in digits alone
	formDecimal             // a number with a point or an exponent; NaN and Infinity in JSON
	formWord                // a word for NaN or an infinity, if there are numbers in its column
	formList                // a list of JSON
	formText                // anything else
)

// written is a value as a text holds it: its type shows only when all of its column are known, and may be text, which
// is kept byte for byte.
type written struct {
	text string // what a string of JSON says, and otherwise what stands there
	form form
}

// textOf is a value that is text, whatever it looks like.
func textOf(s string) written { return written{s, formText} }

// cell is what a cell of CSV holds.
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

// numberForm distinguishes numbers from similar text. Text are 007 and +1, which numbers
// would not keep, and 77e1: programs that write numbers put one digit before an exponent,
// or a point, or the sign of the exponent.
func numberForm(s string) form {
	rest := strings.TrimPrefix(s, "-")
	whole := digits(rest)
	if whole > 1 && rest[0] == '0' {
		return formText
	}
	rest = rest[whole:]
	if rest == "" && whole > 0 {
		return formWhole
	}
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

// digits counts the digits at the beginning.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// kind is what a column of written values holds.
type kind int

const (
	kindText kind = iota // anything, as it is written; also where no value was seen
	kindBool
	kindInt
	kindUint
	kindFloat
	kindList
)

// inferred is the narrowest type that loses nothing of the values seen: bool, int64, uint64, float64, a list of one of
// these, or else utf8. A number that is written in digits alone is never rounded; one with a point or an exponent is,
// to the nearest float64, but not to an infinity. The zero value has seen none.
type inferred struct {
	seen     uint16 // forms, a bit each
	negative bool   // a whole number is below 0
	large    bool   // one is beyond int64
	huge     bool   // one is beyond int64 and uint64
	inexact  bool   // one is no float64
	infinite bool   // a decimal is beyond float64
	elem     *inferred
}

// observe widens the type so that it holds v.
func (t *inferred) observe(v written) {
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

func (t *inferred) observeWhole(s string) {
	unsigned, negative := strings.CutPrefix(s, "-")
	u, err := strconv.ParseUint(unsigned, 10, 64)
	const most = 1 << 63 // the magnitude of the least int64
	switch {
	case err != nil || negative && u > most:
		t.huge = true
	case negative:
		t.negative = true
	case u >= most:
		t.large = true
	}
	if err != nil || bits.Len64(u)-bits.TrailingZeros64(u) > 53 && u != 0 {
		t.inexact = true
	}
}

// empty says whether no value was seen.
func (t *inferred) empty() bool { return t.seen&^(1<<formNull|1<<formEmpty) == 0 }

func (t *inferred) kind() kind {
	has := func(forms ...form) bool { // nothing but these
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
	case has(formWhole) && t.huge, has(formWhole) && t.large && t.negative:
		return kindText
	case has(formWhole) && t.large:
		return kindUint
	case has(formWhole):
		return kindInt
	case has(formWord): // nan may be a word of some language
		return kindText
	case has(formWhole, formDecimal, formWord) && !t.inexact && !t.infinite:
		return kindFloat
	}
	return kindText
}

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

// convert turns a value that was observed into what appendValue takes for the type.
func (t *inferred) convert(v written) any {
	k := t.kind()
	switch {
	case v.form == formNull:
		return nil
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

// parsed returns the text as it is where it does not parse: it was not observed, and appendValue refuses it.
func parsed[T any](parse func(string) (T, error), s string) any {
	v, err := parse(s)
	if err != nil {
		return s
	}
	return v
}

// valueBytes bounds the memory of what parseObject makes of a text: a list of single digits
// becomes the largest for its size. An array of single bytes becomes twice that.
func valueBytes(data []byte) int64 { return 16 * int64(len(data)) }

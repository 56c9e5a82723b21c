package source

import "strings"

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

// numberForm tells numbers from text that looks similar. Text are 007 and +1, which numbers would not keep, and 77e1:
// programs that write numbers put one digit before an exponent, or a point, or the sign of the exponent.
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

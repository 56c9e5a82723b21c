package source

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// typeOf returns the type of a column and its converted values.
func typeOf(values []written) (typ string, out []any) {
	var t inferred
	for _, v := range values {
		t.observe(v)
	}
	for _, v := range values {
		out = append(out, t.convert(v))
	}
	return t.dataType().String(), out
}

// TestCells: types and values of CSV cells.
func TestCells(t *testing.T) {
	for _, c := range []struct{ cells, typ, values string }{
		{"1 -12 0", "int64", "1 -12 0"},
		{"1  3", "int64", "1 <nil> 3"},
		{"", "utf8", "<nil>"},
		{`""`, "utf8", ""},
		{`1 ""`, "int64", "1 <nil>"},
		{`a "" `, "utf8", "a  <nil>"},
		{"1 0.5", "float64", "1 0.5"},
		{"1 .5 5. -0.25 1e3 1.5E+3 1e-7", "float64", "1 0.5 5 -0.25 1000 1500 1e-07"},
		{"true False TRUE", "bool", "true false true"},
		// Text is kept byte for byte.
		{"1.10 a", "utf8", "1.10 a"},
		{"1234e56 a", "utf8", "1234e56 a"},
		{"77e1 2", "utf8", "77e1 2"},
		{"True 1", "utf8", "True 1"},
		{"true yes", "utf8", "true yes"},
		{"tRue", "utf8", "tRue"},
		{"007 8", "utf8", "007 8"},
		{"-01", "utf8", "-01"},
		{"+1 2", "utf8", "+1 2"},
		{"0x1F 1_000 1,5", "utf8", "0x1F 1_000 1,5"},
		{"1.2.3", "utf8", "1.2.3"},
		{". - e 1e 1e+ 0p1", "utf8", ". - e 1e 1e+ 0p1"},
		{"00.5", "utf8", "00.5"},
		{"NaN nan inf", "utf8", "NaN nan inf"},
		{"NaN 1 -inf", "float64", "NaN 1 -Inf"},
		{"NaN x", "utf8", "NaN x"},
		// Whole numbers are never rounded.
		{"9223372036854775807 -9223372036854775808", "int64", "9223372036854775807 -9223372036854775808"},
		{"9223372036854775808 0", "uint64", "9223372036854775808 0"},
		{"18446744073709551615", "uint64", "18446744073709551615"},
		{"9223372036854775808 -1", "utf8", "9223372036854775808 -1"},
		{"18446744073709551616", "utf8", "18446744073709551616"},
		{"-9223372036854775809", "utf8", "-9223372036854775809"},
		{"123456789012345678901234567890 1", "utf8", "123456789012345678901234567890 1"},
		{"9007199254740993 0.5", "utf8", "9007199254740993 0.5"},
		{"9007199254740992 0.5", "float64", "9.007199254740992e+15 0.5"},
		{"9007199254740994 0.5", "float64", "9.007199254740994e+15 0.5"},
		{"9007199254740993 nan", "utf8", "9007199254740993 nan"},
		{"18446744073709551615 0.5", "utf8", "18446744073709551615 0.5"},
		// Decimals are rounded, but not to infinity.
		{"0.1234567890123456789", "float64", "0.12345678901234568"},
		{"1e-400", "float64", "0"},
		{"1e400 1", "utf8", "1e400 1"},
		{"-1.5e999", "utf8", "-1.5e999"},
	} {
		var values []written
		for s := range strings.SplitSeq(c.cells, " ") {
			text, quoted := strings.CutPrefix(s, `"`)
			values = append(values, cell(strings.TrimSuffix(text, `"`), quoted))
		}
		typ, out := typeOf(values)
		if got := strings.Trim(fmt.Sprint(out), "[]"); typ != c.typ || got != c.values {
			t.Errorf("%q: %s %s, want %s %s", c.cells, typ, got, c.typ, c.values)
		}
	}
}

// TestJSONValues: types and values of a JSON key.
func TestJSONValues(t *testing.T) {
	for _, c := range []struct{ lines, typ, values string }{
		{`1|null|-3`, "int64", "[1 <nil> -3]"},
		{`1|2.5`, "float64", "[1 2.5]"},
		{`1.0`, "float64", "[1]"},
		{`77e1`, "float64", "[770]"},
		{`true|false`, "bool", "[true false]"},
		{`null`, "utf8", "[<nil>]"},
		{`"1"|"2"`, "utf8", "[1 2]"},
		{`""|null`, "utf8", "[ <nil>]"},
		// Text is kept byte for byte.
		{`"x"|1.10|1E2|true| { "a" : 1.0 } `, "utf8", "[x 1.10 1E2 true <nil>]"},
		{`"x"|[1.10,  null]`, "utf8", "[x [1.10,  null]]"},
		{`true|1`, "utf8", "[true 1]"},
		{`[{"a": 1.10}, 2.0]`, `list<item: utf8, nullable>`, `[[{"a": 1.10} 2.0]]`},
		{`[1, "1.50", null, 2.50]`, `list<item: utf8, nullable>`, `[[1 1.50 <nil> 2.50]]`},
		// Whole numbers are never rounded.
		{`18446744073709551615|1`, "uint64", "[18446744073709551615 1]"},
		{`18446744073709551616|1`, "utf8", "[18446744073709551616 1]"},
		{`9007199254740993|1.5`, "utf8", "[9007199254740993 1.5]"},
		{`[9007199254740993, 1.5]`, "list<item: utf8, nullable>", "[[9007199254740993 1.5]]"},
		{`[1, 18446744073709551615]|[]`, "list<item: uint64, nullable>", "[[1 18446744073709551615] []]"},
		{`1e400|1`, "utf8", "[1e400 1]"},
		// Lines that Python and Bowstring write.
		{`NaN|-Infinity|1`, "float64", "[NaN -Inf 1]"},
		{`NaN`, "float64", "[NaN]"},
		{`"NaN"|"Infinity"|1`, "float64", "[NaN +Inf 1]"},
		{`"NaN"`, "utf8", "[NaN]"},
		{`"nan"|1`, "utf8", "[nan 1]"},
		{`[NaN, 1]`, "list<item: float64, nullable>", "[[NaN 1]]"},
		// Lists.
		{`[1]|[]|[0.5]|null`, "list<item: float64, nullable>", "[[1] [] [0.5] <nil>]"},
		{`[]`, "list<item: utf8, nullable>", "[[]]"},
		{`[[1], [2, null]]`, "list<item: list<item: int64, nullable>, nullable>", "[[[1] [2 <nil>]]]"},
	} {
		var values []written
		for s := range strings.SplitSeq(c.lines, "|") {
			object, err := parseObject(`{"k": ` + s + `}`)
			if err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			v := written{}
			for _, p := range object {
				if p.name == "k" {
					v = p.value
				}
			}
			values = append(values, v)
		}
		typ, out := typeOf(values)
		if got := fmt.Sprint(out); typ != c.typ || got != c.values {
			t.Errorf("%s: %s %s, want %s %s", c.lines, typ, got, c.typ, c.values)
		}
	}
}

// TestValuesOfTars: the JSON of two tars has one type, and loses nothing.
func TestValuesOfTars(t *testing.T) {
	root := tree(t, map[string]string{
		"train-0.tar": makeTar(t, entry{"a.jpg", jpg(t, 1)},
			entry{"a.json", `{"id": 18446744073709551615, "big": 123456789012345678901, "v": 1.10, "n": 9007199254740993}`}),
		"train-1.tar": makeTar(t, entry{"b.jpg", jpg(t, 2)},
			entry{"b.json", `{"id": 18446744073709551614, "big": 123456789012345678902, "v": true, "n": NaN}`}),
	})
	r := readAll(t, root, Options{}, ReadOptions{})
	for _, want := range []string{"id: uint64", "big: utf8", "id=18446744073709551615", "id=18446744073709551614",
		"big=123456789012345678901", "big=123456789012345678902", "v=1.10", "v=true", "n=9007199254740993", "n=NaN"} {
		if !strings.Contains(r.text(), want) {
			t.Errorf("no %s in\n%s", want, r.text())
		}
	}
}

// TestJSONText reads valid JSON and rejects invalid JSON.
func TestJSONText(t *testing.T) {
	for text, want := range map[string]string{
		`{"b": 1, "a": {"y": "x", "x": {"z": null}}, "": true}`: `b=1 a_y=x a_x_z= =true`,
		" {\t} ":                  "",
		`{"a": "\u00e9\"\\\/\n"}`: "a=é\"\\/\n",
		`{"a": "\ud83d\ude00"}`:   "a=😀",
		`{"\u0061": [ 1 , {} ]}`:  `a=[ 1 , {} ]`,
	} {
		object, err := parseObject(text)
		var got []string
		for _, p := range object {
			got = append(got, p.name+"="+p.value.text)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %q, %v; want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		`{"a": "\ud83d"}`:                 "half of a character",
		`{"a": "\ude00x"}`:                "half of a character",
		`{"a": "\ud83d\u0041"}`:           "half of a character",
		"{\"a\": \"\xff\"}":               "not valid UTF-8",
		"{\"\xff\": 1}":                   "not valid UTF-8",
		`{"a": "\x"}`:                     "a known escape",
		`{"a": "\u12g4"}`:                 "hexadecimal",
		"{\"a\": \"\n\"}":                 "an escape in its place",
		`{"a": 1, "a": 2}`:                "two values for column a",
		`{"a": {"b": 1}, "a_b": 2}`:       "two values for column a_b",
		`{"a": [{"b": 1, "b": 2}]}`:       "two values for b",
		`{"a": 01}`:                       "want a value",
		`{"a": .5}`:                       "want a value",
		`{"a": 1.}`:                       "want a digit",
		`{"a": 1.}`[:8] + " }":            "want a digit",
		`{"a": 1e}`:                       "want a digit",
		`{"a": +1}`:                       "want a value",
		`{"a": nan}`:                      "want a value",
		`{"a": 1} 2`:                      "more than one value",
		"{\"a\": 1}\x00":                  "more than one value",
		`{a: 1}`:                          "want a key",
		`{"a" 1}`:                         `want ":"`,
		`{"a": 1,}`:                       "want a key",
		`{"a": [1,]}`:                     "want a value",
		`{"a": [1 2]}`:                    `want "," or "]"`,
		`{"a": "x`:                        "unexpected EOF",
		`{"a": "x\`:                       "unexpected EOF",
		`{"a": "\u12`:                     "unexpected EOF",
		`{"a": 1`:                         "unexpected EOF",
		`1`:                               "want an object",
		`{"a":` + strings.Repeat("[", 99): "nested more than 16 deep",
	} {
		if object, err := parseObject(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", text, object, err, want)
		}
	}
}

// FuzzParseObject checks that parseObject takes only JSON, NaN and Infinity, and that the
// inferred type holds each value.
func FuzzParseObject(f *testing.F) {
	for _, s := range []string{`{"a": {"b": [1, 2.5, null, {"c": true}]}, "d": "x"}`, `{"a": 1, "a": 2}`, `{"a": [1,]}`,
		`{"a" "b"}`, `{} {}`, `[]`, `{"\ud800": "\ud800"}`, `{"a": {"b": 1}, "a_b": 2}`, `{"x": 1e999}`,
		`{"a": [NaN, -Infinity, "NaN", 18446744073709551616, -0]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		object, err := parseObject(text)
		words := strings.Contains(text, "NaN") || strings.Contains(text, "Infinity")
		if err != nil {
			var plain map[string]any
			if json.Unmarshal([]byte(text), &plain) == nil && utf8.ValidString(text) && !strings.Contains(text, `\u`) &&
				!strings.Contains(err.Error(), "two values") && !strings.Contains(err.Error(), "nested") &&
				!strings.Contains(err.Error(), "a name of") && plain != nil {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if !words && !json.Valid([]byte(text)) {
			t.Errorf("taken for JSON: %q", text)
		}
		for _, p := range object {
			var typ inferred
			typ.observe(p.value)
			b := array.NewBuilder(memory.DefaultAllocator, typ.dataType())
			v := typ.convert(p.value)
			if err := appendValue(b, v); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
			b.Release()
			if !utf8.ValidString(p.name) || !validText(v) {
				t.Errorf("%q: %v", p.name, v)
			}
		}
	})
}

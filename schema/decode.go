package schema

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// DecodeJSON decodes a JSON object of at most MaxRequestBytes into the struct
// that v points to, by its json tags. Fields are strings, bools, ints and uints
// (neither ever negative), float64s, structs, pointers to these, bytes in base64, other
// slices, and maps by string; the fields of an embedded struct are the outer
// one's.
//
// It is strict: a field that is unknown, given twice, null, of another type or out of its
// type's range is a FieldError with its path. So are text that is not UTF-8, and anything
// after the object. If a string is given where a number belongs, it is decoded into the
// field that has that name as its text tag, if there is one. where is what errors call
// the object itself. After an error *v has no meaning.
func DecodeJSON(where string, b []byte, v any) error {
	if len(b) > MaxRequestBytes {
		return &FieldError{Field: where, Got: fmt.Sprintf("%d bytes", len(b)),
			Want: fmt.Sprintf("at most %d", MaxRequestBytes)}
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return &FieldError{Field: where, Got: "nothing", Want: "a JSON object"}
	}
	if !utf8.Valid(b) {
		at := 0
		for r, n := utf8.DecodeRune(b); r != utf8.RuneError || n != 1; r, n = utf8.DecodeRune(b[at:]) {
			at += n
		}
		return &FieldError{Field: where, Got: fmt.Sprintf("byte 0x%02x at offset %d", b[at], at), Want: "valid UTF-8"}
	}
	if !json.Valid(b) {
		err := json.Unmarshal(b, new(json.RawMessage)) // says why
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			err = fmt.Errorf("%w at offset %d", err, syntax.Offset)
		}
		return &FieldError{Field: where, Got: err.Error(), Want: "one JSON object"}
	}
	return decodeObject(where, "", bytes.TrimSpace(b), reflect.ValueOf(v).Elem())
}

// checker is a struct with rules for its fields. check returns what is wrong with the
// value of one field. The decoder calls it for fields whose given value is the zero
// value: afterwards they would look as if they had been left out.
type checker interface{ check(field string) error }

// jsonField is a field of a struct and its form in JSON.
type jsonField struct {
	name     string
	optional bool  // left out if it is zero
	index    []int // in the struct
	text     int   // index of the field that a string given as this one is decoded into: mostly itself
}

// fieldsByType caches the fields of structs, by reflect.Type: a few dozen.
var fieldsByType sync.Map

// jsonFields returns the fields of a struct, in order. The caller must not change them.
func jsonFields(t reflect.Type) []jsonField {
	if known, ok := fieldsByType.Load(t); ok {
		return known.([]jsonField)
	}
	var fields []jsonField
	texts := map[string]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		if text := f.Tag.Get("text"); text != "" {
			texts[text] = len(fields)
		}
		fields = append(fields, jsonField{name, strings.HasSuffix(","+options, ",omitempty"), f.Index, len(fields)})
	}
	for i := range fields {
		if at, ok := texts[fields[i].name]; ok {
			fields[i].text = at
		}
	}
	fieldsByType.Store(t, fields)
	return fields
}

// namesOf are the names of fields.
func namesOf(fields []jsonField) (names []string) {
	for i := range fields {
		names = append(names, fields[i].name)
	}
	return names
}

// decodeObject decodes the object at path; prefix begins the paths of its fields. Like
// all functions below, it expects valid JSON without surrounding space.
func decodeObject(path, prefix string, raw []byte, v reflect.Value) error {
	if raw[0] != '{' {
		return wrongType(path, raw, "an object")
	}
	fields := jsonFields(v.Type())
	seen := make([]bool, len(fields))
	for text, value := range members(raw) {
		name := unquote(text)
		i := slices.IndexFunc(fields, func(f jsonField) bool { return f.name == name })
		if i < 0 {
			return unknownField(prefix, name, namesOf(fields))
		}
		if value[0] == '"' {
			i = fields[i].text
		}
		if seen[i] {
			return givenTwice(prefix+name, value)
		}
		seen[i] = true
		field := v.FieldByIndex(fields[i].index)
		if err := decodeValue(prefix+name, value, field); err != nil {
			return err
		}
		if c, ok := v.Addr().Interface().(checker); ok && field.IsZero() {
			err := c.check(fields[i].name)
			if f, ok := errors.AsType[*FieldError](err); ok && f.Field == fields[i].name {
				err = within(prefix, err) // a struct that occurs several times does not know its own path
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// selfDecoder is a type with its own rules for its JSON, which is valid and without
// surrounding space.
type selfDecoder interface {
	decodeJSON(path string, raw []byte) error
}

// decodeValue decodes a value by the kind of v. Negative numbers are refused everywhere,
// as no field has them.
func decodeValue(path string, raw []byte, v reflect.Value) error {
	if d, ok := v.Addr().Interface().(selfDecoder); ok {
		return d.decodeJSON(path, raw)
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(path, raw, v.Elem())
	case reflect.Struct:
		return decodeObject(path, path+".", raw, v)
	case reflect.String:
		if raw[0] != '"' {
			return wrongType(path, raw, "a string")
		}
		v.SetString(unquote(raw))
	case reflect.Bool:
		if raw[0] != 't' && raw[0] != 'f' {
			return wrongType(path, raw, "true or false")
		}
		v.SetBool(raw[0] == 't')
	case reflect.Int, reflect.Int64, reflect.Uint64:
		bits := v.Type().Bits()
		if v.CanInt() {
			bits--
		}
		n, err := strconv.ParseUint(string(raw), 10, bits)
		if err != nil {
			return wrongType(path, raw, fmt.Sprintf("an integer from 0 to 2^%d-1", bits))
		}
		if v.CanInt() {
			v.SetInt(int64(n))
		} else {
			v.SetUint(n)
		}
	case reflect.Float64:
		n, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || n < 0 { // also a string or a number out of range
			return wrongType(path, raw, "a number from 0")
		}
		v.SetFloat(n)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return decodeBytes(path, raw, v)
		}
		if raw[0] != '[' {
			return wrongType(path, raw, "a list of "+plural[v.Type().Elem().Kind()])
		}
		return decodeList(path, raw, v)
	case reflect.Map:
		if raw[0] != '{' {
			return wrongType(path, raw, "an object of "+plural[v.Type().Elem().Kind()])
		}
		return decodeMap(path, raw, v)
	default:
		return fmt.Errorf("decoding %s: no rule for a %s", path, v.Type())
	}
	return nil
}

// decodeBytes accepts only the canonical base64 of some bytes: the standard alphabet,
// padded, without line breaks or stray bits. So equal bytes have equal requests.
func decodeBytes(path string, raw []byte, v reflect.Value) error {
	if raw[0] != '"' {
		return wrongType(path, raw, "a string of base64")
	}
	text := unquote(raw)
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	foreign := func(c rune) bool { // the decoder would ignore line breaks
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '+' && c != '/' && c != '='
	}
	const want = "base64 of the standard alphabet, padded with ="
	if at := strings.IndexFunc(text, foreign); at >= 0 {
		return wrongType(path, raw, fmt.Sprintf("%s; there is another character at %d", want, at))
	}
	if len(text)%4 != 0 {
		return wrongType(path, raw, fmt.Sprintf("%s; %d characters are no multiple of 4", want, len(text)))
	}
	if err != nil {
		return wrongType(path, raw, want+"; there is padding in the middle, or a bit set behind the last byte")
	}
	v.SetBytes(b)
	return nil
}

// plural names the items of a list or map, for errors.
var plural = map[reflect.Kind]string{reflect.Int64: "integers", reflect.String: "strings", reflect.Struct: "objects",
	reflect.Float64: "numbers"}

// decodeList decodes a list. Paths of items are made only for errors: a list may be long.
func decodeList(path string, raw []byte, v reflect.Value) error {
	v.Set(reflect.MakeSlice(v.Type(), 0, 0)) // not nil, even if empty
	for rest := inside(raw); len(rest) > 0; {
		var item []byte
		item, rest = cut(rest)
		i := v.Len()
		v.Grow(1)
		v.SetLen(i + 1)
		if err := decodeValue(path, item, v.Index(i)); err != nil {
			// Decode it again with the path of the item, for the error.
			return decodeValue(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
		}
	}
	return nil
}

func decodeMap(path string, raw []byte, v reflect.Value) error {
	v.Set(reflect.MakeMap(v.Type()))
	for text, value := range members(raw) {
		key, elem := reflect.ValueOf(unquote(text)), reflect.New(v.Type().Elem()).Elem()
		at := path + "." + Shown(key.String())
		if v.MapIndex(key).IsValid() {
			return givenTwice(at, value)
		}
		if err := decodeValue(at, value, elem); err != nil {
			return err
		}
		v.SetMapIndex(key, elem)
	}
	return nil
}

// members yields the names, in quotes, and values of an object.
func members(raw []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for rest := inside(raw); len(rest) > 0; {
			var name, value []byte
			name, rest = cut(rest)
			value, rest = cut(rest)
			if !yield(name, value) {
				return
			}
		}
	}
}

// inside returns what is between the brackets of an object or list.
func inside(raw []byte) []byte { return bytes.TrimSpace(raw[1 : len(raw)-1]) }

// cut returns the first value in what is inside an object or list, and what is
// behind it and its colon or comma.
func cut(b []byte) (value, rest []byte) {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ':', ',':
			if depth == 0 {
				return bytes.TrimSpace(b[:i]), b[i+1:]
			}
		}
	}
	return bytes.TrimSpace(b), nil
}

func unquote(raw []byte) (s string) {
	if err := json.Unmarshal(raw, &s); err != nil {
		panic(err) // it is a string of valid JSON
	}
	return s
}

func unknownField(prefix, name string, names []string) error {
	want := "one of " + strings.Join(names, ", ")
	switch len(names) {
	case 0:
		want = "no fields"
	case 1:
		want = names[0]
	}
	if n := Nearest(name, names); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &FieldError{Field: prefix + Shown(name), Got: "an unknown field", Want: want}
}

func givenTwice(path string, raw []byte) error {
	return &FieldError{Field: path, Got: "it a second time, " + abridge(raw), Want: "each field at most once"}
}

func wrongType(path string, raw []byte, want string) error {
	return &FieldError{Field: path, Got: abridge(raw), Want: want}
}

// abridge shows a JSON value as the client wrote it, shortened: in quotes where it would not end, or does not print.
func abridge(raw []byte) string {
	const most = 60
	text := string(raw)
	if len(raw) > most {
		return fmt.Sprintf("%q… (%d bytes)", clip(text, most), len(raw))
	}
	if strings.ContainsFunc(text, func(c rune) bool { return !strconv.IsPrint(c) }) {
		return strconv.Quote(text)
	}
	return text
}

// Quote renders what a client wrote for an error message: quoted, and shortened.
func Quote(s string) string {
	const most = 80
	if len(s) <= most {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%q… (%d bytes)", clip(s, most), len(s))
}

// clip returns the first most bytes of s, or a few less not to cut a character.
func clip(s string, most int) string {
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

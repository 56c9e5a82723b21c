package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// field is one known member of a JSON object that is decoded into a T.
type field[T any] struct {
	name string
	set  func(t *T, path string, v json.RawMessage) error
}

// decodeObject decodes a JSON object whose members are fields, each at most
// once. where is the path of the object in the errors; the outermost object
// is called "request" or "ticket", and its members go without a prefix.
func decodeObject[T any](where string, b []byte, fields []field[T], t *T) error {
	prefix := where + "."
	if top := where == "request" || where == "ticket"; top {
		if err := checkDocument(where, b); err != nil {
			return err
		}
		prefix = ""
	}
	if k := kindOf(b); k != "an object" {
		return &FieldError{Field: where, Got: abridge(b), Want: "an object"}
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	if _, err := dec.Token(); err != nil {
		return broken(where, err)
	}
	seen := make(map[string]bool, len(fields))
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return broken(where, err)
		}
		name, _ := tok.(string)
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return broken(where, err)
		}
		at := -1
		for i := range fields {
			if fields[i].name == name {
				at = i
			}
		}
		if at < 0 {
			return unknownField(prefix, name, fields)
		}
		path := prefix + name
		if seen[name] {
			return &FieldError{Field: path, Got: "it a second time, " + abridge(v), Want: "each field at most once"}
		}
		seen[name] = true
		if err := fields[at].set(t, path, v); err != nil {
			return err
		}
	}
	return nil
}

// checkDocument reports what makes b no JSON text of ours, before any field
// is looked at.
func checkDocument(where string, b []byte) error {
	if len(b) > MaxRequestBytes {
		return &FieldError{Field: where, Got: fmt.Sprintf("%d bytes", len(b)), Want: fmt.Sprintf("at most %d", MaxRequestBytes)}
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return &FieldError{Field: where, Got: "nothing", Want: "a JSON object"}
	}
	if !utf8.Valid(b) {
		at := 0
		for at < len(b) {
			r, n := utf8.DecodeRune(b[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		return &FieldError{Field: where, Got: fmt.Sprintf("byte 0x%02x at offset %d", b[at], at), Want: "valid UTF-8"}
	}
	var v json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		return broken(where, err)
	}
	return nil
}

func broken(where string, err error) error {
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return &FieldError{Field: where, Got: fmt.Sprintf("%s at offset %d", syntax.Error(), syntax.Offset), Want: "one JSON object"}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &FieldError{Field: where, Got: "the beginning of an object", Want: "one JSON object"}
	}
	return &FieldError{Field: where, Got: err.Error(), Want: "one JSON object"}
}

func unknownField[T any](prefix, name string, fields []field[T]) error {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	want := "one of " + strings.Join(names, ", ")
	if len(names) == 1 {
		want = names[0]
	}
	if n := Nearest(name, names); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	shown := name
	if !plain(name) {
		shown = quote(name)
	}
	return &FieldError{Field: prefix + shown, Got: "an unknown field", Want: want}
}

// plain reports whether a field name can stand in a message as it is.
func plain(name string) bool {
	if name == "" || len(name) > 40 {
		return false
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '"' {
			return false
		}
	}
	return true
}

// kindOf names the JSON type of a value.
func kindOf(v []byte) string {
	v = bytes.TrimLeft(v, " \t\r\n")
	if len(v) == 0 {
		return "nothing"
	}
	switch v[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// abridge shows a JSON value as the client wrote it, shortened.
func abridge(v []byte) string {
	const most = 60
	v = bytes.TrimSpace(v)
	if len(v) <= most {
		return string(v)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(v[cut]) {
		cut--
	}
	return fmt.Sprintf("%s… (%d bytes)", v[:cut], len(v))
}

func asString(path string, v json.RawMessage) (string, error) {
	var s string
	if kindOf(v) != "a string" || json.Unmarshal(v, &s) != nil {
		return "", &FieldError{Field: path, Got: abridge(v), Want: "a string"}
	}
	return s, nil
}

func asOneOf(path string, v json.RawMessage, allowed ...string) (string, error) {
	s, err := asString(path, v)
	if err != nil {
		return "", err
	}
	for _, a := range allowed {
		if s == a {
			return s, nil
		}
	}
	return "", notOneOf(path, s, allowed)
}

func asInt(path string, v json.RawMessage, lo, hi int64) (int64, error) {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < lo || n > hi {
		return 0, &FieldError{Field: path, Got: abridge(v), Want: wantRange(lo, hi)}
	}
	return n, nil
}

func asUint(path string, v json.RawMessage) (uint64, error) {
	n, err := strconv.ParseUint(string(v), 10, 64)
	if err != nil {
		return 0, &FieldError{Field: path, Got: abridge(v), Want: fmt.Sprintf("an integer from 0 to %d", uint64(math.MaxUint64))}
	}
	return n, nil
}

func wantRange(lo, hi int64) string {
	if hi == math.MaxInt64 {
		return fmt.Sprintf("an integer from %d to 2^63-1", lo)
	}
	return fmt.Sprintf("an integer from %d to %d", lo, hi)
}

func asStrings(path string, v json.RawMessage) ([]string, error) {
	var items []json.RawMessage
	if kindOf(v) != "a list" || json.Unmarshal(v, &items) != nil {
		return nil, &FieldError{Field: path, Got: abridge(v), Want: "a list of strings"}
	}
	out := make([]string, len(items))
	for i, item := range items {
		s, err := asString(fmt.Sprintf("%s[%d]", path, i), item)
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// asInts reads a list of at most most positions. The list is known to be valid
// JSON, so splitting at commas is right for integers; anything else fails as
// an item. That spares an allocation for each.
func asInts(path string, v json.RawMessage, most int) ([]int64, error) {
	if kindOf(v) != "a list" {
		return nil, &FieldError{Field: path, Got: abridge(v), Want: "a list of positions"}
	}
	inner := bytes.TrimSpace(v)
	inner = bytes.TrimSpace(inner[1 : len(inner)-1])
	if len(inner) == 0 {
		return []int64{}, nil
	}
	out := make([]int64, 0, min(bytes.Count(inner, []byte(","))+1, most))
	for item := range bytes.SplitSeq(inner, []byte(",")) {
		if len(out) == most {
			return nil, &FieldError{Field: path, Got: fmt.Sprintf("more than %d positions", most),
				Want: fmt.Sprintf("1 to %d; upload a longer selection and name it", most)}
		}
		item = bytes.TrimSpace(item)
		n, err := strconv.ParseInt(string(item), 10, 64)
		if err != nil || n < 0 {
			var items []json.RawMessage // an item with a comma in it was cut in two
			if json.Unmarshal(v, &items) == nil && len(items) > len(out) {
				item = items[len(out)]
			}
			return nil, &FieldError{Field: fmt.Sprintf("%s[%d]", path, len(out)), Got: abridge(item), Want: wantRange(0, math.MaxInt64)}
		}
		out = append(out, n)
	}
	return out, nil
}

package flight

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"bowstring/schema"
)

// decode reads a JSON object into the struct that v points to, by its json
// tags: strings, bools, int64s, lists of strings, maps of strings, and structs
// or pointers to structs of these. A field that is unknown, given twice, null
// or of the wrong type is a schema.FieldError, as is anything behind the
// object. where is what errors call the object itself.
//
// Requests and tickets have their own decoder in package schema; this one is
// for what only this package takes.
func decode(where string, b []byte, v any) error {
	var raw json.RawMessage
	if !utf8.Valid(b) {
		return &schema.FieldError{Field: where, Got: "bytes that are not UTF-8", Want: "a JSON object"}
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return &schema.FieldError{Field: where, Got: err.Error(), Want: "one JSON object"}
	}
	return decodeObject(where, "", raw, reflect.ValueOf(v).Elem())
}

// decodeObject decodes the object at path, whose members' paths begin with prefix.
func decodeObject(path, prefix string, raw json.RawMessage, v reflect.Value) error {
	if raw[0] != '{' {
		return wrongType(path, raw, "an object")
	}
	names := make([]string, v.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
	}
	seen := make([]bool, len(names))
	dec := json.NewDecoder(bytes.NewReader(raw))
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
		}
		name, _ := token.(string)
		var member json.RawMessage
		if err := dec.Decode(&member); err != nil {
			return fmt.Errorf("%w: %s: %w", schema.ErrInvalid, path, err)
		}
		i := indexOf(names, name)
		switch {
		case i < 0:
			return unknownField(prefix, name, names)
		case seen[i]:
			return &schema.FieldError{Field: prefix + name, Got: "it a second time", Want: "each field at most once"}
		}
		seen[i] = true
		if err := decodeValue(prefix+name, member, v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func decodeValue(path string, raw json.RawMessage, v reflect.Value) error {
	var want string
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(path, raw, v.Elem())
	case reflect.Struct:
		return decodeObject(path, path+".", raw, v)
	case reflect.Int64:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return wrongType(path, raw, "an integer below 2^63")
		}
		v.SetInt(n)
		return nil
	case reflect.String:
		want = "a string"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice:
		want = "a list of strings"
	case reflect.Map:
		want = "an object of strings"
	default:
		return fmt.Errorf("decoding %s: no rule for a %s", path, v.Type())
	}
	if bytes.Contains(raw, []byte("null")) && hasNull(raw) || json.Unmarshal(raw, v.Addr().Interface()) != nil {
		return wrongType(path, raw, want)
	}
	return nil
}

// hasNull reports whether a value is null or a list or object with one, which
// encoding/json would take for "leave it as it is".
func hasNull(raw json.RawMessage) bool {
	dec := json.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := dec.Token()
		if err != nil {
			return false
		}
		if token == nil {
			return true
		}
	}
}

func indexOf(names []string, name string) int {
	for i, n := range names {
		if n == name {
			return i
		}
	}
	return -1
}

func unknownField(prefix, name string, names []string) error {
	want := "one of " + strings.Join(names, ", ")
	if len(names) == 0 {
		want = "no fields"
	}
	if n := schema.Nearest(name, names); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &schema.FieldError{Field: prefix + shorten(name), Got: "an unknown field", Want: want}
}

func wrongType(path string, raw json.RawMessage, want string) error {
	return &schema.FieldError{Field: path, Got: shorten(string(raw)), Want: want}
}

// shorten abridges what a client wrote, for an error.
func shorten(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + fmt.Sprintf("… (%d bytes)", len(s))
}

// encodeJSON makes the JSON of an answer.
func encodeJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding the answer: %w", err)
	}
	return b, nil
}

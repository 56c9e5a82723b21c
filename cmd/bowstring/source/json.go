package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// maxDepth bounds how deep JSON may be nested: columns of lists have types as deep.
	maxDepth = 16
	// maxColumnName bounds a name that is put together of several keys, in bytes.
	maxColumnName = 1024
)

// parseObject reads a JSON object; objects within become columns of their own,
// "place": {"lat": 1} being place_lat. A key that comes twice is an error, as
// nobody can tell which value was meant.
func parseObject(data []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	flat := map[string]any{}
	first, err := dec.Token()
	if err == nil {
		if first != json.Delim('{') {
			return nil, fmt.Errorf("bad JSON: got %.40s, want an object", bytes.TrimSpace(data))
		}
		err = readColumns(dec, flat, "", 1)
	}
	if err != nil {
		return nil, badJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("bad JSON: more than one value")
	}
	return flat, nil
}

func badJSON(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("bad JSON: %w", err)
}

// readColumns reads an object, behind its opening brace, into columns.
func readColumns(dec *json.Decoder, into map[string]any, prefix string, depth int) error {
	for {
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return nil // the closing brace
		}
		name := prefix + key
		if len(name) > maxColumnName {
			return fmt.Errorf("a column would have a name of %d bytes, more than %d: %s", len(name), maxColumnName,
				Quoted(name))
		}
		if token, err = dec.Token(); err != nil {
			return err
		}
		if token == json.Delim('{') {
			if depth == maxDepth {
				return errDeep
			}
			if err := readColumns(dec, into, name+"_", depth+1); err != nil {
				return err
			}
			continue
		}
		if _, twice := into[name]; twice {
			return fmt.Errorf("two values for column %s", Quoted(name))
		}
		if into[name], err = readValue(dec, token, depth); err != nil {
			return err
		}
	}
}

var errDeep = fmt.Errorf("it is nested more than %d deep", maxDepth)

// readValue reads what begins with a token: nil, bool, int64, float64, string, or []any of
// these; objects in lists in writing.
func readValue(dec *json.Decoder, token json.Token, depth int) (any, error) {
	v, err := readRaw(dec, token, depth)
	return plain(v), err
}

// readRaw reads what begins with a token as encoding/json does, but no deeper and no key twice.
func readRaw(dec *json.Decoder, token json.Token, depth int) (any, error) {
	open, ok := token.(json.Delim)
	if !ok {
		return token, nil
	}
	if depth == maxDepth {
		return nil, errDeep
	}
	list, object := []any{}, map[string]any{}
	for {
		token, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if token == json.Delim(']') {
			return list, nil
		}
		if token == json.Delim('}') {
			return object, nil
		}
		key, _ := token.(string)
		if open == '{' {
			if _, twice := object[key]; twice {
				return nil, fmt.Errorf("two values for %s", Quoted(key))
			}
			if token, err = dec.Token(); err != nil {
				return nil, err
			}
		}
		v, err := readRaw(dec, token, depth+1)
		if err != nil {
			return nil, err
		}
		if open == '{' {
			object[key] = v
		} else {
			list = append(list, v)
		}
	}
}

// plain replaces json.Number by int64 or float64, and writes out objects in lists.
func plain(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
		return v
	case map[string]any:
		return writing(v)
	default:
		return v
	}
}

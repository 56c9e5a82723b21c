package source

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonKey names a value of JSON members: a key of the objects that members with an extension hold, or the whole of
// those that hold something else.
type jsonKey struct {
	ext, key string
	whole    bool
}

// column is what the column of the values would be called.
func (k jsonKey) column() string {
	_, words := kindOf(k.ext)
	switch {
	case k.whole:
		return cmp.Or(words, k.ext)
	case words != "":
		return words + "_" + k.key
	}
	return k.key
}

func (k jsonKey) compare(other jsonKey) int {
	whole := func(k jsonKey) int {
		if k.whole {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(firstWords(k.ext), firstWords(other.ext)), cmp.Compare(k.ext, other.ext),
		whole(k)-whole(other), cmp.Compare(k.key, other.key))
}

// parseJSONMember reads a member that holds JSON: the keys of an object as parseObject has them, or a list, a text, a
// number or a truth value as one. null holds nothing.
func parseJSONMember(ext string, data []byte) (map[jsonKey]any, error) {
	values := map[jsonKey]any{}
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) == 0 || text[0] == '{' {
		object, err := parseObject(data)
		for k, v := range object {
			values[jsonKey{ext: ext, key: k}] = v
		}
		return values, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	first, err := dec.Token()
	var v any
	if err == nil {
		v, err = readValue(dec, first, 1)
	}
	if err != nil {
		return nil, badJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("bad JSON: more than one value")
	}
	if v != nil {
		values[jsonKey{ext: ext, whole: true}] = v
	}
	return values, nil
}

package source

import (
	"cmp"
	"fmt"
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
func parseJSONMember(ext, text string) (map[jsonKey]written, error) {
	values := map[jsonKey]written{}
	p := jsonParser{in: text}
	if c := p.peek(); c == 0 || c == '{' {
		object, err := parseObject(text)
		for _, m := range object {
			values[jsonKey{ext: ext, key: m.name}] = m.value
		}
		return values, err
	}
	v, err := p.whole()
	if err != nil {
		return nil, fmt.Errorf("bad JSON: %w", err)
	}
	if v.form != formNull {
		values[jsonKey{ext: ext, whole: true}] = v
	}
	return values, nil
}

package schema

import (
	"strconv"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"
)

// longestShown is how long a name may be that a message has without quotes, in bytes.
const longestShown = 40

// Shown is a name as messages have it. A plain one, of letters, digits and . _ - /, is as it is. Any other one is in
// quotes, with escapes, and abridged: names come from data and from other callers, and what such a name says is not to
// be taken for what the server says.
func Shown(name string) string {
	if name == "" || len(name) > longestShown || strings.ContainsFunc(name, odd) {
		return Quote(name)
	}
	return name
}

// odd reports whether a character is none of a plain name.
func odd(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
	case c == '.', c == '_', c == '-', c == '/':
	default:
		return true
	}
	return false
}

// ShownList lists names as messages have them.
func ShownList(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = Shown(name)
	}
	return strings.Join(list, ", ")
}

// ShownType is a type as messages have it: in quotes where it has fields with odd names.
func ShownType(dt arrow.DataType) string {
	if dt == nil {
		return "nothing"
	}
	text := dt.String()
	inType := func(c rune) bool { return odd(c) && !strings.ContainsRune("<>[]=,: +()", c) }
	nested, isNested := dt.(arrow.NestedType)
	if len(text) <= longestType && !strings.ContainsFunc(text, inType) && (!isNested || plainFields(nested)) {
		return text
	}
	if len(text) > longestType {
		text = clip(text, longestType) + "…"
	}
	return strconv.Quote(text)
}

// longestType is how much of a type a message has, in bytes.
const longestType = 200

// plainFields reports whether all names within a type are plain.
func plainFields(dt arrow.NestedType) bool {
	for _, f := range dt.Fields() {
		if Shown(f.Name) != f.Name && f.Name != "" {
			return false
		}
		if inner, ok := f.Type.(arrow.NestedType); ok && !plainFields(inner) {
			return false
		}
	}
	return true
}

package source

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// longestName is how much of a name a message holds, in bytes.
const longestName = 240

// Quoted returns a name from the data as a message says it: as it is, or, where
// that could be mistaken for something else or do something to a terminal, as a Go
// string. Long names are abridged.
func Quoted(name string) string {
	shown := name
	if len(shown) > longestName {
		n := longestName
		for n > 0 && !utf8.RuneStart(shown[n]) {
			n--
		}
		shown = shown[:n]
	}
	if shown == "" || strings.TrimSpace(shown) != shown || strings.Contains(shown, `"`) || strconv.Quote(shown) != `"`+
		shown+`"` {
		shown = strconv.Quote(shown)
	}
	if len(name) > longestName {
		shown += fmt.Sprintf("… (%d bytes)", len(name))
	}
	return shown
}

// quotedList lists names, the first few of many.
func quotedList(names []string) string {
	const most = 10
	var out []string
	for _, name := range names[:min(len(names), most)] {
		out = append(out, Quoted(name))
	}
	if more := len(names) - most; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, ", ")
}

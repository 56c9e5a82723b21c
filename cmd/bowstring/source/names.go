package source

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"bowstring/schema"
)

// longestName is how many bytes of a name a message shows.
const longestName = 240

// freeName returns the name in a dataset for a column of the source. It is another one if
// the own name is empty, too long, among taken, or one of Bowstring's own columns.
func freeName(name string, taken []string) string { return freeNameAs("source_", name, taken) }

// freeNameAs is freeName with the prefix of the other name.
func freeNameAs(prefix, name string, taken []string) string {
	if name == "" {
		name = "unnamed"
	}
	name = shortName(name, "")
	if name == schema.IDColumn || name == schema.PositionColumn || name == schema.SplitColumn ||
		slices.Contains(taken, name) {
		name = shortName(prefix+name, "")
	}
	return name
}

// freeNames returns distinct names in a dataset for all columns of a source. A column
// that may keep its name does, also if an earlier column would get that name.
func freeNames(prefix string, names, taken []string) []string {
	used := map[string]bool{}
	for _, name := range taken {
		used[name] = true
	}
	// First all names that may stay are reserved, then the others get free ones.
	for _, name := range names {
		if freeNameAs(prefix, name, taken) == name {
			used[name] = true
		}
	}
	given := map[string]bool{}
	var out []string
	for _, name := range names {
		free := freeNameAs(prefix, name, taken)
		if free != name || given[name] {
			free = nextFree(free, used)
			used[free] = true
		}
		given[free] = true
		out = append(out, free)
	}
	return out
}

// nextFree returns name, or the first of NAME_2, NAME_3 … that is not used.
func nextFree(name string, used map[string]bool) string {
	free := name
	for n := 2; used[free]; n++ {
		free = shortName(name, fmt.Sprintf("_%d", n))
	}
	return free
}

// shortName returns name plus end, shortened to the longest name of a column. A part of a
// hash replaces what is cut off, and keeps names distinct.
func shortName(name, end string) string {
	if len(name)+len(end) <= schema.MaxNameLen {
		return name + end
	}
	sum := sha256.Sum256([]byte(name))
	end = fmt.Sprintf("_%x%s", sum[:4], end)
	n := schema.MaxNameLen - len(end)
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n] + end
}

// Quoted returns a name from the data for a message. It is quoted as a Go string if it
// could be mistaken for something else, or could control a terminal. Long names are
// shortened.
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

// keptAs returns the note that a column has another name in the dataset. what is a column
// or a key.
func keptAs(what, name, as string) string {
	shown := Quoted(name)
	if !strings.HasPrefix(shown, `"`) {
		shown = `"` + shown + `"`
	}
	return fmt.Sprintf("%s %s is kept as %q", what, shown, as)
}

// quotedList returns the first ten names and the number of the others.
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

package source

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bowstring/schema"
)

// choice selects the columns of a source by Options.Columns, Options.LeaveOut and
// Options.Text. A nil choice takes all. One goroutine uses it, while the source is
// opened.
//
// It also records which patterns matched. A pattern that matched nothing is an error: it
// is nearly always a misspelt name, and would otherwise drop a column without notice.
type choice struct {
	only, out, text []string
	// used has the patterns of only and out that matched, as the flag and the pattern.
	used map[string]bool
	// known are the names of columns that the source has, for the message of check.
	known []string
	// decided caches the decisions by name. A format may ask for each key of each sample.
	decided map[string]bool
}

func newChoice(opts Options) *choice {
	return &choice{only: opts.Columns, out: opts.LeaveOut, text: opts.Text, used: map[string]bool{},
		decided: map[string]bool{}}
}

// isText reports whether a column is read as text, whatever its values look like.
func (c *choice) isText(name string, also ...string) bool {
	return c != nil && c.hit("--text", append(also, name))
}

// wants reports whether a column of the source is taken. name is its name in the source,
// and also are the names that it may have in the dataset: users write either.
func (c *choice) wants(name string, also ...string) bool { return c.decide(name, also, true) }

// keeps is wants for a column that the importer itself makes. Such a column is kept even
// if Options.Columns does not name it.
func (c *choice) keeps(name string, also ...string) bool { return c.decide(name, also, false) }

// decide is wants and keeps; named says that Options.Columns has to name the column.
func (c *choice) decide(name string, also []string, named bool) bool {
	if c == nil {
		return true
	}
	if wanted, ok := c.decided[name]; ok && named {
		return wanted
	}
	// Past the bound, decisions are made again each time: the result is the same.
	if len(c.known) < maxDecided {
		c.known = append(c.known, name)
	}
	names := append(also, name)
	// Both lists are matched in any case, so that hit records the patterns of both.
	asked := c.hit("--columns", names) || len(c.only) == 0 || !named
	wanted := !c.hit("--leave-out", names) && asked
	if named && len(c.decided) < maxDecided {
		c.decided[name] = wanted
	}
	return wanted
}

// maxDecided bounds the names that are remembered: JSON may have a new key in each
// sample.
const maxDecided = 1 << 16

// flags returns the lists of patterns by their flags.
func (c *choice) flags() map[string][]string {
	return map[string][]string{"--columns": c.only, "--leave-out": c.out, "--text": c.text}
}

// hit reports whether a pattern of a flag matches one of the names, and records all
// patterns that do.
func (c *choice) hit(flag string, names []string) bool {
	found := false
	for _, p := range c.flags()[flag] {
		if slices.ContainsFunc(names, func(name string) bool { return matches(p, name) }) {
			c.used[flag+" "+p] = true
			found = true
		}
	}
	return found
}

// check returns an error for the first pattern that has matched no column, with the
// nearest name. It is called when all columns are known.
func (c *choice) check() error {
	flags := c.flags()
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		for _, name := range flags[flag] {
			// Columns that the importer adds may be named although this source does not
			// have them: one command is used for several sources.
			added := slices.ContainsFunc(append(AddedColumns(), countColumn), func(a string) bool { return matches(name, a) })
			if c.used[flag+" "+name] || added && flag != "--text" {
				continue
			}
			if flag == "--text" {
				return fmt.Errorf("%w: --text: no column %s is read from text", schema.ErrInvalid, Quoted(name))
			}
			slices.Sort(c.known)
			c.known = slices.Compact(c.known)
			near := ""
			if n := schema.Nearest(name, c.known); n != "" {
				near = fmt.Sprintf("; did you mean %s?", Quoted(n))
			}
			return fmt.Errorf("%w: %s: there is no column %s, only %s%s", schema.ErrInvalid, flag, Quoted(name),
				quotedList(c.known), near)
		}
	}
	return nil
}

// matches reports whether a name matches a pattern, in which * stands for any text. Other
// characters stand for themselves: names of columns contain brackets and question marks.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	// The two ends must not overlap: a*a does not match a.
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return true
}

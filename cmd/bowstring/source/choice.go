package source

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bowstring/schema"
)

// choice is what Options.Columns, Options.LeaveOut and Options.Text say of the columns of a source. nil takes all. It
// is used by one goroutine, while the source is opened.
type choice struct {
	only, out, text []string
	used            map[string]bool // of only and out, by the list and the name: it names a column
	known           []string        // columns that were asked for by name
	decided         map[string]bool // by name: whether it is wanted
}

func newChoice(opts Options) *choice {
	return &choice{only: opts.Columns, out: opts.LeaveOut, text: opts.Text, used: map[string]bool{},
		decided: map[string]bool{}}
}

// isText says whether a column holds text, whatever it looks like.
func (c *choice) isText(name string, also ...string) bool {
	return c != nil && c.hit("--text", append(also, name))
}

// wants says whether a column of the source is taken. It is named as the source has it; also are the names that it may
// have in the dataset.
func (c *choice) wants(name string, also ...string) bool { return c.decide(name, also, true) }

// keeps is wants for a column that the importer makes, which Options.Columns does not have to name.
func (c *choice) keeps(name string, also ...string) bool { return c.decide(name, also, false) }

func (c *choice) decide(name string, also []string, named bool) bool {
	if c == nil {
		return true
	}
	if wanted, ok := c.decided[name]; ok && named {
		return wanted
	}
	if len(c.known) < maxDecided {
		c.known = append(c.known, name)
	}
	names := append(also, name)
	asked := c.hit("--columns", names) || len(c.only) == 0 || !named
	wanted := !c.hit("--leave-out", names) && asked
	if named && len(c.decided) < maxDecided {
		c.decided[name] = wanted
	}
	return wanted
}

// maxDecided bounds the names that are remembered.
const maxDecided = 1 << 16

// flags are the lists of patterns, by the flags that give them.
func (c *choice) flags() map[string][]string {
	return map[string][]string{"--columns": c.only, "--leave-out": c.out, "--text": c.text}
}

// hit says whether one of the patterns of a flag matches one of the names, and notes all that do.
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

// check finds names that no column has.
func (c *choice) check() error {
	flags := c.flags()
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		for _, name := range flags[flag] {
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

// matches says whether a name is of a pattern, in which * stands for any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
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

package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"bowstring/schema"
)

// maxExtensions bounds the different extensions, which would each be a column.
const maxExtensions = 1000

// survey is what a first reading of tars found.
type survey struct {
	shards     []shard
	choice     *choice
	samples    int64
	extensions map[string]bool
	prefixes   map[string]*surveyed // what comes before the last dot of an extension
	manyImages bool                 // some sample has members jpg and png, say
	json       map[jsonKey]*inferred

	keys map[string]*foundKey // by split and key
	sets map[string]string    // of extensions, each held once
}

// surveyed is what was found of the first words of extensions.
type surveyed struct {
	samples int64 // that have a member with them
	beside  bool  // some sample also has a member with one word as its extension: its key ends there for certain
}

// foundKey is where the members of a key lie.
type foundKey struct {
	shard int32  // the first
	run   int32  // the last reading that met it
	set   string // extensions of its members
	apart string // how its members lie apart, "" if they do not
}

// group is a run of members with one key and different extensions: a sample, if there is no other of that key.
type group struct {
	key string
	has map[string]bool // extensions
}

// takes says whether a member belongs to the group.
func (g *group) takes(m tarMember) bool { return g.has != nil && g.key == m.key && !g.has[m.ext] }

func newSurvey(shards []shard, choice *choice) *survey {
	return &survey{shards: shards, choice: choice, extensions: map[string]bool{}, prefixes: map[string]*surveyed{},
		json: map[jsonKey]*inferred{}, keys: map[string]*foundKey{}, sets: map[string]string{}}
}

// read reads one tar. What is wrong with it shows again, and is reported, when
// its samples are read.
func (f *survey) read(ctx context.Context, n int) error {
	sh := f.shards[n]
	t, err := openTar(sh.path, true)
	if err != nil {
		return nil
	}
	defer func() { _ = t.close() }()
	var g group
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m, err := t.next()
		if err != nil {
			exts := f.note(g)
			if errors.Is(err, io.EOF) || errors.Is(err, errJunk) { // what breaks off is not read
				f.place(n, g, exts)
			}
			return nil
		}
		if !g.takes(m) {
			f.place(n, g, f.note(g))
			g = group{key: m.key, has: map[string]bool{}}
		}
		if m.problem != "" {
			continue
		}
		g.has[m.ext] = true
		if kind, _ := kindOf(m.ext); kind != memberJSON || m.size > maxText {
			continue
		}
		if err := f.readJSON(t, m.ext); err != nil {
			return err
		}
	}
}

func (f *survey) readJSON(t *tarReader, ext string) error {
	var values map[jsonKey]written
	if data, err := io.ReadAll(t); err == nil { // else the next member shows it as well
		values, _ = parseJSONMember(ext, string(data)) // what is wrong with it, its sample says
	}
	for k, v := range values {
		if f.json[k] == nil {
			if !f.choice.wants(k.column(), "json_"+k.column()) {
				continue
			}
			f.json[k] = &inferred{}
		}
		f.json[k].observe(v)
	}
	if len(f.json) > maxColumns {
		return fmt.Errorf("%w: the JSON members have more than %d different keys, which would each be a column",
			schema.ErrLimit, maxColumns)
	}
	return nil
}

// note notes the extensions of a group whose members are all known, and returns them.
func (f *survey) note(g group) []string {
	if g.has == nil {
		return nil
	}
	f.samples++
	exts := slices.Sorted(maps.Keys(g.has))
	plain := slices.ContainsFunc(exts, func(ext string) bool { return firstWords(ext) == "" })
	images, last := 0, ""
	for _, ext := range exts { // sorted, so that those that begin alike are next to each other
		f.extensions[ext] = true
		if slices.Contains(imageExtensions, ext) {
			images++
		}
		words := firstWords(ext)
		if words == "" || words == last {
			continue
		}
		last = words
		p := f.prefixes[words]
		if p == nil {
			p = &surveyed{}
			f.prefixes[words] = p
		}
		p.samples++
		p.beside = p.beside || plain
	}
	f.manyImages = f.manyImages || images > 1
	return exts
}

// firstWords is what comes before the last dot of an extension.
func firstWords(ext string) string { return ext[:max(strings.LastIndexByte(ext, '.'), 0)] }

// place notes where a group lies, and whether its key was met before.
func (f *survey) place(n int, g group, exts []string) {
	if g.has == nil {
		return
	}
	set := "." + strings.Join(exts, ", .")
	if len(exts) == 0 {
		set = "nothing"
	}
	if known, ok := f.sets[set]; ok {
		set = known
	} else {
		f.sets[set] = set
	}
	sh := f.shards[n]
	key := sampleKey(sh, g.key)
	first, ok := f.keys[key]
	switch {
	case !ok:
		f.keys[key] = &foundKey{shard: int32(n), set: set}
	case first.apart == "" && first.set != set:
		first.apart = fmt.Sprintf("its members lie apart or come twice: %s in %s, and %s in %s; those of a key must "+
			"follow each other",
			first.set, Quoted(f.shards[first.shard].rel), set, Quoted(sh.rel))
	}
}

// sampleKey names a sample.
func sampleKey(sh shard, key string) string { return path.Join(sh.split, key) }

// refused says of extensions why their members cannot be imported. Words before the last
// dot of an extension may be the end of a key, as in john.smith.jpg: they are taken for a column's
// name only where several samples have it, or one has it beside a plain extension.
func (f *survey) refused() map[string]string {
	out := map[string]string{}
	for ext := range f.extensions {
		if p := f.prefixes[firstWords(ext)]; p != nil && p.samples < 2 && !p.beside {
			out[ext] = fmt.Sprintf("no other sample has a member .%s, and this one has none with a plain extension: "+
				".%s may be a column, or belong to the key; "+
				"name it without that dot", ext, firstWords(ext))
		}
	}
	return out
}

// checkExtensions bounds the columns.
func (f *survey) checkExtensions() error {
	if n := len(f.extensions); n > maxExtensions {
		return fmt.Errorf("%w: the members have more than %d different extensions, which would each be a column, "+
			"such as %s; "+
			"a key ends at the first dot of a name, as WebDataset has it: are there dots in the keys?", schema.ErrLimit,
			maxExtensions,
			quotedList(slices.Sorted(maps.Keys(f.extensions))[:3]))
	}
	return nil
}

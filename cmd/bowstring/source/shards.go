package source

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"bowstring/schema"
)

// splitWords are the names of splits in folders and files, in the order in which splits
// are listed.
var splitWords = []string{"train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval",
	"evaluation"}

// isSplitWord reports whether s is the name of a split, in any case.
func isSplitWord(s string) bool { return splitRank(s) < len(splitWords) }

// compareSplits orders splits by splitRank, and unknown ones by name after them.
func compareSplits(a, b string) int { return cmp.Or(splitRank(a)-splitRank(b), strings.Compare(a, b)) }

// splitRank returns the position of a split: train, validation, test. Unknown names come
// last.
func splitRank(s string) int {
	for i, w := range splitWords {
		if strings.EqualFold(s, w) {
			return i
		}
	}
	return len(splitWords)
}

var (
	// shardOf matches train-00000-of-00002, the name that the library datasets gives a
	// shard.
	shardOf = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._]*)-\d{3,}-of-\d{3,}(?:-[0-9a-f]+)?$`)
	// words matches the words of names such as train-000017.tar and imagenet-train-0003.
	words = regexp.MustCompile(`[A-Za-z]+`)
)

// splitOfFile returns the split that a file's path names, or "". rel is relative, with
// slashes. The name of a shard decides first, then a word in the file's name, then a
// folder.
func splitOfFile(rel string) string {
	base := path.Base(rel)
	stem, _, _ := strings.Cut(base, ".")
	// The name of such a shard begins with its split, whatever word that is.
	if m := shardOf.FindStringSubmatch(stem); m != nil {
		return m[1]
	}
	for _, w := range words.FindAllString(stem, -1) {
		if isSplitWord(w) {
			return w
		}
	}
	for dir := path.Dir(rel); dir != "." && dir != "/"; dir = path.Dir(dir) {
		// Partitioned tables have folders such as split=train.
		if name, ok := strings.CutPrefix(path.Base(dir), schema.SplitColumn+"="); ok && name != "" {
			return name
		}
		if isSplitWord(path.Base(dir)) {
			return path.Base(dir)
		}
	}
	return ""
}

// shard is one of several files of a source.
type shard struct {
	path, rel string // rel is relative, with slashes
	split     string
	missing   string // why there is nothing to read, although other names say that there should be
	known     int64  // rows known from the previous snapshot, so that it is not read; 0 if it is read
}

// paths returns the paths of the shards that are read.
func paths(shards []shard) (all []string) {
	for _, s := range shards {
		if s.read() {
			all = append(all, s.path)
		}
	}
	return all
}

// read reports whether the shard must be read.
func (s *shard) read() bool { return s.missing == "" && s.known == 0 }

// asMissing returns the bad sample for a missing shard.
func (s *shard) asMissing() Sample { return Sample{Key: s.rel, Split: s.split, Bad: s.missing} }

// arrangeShards sorts shards by split and name, and returns their splits. If asked is one
// of the splits, shards of others are left out.
func arrangeShards(shards []shard, asked string) (kept []shard, splits []string) {
	for i := range shards {
		if shards[i].missing == "" {
			shards[i].split = splitOfFile(shards[i].rel)
		}
		if s := shards[i].split; s != "" && !slices.Contains(splits, s) {
			splits = append(splits, s)
		}
	}
	slices.SortFunc(splits, compareSplits)
	slices.SortStableFunc(shards, func(a, b shard) int {
		return cmp.Or(slices.Index(splits, a.split)-slices.Index(splits, b.split), strings.Compare(a.rel, b.rel))
	})
	if slices.Contains(splits, asked) {
		shards = slices.DeleteFunc(shards, func(s shard) bool { return s.split != asked })
	}
	return shards, splits
}

// numbered matches the name of a shard with the number of shards, such as
// train-00001-of-00004.parquet. Some tools append a hash of the content.
var numbered = regexp.MustCompile(`^(.*)-(\d{3,9})-of-(\d{3,9})(?:-[0-9a-f]+)?(\..*)?$`)

// series are the shards whose names differ in their number only.
type series struct {
	dir, stem, ending string
	digits            int    // width of a number
	count             string // number of shards, as the names have it
	total             int
	of                map[int][]shard
}

// name returns the name of shard i.
func (s *series) name(i int) string {
	return path.Join(s.dir, fmt.Sprintf("%s-%0*d-of-%s%s", s.stem, s.digits, i, s.count, s.ending))
}

// findSeries groups the shards with numbered names.
func findSeries(shards []shard) []*series {
	type key struct {
		dir, stem, ending, count string
		digits                   int
	}
	found := map[key]*series{}
	var all []*series
	for _, sh := range shards {
		dir, base := path.Split(sh.rel)
		m := numbered.FindStringSubmatch(base)
		if m == nil {
			continue
		}
		i, _ := strconv.Atoi(m[2])
		total, _ := strconv.Atoi(m[3])
		// Shards of one series agree in everything but the number, also in its width.
		k := key{dir, m[1], m[4], m[3], len(m[2])}
		s := found[k]
		if s == nil {
			s = &series{dir, m[1], m[4], len(m[2]), m[3], total, map[int][]shard{}}
			found[k] = s
			all = append(all, s)
		}
		s.of[i] = append(s.of[i], sh)
	}
	return all
}

// lacking returns which shards are missing and which are there twice; nil if nothing is
// wrong. An incomplete download would otherwise become a smaller dataset, unnoticed.
//
// asked restricts the missing ones to names that the user asked for; nil means all.
func (s *series) lacking(asked func(rel string) bool) []string {
	first := 0
	if _, zero := s.of[0]; !zero && len(s.of[s.total]) > 0 {
		first = 1 // numbered from 1
	}
	var names []string
	n := 0
	for i := first; i < first+min(s.total, maxExpanded) && (asked != nil || n < maxNamed); i++ {
		if len(s.of[i]) == 0 && (asked == nil || asked(s.name(i))) {
			if n++; n <= maxNamed {
				names = append(names, Quoted(path.Base(s.name(i))))
			}
		}
	}
	// The count of missing shards does not depend on the bound for names.
	if asked == nil {
		n = s.total
		for i := range s.of {
			if i >= first && i < first+s.total {
				n--
			}
		}
	}
	var wrong []string
	if n > 0 {
		what := strings.Join(names, ", ")
		if n > maxNamed {
			what += fmt.Sprintf(" and %d more", n-maxNamed)
		}
		wrong = append(wrong, fmt.Sprintf("missing of %d shards, as the names of the others say: %s", s.total, what))
	}
	for _, i := range slices.Sorted(maps.Keys(s.of)) {
		switch same := s.of[i]; {
		case len(same) > 1:
			wrong = append(wrong, fmt.Sprintf("two files are number %d of %d: %s and %s", i, s.total,
				Quoted(path.Base(same[0].rel)), Quoted(path.Base(same[1].rel))))
		case i < first || i >= first+s.total:
			wrong = append(wrong, fmt.Sprintf("%s is none of %d shards", Quoted(path.Base(same[0].rel)), s.total))
		}
	}
	return wrong
}

// maxNamed is how many missing shards a message names.
const maxNamed = 5

// addMissing adds a shard for each series that is not complete. Reading that shard
// reports what is wrong. asked is as in lacking.
func addMissing(shards []shard, asked func(rel string) bool) []shard {
	for _, s := range findSeries(shards) {
		wrong := s.lacking(asked)
		if wrong == nil {
			continue
		}
		rel := path.Join(s.dir, fmt.Sprintf("%s-*-of-%s%s", s.stem, s.count, s.ending))
		shards = append(shards, shard{rel: rel, split: splitOfFile(s.name(0)), missing: strings.Join(wrong, "; ")})
	}
	return shards
}

// findShards returns the files below a directory whose names match, or the one file.
// Hidden files and folders are skipped. A file outside the bounds is an error.
func (f *Files) findShards(path string, opts Options, match func(name string) bool) ([]shard, error) {
	info, err := f.stat(path)
	if err != nil {
		return nil, notFound(err)
	}
	if !info.IsDir() {
		return []shard{{path: path, rel: filepath.Base(path)}}, nil
	}
	// The walk does not follow links, so the folder itself must not be one.
	root, err := f.resolve(path)
	if err != nil {
		return nil, err
	}
	in, err := f.boundsOf(root, opts)
	if err != nil {
		return nil, err
	}
	var found []shard
	err = f.walk(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case p != root && hidden(d.Name()):
			if d.IsDir() {
				return fs.SkipDir
			}
		case !d.IsDir() && match(d.Name()):
			if err := in.check(f.absolute(p)); err != nil {
				return err
			}
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			found = append(found, shard{path: p, rel: filepath.ToSlash(rel)})
		}
		return nil
	})
	return addMissing(found, nil), err
}

// isTarName reports whether a name has the ending of a tar, compressed or not.
func isTarName(name string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.bz2", ".tbz2", ".tbz",
		".tar.xz", ".txz"} {
		if strings.HasSuffix(strings.ToLower(name), suffix) {
			return true
		}
	}
	return false
}

// patternRunes are the characters that begin a part of a pattern.
const patternRunes = "*?[{"

// isPattern reports whether a path is a pattern.
func isPattern(path string) bool { return strings.ContainsAny(path, patternRunes) }

// findTars returns the tars in a directory or of a pattern, or the one file. A name
// without wildcards that does not exist is an error.
func (f *Files) findTars(ctx context.Context, pattern string, opts Options) ([]shard, error) {
	var found []shard
	if _, err := f.stat(pattern); err == nil || !isPattern(pattern) {
		if found, err = f.findShards(pattern, opts, isTarName); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%w: there is no *.tar file", schema.ErrInvalid)
		}
		return found, nil
	}
	// Braces are expanded first: each name must exist, while wildcards match what there
	// is.
	expanded, err := expandBraces(pattern)
	if err != nil {
		return nil, err
	}
	if err := f.know(ctx, plain(expanded)); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range expanded {
		matches := []string{p}
		if strings.ContainsAny(p, "*?[") {
			if matches, err = f.glob(p); err != nil {
				return nil, fmt.Errorf("%w: pattern %q: %w", schema.ErrInvalid, p, err)
			}
		} else if _, err := f.stat(p); err != nil {
			return nil, notFound(err)
		}
		for _, m := range matches {
			if !seen[m] {
				seen[m] = true
				found = append(found, shard{path: m})
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: no file matches %q", schema.ErrNotFound, pattern)
	}
	// Names are relative to the deepest common folder, so that keys do not depend on
	// where it is.
	common := filepath.Dir(found[0].path)
	for _, sh := range found {
		for !strings.HasPrefix(sh.path, common+string(filepath.Separator)) && common != "." &&
			common != string(filepath.Separator) {
			common = filepath.Dir(common)
		}
	}
	in, err := f.boundsOf(common, opts)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := in.check(f.absolute(found[i].path)); err != nil {
			return nil, err
		}
		rel, err := filepath.Rel(common, found[i].path)
		if err != nil {
			return nil, err
		}
		found[i].rel = filepath.ToSlash(rel)
	}
	return addMissing(found, func(rel string) bool {
		name := filepath.Join(common, filepath.FromSlash(rel))
		return slices.ContainsFunc(expanded, func(pattern string) bool {
			ok, err := filepath.Match(filepath.Clean(pattern), name)
			return ok && err == nil
		})
	}), nil
}

// plain returns the paths that are no patterns.
func plain(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), isPattern)
}

// maxExpanded bounds the paths of a pattern with braces.
const maxExpanded = 1 << 20

// expandBraces expands {0000..0011} and {a,b} as a shell does. Numbers keep the width of
// the first one.
func expandBraces(pattern string) ([]string, error) {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		return []string{pattern}, nil
	}
	end := strings.IndexByte(pattern[open:], '}')
	if end < 0 || strings.IndexByte(pattern[open+1:open+end], '{') >= 0 {
		return nil, fmt.Errorf("%w: pattern %q: want braces as in {0000..0011} or {a,b}, not within each other",
			schema.ErrInvalid, pattern)
	}
	inner, rest := pattern[open+1:open+end], pattern[open+end+1:]
	choices := strings.Split(inner, ",")
	if from, to, ok := strings.Cut(inner, ".."); ok {
		a, errA := strconv.Atoi(from)
		b, errB := strconv.Atoi(to)
		if errA != nil || errB != nil || a > b || b-a >= maxExpanded {
			return nil, fmt.Errorf("%w: pattern %q: %q is no range such as 0000..0011", schema.ErrInvalid, pattern,
				inner)
		}
		choices = nil
		for i := a; i <= b; i++ {
			choices = append(choices, fmt.Sprintf("%0*d", len(from), i))
		}
	}
	// Further braces multiply the names; the product is bounded.
	tails, err := expandBraces(rest)
	if err != nil {
		return nil, err
	}
	if len(choices)*len(tails) > maxExpanded {
		return nil, fmt.Errorf("%w: pattern %q stands for more than %d paths", schema.ErrLimit, pattern, maxExpanded)
	}
	var all []string
	for _, c := range choices {
		for _, t := range tails {
			all = append(all, pattern[:open]+c+t)
		}
	}
	return all, nil
}

package source

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bowstring/schema"
)

func isTarName(name string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.bz2", ".tbz2", ".tbz",
		".tar.xz", ".txz"} {
		if strings.HasSuffix(strings.ToLower(name), suffix) {
			return true
		}
	}
	return false
}

func isPattern(path string) bool { return strings.ContainsAny(path, "*?[{") }

// findTars lists the tars in a directory, of a pattern, or the one file.
func findTars(pattern string, opts Options) ([]shard, error) {
	var found []shard
	if _, err := os.Stat(pattern); err == nil || !isPattern(pattern) {
		if found, err = findShards(pattern, opts, isTarName); err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("%w: there is no *.tar file", schema.ErrInvalid)
		}
		return found, nil
	}
	expanded, err := expandBraces(pattern)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, p := range expanded {
		matches := []string{p}
		if strings.ContainsAny(p, "*?[") {
			if matches, err = filepath.Glob(p); err != nil {
				return nil, fmt.Errorf("%w: pattern %q: %w", schema.ErrInvalid, p, err)
			}
		} else if _, err := os.Stat(p); err != nil {
			return nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
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
	// Relative to the folder that all are in.
	common := filepath.Dir(found[0].path)
	for _, f := range found {
		for !strings.HasPrefix(f.path, common+string(filepath.Separator)) && common != "." &&
			common != string(filepath.Separator) {
			common = filepath.Dir(common)
		}
	}
	in, err := boundsOf(common, opts)
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := in.check(absolute(found[i].path)); err != nil {
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

// maxExpanded bounds the paths that a pattern with braces stands for.
const maxExpanded = 1 << 20

// expandBraces expands {0000..0011} and {a,b} as a shell does.
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

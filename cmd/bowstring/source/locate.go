package source

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A table may name a file otherwise than its folder does: with the backslashes of Windows, or with accents of their own
// (NFD, as macOS writes them) where the folder has letters that include them (NFC), or the other way round.

// slashed returns a path with slashes in the place of backslashes.
func slashed(name string) string { return strings.ReplaceAll(name, `\`, "/") }

// canonical is what is the same of all ways to write a path.
func canonical(name string) string { return norm.NFC.String(slashed(name)) }

// ascii says whether there is one way to write a name.
func ascii(name string) bool {
	for i := range len(name) {
		if name[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// namer finds the files that a table in a folder names. It is used by one goroutine.
type namer struct {
	dir   string
	in    *bounds
	names map[string]map[string]string // by folder, of names that are not ASCII: how the folder writes them
}

// find returns where a file that a table names lies, or is to lie, and its name as a path with slashes. It says why the
// file is not to be read, "" if it is. A name that a file has is that file.
func (n *namer) find(name string) (file, key, bad string) {
	file, bad = n.at(name)
	if bad == "" && !missing(file) || !strings.Contains(name, `\`) && ascii(name) {
		return file, filepath.ToSlash(filepath.Clean(name)), bad
	}
	for _, other := range []string{name, slashed(name)} {
		at, why := n.at(other)
		if why != "" {
			continue
		}
		if at = n.written(at); !missing(at) && n.in.outside(at) == "" {
			return at, filepath.ToSlash(filepath.Clean(other)), ""
		}
	}
	return file, filepath.ToSlash(filepath.Clean(name)), bad
}

// rel returns the path in the folder of the table of the file that a table names.
func (n *namer) rel(name string) string {
	file, key, _ := n.find(name)
	if rel, err := filepath.Rel(n.dir, file); err == nil {
		return filepath.ToSlash(rel)
	}
	return key
}

// at returns the place of a file, and why it is not to be read.
func (n *namer) at(name string) (file, bad string) {
	file = filepath.FromSlash(name)
	if !filepath.IsAbs(file) {
		file = filepath.Join(n.dir, file)
	}
	return file, n.in.outside(file)
}

// written returns a path below the folder of the table as the folders on the way write it.
func (n *namer) written(file string) string {
	rel, err := filepath.Rel(n.dir, file)
	if err != nil || !filepath.IsLocal(rel) {
		return file
	}
	at := n.dir
	for part := range strings.SplitSeq(rel, string(filepath.Separator)) {
		if next := filepath.Join(at, part); !missing(next) || ascii(part) {
			at = next
			continue
		}
		if as, ok := n.folder(at)[norm.NFC.String(part)]; ok {
			part = as
		}
		at = filepath.Join(at, part)
	}
	return at
}

// folder reads a folder once. Two names with one normal form are both left out: the table cannot choose between them.
func (n *namer) folder(dir string) map[string]string {
	if known, ok := n.names[dir]; ok {
		return known
	}
	found, twice := map[string]string{}, map[string]bool{}
	entries, _ := os.ReadDir(dir) // what cannot be read has no files
	for _, e := range entries {
		if name := e.Name(); !ascii(name) {
			c := norm.NFC.String(name)
			_, had := found[c]
			twice[c] = twice[c] || had
			found[c] = name
		}
	}
	for c, is := range twice {
		if is {
			delete(found, c)
		}
	}
	if n.names == nil {
		n.names = map[string]map[string]string{}
	}
	n.names[dir] = found
	return found
}

// missing says whether there is nothing of that name.
func missing(file string) bool {
	_, err := os.Lstat(file)
	return errors.Is(err, fs.ErrNotExist)
}

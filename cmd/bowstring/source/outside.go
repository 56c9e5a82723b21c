package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bowstring/schema"
)

// bounds is the folder that a data set lies in. Its author may name any file, by a path or by a link: what lies outside
// of the folder is a file of the user who imports, and not one that the author has handed over. It is used by one
// goroutine; nil has no bounds.
type bounds struct {
	named    string            // as it was named, absolute
	resolved string            // without links
	folders  map[string]string // resolved, by name
}

// boundsOf returns the bounds of a folder; nil if what lies outside is to be taken, too.
func boundsOf(folder string, opts Options) (*bounds, error) {
	if opts.Outside {
		return nil, nil //nolint:nilnil // no bounds
	}
	resolved, err := filepath.EvalSymlinks(absolute(folder))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
	}
	return &bounds{named: absolute(folder), resolved: resolved, folders: map[string]string{}}, nil
}

// outside says how a path leads out of the folder, "" if it does not, or leads to nothing. A path that is outside by
// its name is not looked at.
func (b *bounds) outside(path string) string {
	if b == nil {
		return ""
	}
	if !below(b.named, path) && !below(b.resolved, path) {
		return fmt.Sprintf("a path out of the folder, to %s; --allow-outside takes it", Quoted(filepath.Clean(path)))
	}
	to, err := b.resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil:
		return reason(err)
	case !below(b.resolved, to):
		return fmt.Sprintf("a link out of the folder, to %s; --allow-outside takes it", Quoted(to))
	}
	return ""
}

// check is outside as an error.
func (b *bounds) check(path string) error {
	if why := b.outside(path); why != "" {
		return fmt.Errorf("%w: %s is %s", schema.ErrInvalid, Quoted(path), why)
	}
	return nil
}

// resolve returns a path without links. Each folder is looked at once.
func (b *bounds) resolve(path string) (string, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return filepath.EvalSymlinks(path)
	}
	// Not filepath.Dir, which removes a folder before "..": the system goes on from where a link leads.
	folder, name := filepath.Split(path)
	to, known := b.folders[folder]
	if !known {
		if to, err = filepath.EvalSymlinks(folder); err != nil {
			return "", err
		}
		b.folders[folder] = to
	}
	return filepath.Join(to, name), nil
}

// below reports whether a path is in a folder, by their names.
func below(folder, path string) bool {
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel)
}

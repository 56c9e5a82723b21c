package source

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bowstring/schema"
)

// findShards lists the files below a directory that match, or the one file.
func findShards(path string, opts Options, match func(name string) bool) ([]shard, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", schema.ErrNotFound, err)
	}
	if !info.IsDir() {
		return []shard{{path: path, rel: filepath.Base(path)}}, nil
	}
	root, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	in, err := boundsOf(root, opts)
	if err != nil {
		return nil, err
	}
	var found []shard
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case p != root && hidden(d.Name()):
			if d.IsDir() {
				return fs.SkipDir
			}
		case !d.IsDir() && match(d.Name()):
			if err := in.check(absolute(p)); err != nil {
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

// absolute names a path for people, wherever they are.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

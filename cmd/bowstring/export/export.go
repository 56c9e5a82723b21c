// Package export writes record batches to files that other tools read: a Parquet file, an
// Arrow IPC file, or a folder of images with their metadata.
//
// The result of a Sink appears under its name at once and whole, when Commit has
// returned. Until then it is next to that name under a temporary one. All files are on
// stable storage before the rename, so that a crash leaves the old result or the new one.
//
// file.go has the sinks for single files, folder.go the one for a folder, json.go the
// form of rows in JSON. Reading these files again is in package source.
package export

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/schema"
)

// Sink takes record batches. One goroutine at a time may use it. The caller calls Close
// in any case, also after Commit.
type Sink interface {
	// Write adds the rows of rec, which must have the schema of the sink. It does not
	// retain rec.
	Write(rec arrow.Record) error
	// Commit moves the result to its place. Only Close may be called afterwards.
	Commit() error
	// Close removes the temporary files, unless Commit has succeeded.
	Close() error
}

// Options say how a result gets to its place.
type Options struct {
	// Force replaces an existing result. A folder is replaced only if it is empty or an
	// earlier export.
	Force bool
	// SplitFolders gives each split its own folder, even if the names at the source have
	// none.
	SplitFolders bool

	sync func(*os.File) error // for tests: syncs a file or folder of an export to a folder
}

// Formats lists the names of the formats.
var Formats = []string{"parquet", "arrow", "folder"}

// FormatOf returns the format that the ending of a path means: .parquet or .pq; .arrow,
// .feather or .ipc; a slash for a folder. It returns "" for any other.
func FormatOf(path string) string {
	if strings.HasSuffix(path, "/") {
		return "folder"
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".parquet", ".pq":
		return "parquet"
	case ".arrow", ".feather", ".ipc":
		return "arrow"
	}
	return ""
}

// staged is a file or folder that is written next to its final path. Both are on one file
// system, so that the rename is atomic.
type staged struct {
	path, temp string
	done       bool // committed or removed
}

// stage chooses a temporary name for path, with a random part: two exports to one path do
// not meet. The name begins with a dot, which readers of folders skip.
func stage(path string, opts Options) (staged, error) {
	path = filepath.Clean(path)
	if err := vacant(path, opts); err != nil {
		return staged{}, err
	}
	dir, name := filepath.Split(path)
	return staged{path: path, temp: filepath.Join(dir, fmt.Sprintf(".%s.%08x.tmp", name, rand.Uint32()))}, nil
}

// vacant returns an error if path is taken and may not be replaced. An empty folder is
// always replaced.
func vacant(path string, opts Options) error {
	_, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case opts.Force:
		return nil
	}
	if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 {
		return nil // an empty folder
	}
	return fmt.Errorf("%w: %s is there; --force replaces it", schema.ErrExists, path)
}

// remove deletes the temporary files once.
func (s *staged) remove() error {
	if s.done {
		return nil
	}
	s.done = true
	return os.RemoveAll(s.temp)
}

// syncDir makes the entries of a directory durable. Without it a crash may undo a rename.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isBlob reports whether a column holds content: a blob, or the struct of bytes and path
// in which Hugging Face stores images.
func isBlob(f arrow.Field) bool {
	if schema.IsBlob(f) {
		return true
	}
	s, ok := f.Type.(*arrow.StructType)
	return ok && s.NumFields() == 2 && s.Field(0).Name == "bytes" && s.Field(1).Name == "path"
}

// Package export writes record batches to files as other tools read them: a
// Parquet file, an Arrow IPC file, or a folder of images with their metadata.
//
// A Sink's result appears under its name at once and whole, when Commit has returned;
// until then it is next to it under a temporary name. All files are on stable storage
// before the rename: a crash leaves the old result or the new one.
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

// Sink takes record batches. It is not safe for concurrent use.
type Sink interface {
	// Write adds the rows of rec, whose schema is that of the sink. It does not keep rec.
	Write(rec arrow.Record) error
	// Commit puts the result in its place. Nothing but Close may be called after it.
	Commit() error
	// Close removes what was written, unless it was committed.
	Close() error
}

// Options say how a result is put in its place.
type Options struct {
	// Force replaces what is there. A folder is replaced only if it is empty or an earlier export.
	Force bool
	// SplitFolders gives each split a folder of its own, also where the names
	// at the source do not.
	SplitFolders bool

	sync func(*os.File) error // for tests: what syncs a file or folder of an export to a folder
}

// Formats are the names of the formats.
var Formats = []string{"parquet", "arrow", "folder"}

// FormatOf returns the format by a path's ending: .parquet or .pq; .arrow, .feather or
// .ipc; a slash for a folder. "" for any other.
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

// staged is a file or folder that is being written beside its place.
type staged struct {
	path, temp string
	done       bool // committed or removed
}

// stage chooses a temporary name for path.
func stage(path string, opts Options) (staged, error) {
	path = filepath.Clean(path)
	if err := vacant(path, opts); err != nil {
		return staged{}, err
	}
	dir, name := filepath.Split(path)
	return staged{path: path, temp: filepath.Join(dir, fmt.Sprintf(".%s.%08x.tmp", name, rand.Uint32()))}, nil
}

// vacant says whether something may be put at path.
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

func (s *staged) remove() error {
	if s.done {
		return nil
	}
	s.done = true
	return os.RemoveAll(s.temp)
}

// syncDir makes the entries of a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// isBlob says whether a column holds content: a blob as it is, or the
// struct of bytes and path that Hugging Face keeps images in.
func isBlob(f arrow.Field) bool {
	if schema.IsBlob(f) {
		return true
	}
	s, ok := f.Type.(*arrow.StructType)
	return ok && s.NumFields() == 2 && s.Field(0).Name == "bytes" && s.Field(1).Name == "path"
}

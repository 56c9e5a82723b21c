package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"bowstring/fetch/object"
	"bowstring/schema"
)

// Extent is the place of a blob: bytes [Offset, Offset+Length) of a file, or of a decoded
// unit of it. The zero value stands for none: the blob is null, or is not in one piece
// anywhere.
type Extent struct {
	File           string // its name in Files
	Offset, Length int64
	Unit           *schema.Unit // nil if the bytes are stored as they are
	Why            string       // of one that stands for none: why, where the blob is not null
}

// IsZero reports whether e stands for none.
func (e Extent) IsZero() bool { return e.File == "" }

// Files is the place of a data set: a folder of this machine, or one of a bucket. A file
// has a name, relative to that folder with slashes; in a bucket it is the object's key.
// Formats have paths instead, which are those of the system for a folder of this machine.
// Methods are safe for concurrent use, except those that list.
type Files struct {
	system
	root string // path of the folder, absolute and without links
	lazy bool   // Options.Walk
	kept Kept   // rows that need not be read; nil: all files are
	tars apart  // how far members of tars are apart, once that was looked at

	indexes   UseIndex
	differing differing
}

// system is what formats need of a system of files. Paths have slashes, and are absolute
// but where absolute takes others. Errors wrap those of io/fs.
type system interface {
	// absolute makes an absolute path of one that a caller named.
	absolute(path string) string
	// shown is a path for people.
	shown(path string) string
	// stat describes what is at a path, or what a link there leads to.
	stat(path string) (fs.FileInfo, error)
	// lstat is stat of a link itself.
	lstat(path string) (fs.FileInfo, error)
	// resolve returns a path without links.
	resolve(path string) (string, error)
	// walk visits what is below a folder, as filepath.WalkDir does.
	walk(root string, visit fs.WalkDirFunc) error
	// readDir lists a folder by name; if most is above 0, at most that many entries that
	// can be read, in any order.
	readDir(path string, most int) ([]fs.DirEntry, error)
	// glob lists the paths of a pattern, as filepath.Glob does.
	glob(pattern string) ([]string, error)
	// open opens a regular file. Reading it ends with ctx.
	open(ctx context.Context, path string) (*File, error)
	// openParts opens a file to read parts of it at any place; from a bucket it reads at
	// least that many bytes at once.
	openParts(ctx context.Context, path string, least int64) (*File, error)
	// inOrder opens files that are read one behind the other, each from its beginning to
	// its end.
	inOrder(ctx context.Context, paths []string) sequence
	// know has to be called before anything is asked of a folder, or of paths that were
	// named elsewhere. A bucket is listed then.
	know(ctx context.Context, paths []string) error
	// glance lists files of the data set's folder, to recognise its format by them, with
	// their names in the folder; those below more folders than depth are left out. nil:
	// they are found by readDir.
	glance(ctx context.Context, depth int) ([]string, error)
	// named is the path of what a text names as a URL, whether it is one.
	named(text string) (path string, ok bool)
	// broken is why files cannot be reached any more, or nil: what was not read says
	// nothing about the data.
	broken() error
	// notes are what a person should know.
	notes() []string
	// bucket is that of the files, nil for a folder of this machine.
	bucket() object.Bucket
}

// sequence are files that are read in order.
type sequence interface {
	open(path string) (*File, error)
	// close ends what was begun. It is called last.
	close()
}

// aloneLeast is how much of a file that is read alone is read at once.
const aloneLeast = 1 << 20

// alone is a sequence of files. Little of each is read, and nothing ahead of its use.
type alone struct {
	files *Files
	ctx   context.Context //nolint:containedctx // of what reads them
}

func (a alone) open(path string) (*File, error) { return a.files.openParts(a.ctx, path, aloneLeast) }

func (alone) close() {}

// File is an open file. Read and Seek are for one goroutine; ReadAt may be called by
// several.
type File struct {
	handle
	size    int64
	version schema.ObjectVersion
}

type handle interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Closer
}

// Size is the size of the file when it was opened.
func (f *File) Size() int64 { return f.size }

// Version is the version that is read, of an object in a bucket.
func (f *File) Version() schema.ObjectVersion { return f.version }

// Bucket is that of the files, nil for a folder of this machine.
func (f *Files) Bucket() object.Bucket { return f.bucket() }

// Open opens a file by its name. Reading it ends with ctx.
func (f *Files) Open(ctx context.Context, name string) (*File, error) {
	return f.open(ctx, filepath.Join(f.root, filepath.FromSlash(name)))
}

// ended is why reading ends for good after a file whose reading came to err: ctx has
// ended, or the way to the bucket is broken. nil if it goes on, whatever is wrong with
// the file.
func (f *Files) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return f.broken()
	}
	return nil
}

// name is that of a file at a path, "" for one outside of the folder.
func (f *Files) name(path string) string {
	path = f.absolute(path)
	if !below(f.root, path) {
		dir, err := f.resolve(filepath.Dir(path)) // the folder may have been named by a link
		if path = filepath.Join(dir, filepath.Base(path)); err != nil || !below(f.root, path) {
			return ""
		}
	}
	rel, err := filepath.Rel(f.root, path)
	if err != nil {
		return ""
	}
	return filepath.ToSlash(rel)
}

// isDir says whether path is, or is a link to, a directory.
func (f *Files) isDir(path string) bool {
	info, err := f.stat(path)
	return err == nil && info.IsDir()
}

// missing says whether there is nothing of that name.
func (f *Files) missing(path string) bool {
	_, err := f.lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// regular refuses what is no regular file.
func regular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: errFolder}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return nil
}

// openFiles finds the place of a data set, and its path there.
func openFiles(ctx context.Context, path string, opts Options) (*Files, string, error) {
	if object.IsURL(path) {
		return openCloud(ctx, path, opts)
	}
	return localFiles(path), path, nil
}

// localFiles are those around a path of this machine: below it, or, where it is no
// folder, beside it.
func localFiles(path string) *Files {
	root := absolutePath(path)
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		root = filepath.Dir(root)
	}
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	return &Files{system: disk{}, root: root}
}

// disk is the system of files of this machine.
type disk struct{}

func (disk) absolute(path string) string { return absolutePath(path) }

func (disk) shown(path string) string { return path }

func (disk) stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (disk) lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

func (disk) resolve(path string) (string, error) { return filepath.EvalSymlinks(path) }

func (disk) walk(root string, visit fs.WalkDirFunc) error { return filepath.WalkDir(root, visit) }

func (disk) readDir(path string, most int) ([]fs.DirEntry, error) {
	if most <= 0 {
		return os.ReadDir(path)
	}
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	entries, _ := d.ReadDir(most) // what cannot be read is not there
	return entries, d.Close()
}

func (disk) glob(pattern string) ([]string, error) { return filepath.Glob(pattern) }

func (disk) bucket() object.Bucket { return nil }

func (d disk) openParts(ctx context.Context, path string, _ int64) (*File, error) {
	return d.open(ctx, path)
}

func (disk) know(context.Context, []string) error { return nil }

func (disk) glance(context.Context, int) ([]string, error) { return nil, nil }

func (disk) named(string) (string, bool) { return "", false }

func (disk) broken() error { return nil }

func (disk) notes() []string { return nil }

func (d disk) inOrder(ctx context.Context, _ []string) sequence { return diskSequence{d, ctx} }

// diskSequence are files of this machine, which the system reads ahead.
type diskSequence struct {
	disk
	ctx context.Context //nolint:containedctx // of what reads them
}

func (s diskSequence) open(path string) (*File, error) { return s.disk.open(s.ctx, path) }

func (diskSequence) close() {}

// open opens a regular file. Anything else is refused unopened: opening a pipe waits for
// a writer, and opening a device may do what it does. Links are followed.
func (disk) open(_ context.Context, path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	// It may have been replaced meanwhile: a pipe is opened without waiting, to find out.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{handle: f, size: info.Size()}, nil
}

// absolutePath names a path of this machine for people, wherever they are.
func absolutePath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// globQuoted is a path as a pattern of itself.
func globQuoted(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// notFound is the error of a data set that is not there.
func notFound(err error) error { return fmt.Errorf("%w: %w", schema.ErrNotFound, err) }

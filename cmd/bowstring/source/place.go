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
// unit in it. The zero value means that there is none: the blob is null, or is nowhere in
// one piece.
type Extent struct {
	File           string // name in Files
	Offset, Length int64
	Unit           *schema.Unit // nil if the bytes are stored uncompressed
	Why            string       // why a blob that is not null has no place
}

// IsZero reports whether e is no place.
func (e Extent) IsZero() bool { return e.File == "" }

// Files is the place of a data set: a local folder, or a folder of a bucket. The name of
// a file is relative to that folder, with slashes; in a bucket it is the object's key.
// Formats use paths instead, which are those of the operating system for a local folder.
//
// Methods are safe for concurrent use, except those that list.
type Files struct {
	system
	root string // path of the folder, absolute and without links
	lazy bool   // Options.Walk
	kept Kept   // rows that need not be read; nil if all files are read
	tars apart  // distance between members of tars, once it was sampled

	indexes   UseIndex
	differing differing
}

// system is a file system as formats need it. Paths have slashes and are absolute, except
// the argument of absolute. Errors wrap those of io/fs.
type system interface {
	// absolute returns an absolute path for one that a caller named.
	absolute(path string) string
	// shown returns a path for messages.
	shown(path string) string
	// stat describes a path; it follows links.
	stat(path string) (fs.FileInfo, error)
	// lstat describes a path; it does not follow a link.
	lstat(path string) (fs.FileInfo, error)
	// resolve returns a path without links.
	resolve(path string) (string, error)
	// walk visits everything below a folder, as filepath.WalkDir does.
	walk(root string, visit fs.WalkDirFunc) error
	// readDir lists a folder by name. If most is above 0, it lists at most that many
	// readable entries, in any order.
	readDir(path string, most int) ([]fs.DirEntry, error)
	// glob returns the paths that match a pattern, as filepath.Glob does.
	glob(pattern string) ([]string, error)
	// open opens a regular file. Cancelling ctx ends its reads.
	open(ctx context.Context, path string) (*File, error)
	// openParts opens a file for reads at any offset. In a bucket each request reads at
	// least least bytes.
	openParts(ctx context.Context, path string, least int64) (*File, error)
	// inOrder opens files that are read in the order of paths, each from start to end. A
	// bucket reads ahead across them.
	inOrder(ctx context.Context, paths []string) sequence
	// know must be called before a folder, or paths that were named elsewhere, are
	// accessed. A bucket is listed then.
	know(ctx context.Context, paths []string) error
	// glance returns names of files in the data set's folder, to recognise the format.
	// Files more than depth folders deep are left out. nil means that readDir finds them.
	glance(ctx context.Context, depth int) ([]string, error)
	// named returns the path for a URL in a text; ok is false if the text is none.
	named(text string) (path string, ok bool)
	// broken returns why files cannot be reached any more, or nil. An error after that
	// says nothing about the data.
	broken() error
	// notes returns notes for the user.
	notes() []string
	// bucket returns the bucket of the files; nil for a local folder.
	bucket() object.Bucket
}

// sequence opens files that are read in a fixed order.
type sequence interface {
	open(path string) (*File, error)
	// close ends all reading. It is called last.
	close()
}

// aloneLeast is how much one request reads of a file that is read alone.
const aloneLeast = 1 << 20

// alone is a sequence without read-ahead. It is for callers that read only the beginning
// of each file.
type alone struct {
	files *Files
	ctx   context.Context //nolint:containedctx // of what reads them
}

// open implements sequence.
func (a alone) open(path string) (*File, error) { return a.files.openParts(a.ctx, path, aloneLeast) }

func (alone) close() {}

// File is an open file. One goroutine may call Read and Seek. Several may call ReadAt,
// except for a file of openParts in a bucket.
type File struct {
	handle
	size    int64
	version schema.ObjectVersion
}

// handle is the implementation of an open file.
type handle interface {
	io.Reader
	io.ReaderAt
	io.Seeker
	io.Closer
}

// Size returns the size of the file when it was opened, in bytes.
func (f *File) Size() int64 { return f.size }

// Version returns the version of an object that is read; the zero value for a local file.
func (f *File) Version() schema.ObjectVersion { return f.version }

// Bucket returns the bucket of the files; nil for a local folder.
func (f *Files) Bucket() object.Bucket { return f.bucket() }

// Open opens a file by its name. Cancelling ctx ends its reads.
func (f *Files) Open(ctx context.Context, name string) (*File, error) {
	return f.open(ctx, filepath.Join(f.root, filepath.FromSlash(name)))
}

// ended returns why reading ends for good after a file returned err: ctx has ended, or
// the bucket is unreachable. It returns nil if reading continues with the next file.
func (f *Files) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return f.broken()
	}
	return nil
}

// name returns the name of the file at a path; "" for a path outside the folder.
func (f *Files) name(path string) string {
	path = f.absolute(path)
	if !below(f.root, path) {
		dir, err := f.resolve(filepath.Dir(path)) // the user may have named the folder by a link
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

// isDir reports whether path is a directory, or a link to one.
func (f *Files) isDir(path string) bool {
	info, err := f.stat(path)
	return err == nil && info.IsDir()
}

// missing reports whether nothing has that path.
func (f *Files) missing(path string) bool {
	_, err := f.lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// regular returns an error for anything but a regular file.
func regular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: errFolder}
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return nil
}

// openFiles returns the place of a data set, and its path there.
func openFiles(ctx context.Context, path string, opts Options) (*Files, string, error) {
	if object.IsURL(path) {
		return openCloud(ctx, path, opts)
	}
	return localFiles(path), path, nil
}

// localFiles returns the files of a local folder; for the path of a file, those of its
// folder.
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

// disk is the local file system. It has no state.
type disk struct{}

func (disk) absolute(path string) string { return absolutePath(path) }

func (disk) shown(path string) string { return path }

func (disk) stat(path string) (fs.FileInfo, error) { return os.Stat(path) }

func (disk) lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

func (disk) resolve(path string) (string, error) { return filepath.EvalSymlinks(path) }

func (disk) walk(root string, visit fs.WalkDirFunc) error { return filepath.WalkDir(root, visit) }

// readDir with a limit does not sort: reading a folder of a million files for a few names
// would take long.
func (disk) readDir(path string, most int) ([]fs.DirEntry, error) {
	if most <= 0 {
		return os.ReadDir(path)
	}
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	entries, _ := d.ReadDir(most) // unreadable entries do not matter for recognition
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

// diskSequence opens local files, for which the operating system reads ahead.
type diskSequence struct {
	disk
	ctx context.Context //nolint:containedctx // of what reads them
}

func (s diskSequence) open(path string) (*File, error) { return s.disk.open(s.ctx, path) }

func (diskSequence) close() {}

// open opens a regular file. Anything else is rejected before it is opened: opening a
// pipe blocks until there is a writer, and opening a device may have effects. Links are
// followed.
func (disk) open(_ context.Context, path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := regular(path, info); err != nil {
		return nil, err
	}
	// The file may have been replaced since the stat. O_NONBLOCK opens a pipe without
	// blocking, and the second stat finds it.
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

// absolutePath returns a path that is valid in any working directory.
func absolutePath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// globQuoted returns a pattern that matches exactly the path p.
func globQuoted(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

// notFound returns the error of a data set that does not exist.
func notFound(err error) error { return fmt.Errorf("%w: %w", schema.ErrNotFound, err) }

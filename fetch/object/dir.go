package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// private is the directory in a bucket's directory that has its lock and unfinished
// writes. It is never listed.
const private = ".bowstring-bucket"

// dir is a directory as a bucket: an object is a file. A write makes a new file and
// renames it, so that a reader sees one version as a whole. Writers of all processes on
// the machine hold a lock (flock) during the rename. The version of a file is its inode,
// size and time of change. A write sets a later time than that of the file that it
// replaces, so a version is never used twice.
type dir struct {
	path string
	url  string
}

func openDir(a address) (Bucket, error) {
	st, err := os.Stat(a.name)
	if err != nil {
		return nil, (&dir{path: a.name, url: a.String()}).failed("", err)
	}
	if !st.IsDir() {
		return nil, errorf(schema.ErrInvalid, "%s is no directory", a)
	}
	return &dir{path: a.name, url: a.String()}, nil
}

// URL implements Bucket.
func (d *dir) URL() string { return d.url }

// Close implements Bucket.
func (d *dir) Close() error { return nil }

// file is the path of a key's file. A key must be a clean path: otherwise a/../b and b
// would be the same file.
func (d *dir) file(key string) (string, error) {
	bad := key == "" || strings.ContainsRune(key, 0)
	// 255 bytes is the longest name of a file on Linux.
	for part := range strings.SplitSeq(key, "/") {
		bad = bad || part == "" || part == "." || part == ".." || len(part) > 255
	}
	if bad || key == private || strings.HasPrefix(key, private+"/") {
		return "", errorf(schema.ErrInvalid, "a directory cannot keep an object with the key %q: %s", key, d.url)
	}
	return filepath.Join(d.path, key), nil
}

// failed converts an error of the file system.
func (d *dir) failed(key string, err error) error {
	where := d.url
	if key != "" {
		where = fmt.Sprintf("object %q of %s", key, d.url)
	}
	// The text of a path error would repeat the path.
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return errorf(schema.ErrNotFound, "%s", where)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return errorf(schema.ErrDenied, "%s: %v", where, err)
	case errors.Is(err, syscall.ENAMETOOLONG):
		return errorf(schema.ErrInvalid, "%s: %v", where, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return errorf(schema.ErrLimit, "%s: %v", where, err)
	}
	return errorf(schema.ErrUnavailable, "%s: %v", where, err)
}

// describe is the Info of a file.
func describe(key string, st fs.FileInfo) Info {
	// The inode distinguishes a file from one that replaced it with the same size within
	// the resolution of its times.
	ino := uint64(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		ino = sys.Ino
	}
	etag := fmt.Sprintf("%x-%x-%x", ino, st.Size(), st.ModTime().UnixNano())
	return Info{Key: key, Size: st.Size(), Version: schema.ObjectVersion{ETag: etag}, Modified: st.ModTime(),
		Date: time.Now()}
}

// open opens an object if it has that version. The caller closes the file.
func (d *dir) open(ctx context.Context, key string, v schema.ObjectVersion) (*os.File, Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, Info{}, ended(ctx, d.url, key)
	}
	path, err := d.file(key)
	if err != nil {
		return nil, Info{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, Info{}, d.gone(key, v, d.failed(key, err))
	}
	info, err := d.about(f, key, v)
	if err != nil {
		return nil, Info{}, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// gone turns the absence of an object that had a version into the loss of data.
func (d *dir) gone(key string, v schema.ObjectVersion, err error) error {
	if !v.IsZero() && errors.Is(err, schema.ErrNotFound) {
		return &ChangedError{Bucket: d.url, Key: key, Want: v, Gone: true}
	}
	return err
}

// about describes an open file, and fails if it has not the wanted version.
func (d *dir) about(f *os.File, key string, v schema.ObjectVersion) (Info, error) {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, d.gone(key, v, d.failed(key, err))
	}
	info := describe(key, st)
	if !v.IsZero() && v.ETag != info.Version.ETag {
		return Info{}, &ChangedError{Bucket: d.url, Key: key, Want: v, Have: info.Version}
	}
	return info, nil
}

// Range implements Bucket.
func (d *dir) Range(ctx context.Context, key string, v schema.ObjectVersion, offset int64, buf []byte) (err error) {
	if offset < 0 {
		return errorf(schema.ErrInvalid, "object %q of %s: offset %d", key, d.url, offset)
	}
	f, info, err := d.open(ctx, key, v)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if offset > info.Size || int64(len(buf)) > info.Size-offset {
		return beyond(d.url, key, offset, len(buf), info.Size)
	}
	return d.read(f, info, offset, buf)
}

// read fills buf, and then checks that the file was not changed meanwhile, as other
// programs may do in place.
func (d *dir) read(f *os.File, info Info, offset int64, buf []byte) error {
	if _, err := f.ReadAt(buf, offset); err != nil && (len(buf) > 0 || !errors.Is(err, io.EOF)) {
		// The file was cut short after its size was read.
		if errors.Is(err, io.EOF) {
			return &ChangedError{Bucket: d.url, Key: info.Key, Want: info.Version}
		}
		return d.failed(info.Key, err)
	}
	_, err := d.about(f, info.Key, info.Version)
	return err
}

// Get implements Bucket.
func (d *dir) Get(ctx context.Context, key string, v schema.ObjectVersion, limit int64) (b []byte, i Info, err error) {
	f, info, err := d.open(ctx, key, v)
	if err != nil {
		return nil, Info{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info.Size > limit {
		return nil, Info{}, tooLarge(d.url, key, info.Size, limit)
	}
	b = make([]byte, info.Size)
	if err := d.read(f, info, 0, b); err != nil {
		return nil, Info{}, err
	}
	return b, info, nil
}

// Stat implements Bucket.
func (d *dir) Stat(ctx context.Context, key string) (Info, error) {
	if ctx.Err() != nil {
		return Info{}, ended(ctx, d.url, key)
	}
	path, err := d.file(key)
	if err != nil {
		return Info{}, err
	}
	st, err := os.Stat(path)
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, d.failed(key, err)
	}
	return describe(key, st), nil
}

// lock waits for the lock of the directory's writers.
func (d *dir) lock() (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(d.path, private), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(d.path, private, "lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock; nothing was written to the file
}

// Put implements Bucket. An object that was made has been synced to disk.
func (d *dir) Put(ctx context.Context, key string, body []byte, c Condition) (Info, Outcome, error) {
	if ctx.Err() != nil {
		return Info{}, Failed, ended(ctx, d.url, key)
	}
	path, err := d.file(key)
	if err != nil {
		return Info{}, Failed, err
	}
	if err := checkCondition(d.url, key, c); err != nil {
		return Info{}, Failed, err
	}
	if err := os.MkdirAll(filepath.Join(d.path, private), 0o755); err != nil {
		return Info{}, Failed, d.failed(key, err)
	}
	tmp, err := os.CreateTemp(filepath.Join(d.path, private), "put-*")
	if err != nil {
		return Info{}, Failed, d.failed(key, err)
	}
	info, outcome, err := d.place(tmp, path, key, body, c)
	if outcome != Made {
		_ = os.Remove(tmp.Name())
	}
	return info, outcome, err
}

// place writes the body to tmp, and renames it to path if the condition holds. Body and
// times are synced before the rename: after a power failure there is the old object or
// the new one, never a part.
func (d *dir) place(tmp *os.File, path, key string, body []byte, c Condition) (Info, Outcome, error) {
	at := time.Now()
	_, err := tmp.Write(body)
	err = errors.Join(err, tmp.Chmod(0o644), setTime(tmp, at), tmp.Sync(), tmp.Close())
	if err != nil {
		return Info{}, Failed, d.failed(key, err)
	}
	unlock, err := d.lock()
	if err != nil {
		return Info{}, Failed, d.failed(key, err)
	}
	defer unlock()
	old, err := os.Stat(path)
	switch {
	case err == nil && !old.Mode().IsRegular():
		return Info{}, Failed, errorf(schema.ErrInvalid, "a directory cannot keep an object %q: other keys of %s begin "+
			"with it and /", key, d.url)
	case err == nil:
		have := describe(key, old).Version
		if c.Absent || !c.Version.IsZero() && c.Version.ETag != have.ETag {
			return Info{}, Moved, moved(d.url, key)
		}
		// The clock may have gone back, or be too coarse for two writes in a row. The
		// version must differ all the same.
		if !at.After(old.ModTime()) {
			if err := later(tmp.Name(), old.ModTime().Add(1)); err != nil {
				return Info{}, Failed, d.failed(key, err)
			}
		}
	case errors.Is(err, fs.ErrNotExist):
		if !c.Version.IsZero() {
			return Info{}, Moved, moved(d.url, key)
		}
	case errors.Is(err, syscall.ENOTDIR):
		return Info{}, Failed, errorf(schema.ErrInvalid, "a directory cannot keep an object %q of %s: an object's key "+
			"is a beginning of it",
			key, d.url)
	default:
		return Info{}, Failed, d.failed(key, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		if errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrExist) {
			err = errorf(schema.ErrInvalid, "a directory cannot keep an object %q of %s: an object's key is a beginning of it",
				key, d.url)
			return Info{}, Failed, err
		}
		return Info{}, Failed, d.failed(key, err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return Info{}, Failed, d.failed(key, err)
	}
	st, err := os.Stat(path)
	if err == nil {
		err = d.syncDirs(filepath.Dir(path))
	}
	if err != nil { // it exists now, but may not after a power failure
		return Info{}, Uncertain, d.failed(key, err)
	}
	return describe(key, st), Made, nil
}

func setTime(f *os.File, at time.Time) error {
	return os.Chtimes(f.Name(), at, at)
}

// later sets the time of change of a file that was written.
func later(path string, at time.Time) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(setTime(f, at), f.Sync(), f.Close())
}

// syncDirs syncs a directory and those above it, up to the bucket's, so that the names in
// them are on disk.
func (d *dir) syncDirs(path string) error {
	for {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
		if path == d.path || len(path) <= len(d.path) {
			return nil
		}
		// A new directory's name is in the one above it, so that is synced as well.
		path = filepath.Dir(path)
	}
}

// Delete implements Bucket. Directories that become empty stay: a writer may be about to
// use them.
func (d *dir) Delete(ctx context.Context, key string) error {
	if ctx.Err() != nil {
		return ended(ctx, d.url, key)
	}
	path, err := d.file(key)
	if err != nil {
		return err
	}
	// A directory is no object, and deleting an absent object is no error.
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || err == nil && st.IsDir() {
		return nil
	}
	if err != nil {
		return d.failed(key, err)
	}
	unlock, err := d.lock()
	if err != nil {
		return d.failed(key, err)
	}
	defer unlock()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d.failed(key, err)
	}
	if err := d.syncDirs(filepath.Dir(path)); err != nil {
		return d.failed(key, err)
	}
	return nil
}

// List implements Bucket. Symbolic links are followed, except one to a directory that
// contains it.
func (d *dir) List(ctx context.Context, opts ListOptions) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if err := opts.begin(ctx); err != nil {
			yield(Info{}, err)
			return
		}
		st, err := os.Stat(d.path)
		if err != nil {
			yield(Info{}, d.failed("", err))
			return
		}
		w := dirWalk{d: d, ctx: ctx, opts: opts, yield: yield}
		w.walk(d.path, "", []fs.FileInfo{st})
	}
}

// dirWalk yields the objects below a directory in the order of their keys. It reads one
// directory at a time.
type dirWalk struct {
	d      *dir
	ctx    context.Context //nolint:containedctx // of one List
	opts   ListOptions
	yield  func(Info, error) bool
	prefix string // the common prefix that was yielded last
}

type dirEntry struct {
	key string // a directory's ends with "/", which puts its keys in the right order
	st  fs.FileInfo
}

// walk yields the objects of a directory and reports whether to go on. above are the
// directories above it, and itself.
func (w *dirWalk) walk(path, under string, above []fs.FileInfo) bool {
	if w.ctx.Err() != nil {
		w.yield(Info{}, ended(w.ctx, w.d.url, ""))
		return false
	}
	names, err := os.ReadDir(path)
	if err != nil {
		if under != "" && errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return true
		}
		w.yield(Info{}, w.d.failed(under, err))
		return false
	}
	entries := make([]dirEntry, 0, len(names))
	for _, n := range names {
		e := dirEntry{key: under + n.Name()}
		if under == "" && n.Name() == private {
			continue
		}
		isDir := n.IsDir()
		if n.Type()&fs.ModeSymlink != 0 {
			if e.st, err = os.Stat(filepath.Join(path, n.Name())); err != nil { // a dangling link
				continue
			}
			isDir = e.st.IsDir()
			// A loop of links would never end.
			if isDir && slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, e.st) }) {
				continue
			}
		} else if !isDir && !n.Type().IsRegular() {
			continue
		}
		if isDir {
			e.key += "/"
		}
		entries = append(entries, e)
	}
	// os.ReadDir sorts by name, where a directory "a" comes before a file "a.txt". By
	// key, "a/" comes after it.
	slices.SortFunc(entries, func(a, b dirEntry) int { return strings.Compare(a.key, b.key) })
	for _, e := range entries {
		// The common prefix of this entry has been yielded already.
		if w.prefix != "" && strings.HasPrefix(e.key, w.prefix) {
			continue
		}
		if isDir := strings.HasSuffix(e.key, "/"); isDir {
			if !w.enter(path, e, above) {
				return false
			}
		} else if !w.file(path, e) {
			return false
		}
	}
	return true
}

// enter walks a directory unless the options exclude all keys in it.
func (w *dirWalk) enter(path string, e dirEntry, above []fs.FileInfo) bool {
	// Neither below the prefix nor on the way to it.
	if !strings.HasPrefix(e.key, w.opts.Prefix) && !strings.HasPrefix(w.opts.Prefix, e.key) {
		return true
	}
	// All keys in it are before After.
	if e.key < w.opts.After && !strings.HasPrefix(w.opts.After, e.key) {
		return true
	}
	path = filepath.Join(path, filepath.Base(e.key))
	st := e.st
	if st == nil {
		var err error
		if st, err = os.Stat(path); err != nil {
			return true // removed meanwhile
		}
	}
	return w.walk(path, e.key, append(above[:len(above):len(above)], st))
}

// file yields one object, or its common prefix if there is a delimiter.
func (w *dirWalk) file(path string, e dirEntry) bool {
	rest, ok := strings.CutPrefix(e.key, w.opts.Prefix)
	if !ok || e.key <= w.opts.After {
		return true
	}
	if w.opts.Delimiter != "" {
		if i := strings.Index(rest, w.opts.Delimiter); i >= 0 {
			w.prefix = e.key[:len(w.opts.Prefix)+i+len(w.opts.Delimiter)]
			if w.prefix <= w.opts.After {
				return true
			}
			return w.yield(Info{Key: w.prefix, Prefix: true, Date: time.Now()}, nil)
		}
	}
	st := e.st
	if st == nil {
		var err error
		if st, err = os.Stat(filepath.Join(path, filepath.Base(e.key))); err != nil {
			if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
				return true
			}
			w.yield(Info{}, w.d.failed(e.key, err))
			return false
		}
	}
	return w.yield(describe(e.key, st), nil)
}

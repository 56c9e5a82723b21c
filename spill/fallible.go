package spill

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fallibleFS is the file system of the index. A Pebble database that cannot write ends its process, which a cache
// must not do. So after the first failed write, all writes seem to succeed but are dropped. The disk keeps the state
// before that.
type fallibleFS struct {
	vfs.FS
	logs   string // suffix of files that are not synced
	broken atomic.Bool
	failed func(error) // called once
}

// fail records an error.
func (f *fallibleFS) fail(err error) {
	if f.broken.CompareAndSwap(false, true) {
		f.failed(err)
	}
}

// do makes a change to the file system, unless one has failed.
func (f *fallibleFS) do(change func() error) error {
	if f.broken.Load() {
		return nil
	}
	if err := change(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.fail(err)
		return nil
	} else if err != nil {
		return err
	}
	return nil
}

// open opens a file for writing.
func (f *fallibleFS) open(name string, open func() (vfs.File, error)) (vfs.File, error) {
	if !f.broken.Load() {
		file, err := open()
		if err == nil {
			return &fallibleFile{File: file, fs: f, unsynced: strings.HasSuffix(name, f.logs)}, nil
		}
		f.fail(err)
	}
	return nowhere{name: f.FS.PathBase(name)}, nil
}

// Create implements vfs.FS.
func (f *fallibleFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.Create(name, category) })
}

// OpenReadWrite implements vfs.FS.
func (f *fallibleFS) OpenReadWrite(name string, category vfs.DiskWriteCategory,
	opts ...vfs.OpenOption) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenReadWrite(name, category, opts...) })
}

// ReuseForWrite implements vfs.FS.
func (f *fallibleFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return f.open(newname, func() (vfs.File, error) { return f.FS.ReuseForWrite(oldname, newname, category) })
}

// OpenDir implements vfs.FS. Directories are opened to be synced.
func (f *fallibleFS) OpenDir(name string) (vfs.File, error) {
	return f.open(name, func() (vfs.File, error) { return f.FS.OpenDir(name) })
}

// Link implements vfs.FS.
func (f *fallibleFS) Link(oldname, newname string) error {
	return f.do(func() error { return f.FS.Link(oldname, newname) })
}

// Remove implements vfs.FS.
func (f *fallibleFS) Remove(name string) error {
	return f.do(func() error { return f.FS.Remove(name) })
}

// RemoveAll implements vfs.FS.
func (f *fallibleFS) RemoveAll(name string) error {
	return f.do(func() error { return f.FS.RemoveAll(name) })
}

// Rename implements vfs.FS.
func (f *fallibleFS) Rename(oldname, newname string) error {
	return f.do(func() error { return f.FS.Rename(oldname, newname) })
}

// MkdirAll implements vfs.FS.
func (f *fallibleFS) MkdirAll(dir string, perm os.FileMode) error {
	return f.do(func() error { return f.FS.MkdirAll(dir, perm) })
}

// Unwrap implements vfs.FS.
func (f *fallibleFS) Unwrap() vfs.FS { return f.FS }

// fallibleFile is a file opened for writing.
type fallibleFile struct {
	vfs.File
	fs       *fallibleFS
	unsynced bool
}

// Write implements vfs.File.
func (f *fallibleFile) Write(p []byte) (int, error) {
	err := f.fs.do(func() error { _, err := f.File.Write(p); return err })
	return len(p), err
}

// WriteAt implements vfs.File.
func (f *fallibleFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.fs.do(func() error { _, err := f.File.WriteAt(p, off); return err })
	return len(p), err
}

// Preallocate implements vfs.File.
func (f *fallibleFile) Preallocate(offset, length int64) error {
	return f.fs.do(func() error { return f.File.Preallocate(offset, length) })
}

// sync syncs the file, if files of its kind are synced.
func (f *fallibleFile) sync(sync func() error) error {
	if f.unsynced {
		return nil
	}
	return f.fs.do(sync)
}

// Sync implements vfs.File.
func (f *fallibleFile) Sync() error { return f.sync(f.File.Sync) }

// SyncData implements vfs.File.
func (f *fallibleFile) SyncData() error { return f.sync(f.File.SyncData) }

// SyncTo implements vfs.File.
func (f *fallibleFile) SyncTo(length int64) (full bool, err error) {
	err = f.sync(func() (err error) { full, err = f.File.SyncTo(length); return err })
	return full, err
}

// Close implements vfs.File.
func (f *fallibleFile) Close() error {
	if err := f.File.Close(); err != nil {
		f.fs.fail(err)
	}
	return nil
}

// nowhere is a file whose writes are dropped.
type nowhere struct{ name string }

var errNowhere = errors.New("the file was not written, as an earlier write failed")

func (nowhere) Close() error                           { return nil }
func (nowhere) Read([]byte) (int, error)               { return 0, errNowhere }
func (nowhere) ReadAt([]byte, int64) (int, error)      { return 0, errNowhere }
func (nowhere) Write(p []byte) (int, error)            { return len(p), nil }
func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Preallocate(int64, int64) error         { return nil }
func (nowhere) Stat() (vfs.FileInfo, error)            { return nil, errNowhere }
func (nowhere) Sync() error                            { return nil }
func (nowhere) SyncTo(int64) (bool, error)             { return true, nil }
func (nowhere) SyncData() error                        { return nil }
func (nowhere) Prefetch(int64, int64) error            { return nil }
func (nowhere) Fd() uintptr                            { return vfs.InvalidFd }

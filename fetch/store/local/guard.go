package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
)

// The database takes the first thing in its manifest that does not check for the
// manifest's end, and then deletes every table that it does not find in it. So
// there is a file beside each manifest that says, after each sync, how much of it
// is on stable storage, and its checksum.
const (
	manifestPrefix = "MANIFEST-"
	sumSuffix      = ".sum"
	sumSize        = 20 // length u64, XXH3 of so much u64, CRC-32C of these u32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// guardFS is the database's file system. It writes the files of sums.
type guardFS struct{ vfs.FS }

func (g guardFS) isManifest(name string) bool {
	base := g.PathBase(name)
	return strings.HasPrefix(base, manifestPrefix) && !strings.HasSuffix(base, sumSuffix)
}

// Create implements vfs.FS.
func (g guardFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := g.FS.Create(name, category)
	if err != nil || !g.isManifest(name) {
		return f, err
	}
	sums, err := g.FS.Create(name+sumSuffix, category)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &guardedFile{File: f, sums: sums, sum: xxh3.New()}, nil
}

// Remove implements vfs.FS.
func (g guardFS) Remove(name string) error {
	if err := g.FS.Remove(name); err != nil || !g.isManifest(name) {
		return err
	}
	if err := g.FS.Remove(name + sumSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Unwrap implements vfs.FS.
func (g guardFS) Unwrap() vfs.FS { return g.FS }

// guardedFile is a manifest that is being written.
type guardedFile struct {
	vfs.File
	sums vfs.File
	sum  *xxh3.Hasher
	size uint64
}

// Write implements vfs.File.
func (f *guardedFile) Write(b []byte) (int, error) {
	_, _ = f.sum.Write(b) // never fails, and comes first: the file may change b
	n, err := f.File.Write(b)
	f.size += uint64(n)
	return n, err
}

// Sync implements vfs.File. Once it has returned, the database deletes what the
// manifest does not need any more.
func (f *guardedFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		return err
	}
	rec := binary.LittleEndian.AppendUint64(nil, f.size)
	rec = binary.LittleEndian.AppendUint64(rec, f.sum.Sum64())
	rec = binary.LittleEndian.AppendUint32(rec, crc32.Checksum(rec, castagnoli))
	if _, err := f.sums.Write(rec); err != nil {
		return err
	}
	return f.sums.Sync()
}

// SyncData implements vfs.File.
func (f *guardedFile) SyncData() error { return f.Sync() }

// Close implements vfs.File.
func (f *guardedFile) Close() error { return errors.Join(f.File.Close(), f.sums.Close()) }

// checkManifest compares the manifest of the database in dir with what is known of
// it. A database without such knowledge, which an older program wrote, passes.
func checkManifest(g guardFS, dir string) error {
	desc, err := pebble.Peek(dir, g)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !desc.Exists {
		return nil
	} else if err != nil {
		return err
	}
	size, sum, err := lastSum(g.FS, desc.ManifestFilename+sumSuffix)
	if err != nil || size == 0 {
		return err
	}
	data, err := readFile(g.FS, desc.ManifestFilename)
	if err != nil {
		return err
	}
	if uint64(len(data)) < size || xxh3.Hash(data[:size]) != sum {
		return fmt.Errorf("the first %d bytes of %s are not what was written", size, desc.ManifestFilename)
	}
	return nil
}

// lastSum returns the last whole record of a file of sums, zeros if there is none.
func lastSum(fsys vfs.FS, path string) (size, sum uint64, err error) {
	data, err := readFile(fsys, path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, err
	}
	for ; len(data) >= sumSize; data = data[sumSize:] {
		if crc32.Checksum(data[:16], castagnoli) == binary.LittleEndian.Uint32(data[16:]) {
			size, sum = binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
		}
	}
	return size, sum, nil
}

func readFile(fsys vfs.FS, path string) (data []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

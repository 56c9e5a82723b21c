package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// mode is how the database is opened.
type mode int

const (
	// reading changes no file, even if the database was not closed.
	reading mode = iota
	// writing creates the database if there is none.
	writing
)

// openDatabase opens the database in dir. If its files are damaged, it returns a
// schema.ErrDataLoss. Errors of the environment, such as a full disk, are returned as
// they are.
func openDatabase(dir string, opts Options, m mode) (db *pebble.DB, err error) {
	fs := guardFS{opts.fs}
	if err := checkManifest(fs, dir); err != nil {
		return nil, damaged("open the database "+dir, err)
	}
	po := &pebble.Options{
		FS:       fs,
		ReadOnly: m == reading,
		Logger:   pebbleLogger{opts.Logger},
		Merger:   countMerger,
		// Raise it on purpose only: older programs cannot read a newer format.
		FormatMajorVersion: pebble.FormatTableFormatV6,
		CacheSize:          opts.CacheBytes,
		MemTableSize:       8 << 20,
		MaxOpenFiles:       256,
		EventListener:      listener(opts.Logger),
	}
	for i := range po.Levels {
		// Most look-ups of an import are for missing keys.
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		po.Levels[i].BlockSize = 16 << 10
	}
	// A damaged database may panic.
	defer func() {
		// The database may panic if it is damaged.
		if p := recover(); p != nil {
			db, err = nil, damaged("open the database "+dir, fmt.Errorf("panic: %v", p))
		}
	}()
	db, err = pebble.Open(dir, po)
	switch {
	case err == nil:
		return db, nil
	case environmental(err):
		return nil, fmt.Errorf("open the database %s: %w", dir, err)
	}
	return nil, damaged("open the database "+dir, err)
}

// newDatabase creates an empty database. Only its owner may read it, even if a parent
// directory has wider permissions.
func newDatabase(dir string, opts Options) error {
	db, err := openDatabase(dir, opts, writing)
	if err != nil {
		return err
	}
	if opts.fs == vfs.Default {
		err = os.Chmod(dir, 0o700)
	}
	return errors.Join(err, db.Close())
}

// listener keeps the database from ending the process when it finds damage. Reads of
// damaged data return an error instead.
func listener(log *slog.Logger) *pebble.EventListener {
	return &pebble.EventListener{DataCorruption: func(info pebble.DataCorruptionInfo) {
		log.Debug("a file of the database is damaged", "file", info.Path)
	}}
}

// environmental reports whether opening the database failed because of the process's
// environment. Such an error says nothing about the files.
func environmental(err error) bool {
	var no syscall.Errno
	return errors.As(err, &no) && slices.Contains([]syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE,
		syscall.ENOMEM, syscall.EAGAIN,
	}, no)
}

// damaged returns the schema.ErrDataLoss for a damaged database, on one line. Some of the
// database's errors have several lines, and stacks.
func damaged(doing string, err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("%w: %s: %s; what is whole can be brought back: bowstring store rebuild", schema.ErrDataLoss,
		doing, text)
}

// dbError adds to an error of the database what was being done, and recognizes damage.
// nil stays nil.
func dbError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if pebble.IsCorruptionError(err) {
		return damaged(doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// defaultFS returns fs, or the operating system's for nil.
func defaultFS(fs vfs.FS) vfs.FS {
	if fs == nil {
		return vfs.Default
	}
	return fs
}

// state is the record of how the store was left.
type state struct {
	Clean bool   `json:"clean"` // the last process closed the store
	Boot  string `json:"boot"`  // boot id of the kernel at the last write
}

// encode returns the record's JSON.
func (st state) encode() []byte {
	return fmt.Appendf(nil, `{"clean":%t,"boot":%q}`, st.Clean, st.Boot)
}

// The key space of the database. Names end in a zero byte, which no name contains.
const (
	prefixBlob    = 'b' // + key[32]                   -> entry
	prefixRow     = 'p' // a row of the protocol
	prefixSegment = 'g' // + number u32 BE             -> segmentRecord
	prefixFreed   = 'f' // nothing; the file is to be unlinked
)

// Keys of single records. They begin with m, which is no prefix of the others.
var (
	keyState   = []byte("m/state")   // how the store was left, JSON
	keyCount   = []byte("m/count")   // blobs and bytes, merged
	keySegment = []byte("m/segment") // number of the next segment, u32
	keyVersion = []byte("m/version") // of the catalog: its last change and the digest of its rows
)

// blobKey writes the key of a blob's entry into buf, so that a look-up allocates nothing.
func blobKey(buf *[33]byte, k *schema.Key) []byte {
	buf[0] = prefixBlob
	copy(buf[1:], k[:])
	return buf[:]
}

// namePrefix is the common prefix of the rows of a partition.
func namePrefix(prefix byte, dataset string) []byte {
	return append(append([]byte{prefix}, dataset...), 0)
}

// segmentKey is the key of a segment's record. It is big-endian, so that keys sort by
// number.
func segmentKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{prefixSegment}, id) }

// freedKey is the key of the row that says that a segment may be unlinked.
func freedKey(id uint32) []byte { return binary.BigEndian.AppendUint32([]byte{prefixFreed}, id) }

// within returns the bounds of an iterator over the keys with a prefix.
func within(prefix ...byte) *pebble.IterOptions {
	upper := append([]byte(nil), prefix...)
	upper[len(upper)-1]++
	return &pebble.IterOptions{LowerBound: prefix, UpperBound: upper}
}

// entry is the index entry of a blob: where it is, its checksum, and the epoch of its
// last put or touch.
type entry struct {
	segment.Location
	sum   schema.Sum
	touch uint32
}

// entrySize is the size of an encoded entry: segment u32, touch u32, offset, length and
// checksum u64, little-endian.
const entrySize = 32

// encode writes the entry into buf, and returns it as a slice.
func (e entry) encode(buf *[entrySize]byte) []byte {
	binary.LittleEndian.PutUint32(buf[0:], e.Segment)
	binary.LittleEndian.PutUint32(buf[4:], e.touch)
	binary.LittleEndian.PutUint64(buf[8:], uint64(e.Offset))
	binary.LittleEndian.PutUint64(buf[16:], uint64(e.Length))
	binary.LittleEndian.PutUint64(buf[24:], uint64(e.sum))
	return buf[:]
}

// decodeEntry is the inverse of encode. The result refers to no memory of v.
func decodeEntry(v []byte) (entry, error) {
	if len(v) != entrySize {
		return entry{}, fmt.Errorf("%w: an index entry of %d bytes, not %d", schema.ErrDataLoss, len(v), entrySize)
	}
	e := entry{
		Location: segment.Location{
			Segment: binary.LittleEndian.Uint32(v[0:]),
			Offset:  int64(binary.LittleEndian.Uint64(v[8:])),
			Length:  int64(binary.LittleEndian.Uint64(v[16:])),
		},
		touch: binary.LittleEndian.Uint32(v[4:]),
		sum:   schema.Sum(binary.LittleEndian.Uint64(v[24:])),
	}
	return e, nil
}

// segmentRecord is the catalog's record of a segment file.
type segmentRecord struct {
	durable int64 // bytes known to be on stable storage
	end     int64 // end of the trusted data, once a crash has left a damaged tail; 0: the end of the file
}

// encode returns both numbers as u64, little-endian.
func (r segmentRecord) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(r.durable))
	return binary.LittleEndian.AppendUint64(b, uint64(r.end))
}

// decodeSegmentRecord is the inverse of encode.
func decodeSegmentRecord(v []byte) (segmentRecord, error) {
	if len(v) != 16 {
		return segmentRecord{}, fmt.Errorf("%w: a segment record of %d bytes, not 16", schema.ErrDataLoss, len(v))
	}
	r := segmentRecord{int64(binary.LittleEndian.Uint64(v)), int64(binary.LittleEndian.Uint64(v[8:]))}
	if r.durable < 0 || r.end < 0 {
		return r, fmt.Errorf("%w: a segment record with a length beyond %d", schema.ErrDataLoss, int64(math.MaxInt64))
	}
	return r, nil
}

// count is a number of blobs and of their bytes, or a change of these. Changes are merged
// into the database in the batch that changes the index, so that both agree after any
// crash.
type count struct{ blobs, bytes int64 }

// encode returns both numbers as u64, little-endian. Negative ones are in two's
// complement.
func (c count) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(c.blobs))
	return binary.LittleEndian.AppendUint64(b, uint64(c.bytes))
}

// add adds an encoded count.
func (c *count) add(v []byte) error {
	if len(v) != 16 {
		return fmt.Errorf("%w: a count of %d bytes, not 16", schema.ErrDataLoss, len(v))
	}
	c.blobs += int64(binary.LittleEndian.Uint64(v))
	c.bytes += int64(binary.LittleEndian.Uint64(v[8:]))
	return nil
}

// MergeNewer implements pebble.ValueMerger.
func (c *count) MergeNewer(v []byte) error { return c.add(v) }

// MergeOlder implements pebble.ValueMerger.
func (c *count) MergeOlder(v []byte) error { return c.add(v) }

// Finish implements pebble.ValueMerger.
func (c *count) Finish(bool) ([]byte, io.Closer, error) { return c.encode(), nil, nil }

// countMerger adds counts in the database. Its name is stored there, and must not change.
var countMerger = &pebble.Merger{
	Name: "bowstring.count.1",
	Merge: func(_, v []byte) (pebble.ValueMerger, error) {
		c := new(count)
		return c, c.add(v)
	},
}

// The database takes the first invalid record in its manifest for the manifest's end. It
// then deletes every table that the manifest does not name. So a damaged manifest could
// delete the whole database. Each manifest therefore has a companion file. After each
// sync it records how much of the manifest is on stable storage, and its checksum.
const (
	manifestPrefix = "MANIFEST-"
	sumSuffix      = ".sum"
	sumSize        = 20 // length u64, XXH3 of that many bytes u64, CRC-32C of these u32
)

// castagnoli is the table of CRC-32C.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// guardFS is the database's file system. It writes the companion files of manifests.
type guardFS struct{ vfs.FS }

// isManifest reports whether a file is a manifest of the database.
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

// guardedFile is a manifest that is being written. The database uses it from one
// goroutine at a time.
type guardedFile struct {
	vfs.File
	sums vfs.File
	sum  *xxh3.Hasher // of everything that was written
	size uint64       // bytes written
}

// Write implements vfs.File.
func (f *guardedFile) Write(b []byte) (int, error) {
	_, _ = f.sum.Write(b) // never fails; it comes first, because the file may change b
	n, err := f.File.Write(b)
	f.size += uint64(n)
	return n, err
}

// Sync implements vfs.File. When it has returned, the database deletes what the manifest
// does not need any more. So the companion is synced before that.
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

// checkManifest compares the manifest of the database in dir with its companion file. The
// database of an older program has none, and passes.
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

// lastSum returns the last complete record of a companion file; zeros if there is none.
// The last record may be incomplete after a crash.
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

// readFile reads a file of a vfs.FS.
func readFile(fsys vfs.FS, path string) (data []byte, err error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(f)
}

// pebbleLogger passes the database's messages to slog.
type pebbleLogger struct{ log *slog.Logger }

// Infof passes a message at debug level: what matters is also returned as an error.
func (l pebbleLogger) Infof(format string, args ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug("database", "message", fmt.Sprintf(format, args...))
	}
}

// Errorf passes a message as an error.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("database", "message", fmt.Sprintf(format, args...))
}

// Fatalf ends the process. The database calls it when it can neither continue nor return an error, for example after
// a failed write of its log.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	l.log.Error("database cannot go on", "message", msg)
	panic("local: the database cannot go on: " + msg)
}

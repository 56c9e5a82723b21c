package local

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// The journal is a second copy of the catalog beside the database: all rows as of some
// change, followed by every later synced change, in order. The package documentation says
// what the two copies are for. docs/formats.md describes the records.
const (
	journalDir    = "journal"
	journalSuffix = ".log"
	journalHeader = 48 // size of a record's header
	// A new journal file is begun when the changes in it exceed this size, and twice the size of the rows that it
	// began with.
	journalGrown = 4 << 20
	journalPart  = 1 << 20 // size of a record of the initial rows
)

// journalMagic begins each record. After damage the reader looks for the next one.
var journalMagic = [4]byte{'B', 'J', 'R', 'N'}

// The kinds of records.
const (
	recordRows   = 1 // some of the initial rows
	recordBegun  = 2 // the initial rows are complete; no rows
	recordChange = 3 // rows that were set or deleted
)

// version is the number of a catalog's last change, and a digest of its rows that does
// not depend on their order. So the digest can be updated from the changed rows alone.
type version struct {
	change uint64
	digest uint64
}

// encode returns change and digest as u64, little-endian.
func (v version) encode() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, v.change), v.digest)
}

// decodeVersion is the inverse of encode.
func decodeVersion(b []byte) (version, error) {
	if len(b) != 16 {
		return version{}, fmt.Errorf("%w: the catalog's version has %d bytes, not 16", schema.ErrDataLoss, len(b))
	}
	return version{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}, nil
}

// change is rows by key. A nil row is deleted.
type change map[string][]byte

// rowDigest is the contribution of a row to a version's digest. The key is the seed, so
// that values that are exchanged between two rows change the sum.
func rowDigest(key string, value []byte) uint64 { return xxh3.HashSeed(value, xxh3.HashString(key)) }

// rowsDigest is the digest of rows: the sum of theirs, modulo 2^64.
func rowsDigest(rows change) (sum uint64) {
	for k, v := range rows {
		sum += rowDigest(k, v)
	}
	return sum
}

// encode returns the rows in key order: length of the key and the key, length of the
// value plus 1 and the value; 0 for a deleted row. Lengths are varints.
func (c change) encode() []byte {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(c)) {
		v := c[k]
		b = append(binary.AppendUvarint(b, uint64(len(k))), k...)
		if v == nil {
			b = binary.AppendUvarint(b, 0)
			continue
		}
		b = append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
	}
	return b
}

// apply applies an encoded change to the rows of c.
func (c change) apply(b []byte) error {
	take := func() ([]byte, uint64, bool) {
		n, w := binary.Uvarint(b)
		if w <= 0 {
			return nil, 0, false
		}
		b = b[w:]
		return b, n, true
	}
	for len(b) > 0 {
		_, n, ok := take()
		if !ok || n > uint64(len(b)) {
			return fmt.Errorf("%w: a change of the catalog that ends in a key", schema.ErrDataLoss)
		}
		key := string(b[:n])
		b = b[n:]
		_, n, ok = take()
		if !ok || n > uint64(len(b))+1 {
			return fmt.Errorf("%w: a change of the catalog that ends in a row", schema.ErrDataLoss)
		}
		if n == 0 {
			delete(c, key)
			continue
		}
		c[key] = bytes.Clone(b[:n-1])
		b = b[n-1:]
	}
	return nil
}

// journal is the journal that is being written. Store.catalog guards it.
type journal struct {
	fs     vfs.FS
	dir    string
	file   vfs.File // nil before the first change
	number uint64   // of the newest file
	began  int64    // size of its initial rows, in bytes
	size   int64    // size of the file, in bytes
	// failed is the error of a change that the database has and the journal may not have.
	// After it no more changes are accepted, because the journal would have a gap.
	failed error // the error of a change that the database has and the journal may not have
}

// write makes a change durable in the journal, after the database has made it, as version
// v. rows yields all rows of the catalog, in case a new file is begun.
func (j *journal) write(c change, v version, rows iter.Seq2[change, error]) error {
	if j.failed == nil {
		if j.file == nil || j.size-j.began > max(journalGrown, 2*j.began) {
			j.failed = j.begin(v, rows)
		} else {
			j.failed = errors.Join(j.record(recordChange, v, c.encode()), j.sync())
		}
		if j.failed != nil {
			j.failed = fmt.Errorf("write the catalog's journal %s: %w", j.dir, j.failed)
		}
	}
	return j.failed
}

// begin begins a new file with all rows, and then removes the older files. Until the new
// file is complete and synced, the older one stays.
func (j *journal) begin(v version, rows iter.Seq2[change, error]) error {
	if err := j.close(); err != nil {
		return err
	}
	if err := errors.Join(j.fs.MkdirAll(j.dir, 0o700), syncDir(j.fs, j.fs.PathDir(j.dir))); err != nil {
		return err
	}
	// Older files are removed only after the new one is complete and durable.
	old, err := journalFiles(j.fs, j.dir)
	if err != nil {
		return err
	}
	if len(old) > 0 {
		j.number = max(j.number, old[len(old)-1])
	}
	j.number++
	j.file, err = j.fs.Create(j.path(j.number), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	j.size = 0
	for part, err := range rows {
		if err != nil {
			return err
		}
		if err := j.record(recordRows, v, part.encode()); err != nil {
			return err
		}
	}
	if err := errors.Join(j.record(recordBegun, v, nil), j.sync(), syncDir(j.fs, j.dir)); err != nil {
		return err
	}
	j.began = j.size
	for _, n := range old {
		if err := j.fs.Remove(j.path(n)); err != nil {
			return err
		}
	}
	return syncDir(j.fs, j.dir)
}

// path is the path of the n-th file.
func (j *journal) path(n uint64) string {
	return j.fs.PathJoin(j.dir, fmt.Sprintf("%08d%s", n, journalSuffix))
}

// record appends a record. It does not sync.
func (j *journal) record(kind uint32, v version, payload []byte) error {
	b := append(make([]byte, 0, journalHeader+len(payload)), journalMagic[:]...)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = append(b, v.encode()...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(payload)))
	b = binary.LittleEndian.AppendUint64(b, xxh3.Hash(payload))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	n, err := j.file.Write(append(b, payload...))
	j.size += int64(n)
	return err
}

// sync makes the records durable.
func (j *journal) sync() error { return j.file.SyncData() }

// close closes the file. The next change begins a new one.
func (j *journal) close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// history is the content of a journal that was read.
type history struct {
	rows    change
	version // of these rows
	// seen is the greatest number of a change that left a trace in the journal.
	seen uint64
	// damage is the error of an unreadable part. Then rows may be missing, or deleted ones present.
	damage error
}

// readJournal reads the journal in dir. A missing journal has change 0. An incomplete
// last record is ignored, because its change was never acknowledged. If there are several
// files, the newest complete one counts.
func readJournal(fsys vfs.FS, dir string) (history, error) {
	newest := history{rows: change{}}
	numbers, err := journalFiles(fsys, dir)
	if err != nil {
		return newest, err
	}
	for i, n := range slices.Backward(numbers) {
		name := fsys.PathJoin(dir, fmt.Sprintf("%08d%s", n, journalSuffix))
		data, err := readFile(fsys, name)
		if err != nil {
			return newest, fmt.Errorf("read %s: %w", name, err)
		}
		h, begun := parseJournal(data)
		if h.damage != nil {
			h.damage = fmt.Errorf("%s: %w", name, h.damage)
		}
		if begun {
			// a newer file was just being begun
			h.seen = max(h.change, newest.change)
			return h, nil
		}
		if h.seen = h.change; i == len(numbers)-1 {
			newest = h
		}
	}
	return newest, nil
}

// parseJournal reads the records of a file, and reports whether it has all initial rows.
// Damage between intact records is noted, and reading continues after it.
func parseJournal(data []byte) (h history, begun bool) {
	h.rows = change{}
	note := func(at int, what string) {
		if h.damage == nil {
			h.damage = fmt.Errorf("%w: offset %d: %s", schema.ErrDataLoss, at, what)
		}
	}
	// An invalid stretch at the end of the file is a write that was interrupted. Before a
	// valid record it is damage.
	torn := -1
	for at := 0; at < len(data); {
		kind, v, payload, next, reason := parseRecord(data, at)
		if reason != "" {
			if torn < 0 {
				torn = at
			}
			skip := bytes.Index(data[at+1:], journalMagic[:])
			if skip < 0 {
				break
			}
			at += 1 + skip
			continue
		}
		if torn >= 0 {
			note(torn, "something that is no record, before one that is")
			torn = -1
		}
		h.version = v
		at = next
		if payload == nil {
			note(at, "the rows of a record have the wrong checksum")
			continue
		}
		if err := h.rows.apply(payload); err != nil {
			note(at, err.Error())
		}
		begun = begun || kind == recordBegun
	}
	switch {
	case !begun:
		note(0, "the journal's beginning is not whole")
	case h.damage == nil && rowsDigest(h.rows) != h.digest:
		note(0, "the rows are not those that were written")
	}
	return h, begun
}

// parseRecord reads the record at an offset; reason says why there is none. If only the
// payload is damaged, payload is nil.
func parseRecord(data []byte, at int) (kind uint32, v version, payload []byte, next int, reason string) {
	b := data[at:]
	if len(b) < journalHeader || [4]byte(b[:4]) != journalMagic ||
		crc32.Checksum(b[:journalHeader-4], castagnoli) != binary.LittleEndian.Uint32(b[journalHeader-4:]) {
		return 0, v, nil, 0, "no record header"
	}
	n := binary.LittleEndian.Uint64(b[24:])
	if n > uint64(len(b)-journalHeader) {
		return 0, v, nil, 0, "a record that was not written to its end"
	}
	kind = binary.LittleEndian.Uint32(b[4:])
	v = version{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])}
	payload = b[journalHeader : journalHeader+n : journalHeader+n]
	if xxh3.Hash(payload) != binary.LittleEndian.Uint64(b[32:]) {
		payload = nil
	}
	return kind, v, payload, at + journalHeader + int(n), ""
}

// journalFiles lists the numbers of a journal's files, in ascending order.
func journalFiles(fsys vfs.FS, dir string) (numbers []uint64, err error) {
	names, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for _, name := range names {
		if digits, ok := strings.CutSuffix(name, journalSuffix); ok {
			if n, err := strconv.ParseUint(digits, 10, 64); err == nil {
				numbers = append(numbers, n)
			}
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// syncDir makes the entries of a directory durable.
func syncDir(fsys vfs.FS, dir string) error {
	if fsys == vfs.Default {
		return segment.SyncDir(dir)
	}
	d, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// mirrored are the prefixes of the rows that are also in the journal.
var mirrored = [][]byte{{prefixRow}, {prefixFreed}, {prefixSegment}, keySegment}

// isMirrored reports whether a row is also in the journal.
func isMirrored(key string) bool {
	return slices.ContainsFunc(mirrored, func(prefix []byte) bool { return bytes.HasPrefix([]byte(key), prefix) })
}

// update commits a change in a synced batch, with the synced lengths of the segments, and
// then writes it to the journal. The order matters: Open refuses a database that is
// behind its journal, and accepts a journal that is one change behind. The caller holds
// s.catalog.
func (s *Store) update(c change) error {
	if err := s.journal.failed; err != nil {
		return err
	}
	done, err := s.recordSynced(c)
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close()
	// The digest changes by the changed rows: the old values are subtracted, the new ones
	// added.
	next, noted := version{s.version.change + 1, s.version.digest}, change{}
	for _, key := range slices.Sorted(maps.Keys(c)) {
		if isMirrored(key) {
			old, err := s.value([]byte(key))
			if err != nil {
				return err
			}
			if old != nil {
				next.digest -= rowDigest(key, old)
			}
			if c[key] != nil {
				next.digest += rowDigest(key, c[key])
			}
			noted[key] = c[key]
		}
		if c[key] == nil {
			err = b.Delete([]byte(key), nil)
		} else {
			err = b.Set([]byte(key), c[key], nil)
		}
		if err != nil {
			return dbError("write the catalog", err)
		}
	}
	if err := errors.Join(b.Set(keyVersion, next.encode(), nil), b.Commit(pebble.Sync)); err != nil {
		return dbError("write the catalog", err)
	}
	s.version = next
	done()
	return s.journal.write(noted, next, s.mirroredRows())
}

// recordSynced adds to c how much has been synced of each segment since the last record.
// The caller calls done when c is committed. The caller holds s.catalog.
func (s *Store) recordSynced(c change) (done func(), err error) {
	now := map[uint32]int64{}
	for _, g := range s.set.Segments() {
		key := string(segmentKey(g.ID()))
		n := g.Durable()
		if n <= s.synced[g.ID()] {
			continue
		}
		v, changed := c[key]
		if !changed {
			if v, err = s.value([]byte(key)); err != nil {
				return nil, err
			}
		} else if v == nil {
			continue // the segment is being freed
		}
		r, err := decodeSegmentRecord(v)
		if err != nil {
			return nil, err
		}
		r.durable = n
		c[key], now[g.ID()] = r.encode(), n
	}
	return func() {
		for id, n := range now {
			s.synced[id] = n
		}
	}, nil
}

// mirroredRows yields the rows that are also in the journal, in parts of about
// journalPart bytes.
func (s *Store) mirroredRows() iter.Seq2[change, error] {
	return func(yield func(change, error) bool) {
		for _, prefix := range mirrored {
			if !s.mirroredUnder(prefix, yield) {
				return
			}
		}
	}
}

// mirroredUnder yields those with a prefix, and reports whether to continue.
func (s *Store) mirroredUnder(prefix []byte, yield func(change, error) bool) (more bool) {
	it, err := s.db.NewIter(within(prefix...))
	if err != nil {
		return yield(nil, dbError("read the catalog", err))
	}
	defer func() {
		if err := it.Close(); err != nil && more {
			more = yield(nil, dbError("read the catalog", err))
		}
	}()
	part, size := change{}, 0
	for it.First(); it.Valid(); it.Next() {
		part[string(it.Key())] = append([]byte{}, it.Value()...)
		if size += len(it.Key()) + len(it.Value()); size >= journalPart {
			if !yield(part, nil) {
				return false
			}
			part, size = change{}, 0
		}
	}
	if it.Error() != nil {
		return true // Close returns the error
	}
	return yield(part, nil)
}

// checkCatalog compares the rows with the version in the database, and that version with
// the journal's. If the database lacks anything that the journal has, it returns a
// schema.ErrDataLoss. A damaged journal is only logged, because the database is intact
// and the next change writes a new one.
func (s *Store) checkCatalog() error {
	var digest uint64
	for rows, err := range s.mirroredRows() {
		if err != nil {
			return err
		}
		digest += rowsDigest(rows)
	}
	// The rows are compared with the version in the database, and then that version with
	// the journal's.
	v, err := s.value(keyVersion)
	if err != nil {
		return err
	}
	if v != nil {
		if s.version, err = decodeVersion(v); err != nil {
			return err
		}
	}
	if digest != s.version.digest {
		return damaged("read the catalog", fmt.Errorf("its rows are not those of its change %d", s.version.change))
	}
	h, err := readJournal(s.journal.fs, s.journal.dir)
	switch {
	case err != nil:
		return fmt.Errorf("read the catalog's journal: %w", err)
	case h.seen > s.version.change:
		return damaged("read the catalog",
			fmt.Errorf("the database has gone back to change %d of %d", s.version.change, h.seen))
	case h.damage == nil && h.version.change == s.version.change && h.digest != s.version.digest && v != nil:
		return damaged("read the catalog", fmt.Errorf("change %d is not what the journal says", h.version.change))
	case h.damage != nil, v != nil && h.version.change+1 < s.version.change:
		s.log.Warn("the catalog's journal is damaged; the database is whole, and the next change writes the "+
			"journal anew",
			"directory", s.journal.dir, "change", h.version.change, "of", s.version.change, "error", h.damage)
	}
	return nil
}

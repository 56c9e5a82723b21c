package local

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// recover checks the catalog, reads the store's small records, and opens the segments for
// reading. It reads only those tails of segments that a crash of the machine may have
// damaged. It changes nothing.
func (s *Store) recover() error {
	if err := s.checkCatalog(); err != nil {
		return err
	}
	v, err := s.value(keyState)
	if err != nil {
		return err
	}
	s.left = state{Clean: true} // as for a new store
	// A new store has no such record.
	if v != nil {
		if err := json.Unmarshal(v, &s.left); err != nil {
			return fmt.Errorf("%w: catalog record %s: %w", schema.ErrDataLoss, keyState, err)
		}
	}
	if s.nextSegment, err = s.number(keySegment); err != nil {
		return err
	}
	// The totals are merged by the database with each change of the index.
	var total count
	if v, err = s.value(keyCount); err == nil && v != nil {
		err = total.add(v)
	}
	if err != nil {
		return err
	}
	s.count.blobs.Store(total.blobs)
	s.count.bytes.Store(total.bytes)

	records, err := s.segmentRecords()
	if err != nil {
		return err
	}
	if err := s.unknownSegments(records); err != nil {
		return err
	}
	for _, r := range records {
		if err := s.openSegment(r.id, r.segmentRecord); err != nil {
			return err
		}
	}
	return nil
}

// numberedRecord is a segment's record with the segment's number.
type numberedRecord struct {
	id uint32
	segmentRecord
}

// segmentRecords lists the records of all segments, in ascending order.
func (s *Store) segmentRecords() (list []numberedRecord, err error) {
	it, err := s.db.NewIter(within(prefixSegment))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		r, err := decodeSegmentRecord(it.Value())
		if err != nil {
			return nil, err
		}
		if len(it.Key()) != 5 {
			return nil, fmt.Errorf("%w: a segment key of %d bytes, not 5", schema.ErrDataLoss, len(it.Key()))
		}
		list = append(list, numberedRecord{binary.BigEndian.Uint32(it.Key()[1:]), r})
	}
	return list, nil
}

// numbered lists the numbers in the keys with a prefix, in ascending order.
func (s *Store) numbered(prefix byte) (ids []uint32, err error) {
	it, err := s.db.NewIter(within(prefix))
	if err != nil {
		return nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		if len(it.Key()) != 5 {
			return nil, fmt.Errorf("%w: a segment key of %d bytes, not 5", schema.ErrDataLoss, len(it.Key()))
		}
		ids = append(ids, binary.BigEndian.Uint32(it.Key()[1:]))
	}
	return ids, nil
}

// unknownSegments reports the files without a record in the catalog, and reserves their
// numbers, so that no new segment overwrites them.
func (s *Store) unknownSegments(records []numberedRecord) error {
	known := make(map[uint32]bool, len(records))
	for _, r := range records {
		known[r.id] = true
	}
	dir := filepath.Join(s.dir, segmentsDir)
	ids, err := segment.List(dir)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if known[id] {
			continue
		}
		freed, err := s.value(freedKey(id))
		if err != nil {
			return err
		}
		s.nextSegment = max(s.nextSegment, id+1)
		if freed == nil {
			// The catalog is older than the segments, or an older program was killed during a collection. The file
			// may still be needed.
			s.log.Warn("a segment file is unknown to the catalog, and kept; store rebuild takes in what is in it",
				"segment", id, "directory", dir)
		}
	}
	return nil
}

// openSegment opens a segment for reading, up to the end of its trusted data. A segment
// that cannot be opened is left out, and reads of its blobs report them as lost.
func (s *Store) openSegment(id uint32, r segmentRecord) error {
	path := filepath.Join(s.dir, segmentsDir, segment.FileName(id))
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.durable == 0:
		return nil // killed between the record and the creation of the file
	case err != nil:
		s.log.Error("a segment is missing", "segment", id, "error", err)
		return nil
	}
	size := st.Size()
	if size < r.durable {
		s.log.Error("a segment was cut short", "segment", id, "bytes", size, "expected", r.durable)
	}
	// The trusted end is the recorded one, the file's end, or the end of what can be
	// verified.
	end := size
	switch {
	case r.end != 0:
		end = min(size, r.end)
	case s.left.sameBoot(s.boot):
		// Only the process was killed, so the kernel has all that the index names. It may not be on the disk; mend
		// sees to that before the first put.
	case size > r.durable:
		if end, err = trustedEnd(path, id, r.durable, size); err != nil {
			return err
		}
	}
	if end <= segment.HeaderSize && r.durable <= segment.HeaderSize {
		return nil // nothing in it was committed or can be read
	}
	if _, err := s.set.Attach(id, end, r.durable, false); err != nil {
		s.log.Error("a segment cannot be read", "segment", id, "error", err)
		return nil
	}
	s.synced[id] = r.durable
	return nil
}

// sameBoot reports whether the last process was killed while this same kernel ran. The
// kernel then still has everything that the process wrote.
func (st state) sameBoot(boot string) bool { return !st.Clean && st.Boot != "" && st.Boot == boot }

// trustedEnd is the end of the unbroken sequence of valid records from an offset on. It
// verifies the payloads.
func trustedEnd(path string, id uint32, from, size int64) (end int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, err := range segment.Scan(f, id, size, segment.ScanOptions{From: from, Payloads: true}) {
		var damage *segment.DamageError
		switch {
		case errors.As(err, &damage):
			return damage.Offset, nil
		case err != nil:
			return 0, err
		}
	}
	return size, nil
}

// newSegment assigns the number of a new segment. It is durable before the segment is
// used: after a crash, an index entry must never refer to another segment with the same
// number.
func (s *Store) newSegment() (uint32, error) {
	s.catalog.Lock()
	defer s.catalog.Unlock()
	id := s.nextSegment
	err := s.update(change{
		string(keySegment):     binary.LittleEndian.AppendUint32(nil, id+1),
		string(segmentKey(id)): segmentRecord{}.encode(),
	})
	if err != nil {
		return 0, err
	}
	s.nextSegment = id + 1
	s.sealed.Store(true)
	return id, nil
}

// syncSealed syncs the segments if a new one was begun since the last time. So after a
// crash only the last segment has to be read.
func (s *Store) syncSealed() error {
	if !s.sealed.Swap(false) {
		return nil
	}
	if err := s.set.Sync(); err != nil {
		return err
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	return s.update(change{})
}

// leaveClean records a clean shutdown. It is called when no call is running any more.
func (s *Store) leaveClean() error {
	if !s.writable.Load() || s.broken != nil {
		return nil // nothing was changed
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	if err := s.set.Sync(); err != nil {
		return err
	}
	return s.update(change{string(keyState): state{Clean: true, Boot: s.boot}.encode()})
}

// prepareToWrite opens the database and the segments for writing, repairs what a crash
// has left, and records durably that the store is being changed. Calls wait for it,
// because it locks life.
func (s *Store) prepareToWrite() error {
	s.life.Lock()
	defer s.life.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("%w: the store in %s is closed", schema.ErrUnavailable, s.dir)
	case s.broken != nil:
		return s.broken
	case s.damaged != nil:
		return s.damaged
	case s.writable.Load():
		return nil // another call was faster
	}
	if err := s.reopen(); err != nil {
		return err
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	m := mending{s: s, set: s.newSet(false), change: change{string(keyState): state{Boot: s.boot}.encode()}}
	if err := m.run(); err != nil {
		m.set.Close()
		return err
	}
	// Blobs that readers have mapped stay valid: each holds its segment.
	old := s.set
	s.set = m.set
	old.Close()
	if err := s.update(m.change); err != nil {
		return err
	}
	s.writable.Store(true)
	return m.unlink(m.empty)
}

// reopen opens the database for writing instead of reading. If that fails, it opens it
// for reading again, so that reads go on.
func (s *Store) reopen() error {
	err := s.db.Close()
	if err == nil {
		if s.db, err = openDatabase(s.pebble(), s.opts, writing); err == nil {
			return nil
		}
	}
	var again error
	if s.db, again = openDatabase(s.pebble(), s.opts, reading); again != nil {
		s.broken = errors.Join(err, again)
	}
	return err
}

// mending prepares the segments for appends. The caller holds s.life.
type mending struct {
	s   *Store
	set *segment.Set // the segments are attached to it
	// change is committed when all segments are attached.
	change change
	empty  []uint32 // segments to unlink once the change is committed
}

// run attaches all segments. Only the last one is appended to.
func (m *mending) run() error {
	// Freed files go first, so that they do not count as unknown.
	if err := m.unlinkFreed(); err != nil {
		return err
	}
	records, err := m.s.segmentRecords()
	if err != nil {
		return err
	}
	m.s.synced = map[uint32]int64{}
	for i, r := range records {
		if err := m.attach(r.id, r.segmentRecord, i == len(records)-1); err != nil {
			return fmt.Errorf("segment %d: %w", r.id, err)
		}
	}
	return nil
}

// unlinkFreed unlinks the files that a collection has recorded as freed, if it was
// interrupted before it could.
func (m *mending) unlinkFreed() error {
	freed, err := m.s.numbered(prefixFreed)
	if err != nil {
		return err
	}
	for _, id := range freed {
		m.change[string(freedKey(id))] = nil
	}
	return m.unlink(freed)
}

// unlink removes the files of segments, durably. Missing files are no error.
func (m *mending) unlink(ids []uint32) error {
	if len(ids) == 0 {
		return nil
	}
	dir := filepath.Join(m.s.dir, segmentsDir)
	for _, id := range ids {
		if err := os.Remove(filepath.Join(dir, segment.FileName(id))); err == nil {
			m.s.log.Info("removed a segment that nothing is in", "segment", id)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return segment.SyncDir(dir)
}

// attach opens a segment up to the end of its trusted data. A damaged tail is recorded as
// cut off, so that later opens do not read it again.
func (m *mending) attach(id uint32, r segmentRecord, last bool) error {
	s := m.s
	key := string(segmentKey(id))
	st, err := os.Stat(filepath.Join(s.dir, segmentsDir, segment.FileName(id)))
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.durable == 0:
		m.change[key] = nil
		return nil
	case err != nil:
		return nil //nolint:nilerr // reported when the store was opened
	}
	size := st.Size()
	end := size
	switch {
	case r.end != 0:
		end = min(size, r.end)
	case size > r.durable:
		if end, err = m.tail(id, r.durable, size); err != nil {
			return err
		}
		if end < size {
			s.log.Warn("cut off the tail of a segment after a crash", "segment", id, "end", end, "bytes", size-end)
			r.end = max(end, segment.HeaderSize)
			m.change[key] = r.encode()
		}
	}
	if end <= segment.HeaderSize && r.durable <= segment.HeaderSize {
		// Nothing in it was committed or can be read.
		m.change[key], m.change[string(freedKey(id))] = nil, []byte{}
		m.empty = append(m.empty, id)
		return nil
	}
	// Only a segment that was closed in order is continued. Otherwise a new one is begun,
	// so that an unknown tail never precedes new records.
	appendTo := last && s.left.Clean && r.end == 0 && size == r.durable && size%segment.Align == 0
	if _, err := m.set.Attach(id, end, r.durable, appendTo); err != nil {
		s.log.Error("a segment cannot be read", "segment", id, "error", err)
		return nil
	}
	s.synced[id] = r.durable
	return nil
}

// tail returns the end of the trusted data beyond what was recorded as synced.
//
// After a crash of the machine that is what can be read. While the same kernel runs, reading proves nothing: a page
// that the kernel failed to store stays readable and counts as stored, so a later sync does not report it, and
// whether the killed process had seen a failed sync is unknown. So the data is written again and synced before it is
// read. Data for which that fails is not trusted.
func (m *mending) tail(id uint32, from, size int64) (end int64, err error) {
	s := m.s
	path := filepath.Join(s.dir, segmentsDir, segment.FileName(id))
	// If the kernel is unknown, it may be the same one.
	if s.left.sameBoot(s.boot) || !s.left.Clean && s.left.Boot == "" {
		if err := m.set.Rewrite(id, from, size); err != nil {
			s.log.Error("what was written to a segment cannot be stored, and is not trusted",
				"segment", id, "from", from, "error", err)
			return from, nil
		}
	}
	return trustedEnd(path, id, from, size)
}

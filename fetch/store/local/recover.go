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

// recover checks the catalog, reads the store's small records and opens its segments
// for reading. It scans no more than the tails that a crash of the machine may have
// damaged, and changes nothing.
func (s *Store) recover() error {
	if err := s.checkCatalog(); err != nil {
		return err
	}
	v, err := s.value(keyState)
	if err != nil {
		return err
	}
	s.left = state{Clean: true} // as a new store is
	if v != nil {
		if err := json.Unmarshal(v, &s.left); err != nil {
			return fmt.Errorf("%w: catalog record %s: %w", schema.ErrDataLoss, keyState, err)
		}
	}
	if s.nextSegment, err = s.number(keySegment); err != nil {
		return err
	}
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
		if err := s.look(r.id, r.segmentRecord); err != nil {
			return err
		}
	}
	return nil
}

type numberedRecord struct {
	id uint32
	segmentRecord
}

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

// numbered lists the segments that there is a row of, under such a prefix.
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

// unknownSegments lists the files that the catalog does not know of, and
// has none of them take the place of a new one.
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
			// The catalog is older than the segments, or an older program was killed
			// in a collection. That nobody needs the file is not known.
			s.log.Warn("a segment file is unknown to the catalog, and kept; store rebuild takes in what is in it",
				"segment", id, "directory", dir)
		}
	}
	return nil
}

// look opens a segment for reading, up to where its data can be trusted. One that cannot
// be opened is left out: what it held is reported as lost when it is asked for.
func (s *Store) look(id uint32, r segmentRecord) error {
	path := filepath.Join(s.dir, segmentsDir, segment.FileName(id))
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.durable == 0:
		return nil // killed between the record and the file
	case err != nil:
		s.log.Error("a segment is missing", "segment", id, "error", err)
		return nil
	}
	size := st.Size()
	if size < r.durable {
		s.log.Error("a segment was cut short", "segment", id, "bytes", size, "expected", r.durable)
	}
	end := size
	switch {
	case r.end != 0:
		end = min(size, r.end)
	case s.left.sameBoot(s.boot):
		// The process was killed and the kernel was not: all that the index names
		// was written. It may not be on the disk; before anything can be put, mend sees to that.
	case size > r.durable:
		if end, err = trustedEnd(path, id, r.durable, size); err != nil {
			return err
		}
	}
	if end <= segment.HeaderSize && r.durable <= segment.HeaderSize {
		return nil // nothing in it was ever committed or can be read
	}
	if _, err := s.set.Attach(id, end, r.durable, false); err != nil {
		s.log.Error("a segment cannot be read", "segment", id, "error", err)
		return nil
	}
	s.synced[id] = r.durable
	return nil
}

// sameBoot reports whether the kernel has run since the store was left unclean.
func (st state) sameBoot(boot string) bool { return !st.Clean && st.Boot != "" && st.Boot == boot }

// trustedEnd is where the unbroken run of good records after from ends.
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

// newSegment gives out the number of a segment that is about to be created,
// durably: an index entry must never come to mean a later segment.
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

// syncSealed syncs the segments when one was followed by another, so that a crash
// leaves no more to be read again than the last of them.
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

// leaveClean records that nothing needs recovery. Called once no call is left.
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

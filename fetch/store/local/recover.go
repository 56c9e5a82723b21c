package local

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// recover reads the store's small records and attaches its segments. It scans
// no more than the tails that a crash of the machine may have damaged.
func (s *Store) recover() error {
	v, err := s.value(keyState)
	if err != nil {
		return err
	}
	left := state{Clean: true} // as a new store is
	if v != nil {
		if err := json.Unmarshal(v, &left); err != nil {
			return fmt.Errorf("%w: catalog record %s: %w", schema.ErrDataLoss, keyState, err)
		}
	}
	epoch, err := s.number(keyEpoch)
	if err != nil {
		return err
	}
	s.epoch.Store(epoch)
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
	s.blobs.Store(total.blobs)
	s.storedBytes.Store(total.bytes)

	records, err := s.segmentRecords()
	if err != nil {
		return err
	}
	if err := s.removeLeftovers(records); err != nil {
		return err
	}
	for i, r := range records {
		if err := s.attach(r.id, r.segmentRecord, left, i == len(records)-1); err != nil {
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
		return nil, fmt.Errorf("read the catalog: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
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

// removeLeftovers unlinks the files that a collection had no time to: a
// segment's record goes before its file, and comes before it.
func (s *Store) removeLeftovers(records []numberedRecord) error {
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
		switch {
		case known[id]:
		case id < s.nextSegment:
			if err := os.Remove(filepath.Join(dir, segment.FileName(id))); err != nil {
				return err
			}
			s.log.Info("removed a segment that a collection had freed", "segment", id)
		default:
			// No store of ours leaves this: the catalog is older than the
			// segments. The file is kept, and its number not used.
			s.log.Warn("a segment file is unknown to the catalog", "segment", id, "directory", dir)
			s.nextSegment = id + 1
		}
	}
	return nil
}

// attach opens a segment up to where its data can be trusted. One that cannot
// be opened is left out: what it held is reported as lost when it is asked for.
func (s *Store) attach(id uint32, r segmentRecord, left state, last bool) error {
	path := filepath.Join(s.dir, segmentsDir, segment.FileName(id))
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.durable == 0:
		// Killed between the record and the file.
		return s.db.Delete(segmentKey(id), pebble.NoSync)
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
	case left.Clean && size == r.durable:
	case !left.Clean && left.Boot != "" && left.Boot == s.boot:
		// The process was killed and the kernel was not: all that the index
		// names was written.
	case size > r.durable:
		if end, err = trustedEnd(path, id, r.durable, size); err != nil {
			return err
		}
		if end < size {
			s.log.Warn("cut off the tail of a segment after a crash", "segment", id, "end", end, "bytes", size-end)
			r.end = max(end, segment.HeaderSize)
			if err := s.db.Set(segmentKey(id), r.encode(), pebble.Sync); err != nil {
				return fmt.Errorf("write the catalog: %w", err)
			}
		}
	}
	if end <= segment.HeaderSize && r.durable <= segment.HeaderSize {
		// Nothing in it was ever committed or can be read.
		if err := s.db.Delete(segmentKey(id), pebble.Sync); err != nil {
			return fmt.Errorf("write the catalog: %w", err)
		}
		return os.Remove(path)
	}
	appendTo := last && left.Clean && r.end == 0 && size == r.durable && size%segment.Align == 0
	if _, err := s.set.Attach(id, end, r.durable, appendTo); err != nil {
		s.log.Error("a segment cannot be read", "segment", id, "error", err)
		return nil
	}
	s.synced[id] = r.durable
	return nil
}

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
	id := s.nextSegment
	b := s.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.Set(keySegment, binary.LittleEndian.AppendUint32(nil, id+1), nil),
		b.Set(segmentKey(id), segmentRecord{}.encode(), nil),
	)
	if err != nil {
		return 0, err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return 0, fmt.Errorf("write the catalog: %w", err)
	}
	s.nextSegment = id + 1
	return id, nil
}

// recordSynced adds to b what has been synced of each segment since it was
// last recorded, and returns what to call when b is committed. s.catalog is held.
func (s *Store) recordSynced(b *pebble.Batch) (done func(), err error) {
	now := map[uint32]int64{}
	for _, g := range s.set.Segments() {
		if n := g.Durable(); n > s.synced[g.ID()] {
			v, err := s.value(segmentKey(g.ID()))
			if err != nil {
				return nil, err
			}
			r, err := decodeSegmentRecord(v)
			if err != nil {
				return nil, err
			}
			r.durable = n
			if err := b.Set(segmentKey(g.ID()), r.encode(), nil); err != nil {
				return nil, err
			}
			now[g.ID()] = n
		}
	}
	return func() {
		for id, n := range now {
			s.synced[id] = n
		}
	}, nil
}

// update commits a synced batch that is filled by fill and also records what
// has been synced of the segments. s.catalog is held.
func (s *Store) update(fill func(*pebble.Batch) error) error {
	b := s.db.NewBatch()
	defer b.Close()
	done, err := s.recordSynced(b)
	if err != nil {
		return err
	}
	if err := fill(b); err != nil {
		return err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return fmt.Errorf("write the catalog: %w", err)
	}
	done()
	return nil
}

// leaveClean records that nothing needs recovery. Called once no call is left.
func (s *Store) leaveClean() error {
	if !s.dirty.done.Load() {
		return nil // nothing was changed
	}
	s.catalog.Lock()
	defer s.catalog.Unlock()
	if err := s.set.Sync(); err != nil {
		return err
	}
	return s.update(func(b *pebble.Batch) error { return s.setState(state{Clean: true, Boot: s.boot}, b) })
}

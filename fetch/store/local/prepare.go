package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// prepareToWrite opens the database and the segments for writing, mends what a crash
// has left, and has the catalog say, durably, that the store is being changed.
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
	old := s.set
	s.set = m.set
	old.Close()
	if err := s.update(m.change); err != nil {
		return err
	}
	s.writable.Store(true)
	return m.unlink(m.empty)
}

// reopen opens the database for writing, in the place of the one for reading.
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

// mending makes the segments such that they can be appended to. s.life is held.
type mending struct {
	s      *Store
	set    *segment.Set // to which they are attached
	change change
	empty  []uint32 // segments to unlink once the change is made
}

func (m *mending) run() error {
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

// unlinkFreed removes the files that a collection had no time to. That it freed them is
// on record.
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

// attach opens a segment up to where its data can be trusted.
func (m *mending) attach(id uint32, r segmentRecord, last bool) error {
	s := m.s
	key := string(segmentKey(id))
	st, err := os.Stat(filepath.Join(s.dir, segmentsDir, segment.FileName(id)))
	switch {
	case errors.Is(err, fs.ErrNotExist) && r.durable == 0:
		m.change[key] = nil
		return nil
	case err != nil:
		return nil //nolint:nilerr // told when the store was opened
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
		// Nothing in it was ever committed or can be read.
		m.change[key], m.change[string(freedKey(id))] = nil, []byte{}
		m.empty = append(m.empty, id)
		return nil
	}
	appendTo := last && s.left.Clean && r.end == 0 && size == r.durable && size%segment.Align == 0
	if _, err := m.set.Attach(id, end, r.durable, appendTo); err != nil {
		s.log.Error("a segment cannot be read", "segment", id, "error", err)
		return nil
	}
	s.synced[id] = r.durable
	return nil
}

// tail returns where the data ends that can be trusted of what was not recorded as synced.
//
// After a crash of the machine that is what can be read. While the kernel runs, reading proves
// nothing: a page that it failed to store stays readable, and counts as stored, so
// that a later sync says nothing of it, and whether the process that was killed had
// seen a sync fail is not known. So the data is written once more, and synced, before
// it is read. What cannot be is not trusted.
func (m *mending) tail(id uint32, from, size int64) (end int64, err error) {
	s := m.s
	path := filepath.Join(s.dir, segmentsDir, segment.FileName(id))
	if s.left.sameBoot(s.boot) || !s.left.Clean && s.left.Boot == "" {
		if err := m.set.Rewrite(id, from, size); err != nil {
			s.log.Error("what was written to a segment cannot be stored, and is not trusted",
				"segment", id, "from", from, "error", err)
			return from, nil
		}
	}
	return trustedEnd(path, id, from, size)
}

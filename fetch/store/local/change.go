package local

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// mirrored are the prefixes of the rows that the journal has as well.
var mirrored = [][]byte{{prefixRow}, {prefixFreed}, {prefixSegment}, keySegment}

func isMirrored(key string) bool {
	return slices.ContainsFunc(mirrored, func(prefix []byte) bool { return bytes.HasPrefix([]byte(key), prefix) })
}

// update commits a change in a synced batch, together with what has been synced of the
// segments, and writes it to the journal. s.catalog is held.
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

// recordSynced adds to c what has been synced of each segment since it was
// last recorded, and returns what to call when it is committed. s.catalog is held.
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
			continue // it is being freed
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

// mirroredRows yields the rows that the journal has as well, in portions.
func (s *Store) mirroredRows() iter.Seq2[change, error] {
	return func(yield func(change, error) bool) {
		for _, prefix := range mirrored {
			if !s.mirroredUnder(prefix, yield) {
				return
			}
		}
	}
}

// mirroredUnder reports whether to go on.
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
		return true // told when it is closed
	}
	return yield(part, nil)
}

// checkCatalog compares the catalog with the version that the database gives it, and
// that with the journal's. It is a schema.ErrDataLoss if the database has lost
// anything that the journal knows of.
func (s *Store) checkCatalog() error {
	var digest uint64
	for rows, err := range s.mirroredRows() {
		if err != nil {
			return err
		}
		digest += rowsDigest(rows)
	}
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

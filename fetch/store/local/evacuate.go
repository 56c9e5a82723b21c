package local

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// What is copied out of a segment between two syncs.
const (
	moveBlobs = 4096
	moveBytes = 64 << 20
)

// evacuate copies the live blobs of a victim to the active segment and has the
// index name the copies. It returns how many, and the space they take.
func (c *collection) evacuate(id uint32) (moved, copied int64, err error) {
	s := c.s
	type move struct {
		key      schema.Key
		from, to segment.Location
	}
	var batch []move
	var bytes int64
	flush := func() error {
		// The copies must be durable before the index names them: it may reach
		// the disk at any time.
		if err := s.set.Sync(); err != nil {
			return err
		}
		if err := c.record(change{}); err != nil {
			return err
		}
		for _, m := range batch {
			if err := s.relocate(&m.key, m.from, m.to); err != nil {
				return err
			}
			c.report.MovedBytes += m.to.Length
			copied += segment.Footprint(m.to.Length)
		}
		moved += int64(len(batch))
		batch, bytes = batch[:0], 0
		return nil
	}
	g := s.set.Segment(id)
	for rec, err := range g.Scan(segment.ScanOptions{}) {
		if stop := stopped(c.ctx, s); stop != nil {
			return moved, copied, stop
		}
		if errors.Is(err, schema.ErrDataLoss) {
			s.log.Warn("a segment has a damaged stretch", "segment", id, "error", err)
			continue
		} else if err != nil {
			return moved, copied, err
		}
		from := segment.Location{Segment: id, Offset: rec.Offset, Length: rec.Length}
		e, ok, err := s.entry(rec.Key)
		if err != nil {
			return moved, copied, err
		}
		if rec.Void || !ok || e.Location != from {
			continue
		}
		to, err := s.copyBlob(&rec.Key, e)
		if err != nil {
			return moved, copied, err
		}
		batch = append(batch, move{rec.Key, from, to})
		if bytes += rec.Length; bytes >= moveBytes || len(batch) >= moveBlobs {
			if err := flush(); err != nil {
				return moved, copied, err
			}
		}
	}
	err = flush()
	return moved, copied, err
}

// copyBlob appends a blob once more. Its recorded checksum goes with it, so
// that damage is still seen in the copy.
func (s *Store) copyBlob(key *schema.Key, e entry) (segment.Location, error) {
	b, err := s.set.Get(e.Location)
	if err != nil {
		return segment.Location{}, fmt.Errorf("move blob %s: %w", key, err)
	}
	defer b.Release()
	to, err := s.set.Append(*key, e.sum, b.Bytes())
	if err != nil {
		return to, fmt.Errorf("move blob %s: %w", key, err)
	}
	return to, nil
}

// relocate has the index name a blob's copy.
func (s *Store) relocate(key *schema.Key, from, to segment.Location) error {
	stripe := s.stripe(key)
	stripe.Lock()
	defer stripe.Unlock()
	e, ok, err := s.entry(*key)
	if err != nil {
		return err
	}
	if !ok || e.Location != from {
		return fmt.Errorf("%w: blob %s changed its place while it was moved", schema.ErrDataLoss, key)
	}
	e.Location = to
	defer s.places.forget(key)
	var buf [33]byte
	var value [entrySize]byte
	if err := s.db.Set(blobKey(&buf, key), e.encode(&value), pebble.NoSync); err != nil {
		return dbError(fmt.Sprintf("index blob %s", key), err)
	}
	return nil
}

package local

import (
	"context"
	"errors"
	"fmt"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// worthMoving is the dead share of a segment from which the segment is rewritten.
const worthMoving = 0.3

// GC implements store.Store.
//
// Dead blobs leave the index at once. Segments without live blobs are unlinked; from those that are mostly dead, live
// blobs are first copied to the active segment. DeadBytes is what the segments hold besides live records, in a dry
// run the size of dead blobs. FreedBytes is the space of unlinked segments, minus what was copied.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.exclude(ctx); err != nil {
		return store.GCReport{}, err
	}
	defer func() { <-s.collecting }()
	if inUse == nil { // no other process reads
		inUse = func() []*schema.Snapshot { return nil }
	}
	return s.Store.GC(ctx, opts, inUse)
}

// exclude waits until no other call moves blobs. The caller receives from s.collecting when it is done.
func (s *Store) exclude(ctx context.Context) error {
	select {
	case s.collecting <- struct{}{}:
		return nil
	case <-s.ending.Done():
		return fmt.Errorf("%w: the store in %s is closed", schema.ErrUnavailable, s.dir)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Repair implements store.Store.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	// A collection that moves the old bytes would find the index changed.
	if err := s.exclude(ctx); err != nil {
		return err
	}
	defer func() { <-s.collecting }()
	if err := s.Store.Repair(ctx, ref, data); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.life.RUnlock()
	return s.record(change{}) // this syncs the index entry too
}

// compaction frees the space of dead blobs, after a collection has removed them from the index.
type compaction struct {
	s      *Store
	ctx    context.Context // of the call
	report *store.GCReport
	// victims are the segments to free, with the number of live blobs in each.
	victims map[uint32]int64
}

// compact ends a collection.
func (s *Store) compact(ctx context.Context, _ store.GCOptions, report *store.GCReport) error {
	c := &compaction{s: s, ctx: ctx, report: report, victims: map[uint32]int64{}}
	report.DeadBytes, report.FreedBytes = 0, 0
	if err := c.choose(); err != nil {
		return err
	}
	if active, ok := s.set.Active(); ok {
		if _, ok := c.victims[active]; ok {
			s.set.Roll()
		}
	}
	s.settlePuts()
	if err := s.set.Sync(); err != nil {
		return err
	}
	if err := s.record(change{}); err != nil {
		return err
	}
	if err := c.countLive(); err != nil {
		return err
	}
	return c.free()
}

// choose counts dead bytes and chooses the victims.
func (c *compaction) choose() error {
	type usage struct{ size, live int64 }
	segments := map[uint32]*usage{}
	for _, g := range c.s.set.Segments() {
		segments[g.ID()] = &usage{size: g.Size()}
	}
	err := c.s.eachIndexed(c.ctx, func(x indexed) error {
		// Blobs appended after the sizes were read do not count.
		if u := segments[x.Segment]; u != nil && x.Offset+x.Length <= u.size {
			u.live += segment.Footprint(x.Length)
		}
		return nil
	})
	for id, u := range segments {
		dead := u.size - segment.HeaderSize - u.live
		c.report.DeadBytes += dead
		if float64(dead) > worthMoving*float64(u.size) || u.live == 0 && dead > 0 {
			c.victims[id] = 0
		}
	}
	return err
}

// countLive counts the blobs in the victims, which are sealed by now. All of them must be moved before a victim is
// freed.
func (c *compaction) countLive() error {
	if len(c.victims) == 0 {
		return nil
	}
	return c.s.eachIndexed(c.ctx, func(x indexed) error {
		// Blobs that a crash destroyed cannot be moved, and are not counted.
		if _, ok := c.victims[x.Segment]; ok && c.s.set.Holds(x.Location) {
			c.victims[x.Segment]++
		}
		return nil
	})
}

// free empties the victims and unlinks them, empty ones first.
func (c *compaction) free() error {
	for id, live := range c.victims {
		if live == 0 {
			if err := c.retire(id); err != nil {
				return err
			}
		}
	}
	for id, live := range c.victims {
		if live == 0 {
			continue
		}
		moved, copied, err := c.evacuate(id)
		if err != nil {
			return err
		}
		if moved != live {
			c.s.log.Error("a segment is damaged and was not freed", "segment", id, "live", live, "found", moved)
			continue
		}
		if err := c.retire(id); err != nil {
			return err
		}
		c.report.FreedBytes -= copied
	}
	return nil
}

// retire records that the index does not name a segment any more, durably, and unlinks it.
func (c *compaction) retire(id uint32) error {
	size := c.s.set.Segment(id).Size()
	// The record stays, because a file without a record is kept.
	if err := c.s.record(change{string(segmentKey(id)): nil, string(freedKey(id)): {}}); err != nil {
		return err
	}
	if err := c.s.set.Retire(id); err != nil {
		return fmt.Errorf("free segment %d: %w", id, err)
	}
	c.report.FreedBytes += size - segment.HeaderSize
	return nil
}

// settlePuts waits for puts in flight. A put may have written to a segment that is sealed by now, and its index entry
// must be there before the index is read for what the segment still holds.
func (s *Store) settlePuts() {
	for i := range s.stripes {
		s.stripes[i].Lock()
		s.stripes[i].Unlock() //nolint:staticcheck // its holder is done
	}
}

// record commits a synced batch, which also makes earlier writes to the database durable.
func (s *Store) record(rows change) error {
	s.catalog.Lock()
	defer s.catalog.Unlock()
	return s.update(rows)
}

// Bounds of what is copied from a segment between two syncs.
const (
	moveBlobs = 4096
	moveBytes = 64 << 20
)

// evacuate copies the live blobs of a victim to the active segment and makes the index name the copies. It returns
// their number, and the space they take.
func (c *compaction) evacuate(id uint32) (moved, copied int64, err error) {
	s := c.s
	type move struct {
		key      schema.Key
		from, to segment.Location
	}
	var batch []move
	var bytes int64
	flush := func() error {
		// The copies must be durable before the index names them, because the index may reach the disk at any time.
		if err := s.set.Sync(); err != nil {
			return err
		}
		if err := s.record(change{}); err != nil {
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
		if c.ctx.Err() != nil {
			return moved, copied, context.Cause(c.ctx)
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

// copyBlob appends a copy of a blob with its recorded checksum, so that damage is also detected in the copy.
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

// relocate makes the index name a blob's copy.
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
	return s.putEntry(key, e, count{})
}

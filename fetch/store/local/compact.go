package local

import (
	"context"
	"errors"
	"fmt"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// A segment is rewritten when more than this part of it is dead.
const worthMoving = 0.3

// GC implements store.Store.
//
// Dead blobs leave the index at once. Segments with nothing live are unlinked;
// from those that are mostly dead, live blobs are copied to the active segment
// first. DeadBytes is all that the segments hold besides live records, and in a dry run the bytes of dead blobs;
// FreedBytes is what unlinking them gave back, less what was copied.
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

// exclude waits for the turn of what moves blobs, which the caller gives back.
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
	return s.record(change{}) // and with it the entry of the index
}

// compaction gives the space of dead blobs back, when a collection has taken them out of the index.
type compaction struct {
	s      *Store
	ctx    context.Context // of the call that this is
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

// choose counts what is dead, and chooses the victims.
func (c *compaction) choose() error {
	type usage struct{ size, live int64 }
	segments := map[uint32]*usage{}
	for _, g := range c.s.set.Segments() {
		segments[g.ID()] = &usage{size: g.Size()}
	}
	err := c.s.eachIndexed(c.ctx, func(x indexed) error {
		// What was appended since the sizes were taken counts for neither side.
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

// countLive counts the blobs in the victims, which are sealed by now: exactly so many must be moved away before a
// victim may go.
func (c *compaction) countLive() error {
	if len(c.victims) == 0 {
		return nil
	}
	return c.s.eachIndexed(c.ctx, func(x indexed) error {
		// What a crash took from a victim cannot be moved, and is not waited for.
		if _, ok := c.victims[x.Segment]; ok && c.s.set.Holds(x.Location) {
			c.victims[x.Segment]++
		}
		return nil
	})
}

// free empties the victims and unlinks them, those first that are empty.
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

// retire forgets a segment that the index does not name any more, durably, and
// unlinks it.
func (c *compaction) retire(id uint32) error {
	size := c.s.set.Segment(id).Size()
	// That it was freed stays on record: a file that nothing is known of is kept.
	if err := c.s.record(change{string(segmentKey(id)): nil, string(freedKey(id)): {}}); err != nil {
		return err
	}
	if err := c.s.set.Retire(id); err != nil {
		return fmt.Errorf("free segment %d: %w", id, err)
	}
	c.report.FreedBytes += size - segment.HeaderSize
	return nil
}

// settlePuts waits for the puts under way. One of them may have written to a
// segment that is sealed by now, and its index entry must be there before the
// index is read to learn what the segment still holds.
func (s *Store) settlePuts() {
	for i := range s.stripes {
		s.stripes[i].Lock()
		s.stripes[i].Unlock() //nolint:staticcheck // whoever held it is done
	}
}

// record commits a synced batch, which also makes durable what was written to
// the database before.
func (s *Store) record(rows change) error {
	s.catalog.Lock()
	defer s.catalog.Unlock()
	return s.update(rows)
}

// What is copied out of a segment between two syncs.
const (
	moveBlobs = 4096
	moveBytes = 64 << 20
)

// evacuate copies the live blobs of a victim to the active segment and has the
// index name the copies. It returns how many, and the space they take.
func (c *compaction) evacuate(id uint32) (moved, copied int64, err error) {
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
	return s.putEntry(key, e, count{})
}

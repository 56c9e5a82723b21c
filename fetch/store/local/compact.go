package local

import (
	"context"
	"errors"
	"fmt"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// worthMoving is the share of dead bytes from which a segment is rewritten. At 0.3, up to
// 2.3 bytes are copied for each byte that is freed. After a collection at most 30 % of
// the segments' bytes are dead.
const worthMoving = 0.3

// GC implements store.Store.
//
// Dead blobs leave the index at once. Segments without live blobs are unlinked. From
// segments with many dead bytes, live blobs are first copied to the active segment.
//
// DeadBytes is the size of what the segments hold besides live records; in a dry run it
// is the size of dead blobs. FreedBytes is the space of unlinked segments, minus what was
// copied.
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

// exclude waits until no other call moves blobs, and then excludes such calls. The caller
// receives from s.collecting when it is done.
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

// Repair implements store.Store. The repaired blob is durable when Repair returns.
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

// compaction frees the space of dead blobs, after a collection has removed them from the
// index. One goroutine runs it, while puts and reads continue.
type compaction struct {
	s      *Store
	ctx    context.Context // of the call
	report *store.GCReport
	// victims are the segments to free, with the number of live blobs in each.
	victims map[uint32]int64
}

// compact ends a collection. The protocol calls it when the dead blobs are removed from
// the index.
func (s *Store) compact(ctx context.Context, _ store.GCOptions, report *store.GCReport) error {
	c := &compaction{s: s, ctx: ctx, report: report, victims: map[uint32]int64{}}
	// The protocol has counted dead blobs. Here segments are counted, with padding and
	// headers.
	report.DeadBytes, report.FreedBytes = 0, 0
	if err := c.choose(); err != nil {
		return err
	}
	// A victim must not grow any more. Then all puts that may have written to it have to
	// end, and the index has to be durable, before the blobs in it are counted.
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

// choose counts the dead bytes of each segment, and chooses the victims.
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
	// A segment with few dead bytes stays, because copying its live blobs would cost more
	// than it frees.
	for id, u := range segments {
		dead := u.size - segment.HeaderSize - u.live
		c.report.DeadBytes += dead
		if float64(dead) > worthMoving*float64(u.size) || u.live == 0 && dead > 0 {
			c.victims[id] = 0
		}
	}
	return err
}

// countLive counts the live blobs in the victims, which are sealed. A victim is freed
// only if as many blobs were moved, so that an undetected damage of the segment cannot
// lose an intact blob.
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

// free moves the live blobs of the victims and unlinks these. Empty victims come first,
// because they give room for the copies.
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
		// The scan of a damaged segment misses blobs that can perhaps still be read. The
		// segment is kept.
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

// retire unlinks a segment that no index entry names any more. It records that first,
// durably.
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

// settlePuts waits for running puts. Such a put may have written to a segment that is
// sealed by now. Its index entry must exist before the index is read for what the segment
// still holds.
func (s *Store) settlePuts() {
	for i := range s.stripes {
		s.stripes[i].Lock()
		s.stripes[i].Unlock() //nolint:staticcheck // its holder is done
	}
}

// record commits a synced batch. That also makes all earlier writes to the database
// durable.
func (s *Store) record(rows change) error {
	s.catalog.Lock()
	defer s.catalog.Unlock()
	return s.update(rows)
}

// Bounds of what is copied from a segment between two syncs. The list of moves is in
// memory, and a sync takes about as long as writing some megabytes.
const (
	moveBlobs = 4096
	moveBytes = 64 << 20
)

// evacuate copies the live blobs of a victim to the active segment, and makes the index
// name the copies. It returns the number of blobs, and the space that the copies take.
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
		// A record is live only if the index names this very place: the blob may have
		// been deleted, or have a newer copy elsewhere.
		from := segment.Location{Segment: id, Offset: rec.Offset, Length: rec.Length}
		e, ok, err := s.entry(rec.Key)
		if err != nil {
			return moved, copied, err
		}
		if rec.Void || !ok || e.Location != from {
			continue
		}
		// The copy is appended now, and the index names it after the next sync.
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

// copyBlob appends a copy of a blob. The copy has the recorded checksum and not a new
// one, so that damage of the original is detected in the copy as well.
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

// relocate makes the index name a blob's copy. Only collections and repairs move blobs,
// and they exclude each other, so a blob that has moved meanwhile is a
// schema.ErrDataLoss.
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

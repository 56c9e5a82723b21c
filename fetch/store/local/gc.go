package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

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
// first. DeadBytes is all that the segments hold besides live records;
// FreedBytes is what unlinking them gave back, less what was copied.
func (s *Store) GC(ctx context.Context, opts store.GCOptions, inUse func() []*schema.Snapshot) (store.GCReport, error) {
	if err := s.enterToWrite(ctx); err != nil {
		return store.GCReport{}, err
	}
	defer s.life.RUnlock()
	select {
	case s.collecting <- struct{}{}:
		defer func() { <-s.collecting }()
	case <-s.ending.Done():
		return store.GCReport{}, stopped(ctx, s)
	case <-ctx.Done():
		return store.GCReport{}, context.Cause(ctx)
	}
	c := &collection{s: s, ctx: ctx, victims: map[uint32]int64{}}
	if err := c.run(opts, inUse); err != nil {
		return c.report, fmt.Errorf("collect garbage: %w", err)
	}
	return c.report, nil
}

// collection is one run of GC.
type collection struct {
	s      *Store
	ctx    context.Context // of the call that this is
	report store.GCReport
	marks  marks
	// keep is the oldest epoch whose touches protect a blob.
	keep uint32
	// victims are the segments to free, with the number of live blobs in each.
	victims map[uint32]int64
}

func (c *collection) run(opts store.GCOptions, inUse func() []*schema.Snapshot) error {
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.mark(opts, inUse); err != nil {
		return err
	}
	if err := c.census(); err != nil || opts.DryRun {
		return err
	}
	if active, ok := c.s.set.Active(); ok {
		if _, ok := c.victims[active]; ok {
			c.s.set.Roll()
		}
	}
	c.s.settlePuts()
	// Nothing may be deleted on the word of a catalog that a crash could undo:
	// a synced write makes all before it durable.
	if err := c.s.set.Sync(); err != nil {
		return err
	}
	if err := c.record(change{}); err != nil {
		return err
	}
	if err := c.sweep(); err != nil {
		return err
	}
	return c.free()
}

// begin starts a new epoch: whatever is put from now on is protected, and
// whatever was put through an ingest that is still open.
func (c *collection) begin() error {
	s := c.s
	s.ingestsMu.Lock()
	defer s.ingestsMu.Unlock()
	var err error
	if c.keep, err = s.nextEpoch(pebble.Sync); err != nil {
		return err
	}
	for in := range s.ingests {
		c.keep = min(c.keep, in.epoch)
	}
	return nil
}

// nextEpoch begins an epoch. It is in the database's log before any entry that
// is touched in it, so that no epoch comes again. s.ingestsMu is held.
func (s *Store) nextEpoch(how *pebble.WriteOptions) (uint32, error) {
	epoch := s.epoch.Load() + 1
	if err := s.db.Set(keyEpoch, binary.LittleEndian.AppendUint32(nil, epoch), how); err != nil {
		return 0, dbError("write the catalog", err)
	}
	s.epoch.Store(epoch)
	return epoch, nil
}

// mark collects what the catalog and the streams refer to. What is committed
// after the catalog was listed was put, or put again, by an ingest that was
// open at the beginning, or refers to what its listed parent does.
func (c *collection) mark(opts store.GCOptions, inUse func() []*schema.Snapshot) error {
	s := c.s
	c.marks.chunks = map[schema.Key]struct{}{}
	snapshots, selections, err := s.roots()
	if err != nil {
		return err
	}
	if inUse != nil {
		for _, snap := range inUse() {
			if snap != nil {
				snapshots = append(snapshots, snap)
			}
		}
	}
	kept, err := c.dropExpired(opts, selections)
	if err != nil {
		return err
	}
	for _, sel := range kept {
		c.marks.add(&sel.Bitmap.Key)
	}
	for _, snap := range snapshots {
		if err := c.marks.snapshot(c.ctx, s, snap); err != nil {
			return err
		}
	}
	c.marks.settle()
	return nil
}

// dropExpired removes the selections whose time has been over for a while, unless
// they were renewed since they were listed, and returns the others.
func (c *collection) dropExpired(opts store.GCOptions,
	listed []*schema.Selection) (kept []*schema.Selection, err error) {
	s, before := c.s, time.Now().Add(-store.ExpiredGrace)
	s.catalog.Lock()
	defer s.catalog.Unlock()
	for _, sel := range listed {
		if !sel.Expired(before) {
			kept = append(kept, sel)
			continue
		}
		key := selectionKey(sel.Dataset, sel.Key())
		v, err := s.value(key)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue // dropped since
		}
		now, err := decodeSelection(v)
		if err != nil {
			return nil, err
		}
		if !now.Expired(before) {
			kept = append(kept, now)
			continue
		}
		if opts.DryRun {
			continue
		}
		if err := s.update(change{string(key): nil}); err != nil {
			return nil, err
		}
	}
	return kept, nil
}

// roots lists the catalog as of one moment.
func (s *Store) roots() (snapshots []*schema.Snapshot, selections []*schema.Selection, err error) {
	view := s.db.NewSnapshot()
	defer func() { err = errors.Join(err, view.Close()) }()
	if selections, err = s.selections(view, []byte{prefixSelection}); err != nil {
		return nil, nil, err
	}
	it, err := view.NewIter(within(prefixSnapshot))
	if err != nil {
		return nil, nil, dbError("read the catalog", err)
	}
	defer func() { err = errors.Join(err, dbError("read the catalog", it.Close())) }()
	for it.First(); it.Valid(); it.Next() {
		name, number, err := parseSnapshotKey(it.Key())
		if err != nil {
			return nil, nil, err
		}
		snap, err := decodeSnapshot(name, number, it.Value())
		if err != nil {
			return nil, nil, err
		}
		snapshots = append(snapshots, snap)
	}
	return snapshots, selections, nil
}

// census counts, and chooses the victims.
func (c *collection) census() error {
	type usage struct{ size, live int64 }
	segments := map[uint32]*usage{}
	for _, g := range c.s.set.Segments() {
		segments[g.ID()] = &usage{size: g.Size()}
	}
	live := cursor{c.marks.prefixes}
	for x, err := range c.s.index(c.ctx) {
		if err != nil {
			return err
		}
		if !live.has(&x.key) && x.touch < c.keep {
			c.report.DeadBlobs++
			continue
		}
		c.report.LiveBlobs++
		c.report.LiveBytes += x.Length
		// What was appended since the sizes were taken counts for neither side.
		if u := segments[x.Segment]; u != nil && x.Offset+x.Length <= u.size {
			u.live += segment.Footprint(x.Length)
		}
	}
	for id, u := range segments {
		dead := u.size - segment.HeaderSize - u.live
		c.report.DeadBytes += dead
		if float64(dead) > worthMoving*float64(u.size) || u.live == 0 && dead > 0 {
			c.victims[id] = 0
		}
	}
	return nil
}

// sweep takes the dead blobs out of the index and counts the live ones in the
// victims, which are sealed by now: exactly so many must be moved away before
// a victim may go.
func (c *collection) sweep() error {
	live := cursor{c.marks.prefixes}
	for x, err := range c.s.index(c.ctx) {
		if err != nil {
			return err
		}
		dead := !live.has(&x.key) && x.touch < c.keep
		if dead {
			if dead, err = c.forget(&x.key); err != nil {
				return err
			}
		}
		// What a crash took from a victim cannot be moved, and is not waited for.
		if _, ok := c.victims[x.Segment]; ok && !dead && c.s.set.Holds(x.Location) {
			c.victims[x.Segment]++
		}
	}
	return nil
}

// forget removes an index entry, unless an ingest has touched it meanwhile.
func (c *collection) forget(key *schema.Key) (bool, error) {
	s := c.s
	stripe := s.stripe(key)
	stripe.Lock()
	defer stripe.Unlock()
	e, ok, err := s.entry(*key)
	if err != nil {
		return false, err
	}
	if !ok || e.touch >= c.keep {
		return false, nil
	}
	defer s.places.forget(key)
	var buf [33]byte
	b := s.db.NewBatch()
	defer b.Close()
	err = errors.Join(
		b.Delete(blobKey(&buf, key), nil),
		b.Merge(keyCount, count{-1, -e.Length}.encode(), nil),
		b.Commit(pebble.NoSync),
	)
	if err != nil {
		return false, dbError(fmt.Sprintf("remove blob %s from the index", key), err)
	}
	s.blobs.Add(-1)
	s.storedBytes.Add(-e.Length)
	return true, nil
}

// free empties the victims and unlinks them, those first that are empty.
func (c *collection) free() error {
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
func (c *collection) retire(id uint32) error {
	size := c.s.set.Segment(id).Size()
	// That it was freed stays on record: a file that nothing is known of is kept.
	if err := c.record(change{string(segmentKey(id)): nil, string(freedKey(id)): {}}); err != nil {
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
func (c *collection) record(rows change) error {
	c.s.catalog.Lock()
	defer c.s.catalog.Unlock()
	return c.s.update(rows)
}

package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// roots are what the blobs in use hang on.
type roots struct {
	snapshots []rooted
	keys      []schema.Key // bitmaps of selections, records of snapshots
}

// rooted is a snapshot whose blobs are kept. One that was dropped is kept for who
// reads it, as far as it is there: another collection may have found that nobody
// does, while the reader was out of touch.
type rooted struct {
	*schema.Snapshot
	live bool
}

// row is a snapshot's row in the catalog.
type row struct {
	dataset string
	number  int64
	snapshotRecord
}

// findRoots loads all partitions, and takes the registrations of those away
// that will not say whether they know of the collection. What is registered in
// the partitions as they were loaded is waited for and kept; what is not can
// make nothing visible any more, or knows of the collection.
func (c *collection) findRoots(ctx context.Context) error {
	s := c.s
	names, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	var using []*schema.Snapshot
	if c.inUse != nil {
		using = slices.DeleteFunc(c.inUse(), func(snap *schema.Snapshot) bool { return snap == nil })
	}
	c.using = map[string]bool{}
	for _, snap := range using {
		c.using[snapshotName(snap.Dataset, snap.Number)] = true
	}
	all := make([]*datasetState, len(names))
	err = each(ctx, s.env, s.options.Parallel, len(names), func(ctx context.Context, i int) (err error) {
		if err := c.superseded(); err != nil {
			return err
		}
		all[i], err = c.settle(ctx, names[i])
		return err
	})
	if err != nil {
		return err
	}
	c.keep = c.epoch
	var rows []row
	for _, d := range all {
		for _, r := range d.ingests {
			c.keep = min(c.keep, r.Epoch)
		}
		for _, sel := range d.selections {
			if !s.planted(bugSelectionsUnrooted) {
				c.roots.keys = append(c.roots.keys, sel.Bitmap.Key)
			}
		}
		for _, number := range slices.Sorted(maps.Keys(d.snapshots)) {
			rows = append(rows, row{d.name, number, d.snapshots[number]})
		}
	}
	if s.planted(bugKeepNothing) {
		c.keep = c.epoch
	}
	return c.readRecords(ctx, rows, using)
}

func (c *collection) readRecords(ctx context.Context, rows []row, using []*schema.Snapshot) error {
	s := c.s
	found := make([]*schema.Snapshot, len(rows))
	err := each(ctx, s.env, s.options.Parallel, len(rows), func(ctx context.Context, i int) (err error) {
		r := rows[i]
		found[i], err = s.record(ctx, r.dataset, r.number, r.snapshotRecord)
		if errors.Is(err, schema.ErrDataLoss) && !r.Dropped.IsZero() {
			s.log.WarnContext(ctx, "a dropped snapshot that is being read is gone", "error", err)
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("nothing may be freed: %w", err)
	}
	live := map[string]bool{}
	for i, r := range rows {
		if found[i] == nil {
			continue
		}
		isLive := r.Dropped.IsZero()
		live[snapshotName(r.dataset, r.number)] = isLive
		c.roots.snapshots = append(c.roots.snapshots, rooted{found[i], isLive})
		c.leftover = c.leftover || !isLive
		if r.Blob != nil && !s.planted(bugRecordsUnrooted) {
			c.roots.keys = append(c.roots.keys, r.Blob.Key)
		}
	}
	for _, snap := range using {
		if !live[snapshotName(snap.Dataset, snap.Number)] {
			c.roots.snapshots = append(c.roots.snapshots, rooted{snap, false})
			c.leftover = true
		}
	}
	return nil
}

// settle loads a partition until every ingest that is registered in it knows of
// the collection. It removes the others, selections that are over, and dropped
// snapshots that nobody reads: before their blobs, so that no other collection
// looks for these. What it returns is what is left.
func (c *collection) settle(ctx context.Context, name string) (*datasetState, error) {
	s := c.s
	load := s.db.Load
	if c.opts.DryRun || s.planted(bugPeekRoots) {
		load = func(ctx context.Context, name string) (Partition, error) { return s.db.Peek(ctx, name) }
	}
	for try := 0; ; try++ {
		p, err := load(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("load dataset %q: %w", name, err)
		}
		d, err := s.memo.decode(name, p)
		if err != nil {
			return nil, err
		}
		e := &edit{}
		waiting, err := c.clear(ctx, d, e)
		if err != nil {
			return nil, err
		}
		if c.opts.DryRun || s.planted(bugPeekRoots) {
			return d, nil
		}
		if !e.empty() {
			err = s.db.Swap(ctx, name, d.version, e.change)
		}
		switch {
		case err == nil && !waiting:
			return d, nil
		case err == nil:
			if err := s.env.Wait(ctx, nil, s.options.RenewEvery/6); err != nil {
				return nil, err
			}
		case errors.Is(err, ErrMoved), errors.Is(err, ErrUncertain) && try < 2*uncertainTries:
			if err := s.backoff(ctx, try); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("settle dataset %q: %w", name, err)
		}
	}
}

// clear takes out of a partition what the collection need not keep, and says
// whether there are ingests whose processes do not know of it yet.
func (c *collection) clear(ctx context.Context, d *datasetState, e *edit) (waiting bool, err error) {
	s := c.s
	for key, sel := range d.selections {
		if sel.Expired(s.env.Now().Add(-store.ExpiredGrace)) {
			e.remove(rowSelection + key)
			delete(d.selections, key)
		}
	}
	if len(d.ingests) == 0 && len(d.snapshots) == len(d.live()) {
		return false, nil
	}
	// After the partition: who reads what is dropped in it has held it before.
	members, err := s.members(ctx)
	if err != nil {
		return false, err
	}
	for id, r := range d.ingests {
		m, alive := members[r.Member]
		switch {
		case !alive && s.planted(bugLapseUnfenced):
		case !alive:
			e.remove(rowIngest + id)
			delete(d.ingests, id)
		case m.Acked < c.epoch && !s.planted(bugNoWait):
			waiting = true
		}
	}
	held := c.held(members)
	for number, r := range d.snapshots {
		if !r.Dropped.IsZero() && !held(snapshotName(d.name, number)) {
			e.remove(snapshotRow(number))
			delete(d.snapshots, number)
		}
	}
	return waiting, nil
}

// held says whether a process reads a snapshot. Of this one the caller of GC
// knows better, but for what was opened since the collection began.
func (c *collection) held(members map[string]Member) func(name string) bool {
	m := &c.s.member
	holds := map[string]bool{}
	for _, other := range members {
		if other.ID != m.id || c.inUse == nil {
			for _, name := range other.Holds {
				holds[name] = true
			}
		}
	}
	m.mu.Lock()
	for name, h := range m.held {
		if h.run == c.id {
			holds[name] = true
		}
	}
	m.mu.Unlock()
	return func(name string) bool {
		return (holds[name] || c.using[name]) && !c.s.planted(bugHeldUnrooted)
	}
}

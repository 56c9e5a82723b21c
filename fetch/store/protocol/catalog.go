package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Datasets implements store.Store.
func (s *Store) Datasets(ctx context.Context) ([]store.Dataset, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	return s.datasets(ctx)
}

// Names implements store.Store.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	return s.partitions(ctx)
}

// datasets peeks at all partitions, options.Parallel at once, and lists those with live snapshots,
// sorted by name.
func (s *Store) datasets(ctx context.Context) ([]store.Dataset, error) {
	names, err := s.partitions(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]store.Dataset, len(names))
	err = each(ctx, s.env, s.options.Parallel, len(names), func(ctx context.Context, i int) error {
		d, err := s.peek(ctx, names[i])
		if err != nil {
			return err
		}
		all[i] = store.Dataset{Name: names[i], Snapshots: d.live()}
		all[i].Tags = d.tagList()
		return nil
	})
	var list []store.Dataset
	for _, d := range all {
		if len(d.Snapshots) > 0 {
			list = append(list, d)
		}
	}
	return list, err
}

// partitions lists the datasets' partitions, sorted. Some may have no snapshots.
func (s *Store) partitions(ctx context.Context) ([]string, error) {
	names, err := s.db.Partitions(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the datasets: %w", err)
	}
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == Control })
	slices.Sort(names)
	return slices.Compact(names), nil
}

// peek reads a partition, or only the named rows of it, and decodes it. It settles nothing: it is
// for readers, and changes use update, which loads.
func (s *Store) peek(ctx context.Context, name string, rows ...string) (*datasetState, error) {
	p, err := s.db.Peek(ctx, name, rows...)
	if err != nil {
		return nil, fmt.Errorf("look up dataset %q: %w", name, err)
	}
	return s.memo.decode(name, p)
}

// missing returns the schema.ErrNotFound of a dataset or snapshot, which lists those that
// exist.
func (s *Store) missing(ctx context.Context, dataset string, number int64) error {
	list, err := s.datasets(ctx)
	if err != nil {
		return err
	}
	return store.NoSnapshot(list, dataset, number)
}

// Snapshot implements store.Store.
func (s *Store) Snapshot(ctx context.Context, dataset string, number int64) (*schema.Snapshot, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	if err := s.ensureReading(ctx); err != nil {
		return nil, err
	}
	asked := number
	var row *snapshotRecord
	// Repeated if what was found is dropped between two reads.
	for {
		if asked == 0 {
			d, err := s.peek(ctx, dataset, rowHead)
			if err != nil {
				return nil, err
			}
			if number, row = d.head.Newest, d.head.Row; number == 0 {
				return nil, s.missing(ctx, dataset, 0)
			}
		}
		snap, err := s.snapshot(ctx, dataset, number, row)
		if snap != nil || err != nil {
			return snap, err
		}
		if asked != 0 {
			return nil, s.missing(ctx, dataset, number)
		}
	}
}

// snapshot reads a snapshot and holds it for this process. It returns nil if the snapshot
// does not exist or was dropped. known is its row, if the caller has just read it.
func (s *Store) snapshot(ctx context.Context, dataset string, number int64,
	known *snapshotRecord) (*schema.Snapshot, error) {
	row := snapshotRow(number)
	reload := func() (snapshotRecord, bool, error) {
		d, err := s.peek(ctx, dataset, row)
		if err != nil {
			return snapshotRecord{}, false, err
		}
		r, ok := d.snapshots[number]
		return r, ok && r.Dropped.IsZero(), nil
	}
	var (
		r    snapshotRecord
		live = known != nil
		err  error
	)
	if live {
		r = *known
	} else if r, live, err = reload(); err != nil || !live {
		return nil, err
	}
	// The process announces that it reads the snapshot, and then reads the row again. So
	// either a collection sees the announcement, or this call sees that the snapshot was
	// dropped.
	if s.hold(snapshotName(dataset, number)) {
		if err := s.renew(ctx); err != nil {
			return nil, err
		}
		if r, live, err = reload(); err != nil || !live {
			return nil, err
		}
	}
	snap, err := s.record(ctx, dataset, number, r)
	if errors.Is(err, schema.ErrDataLoss) {
		// If no other process knows what this one reads, the snapshot may just have been
		// dropped.
		_, live, again := reload()
		if again != nil {
			return nil, again // it is unknown which of the two it is
		}
		if !live {
			return nil, nil
		}
	}
	return snap, err
}

// record reads a snapshot's record. Callers ask for the same snapshots far more often
// than records change, so decoded records are cached. A cached record is shared and never
// changed; the caller gets a copy of its top level. A missing record is a
// schema.ErrDataLoss.
func (s *Store) record(ctx context.Context, dataset string, number int64, r snapshotRecord) (*schema.Snapshot, error) {
	if r.Blob == nil {
		name := snapshotName(dataset, number)
		snap, err := rememberedBy(s.records, name, r.Record, func(record []byte) (*schema.Snapshot, error) {
			return decodeRecord(dataset, number, record)
		})
		if err != nil {
			return nil, err
		}
		its := *snap
		return &its, nil
	}
	blob, err := s.db.Read(ctx, *r.Blob)
	if errors.Is(err, schema.ErrNotFound) {
		gone := err.Error() // not wrapped: a record that is missing here is lost, not absent
		return nil, fmt.Errorf("%w: the record of snapshot %s is gone: %s", schema.ErrDataLoss,
			snapshotName(dataset, number), gone)
	} else if err != nil {
		return nil, fmt.Errorf("the record of snapshot %s: %w", snapshotName(dataset, number), err)
	}
	defer blob.Release()
	if err := r.Blob.Check(blob.Bytes()); err != nil {
		return nil, fmt.Errorf("the record of snapshot %s: %w", snapshotName(dataset, number), err)
	}
	return decodeRecord(dataset, number, blob.Bytes())
}

// Drop implements store.Store. It removes the selections of a dropped snapshot, and the runs of a
// dropped dataset. The record stays until a collection finds that no process reads it any more.
// A snapshot with a tag is not dropped.
func (s *Store) Drop(ctx context.Context, dataset string, number int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) (err error) {
		missing, err = s.drop(d, number, e)
		return err
	})
	if err == nil && missing {
		return s.missing(ctx, dataset, number)
	}
	if err != nil {
		return fmt.Errorf("drop from %q: %w", dataset, err)
	}
	return nil
}

// drop marks snapshots as dropped in one edit, with all that depends on them: selections
// always, runs only with the whole dataset. missing says that there was nothing to drop.
// After a swap with a lost answer it stays false, because that swap may have dropped the
// snapshot.
func (s *Store) drop(d *datasetState, number int64, e *edit) (missing bool, err error) {
	live := d.live()
	if len(live) == 0 || number != 0 && !slices.Contains(live, number) {
		return !e.uncertain, nil // it may have been this call, whose answer was lost
	}
	if err := store.CheckUntagged(d.name, number, d.tagList()); err != nil && !s.planted(bugTagsIgnored) {
		return false, err
	}
	h := head{Last: d.head.Last}
	for _, n := range live {
		r := d.snapshots[n]
		if number != 0 && n != number {
			h.Newest, h.Row = n, &r
			continue
		}
		r.Dropped = s.env.Now().UTC()
		e.put(snapshotRow(n), r)
	}
	e.put(rowHead, h)
	for name, sel := range d.selections {
		if number == 0 || sel.Snapshot == number {
			e.remove(rowSelection + name)
		}
	}
	for name := range d.runs {
		if number == 0 {
			e.remove(rowRun + name)
		}
	}
	return false, nil
}

// Selection implements store.Store.
func (s *Store) Selection(ctx context.Context, dataset, name string) (*schema.Selection, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	if _, err := schema.ParseKey(name); err != nil {
		return nil, fmt.Errorf("selection name: %w", err)
	}
	d, err := s.peek(ctx, dataset, rowSelection+name)
	if err != nil {
		return nil, err
	}
	sel := d.selections[name]
	switch {
	case sel == nil:
		return nil, s.noSelection(ctx, dataset, name)
	case sel.Expired(s.env.Now()):
		return nil, store.SelectionExpired(sel)
	}
	return sel, nil
}

// noSelection is the error for a selection that is not there. If the dataset is missing as well,
// the error says that.
func (s *Store) noSelection(ctx context.Context, dataset, name string) error {
	d, err := s.peek(ctx, dataset)
	if err != nil {
		return err
	}
	if d.newest() == 0 {
		return s.missing(ctx, dataset, 0)
	}
	return fmt.Errorf("%w: dataset %q has no selection %s among its %d", schema.ErrNotFound, dataset, name,
		len(d.selections))
}

// RenewSelection implements store.Store.
func (s *Store) RenewSelection(ctx context.Context, dataset, name string, until time.Time) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	if _, err := schema.ParseKey(name); err != nil {
		return fmt.Errorf("selection name: %w", err)
	}
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		sel := d.selections[name]
		switch missing = sel == nil; {
		case missing:
		case sel.Expired(s.env.Now()):
			return store.SelectionExpired(sel)
		case sel.Extend(until):
			e.put(rowSelection+name, sel)
		}
		return nil
	})
	if err == nil && missing {
		err = s.noSelection(ctx, dataset, name)
	}
	return err
}

// tagList lists the tags of a dataset, sorted by name.
func (d *datasetState) tagList() []store.Tag {
	var list []store.Tag
	for _, name := range slices.Sorted(maps.Keys(d.tags)) {
		list = append(list, store.Tag{Name: name, Snapshot: d.tags[name].Number})
	}
	return list
}

// Tag gives a snapshot a name. Drop and retention keep snapshots that have one. If
// another snapshot of the dataset has the name, the name moves to this one.
func (s *Store) Tag(ctx context.Context, dataset, name string, number int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	if err := schema.CheckTag("tag", name); err != nil {
		return err
	}
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		r, ok := d.snapshots[number]
		switch missing = !ok || !r.Dropped.IsZero(); {
		case missing, d.tags[name].Number == number:
		default:
			e.put(rowTag+name, tagRecord{Number: number, Created: s.env.Now().UTC()})
		}
		return nil
	})
	if err == nil && missing {
		return s.missing(ctx, dataset, number)
	}
	return err
}

// Untag removes a tag.
func (s *Store) Untag(ctx context.Context, dataset, name string) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	var have []store.Tag
	missing := false
	err := s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		_, ok := d.tags[name]
		if ok {
			e.remove(rowTag + name)
		}
		missing = !ok && !e.uncertain
		have = d.tagList()
		return nil
	})
	if err == nil && missing {
		return store.NoTag(dataset, name, store.TagNames(have))
	}
	return err
}

// Tagged returns the number of the snapshot that has a tag.
func (s *Store) Tagged(ctx context.Context, dataset, name string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.done()
	d, err := s.peek(ctx, dataset, rowTag+name)
	if err != nil {
		return 0, err
	}
	if tag, ok := d.tags[name]; ok {
		return tag.Number, nil
	}
	if d, err = s.peek(ctx, dataset); err != nil { // to say what there is
		return 0, err
	}
	if d.newest() == 0 {
		return 0, s.missing(ctx, dataset, 0)
	}
	return 0, store.NoTag(dataset, name, store.TagNames(d.tagList()))
}

package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Ingest is a store.Ingest. While it is registered no collection frees a blob
// that was touched since it began, and each blob put through it is.
type Ingest struct {
	s       *Store
	dataset string
	id      string
	epoch   Epoch // that it is registered with
	closed  atomic.Bool

	pack   Pack // nil where blobs are stored under the hash of their content
	prefix schema.ObjectPrefix
}

// Begin implements store.Store.
func (s *Store) Begin(ctx context.Context, dataset string) (store.Ingest, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	if err := schema.CheckName("dataset", dataset); err != nil {
		return nil, err
	}
	if err := s.ensure(ctx); err != nil {
		return nil, fmt.Errorf("begin an ingest into %q: %w", dataset, err)
	}
	in := &Ingest{s: s, dataset: dataset, id: newID(s.env)}
	if err := in.begin(ctx); err != nil {
		in.closed.Store(true)
		in.later()
		return nil, fmt.Errorf("begin an ingest into %q: %w", dataset, err)
	}
	if s.segments != nil {
		in.prefix = newPrefix(s.env, in.epoch)
		in.pack = s.segments.Pack(in.prefix)
	}
	return in, nil
}

// begin registers the ingest, and reads the control partition afterwards: either a collection
// finds the registration, or the puts of this ingest know of the collection. If the epoch has
// changed meanwhile, begin registers again with the new one.
func (in *Ingest) begin(ctx context.Context) error {
	s := in.s
	for {
		epoch := s.member.epoch()
		in.epoch = epoch
		if s.planted(bugRegisterLate) {
			return nil
		}
		err := s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
			if d.ingests[in.id].Epoch != epoch {
				e.put(rowIngest+in.id, ingestRecord{Member: s.member.id, Epoch: epoch})
			}
			return nil
		})
		if err != nil || s.planted(bugControlUnread) {
			return err
		}
		p, err := s.db.Load(ctx, Control)
		if err != nil {
			return err
		}
		if err := s.learn(p); err != nil {
			return err
		}
		if s.member.epoch() == epoch {
			return nil
		}
	}
}

// enter begins a call on the ingest; the caller ends it with s.calls.done.
func (in *Ingest) enter(ctx context.Context) error {
	if in.closed.Load() {
		return fmt.Errorf("%w: the ingest into %q is closed", schema.ErrInvalid, in.dataset)
	}
	return in.s.enter(ctx)
}

// Put implements store.Ingest.
func (in *Ingest) Put(ctx context.Context, data []byte) (schema.BlobRef, error) {
	if err := in.enter(ctx); err != nil {
		return schema.BlobRef{}, err
	}
	defer in.s.calls.done()
	if in.pack != nil {
		return in.putPacked(ctx, data)
	}
	ref := schema.RefOf(data)
	return ref, in.put(ctx, ref, data)
}

// put stores a blob. Two puts of the same one would store it twice.
func (in *Ingest) put(ctx context.Context, ref schema.BlobRef, data []byte) error {
	s := in.s
	if err := s.puts.take(ctx, s.env, ref.Key); err != nil {
		return err
	}
	defer s.puts.give(ref.Key)
	g := s.member.join()
	defer s.member.quit(g)
	if err := s.store(ctx, g, in.epoch, ref, data); err != nil {
		return fmt.Errorf("store blob %s: %w", ref.Key, err)
	}
	return nil
}

// touch marks a blob as wanted in the epoch of g. there reports whether it is stored with the right
// size, and keep whether its bytes may be relied upon without writing them again: only if they were
// stored since the last collection that may still delete began.
func (s *Store) touch(ctx context.Context, g *generation, began Epoch,
	ref schema.BlobRef) (there, keep bool, err error) {
	var old BlobRow
	// One after the other where the database has it so: its rows may then say that a touch is as good as a write.
	err = each(ctx, s.env, min(2, s.options.Parallel), 2, func(ctx context.Context, i int) (err error) {
		if i == 0 {
			return s.contents.Touch(ctx, ref, g.epoch)
		}
		old, err = s.contents.Row(ctx, ref.Key)
		return err
	})
	if err != nil {
		return false, false, err
	}
	there = old.Size == ref.Size
	trusted := old.Stored >= g.trusted || s.planted(bugTrustAll) || s.planted(bugTrustTouched) && old.Touched >= began
	if there && trusted {
		// A row may outlive its bytes, where a database forgets deletions.
		if !s.planted(bugBytesUnseen) {
			if there, err = s.contents.Whole(ctx, ref); err != nil {
				return false, false, err
			}
		}
		keep = there
	}
	return there, keep, nil
}

// store touches a blob, and writes it unless the stored bytes may be relied upon. The counters
// treat a blob that is stored again because of a collection as found, since it adds no bytes.
func (s *Store) store(ctx context.Context, g *generation, began Epoch, ref schema.BlobRef, data []byte) error {
	there, keep, err := s.touch(ctx, g, began, ref)
	if err != nil {
		return err
	}
	if keep {
		s.dedups.Add(1)
		return nil
	}
	if err := s.contents.Write(ctx, ref, data, g.epoch); err != nil {
		return err
	}
	s.writtenBytes.Add(ref.Size)
	if there { // stored again for the sake of a collection
		s.dedups.Add(1)
		return nil
	}
	s.writes.Add(1)
	if s.options.Stored != nil {
		s.options.Stored(1, ref.Size)
	}
	return nil
}

// present reports a schema.ErrInvalid if a blob that is to be referred to is
// not in the store, unless a collection may have freed it.
func (in *Ingest) present(ctx context.Context, ref schema.BlobRef) error {
	s := in.s
	if in.pack != nil {
		return in.presentPacked(ref)
	}
	row, err := s.contents.Row(ctx, ref.Key)
	if err != nil || row.Size == ref.Size {
		return err
	}
	p, err := s.db.Load(ctx, in.dataset)
	if err != nil {
		return err
	}
	if _, ok := p.Rows[rowIngest+in.id]; !ok {
		return in.fenced()
	}
	return fmt.Errorf("%w: blob %s of %d bytes was not put", schema.ErrInvalid, ref.Key, ref.Size)
}

// Close implements store.Ingest. Where the database is out of reach, the
// ingest's registration is taken away later.
func (in *Ingest) Close() error {
	if !in.closed.CompareAndSwap(false, true) {
		return nil
	}
	s := in.s
	if in.pack != nil {
		in.pack.Close()
	}
	in.later()
	if s.enter(context.Background()) != nil {
		return nil // Close of the store has it taken away
	}
	defer s.calls.done()
	ctx, cancel := s.within(s.ctx, leaveWithin)
	defer cancel()
	if err := in.unregister(ctx); err != nil {
		s.log.Debug("an ingest that is closed is still registered", "dataset", in.dataset, "error", err)
	}
	return nil
}

// later notes that the ingest's registration is to be taken away.
func (in *Ingest) later() {
	m := &in.s.member
	m.mu.Lock()
	if !slices.Contains(m.release, in) {
		m.release = append(m.release, in)
	}
	m.mu.Unlock()
}

// unregister takes the registration away.
func (in *Ingest) unregister(ctx context.Context) error {
	err := in.s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
		if _, ok := d.ingests[in.id]; ok {
			e.remove(rowIngest + in.id)
		}
		return nil
	})
	if err != nil && !errors.Is(err, schema.ErrDataLoss) {
		return err
	}
	m := &in.s.member
	m.mu.Lock()
	m.release = slices.DeleteFunc(m.release, func(other *Ingest) bool { return other == in })
	m.mu.Unlock()
	return err
}

// fenced is the error for an ingest whose registration is gone.
func (in *Ingest) fenced() error {
	return fmt.Errorf("%w: a collection took the process that ingests into %q for dead, and may have freed what it "+
		"had put: begin again",
		schema.ErrUnavailable, in.dataset)
}

// Commit implements store.Ingest. The rows of the snapshot refer to what was put
// through this ingest, and to what its parent refers to.
func (in *Ingest) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	return in.save(ctx, snap, false)
}

// Restore commits a snapshot as what it was in another store: with its number, its
// parent and its time. The dataset must never have given out that number or a
// greater one.
func (in *Ingest) Restore(ctx context.Context, snap schema.Snapshot) error {
	_, err := in.save(ctx, snap, true)
	return err
}

func (in *Ingest) save(ctx context.Context, snap schema.Snapshot, restored bool) (*schema.Snapshot, error) {
	if err := in.enter(ctx); err != nil {
		return nil, err
	}
	s := in.s
	defer s.calls.done()
	if err := store.CheckCommit(in.dataset, &snap); err != nil {
		return nil, err
	}
	snap.Dataset = in.dataset
	carried, err := in.complete(ctx, &snap)
	if errors.Is(err, schema.ErrInvalid) && !restored {
		// The parent may have been dropped and collected since its chunks were taken over.
		d, again := s.load(ctx, in.dataset)
		if again != nil {
			return nil, again
		}
		err = cmp.Or(store.CheckParent(in.dataset, snap.Parent, d.newest()), err)
	}
	if err != nil {
		return nil, err
	}
	if !restored {
		snap.Created = s.env.Now().UTC().Truncate(time.Microsecond)
	}
	record, err := encodeRecord(snap)
	if err != nil {
		return nil, err
	}
	row := snapshotRecord{Commit: newID(s.env), Record: record, Created: snap.Created, Rows: snap.Rows()}
	if err := in.describe(ctx, &row); err != nil {
		return nil, fmt.Errorf("the record of the snapshot: %w", err)
	}
	if err := in.sync(ctx); err != nil {
		return nil, err
	}
	number, err := in.commit(ctx, row, &snap, carried, restored)
	if err != nil {
		return nil, fmt.Errorf("commit to %q: %w", in.dataset, err)
	}
	// As any reader will find it, and sharing no memory with the caller's.
	return decodeRecord(in.dataset, number, record)
}

// complete returns a schema.ErrInvalid unless all that the snapshot's record refers to
// was put. Where blobs are in segments it makes the snapshot name the ingest's own set,
// and returns those of other ingests that it names.
func (in *Ingest) complete(ctx context.Context, snap *schema.Snapshot) (carried []schema.ObjectPrefix, err error) {
	if in.pack != nil {
		return in.sets(snap)
	}
	s := in.s
	err = each(ctx, s.env, s.options.Parallel, len(snap.Chunks), func(ctx context.Context, i int) error {
		return in.present(ctx, snap.Chunks[i].BlobRef)
	})
	if err != nil {
		return nil, fmt.Errorf("manifest chunk: %w", err)
	}
	err = each(ctx, s.env, s.options.Parallel, len(snap.Sets), func(ctx context.Context, i int) error {
		if snap.Sets[i].Blob == (schema.BlobRef{}) {
			return nil
		}
		return in.present(ctx, snap.Sets[i].Blob)
	})
	if err != nil {
		return nil, fmt.Errorf("object set: %w", err)
	}
	return nil, nil
}

// describe stores the record of a snapshot that is about to be committed, if the record
// is too large for its row.
func (in *Ingest) describe(ctx context.Context, row *snapshotRecord) (err error) {
	inline := len(row.Record) <= in.s.options.InlineRecord
	var ref schema.BlobRef
	switch {
	case in.pack != nil: // in any case: the segments of a snapshot say what it is
		ref, err = in.pack.Record(ctx, row.Record)
	case !inline:
		ref = schema.RefOf(row.Record)
		err = in.put(ctx, ref, row.Record)
	}
	if !inline {
		row.Record, row.Blob = nil, &ref
	}
	return err
}

// sync makes what was put through the ingest durable.
func (in *Ingest) sync(ctx context.Context) error {
	if in.pack != nil && !in.s.planted(bugUnsynced) {
		if err := in.pack.Sync(ctx); err != nil {
			return err
		}
	}
	return in.s.db.Sync(ctx)
}

// commit makes the row the newest snapshot's. It is safe because the registration is in
// the partition of the version that the swap is made for.
func (in *Ingest) commit(ctx context.Context, row snapshotRecord, snap *schema.Snapshot,
	carried []schema.ObjectPrefix, restored bool) (number int64, err error) {
	err = in.s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
		registered, ok := d.ingests[in.id]
		if ok && registered.Commit == row.Commit && !in.s.planted(bugCommitTwice) { // an attempt whose answer was lost
			number = registered.Number
			return nil
		}
		for n, r := range d.snapshots { // and after it, the process was taken for dead
			if r.Commit == row.Commit && !in.s.planted(bugCommitTwice) {
				number = n
				return nil
			}
		}
		if !ok && !in.s.planted(bugCommitUnfenced|bugRegisterLate) {
			return in.fenced()
		}
		if restored {
			if err := store.CheckRestore(snap, d.head.Last); err != nil {
				return err
			}
			if err := in.named(ctx, d, carried); err != nil {
				return err
			}
			number = snap.Number
			in.made(e, row, registered, number)
			return nil
		}
		if err := store.CheckParent(in.dataset, snap.Parent, d.newest()); err != nil {
			if !e.uncertain || !in.s.planted(bugCommitTwice) {
				return err
			}
		}
		if err := in.named(ctx, d, carried); err != nil {
			return err
		}
		number = d.head.Last + 1
		if in.s.planted(bugNumberTwice) {
			number = d.newest() + 1
		}
		in.made(e, row, registered, number)
		return nil
	})
	return number, err
}

// made makes the row the newest snapshot's.
func (in *Ingest) made(e *edit, row snapshotRecord, registered ingestRecord, number int64) {
	registered.Commit, registered.Number = row.Commit, number
	e.put(snapshotRow(number), row)
	e.put(rowHead, head{Last: number, Newest: number, Row: &row})
	e.put(rowIngest+in.id, registered)
}

// SaveSelection implements store.Store. It is done by the ingest that the
// selection's bitmap was put through.
func (in *Ingest) SaveSelection(ctx context.Context, sel schema.Selection) error {
	if err := in.enter(ctx); err != nil {
		return err
	}
	s := in.s
	defer s.calls.done()
	if sel.Dataset != in.dataset {
		return fmt.Errorf("%w: a selection of %q saved through an ingest into %q", schema.ErrInvalid, sel.Dataset,
			in.dataset)
	}
	if err := in.present(ctx, sel.Bitmap); err != nil {
		return fmt.Errorf("selection bitmap: %w", err)
	}
	if sel.Created.IsZero() {
		sel.Created = s.env.Now().UTC().Truncate(time.Microsecond)
	}
	if err := in.sync(ctx); err != nil {
		return err
	}
	missing := false
	err := s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
		if _, ok := d.ingests[in.id]; !ok && !s.planted(bugCommitUnfenced|bugRegisterLate) {
			return in.fenced()
		}
		if r, ok := d.snapshots[sel.Snapshot]; !ok || !r.Dropped.IsZero() {
			missing = true
			return nil
		}
		saved := sel
		if old := d.selections[sel.Name()]; old != nil && !old.Expired(s.env.Now()) {
			if !old.Extend(sel.Expires) {
				return nil
			}
			saved = *old
		} else if err := store.SelectionLimit(&sel, maps.Values(d.selections), s.env.Now()); err != nil {
			return err
		}
		e.put(rowSelection+sel.Name(), saved)
		return nil
	})
	if err == nil && missing {
		err = s.missing(ctx, sel.Dataset, sel.Snapshot)
	}
	if err != nil && !errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("save a selection of %q: %w", in.dataset, err)
	}
	return err
}

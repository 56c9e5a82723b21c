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

// Ingest is a store.Ingest. While it is registered, no collection frees a blob that was
// touched since it began, and it touches each blob that is put through it. It is safe for
// concurrent use.
type Ingest struct {
	s       *Store
	dataset string
	id      string
	epoch   Epoch // that it is registered with; set before Begin returns
	closed  atomic.Bool

	pack   Pack // nil if blobs are stored under the hash of their content
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

// begin registers the ingest, and reads the control partition afterwards. So either a
// collection finds the registration, or the puts of this ingest know of the collection.
// If the epoch has changed meanwhile, begin registers again with the new one.
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

// put stores a blob, one call at a time for each key: two concurrent puts of the same
// blob would write its bytes twice.
func (in *Ingest) put(ctx context.Context, ref schema.BlobRef, data []byte) error {
	s := in.s
	if err := s.puts.take(ctx, s.env, ref.Key); err != nil {
		return err
	}
	defer s.puts.give(ref.Key)
	// The put knows the state of collections as of now, and no acknowledgement of a newer
	// epoch is written before it ends.
	g := s.member.join()
	defer s.member.quit(g)
	if err := s.store(ctx, g, in.epoch, ref, data); err != nil {
		return fmt.Errorf("store blob %s: %w", ref.Key, err)
	}
	return nil
}

// touch marks a blob as wanted in the epoch of g. The result there reports whether the
// blob is stored with the right size. keep reports whether a put may rely on the stored
// bytes: only if they were written since the last collection that may still delete began.
// The parameter began is for a planted mistake.
func (s *Store) touch(ctx context.Context, g *generation, began Epoch,
	ref schema.BlobRef) (there, keep bool, err error) {
	var old BlobRow
	// A database with Parallel 1 (package local) touches before it reads the row. Its
	// index has one epoch for both, so there a touch counts as a write of the bytes.
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
		// A row may outlive its bytes in a database that forgets deletions.
		if !s.planted(bugBytesUnseen) {
			if there, err = s.contents.Whole(ctx, ref); err != nil {
				return false, false, err
			}
		}
		keep = there
	}
	return there, keep, nil
}

// store touches a blob, and writes it unless the stored bytes may be relied on. A blob
// that is written again because of a collection counts as deduplicated, since the store
// grows by nothing.
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

// present returns a schema.ErrInvalid if a blob that a snapshot is to refer to is not in
// the store. If the registration is gone, the error is that of a fenced ingest, because a
// collection may have freed the blob.
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

// Close implements store.Ingest. If the database cannot be reached, the registration is
// removed later: by the renewals, or by Close of the store.
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
		return nil // Close of the store removes it
	}
	defer s.calls.done()
	ctx, cancel := s.within(s.ctx, leaveWithin)
	defer cancel()
	if err := in.unregister(ctx); err != nil {
		s.log.Debug("an ingest that is closed is still registered", "dataset", in.dataset, "error", err)
	}
	return nil
}

// later adds the ingest to those whose registration is to be removed.
func (in *Ingest) later() {
	m := &in.s.member
	m.mu.Lock()
	if !slices.Contains(m.release, in) {
		m.release = append(m.release, in)
	}
	m.mu.Unlock()
}

// unregister removes the registration, and the ingest from those to be unregistered.
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

// Commit implements store.Ingest. The snapshot's rows refer to blobs that were put
// through this ingest, and to blobs of its parent. The result shares no memory with snap.
func (in *Ingest) Commit(ctx context.Context, snap schema.Snapshot) (*schema.Snapshot, error) {
	return in.save(ctx, snap, false)
}

// Restore commits a snapshot of another store with its number, parent and time. If the
// dataset has assigned that number or a greater one, the error is a schema.ErrConflict.
func (in *Ingest) Restore(ctx context.Context, snap schema.Snapshot) error {
	_, err := in.save(ctx, snap, true)
	return err
}

// save commits a snapshot: it checks that all blobs are there, makes them durable, and
// swaps. restored keeps number and time.
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
	// From here on the snapshot may be committed, whatever this call returns.
	number, err := in.commit(ctx, row, &snap, carried, restored)
	if err != nil {
		return nil, fmt.Errorf("commit to %q: %w", in.dataset, err)
	}
	// Decoded again, so that the result is what any reader gets, and shares no memory
	// with snap.
	return decodeRecord(in.dataset, number, record)
}

// complete returns a schema.ErrInvalid unless everything that the snapshot's record
// refers to was put. If blobs are in segments, it makes the snapshot name the ingest's
// own set, and returns the sets of other ingests that the snapshot names.
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

// describe stores the record of a snapshot that is about to be committed as a blob, if it
// is too large for its row. In segments every record is stored: a rebuild finds snapshots
// by it.
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

// sync makes what was put through the ingest durable. Every change that makes it visible
// comes afterwards.
func (in *Ingest) sync(ctx context.Context) error {
	if in.pack != nil && !in.s.planted(bugUnsynced) {
		if err := in.pack.Sync(ctx); err != nil {
			return err
		}
	}
	return in.s.db.Sync(ctx)
}

// commit makes the row that of the newest snapshot. It is safe because the swap is made
// for a version of the partition that has the registration. The row has the name of the
// call, by which commit recognizes an earlier attempt whose answer was lost.
func (in *Ingest) commit(ctx context.Context, row snapshotRecord, snap *schema.Snapshot,
	carried []schema.ObjectPrefix, restored bool) (number int64, err error) {
	err = in.s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
		registered, ok := d.ingests[in.id]
		if ok && registered.Commit == row.Commit && !in.s.planted(bugCommitTwice) { // an attempt whose answer was lost
			number = registered.Number
			return nil
		}
		for n, r := range d.snapshots { // its ingest was fenced after that attempt
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

// made adds the changes of a commit to e: the snapshot's row, the dataset's head, and the
// commit in the registration.
func (in *Ingest) made(e *edit, row snapshotRecord, registered ingestRecord, number int64) {
	registered.Commit, registered.Number = row.Commit, number
	e.put(snapshotRow(number), row)
	e.put(rowHead, head{Last: number, Newest: number, Row: &row})
	e.put(rowIngest+in.id, registered)
}

// SaveSelection implements store.Ingest. The selection's bitmap was put through this
// ingest. If the same selection exists and has not expired, only its expiry moves.
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

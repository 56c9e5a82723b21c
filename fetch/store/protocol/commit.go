package protocol

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

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
	err := each(ctx, s.env, s.options.Parallel, len(snap.Chunks), func(ctx context.Context, i int) error {
		return in.present(ctx, snap.Chunks[i].BlobRef)
	})
	if err != nil {
		return nil, fmt.Errorf("manifest chunk: %w", err)
	}
	if !restored {
		snap.Created = s.env.Now().UTC().Truncate(time.Microsecond)
	}
	record, err := encodeRecord(snap)
	if err != nil {
		return nil, err
	}
	row := snapshotRecord{Commit: newID(s.env), Record: record, Created: snap.Created, Rows: snap.Rows()}
	if len(record) > inlineRecord {
		ref := schema.RefOf(record)
		if err := in.put(ctx, ref, record); err != nil {
			return nil, fmt.Errorf("the record of the snapshot: %w", err)
		}
		row.Record, row.Blob = nil, &ref
	}
	if err := s.db.Sync(ctx); err != nil {
		return nil, err
	}
	number, err := in.commit(ctx, row, &snap, restored)
	if err != nil {
		return nil, fmt.Errorf("commit to %q: %w", in.dataset, err)
	}
	// As any reader will find it, and sharing no memory with the caller's.
	return decodeRecord(in.dataset, number, record)
}

// commit makes the row the newest snapshot's. What makes it safe is that the
// registration is in the partition of the version that the swap is made for.
func (in *Ingest) commit(ctx context.Context, row snapshotRecord, snap *schema.Snapshot,
	restored bool) (number int64, err error) {
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
			number = snap.Number
			in.made(e, row, registered, number)
			return nil
		}
		if err := store.CheckParent(in.dataset, snap.Parent, d.newest()); err != nil {
			if !e.uncertain || !in.s.planted(bugCommitTwice) {
				return err
			}
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
	if err := s.db.Sync(ctx); err != nil {
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

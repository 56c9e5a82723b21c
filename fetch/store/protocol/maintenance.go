package protocol

import (
	"context"
	"crypto/sha256"
	"fmt"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Adopt does the same as Put for a blob that is stored already, without its bytes, and
// reports true. It reports false if the caller has to put the blob: it is not stored, or
// a collection may have found it dead.
func (in *Ingest) Adopt(ctx context.Context, ref schema.BlobRef) (bool, error) {
	if err := in.enter(ctx); err != nil {
		return false, err
	}
	s := in.s
	defer s.calls.done()
	if in.pack != nil { // a segment of another ingest lives only as long as that ingest's snapshots
		return in.pack.Has(ref), nil
	}
	if err := s.puts.take(ctx, s.env, ref.Key); err != nil {
		return false, err
	}
	defer s.puts.give(ref.Key)
	g := s.member.join()
	defer s.member.quit(g)
	_, keep, err := s.touch(ctx, g, in.epoch, ref)
	if err != nil {
		return false, fmt.Errorf("look for blob %s: %w", ref.Key, err)
	}
	if keep {
		s.dedups.Add(1)
	}
	return keep, nil
}

// Repair stores the bytes of a blob again, whatever is stored, in an epoch after that of
// the stored bytes. If a collection finds the blob dead, some of the bytes may remain
// until the next collection.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	return s.RepairAfter(ctx, ref, data, 0)
}

// RepairAfter is Repair of a blob whose bytes may have been written in a later epoch than
// its row says, at most in written, for instance by another writer.
func (s *Store) RepairAfter(ctx context.Context, ref schema.BlobRef, data []byte, written Epoch) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	if s.segments != nil {
		return fmt.Errorf("%w: blob %s is in a segment, which is never written again: copy the snapshots from where they "+
			"are whole", schema.ErrInvalid, ref.Key)
	}
	if ref.Check(data) != nil || sha256.Sum256(data) != ref.Key {
		return fmt.Errorf("%w: a repair of blob %s with other bytes", schema.ErrInvalid, ref.Key)
	}
	if err := s.ensure(ctx); err != nil {
		return fmt.Errorf("repair blob %s: %w", ref.Key, err)
	}
	if err := s.puts.take(ctx, s.env, ref.Key); err != nil {
		return err
	}
	defer s.puts.give(ref.Key)
	g := s.member.join()
	defer s.member.quit(g)
	// A put of the same blob has ended or waits, so the row does not change meanwhile.
	old, err := s.contents.Row(ctx, ref.Key)
	if err == nil {
		// Given two writes in one epoch, a database may prefer the damaged one. Writes in
		// a later epoch than the collections' are removed by none of them.
		at := max(g.epoch, old.Stored+1, old.Touched+1, written+1)
		if err = s.contents.Touch(ctx, ref, at); err == nil {
			err = s.contents.Write(ctx, ref, data, at)
		}
	}
	if err == nil {
		err = s.db.Sync(ctx)
	}
	if err != nil {
		return fmt.Errorf("repair blob %s: %w", ref.Key, err)
	}
	s.writes.Add(1)
	s.writtenBytes.Add(ref.Size)
	return nil
}

// Selections lists the selections of a dataset, including expired ones, in no order. If
// dataset is empty, it lists those of all datasets.
func (s *Store) Selections(ctx context.Context, dataset string) ([]*schema.Selection, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	names := []string{dataset}
	if dataset == "" {
		var err error
		if names, err = s.db.Partitions(ctx); err != nil {
			return nil, err
		}
	}
	found := make([][]*schema.Selection, len(names))
	err := each(ctx, s.env, s.options.Parallel, len(names), func(ctx context.Context, i int) error {
		if names[i] == Control {
			return nil
		}
		p, err := s.db.Peek(ctx, names[i])
		if err != nil {
			return err
		}
		d, err := s.memo.decode(names[i], p)
		if err != nil {
			return err
		}
		for _, sel := range d.selections {
			found[i] = append(found[i], sel)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the selections: %w", err)
	}
	var all []*schema.Selection
	for _, list := range found {
		all = append(all, list...)
	}
	return all, nil
}

// Restorable returns the error that Ingest.Restore of a snapshot would return because of
// its number, before anything is put.
func (s *Store) Restorable(ctx context.Context, snap *schema.Snapshot) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	d, err := s.load(ctx, snap.Dataset)
	if err != nil {
		return err
	}
	return store.CheckRestore(snap, d.head.Last)
}

// load reads the settled state of a dataset.
func (s *Store) load(ctx context.Context, name string) (*datasetState, error) {
	p, err := s.db.Load(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("load dataset %q: %w", name, err)
	}
	return s.memo.decode(name, p)
}

// LastNumber is the greatest number that a dataset has assigned, 0 if it has assigned
// none.
func (s *Store) LastNumber(ctx context.Context, dataset string) (int64, error) {
	if err := s.enter(ctx); err != nil {
		return 0, err
	}
	defer s.calls.done()
	d, err := s.load(ctx, dataset)
	if err != nil {
		return 0, err
	}
	return d.head.Last, nil
}

// Advance makes a dataset assign only numbers greater than last from now on.
func (s *Store) Advance(ctx context.Context, dataset string, last int64) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.calls.done()
	if err := schema.CheckName("dataset", dataset); err != nil {
		return err
	}
	return s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		if h := d.head; h.Last < last {
			h.Last = last
			e.put(rowHead, h)
		}
		return nil
	})
}

package protocol

import (
	"context"
	"crypto/sha256"
	"fmt"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Adopt does what Put does for a blob that is stored already, and reports true. It
// reports false if the blob has to be put: it is not there, or a collection may
// have found it dead.
func (in *Ingest) Adopt(ctx context.Context, ref schema.BlobRef) (bool, error) {
	if err := in.enter(ctx); err != nil {
		return false, err
	}
	s := in.s
	defer s.calls.done()
	if in.pack != nil { // what others have put lives as long as they want
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

// Repair stores the bytes of a blob again, whatever is there, so that they are
// newer than what is. A collection that found the blob dead may leave some of them
// to the next one.
func (s *Store) Repair(ctx context.Context, ref schema.BlobRef, data []byte) error {
	return s.RepairAfter(ctx, ref, data, 0)
}

// RepairAfter is Repair of a blob whose bytes are of that epoch, if it is a later one
// than its row says: somebody else may have written them.
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

// Selections lists a dataset's selections, those that have expired too, in no
// order; of all datasets if dataset is empty.
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

// Restorable reports why a snapshot cannot be restored, before anything was put.
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

// load reads a dataset as it is.
func (s *Store) load(ctx context.Context, name string) (*datasetState, error) {
	p, err := s.db.Load(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("load dataset %q: %w", name, err)
	}
	return s.memo.decode(name, p)
}

// LastNumber is the greatest number that a dataset has given out.
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

// Advance has a dataset give out greater numbers than last from now on.
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

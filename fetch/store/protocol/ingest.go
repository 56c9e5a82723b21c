package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

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
	return in, nil
}

// begin registers the ingest, and looks for a collection after: either that
// one finds the registration, or what is put from here on knows of it.
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

// touch says that a blob is wanted, and finds out whether it is there, and whether
// it can be left as it is.
func (s *Store) touch(ctx context.Context, g *generation, began Epoch,
	ref schema.BlobRef) (there, keep bool, err error) {
	var old BlobRow
	err = each(ctx, s.env, 2, 2, func(ctx context.Context, i int) (err error) {
		if i == 0 {
			return s.db.Touch(ctx, ref, g.epoch)
		}
		old, err = s.db.Row(ctx, ref.Key)
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
			if there, err = s.db.Whole(ctx, ref); err != nil {
				return false, false, err
			}
		}
		keep = there
	}
	return there, keep, nil
}

// store touches a blob, and writes it if what is there is not to be relied upon.
func (s *Store) store(ctx context.Context, g *generation, began Epoch, ref schema.BlobRef, data []byte) error {
	there, keep, err := s.touch(ctx, g, began, ref)
	if err != nil {
		return err
	}
	if keep {
		s.dedups.Add(1)
		return nil
	}
	if err := s.db.Write(ctx, ref, data, g.epoch); err != nil {
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
	row, err := s.db.Row(ctx, ref.Key)
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

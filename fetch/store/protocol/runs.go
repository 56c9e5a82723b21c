package protocol

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// Run implements store.Store. It peeks: the run has every change that was answered before
// the call, and may lack one whose outcome is unknown.
func (s *Store) Run(ctx context.Context, dataset, name string) (*store.Run, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	d, err := s.peek(ctx, dataset, rowRun+name)
	if err != nil {
		return nil, err
	}
	if run := d.run(name, s.env.Now()); run != nil {
		return run, nil
	}
	return nil, s.noRun(ctx, dataset, name)
}

// noRun returns the schema.ErrNotFound of a run, which lists the runs that exist.
func (s *Store) noRun(ctx context.Context, dataset, name string) error {
	d, err := s.peek(ctx, dataset)
	if err != nil {
		return err
	}
	if d.newest() == 0 {
		return s.missing(ctx, dataset, 0)
	}
	return store.NoRun(dataset, name, slices.Sorted(maps.Keys(d.runs)))
}

// Runs implements store.Store, with a peek as Run does.
func (s *Store) Runs(ctx context.Context, dataset string) ([]*store.Run, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	d, err := s.peek(ctx, dataset)
	if err != nil {
		return nil, err
	}
	if d.newest() == 0 {
		return nil, s.missing(ctx, dataset, 0)
	}
	var list []*store.Run
	for name := range d.runs {
		if run := d.run(name, s.env.Now()); run != nil {
			list = append(list, run)
		}
	}
	slices.SortFunc(list, func(a, b *store.Run) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// ChangeRun implements store.Store. It settles the partition first, so change sees the
// run as it is at the moment of the swap. If change returns an error, nothing is written.
// A run that change leaves as it is needs no swap.
func (s *Store) ChangeRun(ctx context.Context, dataset, name string,
	change func(*store.Run) (*store.Run, error)) (run *store.Run, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	if err := schema.CheckName("run", name); err != nil {
		return nil, err
	}
	missing := false
	err = s.update(ctx, dataset, func(d *datasetState, e *edit) error {
		if missing = d.newest() == 0; missing {
			return nil
		}
		old := d.run(name, s.env.Now())
		next, err := change(old)
		if err != nil {
			return err
		}
		if run = next; next == nil {
			run = old
			return nil
		}
		if err := store.CheckRun(next, old == nil, maps.Values(d.runs), s.env.Now()); err != nil {
			return err
		}
		e.put(rowRun+name, next)
		return nil
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("run %q beside dataset %q: %w", name, dataset, err)
	case missing:
		return nil, s.missing(ctx, dataset, 0)
	case run == nil:
		return nil, s.noRun(ctx, dataset, name)
	}
	return run, nil
}

package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// proofRecord is the row of an object set: the blobs with checksums that were learned.
type proofRecord struct {
	Runs []store.ProofRun `json:"runs"`
}

// Proofs implements store.Store.
func (s *Store) Proofs(ctx context.Context, dataset string, prefix schema.ObjectPrefix) ([]store.ProofRun, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.calls.done()
	d, err := s.peek(ctx, dataset, rowProof+prefix.String())
	if err != nil {
		return nil, err
	}
	return slices.Clone(d.proofs[prefix.String()].Runs), nil
}

// SaveProofs implements store.Ingest. Like a commit, it makes blobs visible, so it needs
// the registration. The snapshots of the dataset are not changed.
func (in *Ingest) SaveProofs(ctx context.Context, prefix schema.ObjectPrefix, was, now []store.ProofRun) error {
	if err := in.enter(ctx); err != nil {
		return err
	}
	s := in.s
	defer s.calls.done()
	for _, run := range now {
		if slices.Contains(was, run) {
			continue
		}
		if err := in.present(ctx, run.BlobRef); err != nil {
			return fmt.Errorf("checksums of object set %s: %w", prefix, err)
		}
	}
	if err := in.sync(ctx); err != nil {
		return err
	}
	missing := false
	err := s.update(ctx, in.dataset, func(d *datasetState, e *edit) error {
		if _, ok := d.ingests[in.id]; !ok {
			return in.fenced()
		}
		if missing = d.newest() == 0; missing {
			return nil
		}
		have := d.proofs[prefix.String()].Runs
		switch {
		case replaced(have, was, now):
			// An attempt whose answer was lost has made the change. Others may have added runs since.
		case slices.Equal(have, was):
			e.put(rowProof+prefix.String(), proofRecord{Runs: now})
		default:
			return fmt.Errorf("%w: more was learned of object set %s meanwhile", schema.ErrConflict, prefix)
		}
		return nil
	})
	if err == nil && missing {
		err = s.missing(ctx, in.dataset, 0)
	}
	if err != nil && !errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("keep checksums of %q: %w", in.dataset, err)
	}
	return err
}

// replaced reports whether the change from was to now has been made: the runs that it
// adds are there, and those that it removes are not.
func replaced(have, was, now []store.ProofRun) bool {
	for _, run := range now {
		if !slices.Contains(was, run) && !slices.Contains(have, run) {
			return false
		}
	}
	for _, run := range was {
		if !slices.Contains(now, run) && slices.Contains(have, run) {
			return false
		}
	}
	return true
}

// keepProofs adds the checksums that were learned of object sets which snapshots name to
// the roots. It removes the rows of all other sets.
func (c *collection) keepProofs(ctx context.Context, all []*datasetState) error {
	named := map[string]bool{}
	name := func(dataset, prefix string) string { return dataset + "/" + prefix }
	for _, snap := range c.roots.snapshots {
		for _, set := range snap.Sets {
			named[name(snap.Dataset, set.Prefix.String())] = true
		}
	}
	for _, d := range all {
		for prefix, r := range d.proofs {
			if !named[name(d.name, prefix)] && !c.opts.DryRun {
				var err error
				if r, err = c.forget(ctx, d, prefix); err != nil {
					return err
				}
			}
			if c.opts.DryRun && !named[name(d.name, prefix)] {
				continue
			}
			for _, run := range r.Runs {
				if c.s.planted(bugProofsUnrooted) {
					break
				}
				c.roots.keys = append(c.roots.keys, run.Key)
			}
		}
	}
	return nil
}

// forget removes the row of an object set that no snapshot of the dataset named when the
// collection settled the partition. It returns the row if it stays: a snapshot that was
// committed since then may name the set.
func (c *collection) forget(ctx context.Context, seen *datasetState, prefix string) (left proofRecord, err error) {
	err = c.s.update(ctx, seen.name, func(d *datasetState, e *edit) error {
		left = d.proofs[prefix]
		for number := range d.snapshots {
			if _, known := seen.snapshots[number]; !known && !c.s.planted(bugProofsForgotten) {
				return nil
			}
		}
		if _, there := d.proofs[prefix]; there {
			e.remove(rowProof + prefix)
		}
		left = proofRecord{}
		return nil
	})
	return left, err
}

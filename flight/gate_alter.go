package flight

import (
	"context"
	"fmt"

	"bowstring/fetch/ingest"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// alterRights are what it takes to change rows and columns that are there. What becomes of rows, and what is said of
// them, tells which keys and values there are: so who may not read them may not change them.
const alterRights = policy.Read | policy.Write

// alterable looks up the newest snapshot of a dataset that the caller may alter.
func (s *Server) alterable(ctx context.Context, dataset string) (*schema.Snapshot, error) {
	snap, d, err := s.snapshot(ctx, snapshotRef{Dataset: dataset}, alterRights)
	if err != nil {
		return nil, err
	}
	return snap, s.unrestricted(ctx, dataset, d)
}

// unrestricted fails where rows or columns are hidden from the caller: he would change what he may not see.
func (s *Server) unrestricted(ctx context.Context, dataset string, d policy.Decision) error {
	if d.Restriction == nil {
		return nil
	}
	return s.denied(ctx, dataset, fmt.Errorf("%w: the rules hide rows or columns of dataset %q from you; altering it "+
		"takes the right to see all of it", schema.ErrDenied, dataset))
}

// alter begins to alter a dataset, which the caller has the rights to.
func (s *Server) alter(ctx context.Context, opts ingest.AlterOptions) (*ingest.Alteration, error) {
	a, err := ingest.Alter(ctx, s.engine.Store(), opts)
	if err != nil {
		return nil, s.notFor(ctx, s.decide(ctx, opts.Dataset), opts.Dataset, 0, err)
	}
	return a, nil
}

// commitAltered commits an alteration, whose rows have so many bytes of blobs.
func (s *Server) commitAltered(ctx context.Context, dataset string, a *ingest.Alteration,
	bytes int64) (snap *schema.Snapshot, done ingest.Altered, err error) {
	// It may have taken long, and the rules may have changed.
	d, err := s.may(ctx, dataset, alterRights)
	if err == nil {
		err = s.unrestricted(ctx, dataset, d)
	}
	if err != nil {
		return nil, done, err
	}
	err = s.audited(ctx, change{event: auditAlter, dataset: dataset, bytes: bytes}, func(c *change) (err error) {
		if snap, done, err = a.Commit(ctx); err == nil {
			c.snapshot, c.rows = snap.Number, done.Matched+done.Inserted
			if done.Matched < done.Deleted {
				c.rows += done.Deleted - done.Matched
			}
		}
		return err
	})
	return snap, done, err
}

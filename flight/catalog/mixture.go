package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// SourceAccess is the decision about one source of a mixture.
type SourceAccess struct {
	Dataset  string
	Snapshot int64
	Decision policy.Decision
}

// Datasets returns the datasets of the decision without repetition; nil if there is none.
func (a *Access) Datasets() []string {
	if a.Dataset != "" {
		return []string{a.Dataset}
	}
	var names []string
	for i := range a.Sources {
		if name := a.Sources[i].Dataset; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// grants are the decisions about a mixture's sources, in the order of Mixture.Leaves.
type grants []policy.Decision

// permit restricts each source of a mixture to what the caller may see. It returns an error
// if the caller lacks the right on one of them: a mixture without that source would be
// another mixture.
func (c *Catalog) permit(ctx context.Context, req schema.Request, right policy.Right) (schema.Request, grants, error) {
	leaves := req.Mixture.Leaves()
	decisions := make(grants, len(leaves))
	for i := range leaves {
		s := &leaves[i]
		d, err := c.may(ctx, s.Dataset, right)
		if err != nil {
			return req, nil, ofSource(s, err)
		}
		decisions[i], s.Within = d, d.Restriction
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req, decisions, nil
}

// MayRead returns an error unless the caller may read everything that a request names.
func (c *Catalog) MayRead(ctx context.Context, req schema.Request) error {
	if req.Mixture == nil {
		return c.May(ctx, req.Dataset, policy.Read)
	}
	_, _, err := c.permit(ctx, req, policy.Read)
	return err
}

// ExistsFor returns an error unless the snapshots of a request exist for the caller.
func (c *Catalog) ExistsFor(ctx context.Context, req schema.Request, right policy.Right) error {
	if req.Mixture == nil {
		_, err := c.Exists(ctx, Ref{req.Dataset, req.Snapshot, req.Tag}, right)
		return err
	}
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		s := &leaves[i]
		if _, err := c.Exists(ctx, Ref{s.Dataset, s.Snapshot, s.Tag}, right); err != nil {
			return ofSource(s, err)
		}
	}
	return nil
}

// ofSource adds to an error the source that it is about.
func ofSource(s *schema.MixtureSource, err error) error {
	return fmt.Errorf("mixture, source %q: %w", s.Called(), err)
}

// openMixture is open for a request with a mixture. The rule of each dataset applies to its
// rows and columns. It never opens early.
func (c *Catalog) openMixture(ctx context.Context, req schema.Request, right policy.Right) (*fetch.Job, error) {
	req, decisions, err := c.permit(ctx, req, right)
	if err != nil {
		return nil, err
	}
	leaves := req.Mixture.Leaves()
	job, err := c.engine.Open(ctx, req)
	if err != nil {
		return nil, c.notForMixture(ctx, decisions, leaves, err)
	}
	a := Access{Right: right, Plan: job.ID(), Group: job.Group()}
	if err := c.fitsAll(ctx, job, decisions, leaves); err != nil {
		job.Close()
		return nil, err
	}
	for i, d := range decisions {
		a.Sources = append(a.Sources, SourceAccess{leaves[i].Dataset, job.SnapshotOf(i).Number, d})
	}
	c.call.Note(a)
	// EnforceRules ends only calls whose access is noted. Rules that changed before Note
	// are detected here.
	err = c.call.BeginRead(ctx)
	for i, d := range decisions {
		if !c.decide(leaves[i].Dataset).Same(d) {
			err = ErrRules
		}
	}
	if err != nil {
		job.Close()
		return nil, err
	}
	return job, nil
}

// notForMixture is notFor for an error of a mixture. If the error does not name its source,
// each restricted source is checked, because err could reveal something about any of them.
func (c *Catalog) notForMixture(ctx context.Context, decisions grants, sources []schema.MixtureSource, err error) error {
	if of, ok := errors.AsType[*resolve.SourceError](err); ok {
		s := &sources[of.Source]
		return ofSource(s, c.notFor(ctx, decisions[of.Source], s.Dataset, s.Snapshot, of.Err))
	}
	for i, d := range decisions {
		if d.Restriction == nil {
			continue
		}
		s := &sources[i]
		if shown := c.notFor(ctx, d, s.Dataset, s.Snapshot, err); !errors.Is(shown, err) {
			return ofSource(s, shown)
		}
	}
	return err
}

// MixtureSchema returns the schema of the batches of a mixture. It reads only the records
// of the snapshots.
func (c *Catalog) MixtureSchema(ctx context.Context, req schema.Request) (*arrow.Schema, error) {
	req, decisions, err := c.permit(ctx, req, policy.List)
	if err != nil {
		return nil, err
	}
	snaps := make([]*schema.Snapshot, len(decisions))
	a := Access{Right: policy.List}
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		s := &leaves[i]
		v, err := c.View(ctx, Ref{s.Dataset, s.Snapshot, s.Tag}, policy.List)
		if err == nil {
			err = v.HasSplit(s.Split)
		}
		if err != nil {
			return nil, ofSource(s, err)
		}
		snaps[i], s.Within = v.Snap, v.Within
		a.Sources = append(a.Sources, SourceAccess{s.Dataset, v.Snap.Number, decisions[i]})
	}
	c.call.Note(a)
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return c.engine.MixtureSchema(ctx, snaps, req)
}

// mixtureID is PlanID for a request with a mixture.
func (c *Catalog) mixtureID(ctx context.Context, req schema.Request) (string, error) {
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		s := &leaves[i]
		if s.Snapshot == 0 || req.Batch == 0 { // the id depends on the snapshot's record
			snap, err := c.Exists(ctx, Ref{s.Dataset, s.Snapshot, s.Tag}, policy.List)
			if err != nil {
				return "", ofSource(s, err)
			}
			s.Snapshot, s.Tag = snap.Number, ""
		}
		s.Within = c.decide(s.Dataset).Restriction
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return c.engine.PlanID(ctx, req)
}

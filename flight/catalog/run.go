package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/audit"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// Runs lists the runs that are stored with a dataset, without those that use a dataset
// which does not exist for the caller.
func (c *Catalog) Runs(ctx context.Context, dataset string) ([]*store.Run, error) {
	snap, d, err := c.snapshot(ctx, Ref{Dataset: dataset}, policy.List)
	if err != nil {
		return nil, err
	}
	if err := c.shows(ctx, d, snap); err != nil {
		return nil, err
	}
	list, err := c.engine.Store().Runs(ctx, dataset)
	if err != nil {
		return nil, c.notFor(ctx, d, dataset, 0, err)
	}
	return slices.DeleteFunc(list, func(run *store.Run) bool { return !c.sees(run) }), nil
}

// sees reports whether the caller may see each dataset of a run. Otherwise the run does not exist for the caller.
func (c *Catalog) sees(run *store.Run) bool {
	mixture, err := resolve.MixtureOf(run)
	return err == nil && !slices.ContainsFunc(mixture.Leaves(), func(s schema.MixtureSource) bool {
		return !c.decide(s.Dataset).May(policy.List)
	})
}

// noRun returns the error for a run that does not exist for the caller. It names runs that
// do.
func (c *Catalog) noRun(ctx context.Context, dataset, name string) error {
	list, err := c.Runs(ctx, dataset)
	if err != nil {
		return err
	}
	var names []string
	for _, run := range list {
		names = append(names, run.Name)
	}
	return c.denied(dataset, store.NoRun(dataset, name, names))
}

// Steering is a caller's request to change the weights of a run.
type Steering struct {
	Dataset, Run string
	Change       schema.MixtureChange // its Step is ignored
	From         *int64               // first step with the new weights; nil for the first unsettled one
}

// Steer changes the weights of a run. It returns the run and the first step with the new
// weights. It requires the right to read all datasets of the run. The caller must also own
// the run, or have the right to write the dataset with which the run is stored.
//
// The changed mixture is opened once before it is stored. A change that could not be served
// would end every stream of the run.
func (c *Catalog) Steer(ctx context.Context, s Steering) (run *store.Run, step int64, err error) {
	d, err := c.may(ctx, s.Dataset, policy.Read)
	if err != nil {
		return nil, 0, err
	}
	old, err := c.engine.Store().Run(ctx, s.Dataset, s.Run)
	if errors.Is(err, schema.ErrNotFound) || err == nil && !c.sees(old) {
		err = c.noRun(ctx, s.Dataset, s.Run) // the same error for a missing and for a hidden run
	}
	if err != nil {
		return nil, 0, c.notFor(ctx, d, s.Dataset, 0, err)
	}
	mixture, err := resolve.MixtureOf(old)
	if err != nil {
		return nil, 0, err
	}
	req, err := schema.ParseRequest(old.Request)
	if err != nil {
		return nil, 0, err
	}
	s.Change.Step = mixture.Steerable(old.Settled)
	if s.From != nil {
		s.Change.Step = max(s.Change.Step, *s.From) // the engine checks that From is not settled
	}
	if req.Mixture, err = mixture.Steer(s.Change); err != nil {
		return nil, 0, err
	}
	if err := c.mayStart(ctx, req); err != nil {
		return nil, 0, err
	}
	if old.Owner != c.caller.Principal && !d.May(policy.Write) {
		return nil, 0, c.denied(s.Dataset, fmt.Errorf("%w: run %s is of another caller; changing its weights takes the "+
			"right %q to dataset %s", schema.ErrDenied, schema.Quote(s.Run), policy.Write, schema.Quote(s.Dataset)))
	}
	err = c.Change(ctx, Change{Event: audit.Steer, Dataset: s.Dataset, Run: s.Run}, func(done *Change) error {
		run, step, err = c.engine.Steer(ctx, s.Dataset, s.Run, s.Change, s.From)
		done.Step = step
		return err
	})
	return run, step, err
}

// mayStart returns an error unless the caller may start a job for the request and the job
// could be served.
func (c *Catalog) mayStart(ctx context.Context, req schema.Request) error {
	req, decisions, err := c.permit(ctx, req, policy.Read)
	if err != nil {
		return err
	}
	leaves := req.Mixture.Leaves()
	job, err := c.engine.Open(ctx, req)
	if err != nil {
		return c.notForMixture(ctx, decisions, leaves, err)
	}
	defer job.Close()
	return c.fitsAll(ctx, job, decisions, leaves)
}

// fitsAll returns an error unless the rules of a mixture's sources fit them and the tenant
// may read their buckets.
func (c *Catalog) fitsAll(ctx context.Context, job *fetch.Job, decisions grants, leaves []schema.MixtureSource) error {
	for i, d := range decisions {
		s := &leaves[i]
		snap := job.SnapshotOf(i)
		err := c.fits(ctx, d, snap)
		if may := c.source.mayRead; err == nil && may != nil {
			if err = may(ctx, c.caller.Tenant, snap); err != nil {
				err = c.denied(s.Dataset, err)
			}
		}
		if err != nil {
			return ofSource(s, err)
		}
	}
	return nil
}

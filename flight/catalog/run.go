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

// Runs lists the runs beside a dataset, of whose datasets the caller may see each.
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

// noRun is the error for a run that does not exist for the caller. It names runs that do.
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

// Steering is a change of a run's weights that a caller asks for.
type Steering struct {
	Dataset, Run string
	Change       schema.MixtureChange // without its step
	From         *int64               // the step; nil: the first one that is not settled
}

// Steer changes the weights of a run. It takes the rights to read what the run reads, and that the run is the
// caller's or that it may write the dataset beside which the run is kept. It returns the run, and the step.
func (c *Catalog) Steer(ctx context.Context, s Steering) (run *store.Run, step int64, err error) {
	d, err := c.may(ctx, s.Dataset, policy.Read)
	if err != nil {
		return nil, 0, err
	}
	old, err := c.engine.Store().Run(ctx, s.Dataset, s.Run)
	if errors.Is(err, schema.ErrNotFound) || err == nil && !c.sees(old) {
		err = c.noRun(ctx, s.Dataset, s.Run) // also where a dataset of it does not exist for the caller
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
		s.Change.Step = max(s.Change.Step, *s.From) // whether it may be that is found out below
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

// mayStart fails unless the caller may start a job, and it could be served.
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

// fitsAll fails unless the rules for a mixture's sources fit them, and their buckets may be read.
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

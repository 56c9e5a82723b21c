package catalog

import (
	"cmp"
	"context"
	"errors"

	"bowstring/fetch"
	"bowstring/fetch/resolve"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// Open opens a job for the rows and columns that the caller may see. The caller closes it.
func (c *Catalog) Open(ctx context.Context, req schema.Request, right policy.Right) (*fetch.Job, error) {
	return c.open(ctx, req, right, false)
}

// OpenEarly opens a job before it is certain which snapshot is the newest. Before Confirm
// has succeeded, the caller must not be sent anything of the job.
func (c *Catalog) OpenEarly(ctx context.Context, req schema.Request, right policy.Right) (*fetch.Job, error) {
	return c.open(ctx, req, right, true)
}

// open is Open, or OpenEarly if early is set. The rules are checked before the job is
// opened and compared again afterwards, because opening can take long.
func (c *Catalog) open(ctx context.Context, req schema.Request, right policy.Right, early bool) (job *fetch.Job, err error) {
	if req.Mixture != nil {
		return c.openMixture(ctx, req, right)
	}
	d, err := c.may(ctx, req.Dataset, right)
	if err != nil {
		return nil, err
	}
	req.Within = d.Restriction
	if early {
		job, err = c.engine.OpenEarly(ctx, req)
	} else {
		job, err = c.engine.Open(ctx, req)
	}
	if err != nil {
		return nil, c.notFor(ctx, d, req.Dataset, req.Snapshot, err)
	}
	if err := c.fits(ctx, d, job.Manifest().Snapshot()); err != nil {
		err = cmp.Or(c.Confirm(ctx, job, req), err) // a wrong snapshot explains err
		job.Close()
		return nil, err
	}
	if may := c.source.mayRead; may != nil {
		if err := may(ctx, c.caller.Tenant, job.Manifest().Snapshot()); err != nil {
			err = cmp.Or(c.Confirm(ctx, job, req), err)
			job.Close()
			return nil, c.denied(req.Dataset, err)
		}
	}
	c.call.Note(Access{Dataset: req.Dataset, Snapshot: job.Request().Snapshot, Right: right, Decision: d, Plan: job.ID(),
		Group: job.Group(), Early: job.Early()})
	// EnforceRules ends only calls whose access is noted. Rules that changed before Note
	// are detected here.
	if !c.decide(req.Dataset).Same(d) {
		job.Close()
		return nil, ErrRules
	}
	if err := c.call.BeginRead(ctx); err != nil {
		job.Close()
		return nil, err
	}
	return job, nil
}

// Confirm waits until it is certain that a job that was opened early has the snapshot that
// the request means. It returns resolve.ErrSuperseded if it has another one. On success it
// records the read.
func (c *Catalog) Confirm(ctx context.Context, job *fetch.Job, req schema.Request) error {
	err := job.Confirm(ctx)
	switch {
	case err == nil:
		a := c.call.Access()
		a.Early = false
		c.call.Note(a)
		return c.call.BeginRead(ctx)
	case errors.Is(err, resolve.ErrSuperseded):
		return err
	}
	return c.notFor(ctx, c.decide(req.Dataset), req.Dataset, req.Snapshot, err)
}

// Stream serves a ticket of an open job. The stream holds the snapshot open by itself.
func (c *Catalog) Stream(ctx context.Context, job *fetch.Job, t schema.Ticket, how fetch.Serving) (*fetch.Stream, error) {
	return c.engine.Serve(ctx, job, t, how)
}

// Take serves samples of an open job by their positions, in the given order.
func (c *Catalog) Take(ctx context.Context, job *fetch.Job, positions []int64) (*fetch.Stream, error) {
	return c.engine.Take(ctx, job, positions)
}

// TotalBytes returns the bytes of all blobs that an open job serves.
func (c *Catalog) TotalBytes(ctx context.Context, job *fetch.Job) (int64, error) {
	return c.engine.TotalBytes(ctx, job)
}

// Warm reads the blobs of an open job into the spill. It calls progress a few times a
// second.
func (c *Catalog) Warm(ctx context.Context, job *fetch.Job, progress func(fetch.WarmProgress)) error {
	return c.engine.Warm(ctx, job, progress)
}

// HasSpill reports whether the server has a spill that can be warmed.
func (c *Catalog) HasSpill() bool { return c.engine.Stats().Spill != nil }

// PlanID returns the id of the plan that a request has for the caller. It differs between
// callers if a rule hides rows from one of them.
func (c *Catalog) PlanID(ctx context.Context, req schema.Request) (string, error) {
	if req.Mixture != nil {
		return c.mixtureID(ctx, req)
	}
	if req.Snapshot == 0 || req.Batch == 0 { // the id depends on the snapshot's record
		snap, err := c.Exists(ctx, Ref{req.Dataset, req.Snapshot, req.Tag}, policy.List)
		if err != nil {
			return "", err
		}
		req.Snapshot, req.Tag = snap.Number, ""
	}
	req.Within = c.decide(req.Dataset).Restriction
	return c.engine.PlanID(ctx, req)
}

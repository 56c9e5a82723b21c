package jobs

import (
	"context"
	"fmt"

	"bowstring/fetch/plan"
	"bowstring/schema"
)

// Outline is what a request means as far as the record of its snapshot tells:
// all but the rows.
type Outline struct {
	Request    schema.Request // with the snapshot's number, never a tag, and the defaults filled in
	ID         string         // as Job.ID
	Plan       *plan.Plan
	Projection *schema.Projection
	local      *local // as of a job
}

// Outline is what the job is an outline of, and more.
func (j *Job) Outline() *Outline {
	return &Outline{Request: j.request, ID: j.id, Plan: j.plan, Projection: j.projection, local: j.local}
}

// Outline resolves a request against a snapshot without opening its manifest. The
// request has neither where nor a selection, and its caller may see all rows: else the
// rows are needed.
func (js *Jobs) Outline(snap *schema.Snapshot, req schema.Request) (*Outline, error) {
	if req.Where != "" || req.Selection != nil || req.Within.HidesRows() {
		return nil, fmt.Errorf("%w: an outline of where or a selection", schema.ErrInvalid)
	}
	req, projection, err := fill(snap, req)
	if err != nil {
		return nil, err
	}
	selection, err := splitSelection(snap, req.Split)
	if err != nil {
		return nil, err
	}
	return newOutline(req, projection, selection)
}

// ID is what Job.ID would be of the request: it depends on no row. A request that
// names snapshot and batch, as those of resolved jobs do, need not be looked up,
// and may be of a snapshot that was dropped.
func (js *Jobs) ID(ctx context.Context, req schema.Request) (string, error) {
	if err := req.Check(); err != nil {
		return "", err
	}
	req, err := js.Pin(ctx, req)
	if err != nil {
		return "", err
	}
	if req.Snapshot == 0 || req.Batch == 0 || req.Assign == schema.AssignLocal && req.Owners == "" {
		snap, err := js.store.Snapshot(ctx, req.Dataset, req.Snapshot)
		if err != nil {
			return "", err
		}
		if req, _, err = fill(snap, req); err != nil {
			return "", err
		}
		if req, _, err = js.localize(ctx, snap, req); err != nil {
			return "", err
		}
	}
	return digest(req), nil
}

// fill puts the snapshot's number and the defaults that depend on its columns in.
func fill(snap *schema.Snapshot, req schema.Request) (schema.Request, *schema.Projection, error) {
	req.Snapshot, req.Tag = snap.Number, ""
	projection, err := schema.NewProjectionWithin(snap, req.Within, req.Columns, req.Layout)
	if err != nil {
		return req, nil, err
	}
	if req.Batch == 0 {
		req.Batch = schema.DefaultBatch
		if len(projection.BlobColumns()) == 0 {
			req.Batch = schema.DefaultMetaBatch
		}
	}
	return req, projection, nil
}

func newOutline(req schema.Request, projection *schema.Projection, selection plan.Selection) (*Outline, error) {
	cfg := plan.Config{Selection: selection, Batch: req.Batch, World: int(req.WorldSize())}
	if req.Shuffle != nil {
		cfg.Shuffle, cfg.Seed, cfg.Epoch = true, req.Shuffle.Seed, req.Shuffle.Epoch
	}
	var err error
	if cfg.Remainder, err = plan.ParseRemainder(req.Remainder); err != nil {
		return nil, err
	}
	p, err := plan.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Outline{Request: req, ID: digest(req), Plan: p, Projection: projection}, nil
}

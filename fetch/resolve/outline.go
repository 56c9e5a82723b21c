package resolve

import (
	"context"
	"fmt"
	"slices"

	"github.com/apache/arrow/go/v17/arrow"

	"bowstring/fetch/operators"
	"bowstring/fetch/plan"
	"bowstring/fetch/where"
	"bowstring/schema"
)

// Resolved is what a request means as far as the record of its snapshot tells:
// all but the rows.
type Resolved struct {
	Request    schema.Request // with the snapshot's number, never a tag, and the defaults filled in
	ID         string         // as Job.ID
	Plan       *plan.Plan     // without buckets, which change neither counts nor sizes, where no rows were read
	Projection *schema.Projection
	Operators  *operators.Set // nil if there are none
	makers     []*where.Maker // of Projection.Computed
	local      *local         // as of a job
}

// Resolved is the job without what it holds.
func (j *Job) Resolved() *Resolved {
	return &Resolved{Request: j.request, ID: j.id, Plan: j.plan, Projection: j.projection, Operators: j.operators,
		makers: j.makers, local: j.local}
}

// Resolve resolves a request against a snapshot without opening its manifest. The
// request has neither where nor a selection, and its caller may see all rows: else the
// rows are needed.
func (rv *Resolver) Resolve(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*Resolved, error) {
	if req.Where != "" || req.Selection != nil || req.Within.HidesRows() {
		return nil, fmt.Errorf("%w: a resolved request of where or a selection", schema.ErrInvalid)
	}
	req, shown, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	selection, err := splitSelection(snap, req.Split)
	if err != nil {
		return nil, err
	}
	return newResolved(req, shown, selection, nil)
}

// ID is what Job.ID would be of the request: it depends on no row. A request that
// names snapshot and batch, as those of resolved jobs do, need not be looked up,
// and may be of a snapshot that was dropped.
func (rv *Resolver) ID(ctx context.Context, req schema.Request) (string, error) {
	if err := req.Check(); err != nil {
		return "", err
	}
	req, err := rv.Pin(ctx, req)
	if err != nil {
		return "", err
	}
	if req.Snapshot == 0 || req.Batch == 0 || req.BucketByLength != nil && req.BucketByLength.Window == 0 ||
		!req.Operators.Resolved() || req.Assign == schema.AssignLocal && req.Owners == "" {
		snap, err := rv.store.Snapshot(ctx, req.Dataset, req.Snapshot)
		if err != nil {
			return "", err
		}
		if req, _, err = rv.fill(ctx, snap, req); err != nil {
			return "", err
		}
		if req, _, err = rv.localize(ctx, snap, req); err != nil {
			return "", err
		}
	}
	return digest(req), nil
}

// Schema is what batches of a request look like.
func (rv *Resolver) Schema(ctx context.Context, snap *schema.Snapshot, req schema.Request) (*arrow.Schema, error) {
	_, s, err := rv.fill(ctx, snap, req)
	if err != nil {
		return nil, err
	}
	return s.projection.Schema, nil
}

// shown is what a request shows of samples, and what becomes of them before.
type shown struct {
	projection *schema.Projection
	operators  *operators.Set
	makers     []*where.Maker // of the columns that projection.Computed names
}

// fill puts the snapshot's number and the defaults that depend on its columns in, and operators
// as they are written in full.
func (rv *Resolver) fill(ctx context.Context, snap *schema.Snapshot, req schema.Request) (schema.Request, shown, error) {
	req.Snapshot, req.Tag = snap.Number, ""
	var s shown
	var err error
	if req.Operators != nil {
		if s.operators, err = operators.CompileSet(rv.kinds, snap.Schema, req.Within, req.Operators); err != nil {
			return req, s, err
		}
		req.Operators = s.operators.Canonical()
		if err := s.express(ctx, rv.turn, snap, req); err != nil {
			return req, s, err
		}
		if len(req.Operators.Columns()) == 0 {
			s.operators = nil // there is nothing to make of blobs
		}
		if req.Place != schema.PlaceClient {
			req.Place = ""
		}
		if err := req.Check(); err != nil { // written in full they are longer
			return req, s, err
		}
	}
	if req.Place == schema.PlaceClient {
		// They are checked here, and run elsewhere.
		if err := checkElsewhere(snap, req, s.operators); err != nil {
			return req, s, err
		}
		s.operators = nil
	}
	if s.projection, err = schema.NewProjectionWithin(snap, req.Within, req.Columns, req.Layout,
		s.operators.Forms(), s.fields()); err != nil {
		return req, s, err
	}
	s.order()
	if req.Place == schema.PlaceClient {
		s.projection = s.projection.WithOperators(req.Operators)
	}
	if req.Operators != nil {
		if err := checkShown(snap, req, s.projection); err != nil {
			return req, s, err
		}
	}
	if req.Batch == 0 {
		req.Batch = schema.DefaultBatch
		if len(s.projection.BlobColumns()) == 0 && req.BucketByLength == nil {
			req.Batch = schema.DefaultMetaBatch
		}
	}
	req, err = fillBuckets(snap, req)
	return req, s, err
}

// checkElsewhere fails if a request whose operators run elsewhere wants a column that comes of them.
func checkElsewhere(snap *schema.Snapshot, req schema.Request, set *operators.Set) error {
	for i, name := range req.Columns {
		if _, _, ok := schema.MadePart(snap.Schema, set.Forms(), name); ok {
			return &schema.FieldError{Field: fmt.Sprintf("columns[%d]", i), Got: schema.Quote(name) + ` with place "client"`,
				Want: "it left out: it tells of what operators made, and they run at the client"}
		}
	}
	return nil
}

// checkShown fails if a column has operators and nothing is shown of it: its name may be a slip.
func checkShown(snap *schema.Snapshot, req schema.Request, p *schema.Projection) error {
	read := map[string]bool{}
	blobs := schema.BlobFields(snap.Schema)
	for _, ordinal := range p.BlobColumns() {
		read[blobs[ordinal].Name] = true
	}
	for _, f := range p.Computed() {
		read[f.Name] = true
	}
	for _, name := range slices.Concat(req.Operators.Columns(), req.Operators.Expressions()) {
		if !read[name] {
			return &schema.FieldError{Field: "operators." + schema.Shown(name), Got: "a column that columns does not name",
				Want: "it left out, or the column to be shown"}
		}
	}
	return nil
}

func newResolved(req schema.Request, s shown, selection plan.Selection, buckets *plan.Buckets) (*Resolved, error) {
	cfg := plan.Config{Selection: selection, Batch: req.Batch, World: int(req.WorldSize()), Buckets: buckets}
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
	return &Resolved{Request: req, ID: digest(req), Plan: p, Projection: s.projection, Operators: s.operators,
		makers: s.makers}, nil
}

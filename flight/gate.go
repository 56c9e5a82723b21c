package flight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// This file and gate_view.go are the one way from a call to the catalog and to jobs:
// whatever names a dataset goes through the rules here, for the caller that the context
// carries. TestGate holds the other files to that.

func (s *Server) rules() *policy.Rules {
	if s.opts.Rules == nil {
		return nil
	}
	return s.opts.Rules()
}

func whoOf(c fetch.Caller) policy.Who { return policy.Who{Principal: c.Principal, Groups: c.Groups} }

// decide says what the caller may do with a dataset.
func (s *Server) decide(ctx context.Context, dataset string) policy.Decision {
	return s.rules().Decide(whoOf(fetch.CallerFrom(ctx)), dataset)
}

// mayServer fails unless the caller has a right to the server as a whole.
func (s *Server) mayServer(ctx context.Context, right policy.Right, what string) error {
	if s.rules().Server(whoOf(fetch.CallerFrom(ctx))).May(right) {
		return nil
	}
	return s.denied(ctx, "", fmt.Errorf("%w: %s is for who has the right %q on all datasets", schema.ErrDenied, what,
		right.String()))
}

// may fails unless the caller has a right on a dataset. Of one that he may not even see
// he is told that there is none, whether there is or not; but for writing, where there
// need not be one.
func (s *Server) may(ctx context.Context, dataset string, right policy.Right) (policy.Decision, error) {
	// also for those who would only be told that there is none: it is recorded
	if err := schema.CheckName("dataset", dataset); err != nil {
		return policy.Decision{}, err
	}
	d := s.decide(ctx, dataset)
	switch {
	case d.May(right):
		return d, nil
	case d.May(policy.List) || right&policy.Write != 0:
		return d, s.denied(ctx, dataset, fmt.Errorf("%w: what you may do with dataset %q: %s; this takes %s",
			schema.ErrDenied, dataset, d.Rights, right))
	}
	return d, s.denied(ctx, dataset, s.noDataset(ctx, dataset, 0))
}

// noDataset is the error for a dataset or snapshot that does not exist for the caller,
// or not at all. It names others that do exist for him, as far as that needs no look at
// their rows: a rule that hides rows or columns may not fit a dataset, which hides it.
func (s *Server) noDataset(ctx context.Context, dataset string, number int64) error {
	catalog, err := s.datasets(ctx)
	if err != nil {
		return err
	}
	named := slices.DeleteFunc(slices.Clone(catalog), func(d store.Dataset) bool {
		return (d.Name != dataset || number == 0) && s.decide(ctx, d.Name).Restriction != nil
	})
	if len(named) == 0 && s.rules() != nil {
		return fmt.Errorf("%w: there is no dataset %q; listings name those that there are for you", schema.ErrNotFound,
			dataset)
	}
	return store.NoSnapshot(named, dataset, number)
}

// datasets lists those that exist for the caller.
func (s *Server) datasets(ctx context.Context) ([]store.Dataset, error) {
	all, err := s.engine.Store().Datasets(ctx)
	if err != nil || s.rules() == nil {
		return all, err
	}
	var seen []store.Dataset
	for _, d := range all {
		if s.decide(ctx, d.Name).May(policy.List) {
			seen = append(seen, d)
		}
	}
	return seen, nil
}

// snapshot looks a snapshot up that the caller has a right to, by number or by tag, the
// newest if neither is given.
func (s *Server) snapshot(ctx context.Context, ref snapshotRef,
	right policy.Right) (*schema.Snapshot, policy.Decision, error) {
	dataset := ref.Dataset
	d, err := s.may(ctx, dataset, right)
	if err != nil {
		return nil, d, err
	}
	req, err := s.engine.Pin(ctx, ref.request())
	if err != nil {
		return nil, d, s.notFor(ctx, d, dataset, 0, err)
	}
	snap, err := s.engine.Store().Snapshot(ctx, dataset, req.Snapshot)
	if err != nil {
		return nil, d, s.notFor(ctx, d, dataset, req.Snapshot, err)
	}
	if err := s.fits(ctx, d, snap); err != nil {
		return nil, d, err
	}
	used(ctx, access{dataset: dataset, snapshot: snap.Number, right: right, decision: d})
	return snap, d, s.beginRead(ctx)
}

// exists looks a snapshot up as snapshot does, and fails also if the rule's where does
// not fit it. Whoever counts its rows by view need not ask.
func (s *Server) exists(ctx context.Context, ref snapshotRef, right policy.Right) (*schema.Snapshot, error) {
	snap, d, err := s.snapshot(ctx, ref, right)
	if err == nil {
		err = s.shows(ctx, d, snap)
	}
	return snap, err
}

// fits fails if the rule shows no column of a snapshot.
func (s *Server) fits(ctx context.Context, d policy.Decision, snap *schema.Snapshot) error {
	if d.Restriction.Visible(snap.Schema).NumFields() > 0 {
		return nil
	}
	s.log.LogAttrs(ctx, slog.LevelWarn, "a rule shows no column of a snapshot", slog.String("dataset", snap.Dataset),
		slog.Int64("snapshot", snap.Number), slog.String("rule", d.Rule.String()))
	return s.noDataset(ctx, snap.Dataset, 0)
}

// shows fails if the rule shows no column of a snapshot, or its where does not fit it.
func (s *Server) shows(ctx context.Context, d policy.Decision, snap *schema.Snapshot) error {
	if err := s.fits(ctx, d, snap); err != nil || !d.Restriction.HidesRows() {
		return err
	}
	job, err := s.engine.Open(ctx, schema.Request{Dataset: snap.Dataset, Snapshot: snap.Number,
		Columns: []string{schema.PositionColumn}, Within: d.Restriction})
	if err != nil {
		if s.misfit(ctx, d, err) {
			return s.noDataset(ctx, snap.Dataset, 0)
		}
		return err
	}
	job.Close()
	return nil
}

// misfit reports whether an error is that of a rule that does not fit a dataset, which is
// for the log alone.
func (s *Server) misfit(ctx context.Context, d policy.Decision, err error) bool {
	fault, ok := errors.AsType[*resolve.RestrictionError](err)
	if ok {
		s.log.LogAttrs(ctx, slog.LevelWarn, "a rule does not fit a dataset, which does not exist for those "+
			"whom it is for",
			slog.String("rule", d.Rule.String()), slog.String("error", fault.Error()))
	}
	return ok
}

// open opens a job with what the caller may see.
func (s *Server) open(ctx context.Context, req schema.Request, right policy.Right) (*fetch.Job, error) {
	return s.openBy(ctx, req, right, s.engine.Open)
}

// openEarly opens a job of which the caller is told nothing before confirm.
func (s *Server) openEarly(ctx context.Context, req schema.Request, right policy.Right) (*fetch.Job, error) {
	return s.openBy(ctx, req, right, s.engine.OpenEarly)
}

// confirm waits until it is certain that a job that was opened early is of the snapshot that the request means.
// resolve.ErrSuperseded if it is not.
func (s *Server) confirm(ctx context.Context, job *fetch.Job, req schema.Request) error {
	err := job.Confirm(ctx)
	switch {
	case err == nil:
		certain(ctx)
		return s.beginRead(ctx)
	case errors.Is(err, resolve.ErrSuperseded):
		mistaken(ctx)
		return err
	}
	return s.notFor(ctx, s.decide(ctx, req.Dataset), req.Dataset, req.Snapshot, err)
}

// openBy opens a job by what opens jobs.
func (s *Server) openBy(ctx context.Context, req schema.Request, right policy.Right,
	by func(context.Context, schema.Request) (*fetch.Job, error)) (*fetch.Job, error) {
	d, err := s.may(ctx, req.Dataset, right)
	if err != nil {
		return nil, err
	}
	req.Within = d.Restriction
	job, err := by(ctx, req)
	if err != nil {
		return nil, s.notFor(ctx, d, req.Dataset, req.Snapshot, err)
	}
	if err := s.fits(ctx, d, job.Manifest().Snapshot()); err != nil {
		err = cmp.Or(s.confirm(ctx, job, req), err) // or it is of the wrong snapshot
		job.Close()
		return nil, err
	}
	used(ctx, access{dataset: req.Dataset, snapshot: job.Request().Snapshot, right: right, decision: d, plan: job.ID(),
		group: job.Group(), early: job.Early()})
	// Whoever changes the rules ends what is noted by now; this is what is not.
	if !s.decide(ctx, req.Dataset).Same(d) {
		job.Close()
		return nil, errRules
	}
	if err := s.beginRead(ctx); err != nil {
		job.Close()
		return nil, err
	}
	return job, nil
}

// notFor is what the caller is told where something went wrong that he has a right to.
// Errors of the store name all datasets, and one of the rule's own is not for him. Where
// the rule does not fit, none is: whatever he asks for, there is no such dataset.
func (s *Server) notFor(ctx context.Context, d policy.Decision, dataset string, number int64, err error) error {
	if d.Rule == nil {
		return err
	}
	if s.misfit(ctx, d, err) {
		return s.noDataset(ctx, dataset, 0)
	}
	missing := errors.Is(err, schema.ErrNotFound)
	if !missing && d.Restriction == nil {
		return err
	}
	snap, gone := s.engine.Store().Snapshot(ctx, dataset, number)
	if !errors.Is(gone, schema.ErrNotFound) {
		// It may also be a split or a selection that there is not.
		return s.unless(ctx, d, snap, gone, err)
	}
	if !missing {
		return err
	}
	if number != 0 && d.Restriction != nil { // that there are other snapshots is told of a dataset that exists for him
		newest, gone := s.engine.Store().Snapshot(ctx, dataset, 0)
		if !errors.Is(gone, schema.ErrNotFound) {
			return s.unless(ctx, d, newest, gone, s.noDataset(ctx, dataset, number))
		}
	}
	return s.noDataset(ctx, dataset, number)
}

// unless returns an error, but for a snapshot that does not exist for the caller, or
// could not be looked at, the error of that.
func (s *Server) unless(ctx context.Context, d policy.Decision, snap *schema.Snapshot, looking, err error) error {
	if looking == nil && d.Restriction != nil {
		looking = s.shows(ctx, d, snap)
	}
	if looking != nil {
		return looking
	}
	return err
}

// planID is what the plan of a request is called for the caller.
func (s *Server) planID(ctx context.Context, req schema.Request) (string, error) {
	if req.Snapshot == 0 || req.Batch == 0 { // the snapshot is looked up
		snap, err := s.exists(ctx, snapshotRef{req.Dataset, req.Snapshot, req.Tag}, policy.List)
		if err != nil {
			return "", err
		}
		req.Snapshot, req.Tag = snap.Number, ""
	}
	req.Within = s.decide(ctx, req.Dataset).Restriction
	return s.engine.PlanID(ctx, req)
}

// saveSelection saves positions that a job of the caller's has checked.
func (s *Server) saveSelection(ctx context.Context, job *fetch.Job, positions []int64) (name string, err error) {
	req := job.Request()
	err = s.audited(ctx, change{event: auditSelect, dataset: req.Dataset, snapshot: req.Snapshot},
		func(c *change) (err error) {
			name, err = s.engine.SaveSelection(ctx, req.Dataset, req.Snapshot, positions)
			c.rows = int64(len(positions))
			return err
		})
	return name, err
}

// dropSnapshot drops a snapshot, or with number 0 the dataset, and returns the numbers.
func (s *Server) dropSnapshot(ctx context.Context, ref snapshotRef) ([]int64, error) {
	dataset := ref.Dataset
	d, err := s.may(ctx, dataset, policy.Drop)
	if err != nil {
		return nil, err
	}
	req, err := s.engine.Pin(ctx, ref.request())
	if err != nil {
		return nil, s.notFor(ctx, d, dataset, 0, err)
	}
	number := req.Snapshot
	dropped := []int64{number}
	if number == 0 {
		all, err := s.datasetOf(ctx, dataset)
		if err != nil {
			return nil, err
		}
		dropped = all.Snapshots
	}
	used(ctx, access{dataset: dataset, snapshot: number, right: policy.Drop, decision: d})
	err = s.audited(ctx, change{event: auditDrop, dataset: dataset, snapshot: number}, func(*change) error {
		return s.engine.Drop(ctx, dataset, number)
	})
	if err != nil {
		return nil, s.notFor(ctx, d, dataset, number, err)
	}
	return dropped, nil
}

// collect collects garbage, which is of all datasets.
func (s *Server) collect(ctx context.Context, opts store.GCOptions) (report store.GCReport, err error) {
	if err := s.mayServer(ctx, policy.Admin, "collecting garbage"); err != nil {
		return report, err
	}
	if opts.DryRun {
		return s.engine.GC(ctx, opts)
	}
	err = s.audited(ctx, change{event: auditCollect}, func(c *change) (err error) {
		report, err = s.engine.GC(ctx, opts)
		c.bytes = report.FreedBytes
		return err
	})
	return report, err
}

// ingest begins to write a dataset, which the caller has the right to.
func (s *Server) ingest(ctx context.Context, opts ingest.Options) (*ingest.Writer, error) {
	w, err := ingest.New(ctx, s.engine.Store(), opts)
	if err != nil {
		return nil, s.notFor(ctx, s.decide(ctx, opts.Dataset), opts.Dataset, 0, err)
	}
	return w, nil
}

// commit commits what was written.
func (s *Server) commit(ctx context.Context, dataset string, w *ingest.Writer,
	ack batchAck) (snap *schema.Snapshot, changed bool, err error) {
	// It may have taken long, and the rules may have changed.
	if _, err := s.may(ctx, dataset, policy.Write); err != nil {
		return nil, false, err
	}
	err = s.audited(ctx, change{event: auditWrite, dataset: dataset, rows: ack.Rows, bytes: ack.Bytes},
		func(c *change) (err error) {
			if snap, changed, err = w.Commit(ctx); err == nil {
				c.snapshot = snap.Number
			}
			return err
		})
	return snap, changed, err
}

// hasSpill reports whether there is a cache to warm.
func (s *Server) hasSpill() bool { return s.engine.Stats().Spill != nil }

// mine tells the calls that the caller may know of and end: his own, those on datasets
// that he has the right admin to, and all if he has it to the server.
func (s *Server) mine(ctx context.Context) func(*call) bool {
	rs, who := s.rules(), whoOf(fetch.CallerFrom(ctx))
	everything := rs.Server(who).May(policy.Admin)
	return func(c *call) bool {
		return everything || c.caller.Principal == who.Principal ||
			c.access.dataset != "" && rs.Decide(who, c.access.dataset).May(policy.Admin)
	}
}

// errRules is the cause of a stream that the rules, which have changed, do not grant any
// more, or not as it was.
var errRules = fmt.Errorf("%w: the rules have changed what you may see of this dataset; ask for it again",
	schema.ErrUnavailable)

// EnforceRules ends the streams for which the rules that hold now say something else
// than those did under which they began. It is called when the rules have changed.
func (s *Server) EnforceRules() {
	rs := s.rules()
	s.calls.kill(errRules, func(c *call) bool {
		return c.access.dataset != "" && !c.access.refused &&
			!rs.Decide(whoOf(c.caller), c.access.dataset).Same(c.access.decision)
	})
}

package catalog

import (
	"context"
	"fmt"

	"bowstring/fetch"
	"bowstring/fetch/ingest"
	"bowstring/fetch/store"
	"bowstring/flight/audit"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// Change is a change of data: what a call is about to do, and the outcome. The function
// that makes the change fills in the outcome.
type Change struct {
	Event       string // as package audit names it
	Dataset     string
	Snapshot    int64
	Tag         string
	Run         string
	Step        int64 // first step of a run that the change affects
	Plan        string
	Rule        string // the rule that permits the change, "" without rules
	Rows, Bytes int64
	Count       int64
}

// Change runs do, which changes data, and records it: see [Call.Record]. It adds the rule
// that permits the change. It does not check rights; its callers have done that.
func (c *Catalog) Change(ctx context.Context, what Change, do func(*Change) error) error {
	if d := c.decide(what.Dataset); d.Rule != nil {
		what.Rule = d.Rule.String()
	}
	return c.call.Record(ctx, what, do)
}

// MayWrite returns an error unless the caller may write a dataset. It notes the decision.
func (c *Catalog) MayWrite(ctx context.Context, dataset string) error {
	d, err := c.may(ctx, dataset, policy.Write)
	if err != nil {
		return err
	}
	c.call.Note(Access{Dataset: dataset, Right: policy.Write, Decision: d})
	return nil
}

// Ingest begins to write a dataset. MayWrite must have succeeded. The caller closes the
// writer.
func (c *Catalog) Ingest(ctx context.Context, opts ingest.Options) (*ingest.Writer, error) {
	w, err := ingest.New(ctx, c.engine.Store(), opts)
	if err != nil {
		return nil, c.notFor(ctx, c.decide(opts.Dataset), opts.Dataset, 0, err)
	}
	return w, nil
}

// Commit commits written rows. rows and bytes are for the audit log. It checks the right to
// write again: an upload can take hours, and the rules may have changed since MayWrite.
func (c *Catalog) Commit(ctx context.Context, dataset string, w *ingest.Writer,
	rows, bytes int64) (snap *schema.Snapshot, changed bool, err error) {
	// The upload may have taken long, and the rules may have changed.
	if err := c.May(ctx, dataset, policy.Write); err != nil {
		return nil, false, err
	}
	err = c.Change(ctx, Change{Event: audit.Write, Dataset: dataset, Rows: rows, Bytes: bytes},
		func(done *Change) (err error) {
			if snap, changed, err = w.Commit(ctx); err == nil {
				done.Snapshot = snap.Number
			}
			return err
		})
	return snap, changed, err
}

// alterRights are the rights that a change of existing rows or columns requires. The
// results of a change reveal keys and values. So a caller that may not read rows may not
// change them.
const alterRights = policy.Read | policy.Write

// Alterable returns the newest snapshot of a dataset if the caller may alter it.
func (c *Catalog) Alterable(ctx context.Context, dataset string) (*schema.Snapshot, error) {
	snap, d, err := c.snapshot(ctx, Ref{Dataset: dataset}, alterRights)
	if err != nil {
		return nil, err
	}
	return snap, c.unrestricted(dataset, d)
}

// unrestricted returns schema.ErrDenied if rows or columns are hidden from the caller. The
// caller would otherwise change data that it may not see.
func (c *Catalog) unrestricted(dataset string, d policy.Decision) error {
	if d.Restriction == nil {
		return nil
	}
	return c.denied(dataset, fmt.Errorf("%w: the rules hide rows or columns of dataset %q from you; altering it "+
		"takes the right to see all of it", schema.ErrDenied, dataset))
}

// Alter begins to alter a dataset. Alterable must have succeeded. The caller closes the
// alteration.
func (c *Catalog) Alter(ctx context.Context, opts ingest.AlterOptions) (*ingest.Alteration, error) {
	a, err := ingest.Alter(ctx, c.engine.Store(), opts)
	if err != nil {
		return nil, c.notFor(ctx, c.decide(opts.Dataset), opts.Dataset, 0, err)
	}
	return a, nil
}

// CommitAltered commits an alteration. bytes is the size of the blobs of its rows. It
// checks the rights again, as Commit does.
func (c *Catalog) CommitAltered(ctx context.Context, dataset string, a *ingest.Alteration,
	bytes int64) (snap *schema.Snapshot, done ingest.Altered, err error) {
	// The upload may have taken long, and the rules may have changed.
	d, err := c.may(ctx, dataset, alterRights)
	if err == nil {
		err = c.unrestricted(dataset, d)
	}
	if err != nil {
		return nil, done, err
	}
	err = c.Change(ctx, Change{Event: audit.Alter, Dataset: dataset, Bytes: bytes}, func(what *Change) (err error) {
		if snap, done, err = a.Commit(ctx); err == nil {
			what.Snapshot, what.Rows = snap.Number, done.Matched+done.Inserted+max(0, done.Deleted-done.Matched)
		}
		return err
	})
	return snap, done, err
}

// SaveSelection saves positions and returns the name of the selection. job has checked that
// the caller may see them.
func (c *Catalog) SaveSelection(ctx context.Context, job *fetch.Job, positions []int64) (name string, err error) {
	req := job.Request()
	err = c.Change(ctx, Change{Event: audit.Select, Dataset: req.Dataset, Snapshot: req.Snapshot},
		func(what *Change) (err error) {
			name, err = c.engine.SaveSelection(ctx, req.Dataset, req.Snapshot, positions)
			what.Rows = int64(len(positions))
			return err
		})
	return name, err
}

// Tag gives a snapshot a tag and returns the snapshot's number. It requires the right to
// write the dataset: a tag decides which snapshot others read.
func (c *Catalog) Tag(ctx context.Context, ref Ref, name string) (int64, error) {
	if err := c.May(ctx, ref.Dataset, policy.Write); err != nil {
		return 0, err
	}
	snap, err := c.Snapshot(ctx, ref, policy.Write)
	if err != nil {
		return 0, err
	}
	return snap.Number, c.Change(ctx,
		Change{Event: audit.Tag, Dataset: ref.Dataset, Snapshot: snap.Number, Tag: name},
		func(*Change) error { return c.engine.Store().Tag(ctx, ref.Dataset, name, snap.Number) })
}

// Untag removes a tag and returns the number of the snapshot that had it.
func (c *Catalog) Untag(ctx context.Context, dataset, name string) (int64, error) {
	d, err := c.may(ctx, dataset, policy.Write)
	if err != nil {
		return 0, err
	}
	number, err := c.engine.Store().Tagged(ctx, dataset, name)
	if err != nil {
		return 0, c.notFor(ctx, d, dataset, 0, err)
	}
	return number, c.Change(ctx, Change{Event: audit.Untag, Dataset: dataset, Snapshot: number, Tag: name},
		func(*Change) error { return c.engine.Store().Untag(ctx, dataset, name) })
}

// Drop drops a snapshot, or the whole dataset if the reference has no number. It returns
// the numbers of the dropped snapshots.
func (c *Catalog) Drop(ctx context.Context, ref Ref) ([]int64, error) {
	dataset := ref.Dataset
	d, err := c.may(ctx, dataset, policy.Drop)
	if err != nil {
		return nil, err
	}
	req, err := c.engine.Pin(ctx, ref.Request())
	if err != nil {
		return nil, c.notFor(ctx, d, dataset, 0, err)
	}
	number := req.Snapshot
	// The numbers are read before the drop: afterwards the dataset is gone.
	dropped := []int64{number}
	if number == 0 {
		all, err := c.Dataset(ctx, dataset)
		if err != nil {
			return nil, err
		}
		dropped = all.Snapshots
	}
	c.call.Note(Access{Dataset: dataset, Snapshot: number, Right: policy.Drop, Decision: d})
	err = c.Change(ctx, Change{Event: audit.Drop, Dataset: dataset, Snapshot: number}, func(*Change) error {
		return c.engine.Drop(ctx, dataset, number)
	})
	if err != nil {
		return nil, c.notFor(ctx, d, dataset, number, err)
	}
	return dropped, nil
}

// Collect frees dead blobs. It requires the right admin on the server, because dead blobs
// belong to all datasets. A dry run changes nothing, so it is not recorded.
func (c *Catalog) Collect(ctx context.Context, opts store.GCOptions) (report store.GCReport, err error) {
	if err := c.MayAdmin("collecting garbage"); err != nil {
		return report, err
	}
	if opts.DryRun {
		return c.engine.GC(ctx, opts)
	}
	err = c.Change(ctx, Change{Event: audit.Collect}, func(what *Change) (err error) {
		report, err = c.engine.GC(ctx, opts)
		what.Bytes = report.FreedBytes
		return err
	})
	return report, err
}

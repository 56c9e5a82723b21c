package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// onRecord returns a predicate for the streams whose lineage the caller may know: its
// own, and those on datasets on which it has the right admin, as far as it may read these
// now.
func (c *Catalog) onRecord() func(*fetch.PieceHead) bool {
	rs, who := c.source.current(), who(c.caller)
	if rs == nil {
		return func(*fetch.PieceHead) bool { return true }
	}
	decisions := map[string]policy.Decision{}
	granted := func(h *fetch.PieceHead, dataset string) bool {
		d, known := decisions[dataset]
		if !known {
			d = rs.Decide(who, dataset)
			decisions[dataset] = d
		}
		return d.May(policy.Read) && (h.Principal == who.Principal || d.May(policy.Admin))
	}
	return func(h *fetch.PieceHead) bool {
		if m := h.Ticket.Mixture; m != nil {
			return !slices.ContainsFunc(m.Leaves(), func(s schema.MixtureSource) bool { return !granted(h, s.Dataset) })
		}
		return granted(h, h.Ticket.Dataset)
	}
}

// RecordedRows goes through the streams that the caller may know of: the rows of each are added to what sum returns,
// nil to leave them out.
func (c *Catalog) RecordedRows(ctx context.Context, sum func(*fetch.PieceHead) *int64) error {
	visible := c.onRecord()
	kept, err := c.engine.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if !visible(h) {
			return nil
		}
		return sum(h)
	})
	return keptOr(kept, err)
}

func keptOr(kept bool, err error) error {
	if err == nil && !kept {
		err = fmt.Errorf("%w: this server keeps no record of what it hands out; it does with serve --lineage DIR",
			schema.ErrNotFound)
	}
	return err
}

// Shown reports whether a snapshot exists for the caller, and whether it sees all rows of
// it.
func (c *Catalog) Shown(ctx context.Context) func(Ref) (exists, whole bool, err error) {
	type answer struct{ exists, whole bool }
	known := map[Ref]answer{}
	return func(ref Ref) (bool, bool, error) {
		a, ok := known[ref]
		if !ok {
			_, err := c.Exists(ctx, ref, policy.Read)
			if err != nil && !errors.Is(err, schema.ErrNotFound) {
				return false, false, err
			}
			a = answer{err == nil, !c.decide(ref.Dataset).Restriction.HidesRows()}
			known[ref] = a
		}
		return a.exists, a.whole, nil
	}
}

// RecordedSince is since when streams are on record, zero if none is.
func (c *Catalog) RecordedSince() time.Time { return c.engine.RecordedSince() }

// Course is what a job is on record as, as far as the caller may know.
type Course struct {
	catalog *Catalog
	jobs    map[string]bool  // what its streams are of: more than one only if somebody made requests so
	first   *fetch.PieceHead // of the stream of its name that began first
	planned *uint64          // the epoch of the plan that has the name, if that is what it names
}

// Course finds the streams of a job, by any of its names.
func (c *Catalog) Course(ctx context.Context, name string) (*Course, error) {
	j := &Course{catalog: c, jobs: map[string]bool{}}
	err := c.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if h.Job != name && h.Group != name && h.Plan != name {
			return nil
		}
		if e := epochOf(h); h.Plan == name && h.Group != name && h.Job != name && (j.planned == nil || e < *j.planned) {
			j.planned = &e
		}
		if j.jobs[h.Job] = true; j.first == nil || h.Stream < j.first.Stream {
			j.first = h
		}
		return nil
	})
	if err == nil && j.first == nil {
		err = fmt.Errorf("%w: job %s is not on record here: it ran elsewhere, or is older than what is "+
			"kept; lineage without a job lists those there are", schema.ErrNotFound, schema.Quote(name))
	}
	return j, err
}

// Has reports whether a stream of a job is one of the course's.
func (j *Course) Has(job string) bool { return j.jobs[job] }

// Epoch is the one that is meant where the caller names none: that of the plan, or the one that the stream which began
// last came to.
func (j *Course) Epoch(ctx context.Context) (uint64, error) {
	if j.planned != nil {
		return *j.planned, nil
	}
	last, rows := j.first, new(int64)
	err := j.catalog.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if h.Job != j.first.Job || h.Stream < last.Stream {
			return nil
		}
		last, rows = h, new(int64)
		return rows
	})
	if err != nil {
		return 0, err
	}
	epoch, err := j.catalog.engine.LastEpoch(ctx, &fetch.Piece{Head: *last, Rows: *rows})
	return epoch, j.catalog.hides(last, err)
}

// restrict puts into a request what the caller may see now.
func (c *Catalog) restrict(req schema.Request) schema.Request {
	if req.Mixture == nil {
		req.Within = c.decide(req.Dataset).Restriction
		return req
	}
	leaves := req.Mixture.Leaves()
	for i := range leaves {
		leaves[i].Within = c.decide(leaves[i].Dataset).Restriction
	}
	req.Mixture = req.Mixture.WithLeaves(leaves)
	return req
}

// allOf asks for the positions of all samples that there are where those of a request are; of a mixture, of its sources.
func allOf(req schema.Request) schema.Request {
	all := schema.Request{Dataset: req.Dataset, Snapshot: req.Snapshot, Columns: []string{schema.PositionColumn}}
	if req.Mixture == nil {
		return all
	}
	all.Mixture = &schema.Mixture{}
	for i, s := range req.Mixture.Leaves() {
		all.Mixture.Sources = append(all.Mixture.Sources, schema.MixtureSource{Name: fmt.Sprintf("source-%d", i),
			Dataset: s.Dataset, Snapshot: s.Snapshot, Repeat: 1})
	}
	return all
}

func epochOf(h *fetch.PieceHead) uint64 {
	if h.Ticket.Shuffle == nil {
		return 0
	}
	return h.Ticket.Shuffle.Epoch
}

// hides is an error in finding out what was handed out. The record may contain data that
// only the stream's caller could see: a caller that sees less now gets an error.
func (c *Catalog) hides(h *fetch.PieceHead, err error) error {
	if err == nil {
		return nil
	}
	then := h.Request()
	if c.restrict(then).WithinKey() != then.WithinKey() && !errors.Is(err, schema.ErrUnavailable) &&
		!errors.Is(err, schema.ErrLimit) {
		return fmt.Errorf("%w: what this job was handed out cannot be said any more", schema.ErrNotFound)
	}
	return err
}

// Step looks a step up, and the job by which the caller sees its samples, which he closes; rank is -1 for all ranks. One
// name may stand for streams of several courses, if somebody made a request so: it is the one of the stream that began
// first.
func (j *Course) Step(ctx context.Context, epoch uint64, step int64, rank int) ([]fetch.Share, *fetch.Job, error) {
	c, first := j.catalog, &j.first.Ticket
	see, err := c.Open(ctx, allOf(first.Request), policy.Read)
	if err != nil {
		return nil, nil, err
	}
	visible := c.onRecord()
	pieces, kept, err := c.engine.Recorded(ctx, func(h *fetch.PieceHead) bool {
		return h.Job == j.first.Job && (rank < 0 || h.Ticket.Rank == rank) && fetch.MayCover(h, epoch) && visible(h)
	})
	if err = keptOr(kept, err); err != nil {
		see.Close()
		return nil, nil, err
	}
	shares, err := c.engine.Lineage(ctx, pieces, epoch, step, rank)
	if err != nil {
		see.Close()
		return nil, nil, c.hides(j.first, err)
	}
	return shares, see, nil
}

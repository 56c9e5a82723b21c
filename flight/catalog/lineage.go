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

// onRecord returns a predicate for the streams whose lineage the caller may see. These are
// its own streams, and those on datasets for which it has the right admin. In both cases it
// must have the right to read the datasets now. The predicate remembers decisions and is
// for one goroutine.
func (c *Catalog) onRecord() func(*fetch.PieceHead) bool {
	rs, who := c.source.current(), PolicyCaller(c.caller)
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

// RecordedRows visits the recorded streams that the caller may see. sum returns the counter
// to which the stream's rows are added, or nil to skip the stream.
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

// keptOr returns err, or schema.ErrNotFound if the server has no record of lineage.
func keptOr(kept bool, err error) error {
	if err == nil && !kept {
		err = fmt.Errorf("%w: this server keeps no record of what it hands out; it does with serve --lineage DIR",
			schema.ErrNotFound)
	}
	return err
}

// Shown returns a function that reports whether a snapshot exists for the caller, and
// whether the caller may see all of its rows. It remembers answers and is for one
// goroutine.
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

// RecordedSince returns the start of the record of streams, zero if it is empty.
func (c *Catalog) RecordedSince() time.Time { return c.engine.RecordedSince() }

// Course is the record of a job, as far as the caller may see it. It holds no resources.
type Course struct {
	catalog *Catalog
	jobs    map[string]bool  // names of its jobs; several only if requests were built to share a name
	first   *fetch.PieceHead // the oldest stream with the name
	planned *uint64          // the plan's epoch, if the name is that of a plan
}

// Course finds the streams of a job. name is that of a job, of its group, or of a plan.
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

// Has reports whether a job belongs to the course.
func (j *Course) Has(job string) bool { return j.jobs[job] }

// Epoch returns the default epoch: that of the plan if the course was found by a plan, and
// otherwise the latest epoch of the newest stream.
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

// restrict limits a request to what the caller may see now.
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

// allOf returns a request for the positions of all samples in the datasets of a request.
// The result decides which recorded positions the caller sees.
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

// epochOf returns the epoch that the ticket of a recorded stream names.
func epochOf(h *fetch.PieceHead) uint64 {
	if h.Ticket.Shuffle == nil {
		return 0
	}
	return h.Ticket.Shuffle.Epoch
}

// hides returns the error for the caller if reading the lineage has failed. The record may
// contain data that only the stream's caller could see. A caller that sees less now gets
// schema.ErrNotFound, except for errors about limits and availability, which reveal
// nothing.
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

// Step returns the shares of a step. rank is -1 for all ranks. It also returns a job that
// shows which samples the caller may see; the caller closes that. If the name belongs to
// several courses, Step uses that of the oldest stream.
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

package flight

import (
	"context"
	"errors"
	"fmt"

	"bowstring/fetch"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// onRecord tells the streams whose lineage the caller may know: his own, and those on datasets
// that he has the right admin to, as far as he may read these now.
func (s *Server) onRecord(ctx context.Context) func(*fetch.PieceHead) bool {
	rs, who := s.rules(), whoOf(fetch.CallerFrom(ctx))
	if rs == nil {
		return func(*fetch.PieceHead) bool { return true }
	}
	decisions := map[string]policy.Decision{}
	return func(h *fetch.PieceHead) bool {
		dataset := h.Ticket.Dataset
		d, known := decisions[dataset]
		if !known {
			d = rs.Decide(who, dataset)
			decisions[dataset] = d
		}
		return d.May(policy.Read) && (h.Principal == who.Principal || d.May(policy.Admin))
	}
}

// recorded returns what the caller may know of the streams that match tells.
func (s *Server) recorded(ctx context.Context, match func(*fetch.PieceHead) bool) ([]*fetch.Piece, error) {
	mine := s.onRecord(ctx)
	pieces, kept, err := s.engine.Recorded(ctx, func(h *fetch.PieceHead) bool { return match(h) && mine(h) })
	return pieces, keptOr(kept, err)
}

// recordedRows goes through the streams that the caller may know of: the rows of each are added to what sum returns,
// nil to leave them out.
func (s *Server) recordedRows(ctx context.Context, sum func(*fetch.PieceHead) *int64) error {
	mine := s.onRecord(ctx)
	kept, err := s.engine.RecordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if !mine(h) {
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

// reserveLineage counts in what a look into the record takes, until release.
func (s *Server) reserveLineage(ctx context.Context) (release func(), err error) {
	release, err = s.reserveAnswer(ctx, min(fetch.LineageBytes, s.answers.most))
	if err != nil {
		return nil, fmt.Errorf("looking into the record of what was handed out: %w", err)
	}
	return release, nil
}

// lineageHeader is the first result of the action: what the record is.
func (s *Server) lineageHeader() lineageHeader {
	h := lineageHeader{Since: s.engine.RecordedSince(), Others: []string{}}
	if s.opts.Others != nil {
		h.Others = append(h.Others, s.opts.Others()...)
	}
	return h
}

// shown tells the snapshots that exist for the caller, and whether he sees all their rows.
func (s *Server) shown(ctx context.Context) func(snapshotRef) (exists, whole bool, err error) {
	type answer struct{ exists, whole bool }
	known := map[snapshotRef]answer{}
	return func(ref snapshotRef) (bool, bool, error) {
		a, ok := known[ref]
		if !ok {
			_, err := s.exists(ctx, ref, policy.Read)
			if err != nil && !errors.Is(err, schema.ErrNotFound) {
				return false, false, err
			}
			a = answer{err == nil, !s.decide(ctx, ref.Dataset).Restriction.HidesRows()}
			known[ref] = a
		}
		return a.exists, a.whole, nil
	}
}

// course is what a job is on record as.
type course struct {
	jobs    map[string]bool  // what its streams are of: more than one only if somebody made requests so
	first   *fetch.PieceHead // of the stream of its name that began first
	planned *uint64          // the epoch of the plan that has the name, if that is what it names
}

// course finds the streams of a job, by any of its names.
func (s *Server) course(ctx context.Context, name string) (*course, error) {
	c := &course{jobs: map[string]bool{}}
	err := s.recordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if h.Job != name && h.Group != name && h.Plan != name {
			return nil
		}
		if e := epochOf(h); h.Plan == name && h.Group != name && h.Job != name && (c.planned == nil || e < *c.planned) {
			c.planned = &e
		}
		if c.jobs[h.Job] = true; c.first == nil || h.Stream < c.first.Stream {
			c.first = h
		}
		return nil
	})
	if err == nil && c.first == nil {
		err = fmt.Errorf("%w: job %s is not on record here: it ran elsewhere, or is older than what is "+
			"kept; lineage without a job lists those there are", schema.ErrNotFound, schema.Quote(name))
	}
	return c, err
}

// epoch is the one that is meant where the caller names none: that of the plan, or the one that the stream which began
// last came to.
func (s *Server) epoch(ctx context.Context, c *course) (uint64, error) {
	if c.planned != nil {
		return *c.planned, nil
	}
	last, rows := c.first, new(int64)
	err := s.recordedRows(ctx, func(h *fetch.PieceHead) *int64 {
		if h.Job != c.first.Job || h.Stream < last.Stream {
			return nil
		}
		last, rows = h, new(int64)
		return rows
	})
	if err != nil {
		return 0, err
	}
	epoch, err := s.engine.LastEpoch(ctx, &fetch.Piece{Head: *last, Rows: *rows})
	return epoch, s.hides(ctx, last, err)
}

func epochOf(h *fetch.PieceHead) uint64 {
	if h.Ticket.Shuffle == nil {
		return 0
	}
	return h.Ticket.Shuffle.Epoch
}

// hides is an error in finding out what was handed out. It may tell of what the stream's caller could see: who may see
// less now is told that it cannot be said.
func (s *Server) hides(ctx context.Context, h *fetch.PieceHead, err error) error {
	if err == nil {
		return nil
	}
	d := s.decide(ctx, h.Ticket.Dataset)
	if d.Restriction.Key() != h.Restriction().Key() && !errors.Is(err, schema.ErrUnavailable) &&
		!errors.Is(err, schema.ErrLimit) {
		return fmt.Errorf("%w: what this job was handed out cannot be said any more", schema.ErrNotFound)
	}
	return err
}

// heldStep looks a step up, and the job by which the caller sees its samples, which he closes. One name may stand for
// streams of several courses, if somebody made a request so: it is the one of the stream that began first.
func (s *Server) heldStep(ctx context.Context, c *course, epoch uint64, step int64,
	rank int) ([]fetch.Share, *fetch.Job, error) {
	first := &c.first.Ticket
	see, err := s.open(ctx, schema.Request{Dataset: first.Dataset, Snapshot: first.Snapshot,
		Columns: []string{schema.PositionColumn}}, policy.Read)
	if err != nil {
		return nil, nil, err
	}
	pieces, err := s.recorded(ctx, func(h *fetch.PieceHead) bool {
		return h.Job == c.first.Job && (rank < 0 || h.Ticket.Rank == rank) && fetch.MayCover(h, epoch)
	})
	if err != nil {
		see.Close()
		return nil, nil, err
	}
	shares, err := s.engine.Lineage(ctx, pieces, epoch, step, rank)
	if err != nil {
		see.Close()
		return nil, nil, s.hides(ctx, c.first, err)
	}
	return shares, see, nil
}

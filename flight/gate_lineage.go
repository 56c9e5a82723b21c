package flight

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"bowstring/fetch"
	"bowstring/flight/rules"
	"bowstring/schema"
)

// onRecord tells the streams whose lineage the caller may know: his own, and those on datasets
// that he has the right admin to, as far as he may read these now.
func (s *Server) onRecord(ctx context.Context) func(*fetch.PieceHead) bool {
	rs, who := s.rules(), whoOf(fetch.CallerFrom(ctx))
	if rs == nil {
		return func(*fetch.PieceHead) bool { return true }
	}
	decisions := map[string]rules.Decision{}
	return func(h *fetch.PieceHead) bool {
		dataset := h.Ticket.Dataset
		d, known := decisions[dataset]
		if !known {
			d = rs.Decide(who, dataset)
			decisions[dataset] = d
		}
		return d.May(rules.Read) && (h.Principal == who.Principal || d.May(rules.Admin))
	}
}

// recorded returns what the caller may know of the streams that match tells.
func (s *Server) recorded(ctx context.Context, match func(*fetch.PieceHead) bool) ([]*fetch.Piece, error) {
	mine := s.onRecord(ctx)
	pieces, kept, err := s.engine.Recorded(func(h *fetch.PieceHead) bool { return match(h) && mine(h) })
	if err == nil && !kept {
		err = fmt.Errorf("%w: this server keeps no record of what it hands out; it does with serve --lineage DIR",
			schema.ErrNotFound)
	}
	return pieces, err
}

// lineageHeader is the first result of the action: what the record is.
func (s *Server) lineageHeader() lineageHeader {
	h := lineageHeader{Since: s.engine.RecordedSince(), Others: []string{}}
	if s.opts.Others != nil {
		h.Others = append(h.Others, s.opts.Others()...)
	}
	return h
}

// shown tells the pieces of snapshots that exist for the caller, and whether he sees all their rows.
func (s *Server) shown(ctx context.Context) func(*fetch.Piece) (exists, whole bool, err error) {
	type answer struct{ exists, whole bool }
	known := map[snapshotRef]answer{}
	return func(p *fetch.Piece) (bool, bool, error) {
		ref := snapshotRef{Dataset: p.Head.Ticket.Dataset, Snapshot: p.Head.Ticket.Snapshot}
		a, ok := known[ref]
		if !ok {
			_, err := s.exists(ctx, ref, rules.Read)
			if err != nil && !errors.Is(err, schema.ErrNotFound) {
				return false, false, err
			}
			a = answer{err == nil, !s.decide(ctx, ref.Dataset).Restriction.HidesRows()}
			known[ref] = a
		}
		return a.exists, a.whole, nil
	}
}

// course finds the streams of a job, by any of its names, and the epoch that is meant where the caller names none.
func (s *Server) course(ctx context.Context, name string) (pieces []*fetch.Piece, epoch uint64, err error) {
	courses := map[string]bool{}
	var planned *uint64 // of the plan that has the name
	_, err = s.recorded(ctx, func(h *fetch.PieceHead) bool {
		if h.Job != name && h.Group != name && h.Plan != name {
			return false
		}
		if e := epochOf(h); h.Plan == name && h.Group != name && h.Job != name && (planned == nil || e < *planned) {
			planned = &e
		}
		courses[h.Job] = true
		return false
	})
	if err != nil {
		return nil, 0, err
	}
	pieces, err = s.recorded(ctx, func(h *fetch.PieceHead) bool { return courses[h.Job] })
	if err != nil {
		return nil, 0, err
	}
	if len(pieces) == 0 {
		return nil, 0, fmt.Errorf("%w: job %s is not on record here: it ran elsewhere, or is older than what is "+
			"kept; lineage without a job lists those there are", schema.ErrNotFound, schema.Quote(name))
	}
	if planned != nil {
		return pieces, *planned, nil
	}
	epoch, err = s.engine.LastEpoch(ctx, pieces[len(pieces)-1])
	return pieces, epoch, s.hides(ctx, pieces[0], err)
}

func epochOf(h *fetch.PieceHead) uint64 {
	if h.Ticket.Shuffle == nil {
		return 0
	}
	return h.Ticket.Shuffle.Epoch
}

// hides is an error in finding out what was handed out. It may tell of what the stream's caller could see: who may see
// less now is told that it cannot be said.
func (s *Server) hides(ctx context.Context, p *fetch.Piece, err error) error {
	if err == nil {
		return nil
	}
	d := s.decide(ctx, p.Head.Ticket.Dataset)
	if d.Restriction.Key() != p.Head.Restriction().Key() && !errors.Is(err, schema.ErrUnavailable) &&
		!errors.Is(err, schema.ErrLimit) {
		return fmt.Errorf("%w: what this job was handed out cannot be said any more", schema.ErrNotFound)
	}
	return err
}

// heldStep looks a step up, and the job by which the caller sees its samples, which he closes.
func (s *Server) heldStep(ctx context.Context, pieces []*fetch.Piece, epoch uint64, step int64,
	rank int) ([]fetch.Share, *fetch.Job, error) {
	first := pieces[0].Head.Ticket
	see, err := s.open(ctx, schema.Request{Dataset: first.Dataset, Snapshot: first.Snapshot,
		Columns: []string{schema.PositionColumn}}, rules.Read)
	if err != nil {
		return nil, nil, err
	}
	// One name may stand for streams of several courses, if somebody made a request so: each for itself.
	pieces = slices.DeleteFunc(slices.Clone(pieces), func(p *fetch.Piece) bool {
		return p.Head.Job != pieces[0].Head.Job
	})
	shares, err := s.engine.Lineage(ctx, pieces, epoch, step, rank)
	if err != nil {
		see.Close()
		return nil, nil, s.hides(ctx, pieces[0], err)
	}
	return shares, see, nil
}

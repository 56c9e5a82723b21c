package lineage

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"bowstring/schema"
)

// Piece is a part of what a stream has handed out.
type Piece struct {
	Head   Head
	Rows   int64 // handed out
	Faults []Fault

	steps []moved
}

// moved is a batch, and rows in order after it.
type moved struct {
	runs  []byte // nil for none
	count int64
}

// Range is rows of a piece by their numbers, [From, To), in the plan's order from the step and row of its ticket.
type Range struct{ From, To int64 }

// Served returns which rows were handed out as those from from on and before to: in their order.
func (p *Piece) Served(from, to int64) ([]Range, error) {
	to = min(to, p.Rows)
	if mode, _ := p.Head.Ticket.OrderOf(); mode == schema.OrderStrict {
		if from >= to {
			return nil, nil
		}
		return []Range{{from, to}}, nil
	}
	rest := newUndone(p.Head.Ticket.Served)
	var list []Range
	at := int64(0) // rows handed out
	emit := func(a, b int64) {
		lo, hi := max(from, at), min(to, at+b-a)
		if lo < hi {
			r := Range{a + lo - at, a + hi - at}
			if n := len(list); n > 0 && list[n-1].To == r.From {
				list[n-1].To = r.To
			} else {
				list = append(list, r)
			}
		}
		at += b - a
	}
	for i := range p.steps {
		if at >= to {
			break
		}
		if p.steps[i].runs != nil {
			runs, err := decodeRuns(p.steps[i].runs)
			if err != nil {
				return nil, err
			}
			rest.apply(runs, emit)
		}
		rest.apply([]run{{0, p.steps[i].count}}, emit)
	}
	return list, nil
}

// Look returns the pieces of streams that match tells, in the order in which they were begun. It is called while
// nothing is locked but other looks. The memory is the caller's.
func (l *Log) Look(match func(*Head) bool) ([]*Piece, error) {
	l.looking.Lock()
	defer l.looking.Unlock()
	l.mu.Lock()
	list := slices.Clone(l.list)
	l.mu.Unlock()
	var all []*Piece
	for _, s := range list {
		some, err := s.read(match)
		if err != nil {
			return nil, fmt.Errorf("lineage: %w", err)
		}
		all = append(all, some...)
	}
	slices.SortStableFunc(all, func(a, b *Piece) int { return int(min(max(a.Head.Stream-b.Head.Stream, -1), 1)) })
	return all, nil
}

// read reads a file; none of it once it is gone.
func (s *segment) read(match func(*Head) bool) ([]*Piece, error) {
	b, err := s.content()
	if err != nil {
		return nil, err
	}
	var list []*Piece
	byNumber := map[uint32]*Piece{}
	err = parse(b, func(rec *record) error {
		if rec.kind == kindHead {
			p := &Piece{}
			if err := json.Unmarshal(rec.body, &p.Head); err != nil {
				return fmt.Errorf("%w: the record of a stream: %w", schema.ErrDataLoss, err)
			}
			if match(&p.Head) {
				p.Rows, p.steps = rec.count, []moved{{nil, rec.count}}
				byNumber[rec.piece] = p
				list = append(list, p)
			}
			return nil
		}
		p := byNumber[rec.piece]
		if p == nil {
			return nil
		}
		switch rec.kind {
		case kindMoves:
			runs, err := decodeRuns(rec.body)
			if err != nil {
				return err
			}
			for _, r := range runs {
				p.Rows += r.take
			}
			p.Rows += rec.count
			p.steps = append(p.steps, moved{rec.body, rec.count})
		case kindFaults:
			var faults []Fault
			if err := json.Unmarshal(rec.body, &faults); err != nil {
				return fmt.Errorf("%w: the record of a stream's faults: %w", schema.ErrDataLoss, err)
			}
			p.Faults = append(p.Faults, faults...)
		}
		return nil
	})
	for _, p := range list { // what was noted of a batch that was not
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Row >= p.Rows })
	}
	return list, err
}

// content is what a file holds now.
func (s *segment) content() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil, nil
	}
	info, err := s.file.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, info.Size())
	n, err := s.file.ReadAt(b, 0)
	if err == io.EOF { //nolint:errorlint // ReadAt returns it as it is
		err = nil
	}
	return b[:n], err
}

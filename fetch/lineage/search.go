package lineage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"bowstring/schema"
)

// Query says what a look into the record is for.
type Query struct {
	// Match selects the streams whose pieces are returned. nil: none.
	Match func(*Head) bool
	// Sum returns where to add up the rows that a piece has delivered, or nil to leave
	// the piece out. Summed pieces are not kept. Sum itself may be nil.
	Sum func(*Head) *int64
	// MaxBytes is what the pieces that are returned may take in memory; 0 is no bound.
	MaxBytes int64
	// Turn runs what takes a processor for some milliseconds, when it may; nil runs it at once.
	Turn func(func() error) error
}

// atOnce is how many bytes of the record are gone through in a turn.
const atOnce = 1 << 20

// Search goes through the record, and returns the pieces that a query names in the order in which their streams were
// begun. It has one file in memory at a time, and so do all looks together. It ends with ctx, and with schema.ErrLimit
// where the pieces take too much. The memory of the pieces is the caller's.
func (l *Log) Search(ctx context.Context, q Query) ([]*Piece, error) {
	l.mu.Lock()
	list := slices.Clone(l.list)
	l.mu.Unlock()
	search := newSearch(q)
	for _, s := range list {
		select {
		case l.looking <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		err := search.through(ctx, s)
		<-l.looking
		if err != nil {
			return nil, fmt.Errorf("lineage: %w", err)
		}
	}
	slices.SortStableFunc(search.all, func(a, b *Piece) int { return int(min(max(a.Head.Stream-b.Head.Stream, -1), 1)) })
	return search.all, nil
}

// search is one that is under way.
type search struct {
	Query
	all   []*Piece
	bytes int64
}

func newSearch(q Query) *search {
	if q.Turn == nil {
		q.Turn = func(f func() error) error { return f() }
	}
	return &search{Query: q}
}

// read reads a file; none of it once it is gone.
func (s *segment) read(match func(*Head) bool) ([]*Piece, error) {
	l := newSearch(Query{Match: match})
	err := l.through(context.Background(), s)
	return l.all, err
}

// through reads a file and takes its records. A piece is stored in one file.
func (l *search) through(ctx context.Context, s *segment) error {
	rest, err := s.content()
	if err != nil {
		return err
	}
	f := &fileSearch{search: l, pieces: map[uint32]*Piece{}, sums: map[uint32]*int64{}}
	from := len(l.all)
	rest = begun(rest)
	for len(rest) > 0 && err == nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = l.Turn(func() (err error) {
			for some := len(rest) - atOnce; len(rest) > max(some, 0) && err == nil; {
				var rec *record
				if rec, rest = nextRecord(rest); rec != nil {
					err = f.take(rec)
				}
			}
			return err
		})
	}
	for _, p := range l.all[from:] { // what was noted of a batch that was not
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Row >= p.Rows })
	}
	return err
}

// fileSearch is what is found in one file.
type fileSearch struct {
	*search
	pieces map[uint32]*Piece // by number
	sums   map[uint32]*int64
}

// take takes a record in.
func (l *fileSearch) take(rec *record) error {
	if rec.kind == kindHead {
		return l.head(rec)
	}
	p, sum := l.pieces[rec.piece], l.sums[rec.piece]
	if p == nil && sum == nil {
		return nil
	}
	switch rec.kind {
	case kindMoves:
		runs, err := decodeRuns(rec.body)
		if err != nil {
			return err
		}
		rows := rec.count
		for _, r := range runs {
			rows += r.take
		}
		if sum != nil {
			*sum += rows
		}
		if p != nil {
			p.Rows += rows
			p.steps = append(p.steps, moved{slices.Clone(rec.body), rec.count}) // and not all of the file
			return l.kept(int64(len(rec.body)) + stepBytes)
		}
	case kindFaults:
		if p == nil {
			return nil
		}
		var faults []Fault
		if err := json.Unmarshal(rec.body, &faults); err != nil {
			return fmt.Errorf("%w: the record of a stream's faults: %w", schema.ErrDataLoss, err)
		}
		p.Faults = append(p.Faults, faults...)
		return l.kept(textFactor * int64(len(rec.body)))
	}
	return nil
}

// head takes the beginning of a piece in.
func (l *fileSearch) head(rec *record) error {
	p := &Piece{}
	if err := json.Unmarshal(rec.body, &p.Head); err != nil {
		return fmt.Errorf("%w: the record of a stream: %w", schema.ErrDataLoss, err)
	}
	if l.Sum != nil {
		if sum := l.Sum(&p.Head); sum != nil {
			*sum += rec.count
			l.sums[rec.piece] = sum
		}
	}
	if l.Match == nil || !l.Match(&p.Head) {
		return nil
	}
	p.Rows, p.steps = rec.count, []moved{{nil, rec.count}}
	l.pieces[rec.piece] = p
	l.all = append(l.all, p)
	return l.kept(textFactor*int64(len(rec.body)) + headBytes)
}

// Memory that a piece takes in addition to its bytes in the file, and how much larger
// these are once decoded.
const (
	headBytes  = 1024
	stepBytes  = 64
	textFactor = 4
)

// kept counts what is kept in memory.
func (l *search) kept(n int64) error {
	if l.bytes += n; l.MaxBytes > 0 && l.bytes > l.MaxBytes {
		return fmt.Errorf("%w: what is on record takes more than %d bytes of memory; ask for less: one job, one epoch, "+
			"one rank", schema.ErrLimit, l.MaxBytes)
	}
	return nil
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

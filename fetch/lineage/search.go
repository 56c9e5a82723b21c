package lineage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"bowstring/schema"
)

// Query selects what Search returns. Its functions are called in the goroutine that calls
// Search.
type Query struct {
	// Match selects the streams whose pieces are returned. If it is nil, none are.
	Match func(*Head) bool
	// Sum returns where to add up the rows that a piece has delivered, or nil to leave
	// the piece out. Summed pieces are not kept. Sum itself may be nil.
	Sum func(*Head) *int64
	// MaxBytes is what the pieces that are returned may take in memory; 0 is no bound.
	MaxBytes int64
	// Turn runs a function that uses a CPU for some milliseconds, when a CPU may be used
	// for it. If Turn is nil, the function runs at once.
	Turn func(func() error) error
}

// atOnce is how many bytes of the record are parsed in one turn: about a millisecond, so
// that streams on the same CPU do not wait long.
const atOnce = 1 << 20

// Search reads the record, and returns the pieces that a query selects, ordered by the
// beginning of their streams. All searches together hold one file in memory. Search ends
// when ctx does, with its cause. If the pieces take more than Query.MaxBytes, the error
// is a schema.ErrLimit. The caller owns the pieces.
func (l *Log) Search(ctx context.Context, q Query) ([]*Piece, error) {
	// Files that are begun after this are not searched. A file that is removed meanwhile
	// counts as empty.
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

// search is a search in progress. One goroutine uses it.
type search struct {
	Query
	all   []*Piece
	bytes int64 // about what the pieces take in memory
}

// newSearch returns a search that has found nothing.
func newSearch(q Query) *search {
	if q.Turn == nil {
		q.Turn = func(f func() error) error { return f() }
	}
	return &search{Query: q}
}

// read returns the pieces of one file that match; none if the file was removed.
func (s *segment) read(match func(*Head) bool) ([]*Piece, error) {
	l := newSearch(Query{Match: match})
	err := l.through(context.Background(), s)
	return l.all, err
}

// through adds the records of one file to the search. A piece is stored in one file, so
// nothing is carried over to the next.
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
	// Faults are written before the rows of their batch. If the batch was not recorded,
	// they are dropped.
	for _, p := range l.all[from:] { // what was noted of a batch that was not
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Row >= p.Rows })
	}
	return err
}

// fileSearch is the state of a search within one file. Records refer to their piece by
// its number, which is unique within a file only.
type fileSearch struct {
	*search
	pieces map[uint32]*Piece // by number
	sums   map[uint32]*int64 // where the rows of each summed piece are added up
}

// take adds a record to the search. Records of pieces that the query does not select are
// skipped without being decoded.
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
			p.steps = append(p.steps, moved{slices.Clone(rec.body), rec.count}) // not all of the file
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

// head adds the head of a piece to the search, if the query selects it. A head's count is
// rows in order, like that of moves.
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

// Estimates of the memory that a piece takes: in addition to the bytes of its records,
// and how many times larger JSON is once it is decoded.
const (
	headBytes  = 1024
	stepBytes  = 64
	textFactor = 4
)

// kept counts memory of the pieces. More than the query allows is a schema.ErrLimit.
func (l *search) kept(n int64) error {
	if l.bytes += n; l.MaxBytes > 0 && l.bytes > l.MaxBytes {
		return fmt.Errorf("%w: what is on record takes more than %d bytes of memory; ask for less: one job, one epoch, "+
			"one rank", schema.ErrLimit, l.MaxBytes)
	}
	return nil
}

// content returns the bytes of a file as they are now; nil if the file was removed. It
// copies the file, so that the file may be removed while the search goes on. The last
// record may be incomplete, because streams write meanwhile.
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

// Piece is a part of the rows that a stream has delivered: those between two heads.
type Piece struct {
	Head   Head
	Rows   int64 // delivered
	Faults []Fault

	steps []moved
}

// moved is a batch that deviates, and the rows in order after it.
type moved struct {
	runs  []byte // as encodeRuns returns them; nil for none
	count int64
}

// Range is a range of rows, [From, To), numbered in plan order from the step and row of
// the piece's ticket.
type Range struct{ From, To int64 }

// Served returns the rows that the piece delivered as its from-th up to, but not
// including, its to-th. The ranges are in the order of delivery. For a stream out of plan
// order it replays the piece from its beginning.
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

package fetch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"bowstring/fetch/lineage"
	"bowstring/fetch/prefetch"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// Types of the record of delivered samples.
type (
	// Piece is a part of what a stream handed out.
	Piece = lineage.Piece
	// PieceHead says whose it is.
	PieceHead = lineage.Head
	// Part is what a sequence has of a sample.
	Part = prefetch.Part
)

// Share is a part of what a rank got in a step, all of one stream.
type Share struct {
	Piece *Piece
	Epoch uint64
	Step  int64
	Rank  int
	World int64
	// Row is where it begins in the rank's share of the step, which has Of rows.
	Row, Of int64
	// Positions are of the samples that were handed out, in their order, substitutes among them.
	Positions []int64
	// SourceEpochs are, of a mixture, the epochs of their sources that they were handed out in; else nil.
	SourceEpochs []uint64
	// Parts says, where rows are sequences, what of each sample is in which row of the rank's share; else nil.
	Parts  []Part
	Faults []Fault // without ids
	// Stands says that no later stream has delivered these rows again. If the stream was
	// cut off, the client may not have received the last rows. The ticket with which the
	// client resumed shows which.
	Stands bool

	faultRows []int64
}

// Recorded returns the records of the streams that match, in the order in which they began.
// ok is false if no record is kept. The caller has reserved [LineageBytes].
func (e *Engine) Recorded(ctx context.Context, match func(*PieceHead) bool) (pieces []*Piece, ok bool, err error) {
	return e.readRecord(ctx, lineage.Query{Match: match, MaxBytes: maxLineageBytes})
}

// RecordedRows goes through what was recorded: the rows of each stream are added to what sum returns, nil to leave them
// out. ok is false if no record is kept.
func (e *Engine) RecordedRows(ctx context.Context, sum func(*PieceHead) *int64) (ok bool, err error) {
	_, ok, err = e.readRecord(ctx, lineage.Query{Sum: sum})
	return ok, err
}

func (e *Engine) readRecord(ctx context.Context, q lineage.Query) (pieces []*Piece, ok bool, err error) {
	if e.opts.Lineage == nil {
		return nil, false, nil
	}
	tenant := store.CallerFrom(ctx).Tenant
	q.Turn = func(f func() error) error { return e.work.Do(ctx, tenant, f) }
	pieces, err = e.opts.Lineage.Search(ctx, q)
	return pieces, true, err
}

// RecordedSince is since when what is handed out is on record, zero if nothing is.
func (e *Engine) RecordedSince() time.Time {
	if e.opts.Lineage == nil {
		return time.Time{}
	}
	since, _ := e.opts.Lineage.Kept()
	return since
}

// LineageBytes is what Recorded and Lineage take for one caller, in memory.
const LineageBytes = maxLineageBytes + maxLineageRows*lineageRowBytes

// maxLineageRows is how many rows of a step are returned at once, and lineageRowBytes the
// memory for one of them. maxLineageBytes bounds the memory for pieces of the record.
const (
	maxLineageRows  = 1 << 20
	lineageRowBytes = 16
	maxLineageBytes = 8 << 20
)

// Lineage says what pieces, of streams of one course in the order of Recorded, handed out in a step of an epoch: by
// rank, and of each in the order of its rows. rank is negative for all.
//
// The caller has counted [LineageBytes] in.
func (e *Engine) Lineage(ctx context.Context, pieces []*Piece, epoch uint64, step int64, rank int) ([]Share, error) {
	var list []Share
	var rows int64
	jobs := map[string]*Job{} // that the pieces are of: most have the same one
	defer func() {
		for _, j := range jobs {
			j.Close()
		}
	}()
	for _, p := range pieces {
		if rank >= 0 && p.Head.Ticket.Rank != rank || !MayCover(&p.Head, epoch) {
			continue
		}
		s, err := e.share(ctx, jobs, p, epoch, step)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if rows += int64(len(s.Positions)); rows > maxLineageRows {
			return nil, fmt.Errorf("%w: step %d was handed out with more than %d rows; ask for one rank",
				schema.ErrLimit, step, maxLineageRows)
		}
		list = append(list, *s)
	}
	return settle(list), nil
}

// MayCover reports whether a piece may be of an epoch.
func MayCover(h *PieceHead, epoch uint64) bool {
	t := &h.Ticket
	if t.Shuffle == nil {
		return epoch == 0
	}
	return epoch >= t.Shuffle.Epoch && epoch-t.Shuffle.Epoch < uint64(max(t.Epochs, 1))
}

// share is what one piece handed out; nil if nothing.
func (e *Engine) share(ctx context.Context, jobs map[string]*Job, p *Piece, epoch uint64, step int64) (*Share, error) {
	req := p.Head.Request()
	name := string(req.Marshal()) + req.WithinKey()
	j := jobs[name]
	if j == nil {
		var err error
		if j, err = e.jobOf(ctx, p); err != nil {
			return nil, err
		}
		jobs[name] = j
	}
	h, err := prefetch.HeldBy(ctx, j, p, epoch, step)
	if err != nil || h == nil {
		return nil, err
	}
	return &Share{
		Piece: p, Epoch: epoch, Step: step, Rank: p.Head.Ticket.Rank, World: req.WorldSize(),
		Row: h.Row, Of: h.Of, Positions: h.Positions, SourceEpochs: h.SourceEpochs, Parts: h.Parts,
		Faults: h.Faults, faultRows: h.FaultRows,
	}, nil
}

// jobOf opens the job of a piece, with what its caller could see.
func (e *Engine) jobOf(ctx context.Context, p *Piece) (*Job, error) {
	req := p.Head.Request()
	j, err := e.Open(ctx, req)
	switch {
	case err != nil && req.Mixture != nil:
		return nil, fmt.Errorf("what was handed out follows from the snapshots of a mixture: %w", err)
	case err != nil:
		return nil, fmt.Errorf("what was handed out follows from snapshot %d of %s: %w", req.Snapshot, req.Dataset, err)
	}
	return j, nil
}

// LastEpoch is the epoch that a piece came to.
func (e *Engine) LastEpoch(ctx context.Context, p *Piece) (uint64, error) {
	if p.Head.Ticket.Shuffle == nil {
		return 0, nil
	}
	if p.Head.Ticket.Epochs <= 1 {
		return p.Head.Ticket.Shuffle.Epoch, nil
	}
	j, err := e.jobOf(ctx, p)
	if err != nil {
		return 0, err
	}
	defer j.Close()
	return prefetch.LastEpoch(j, p)
}

// sharedBy names how a step is shared out.
func sharedBy(p *Piece) string {
	r := p.Head.Ticket.Request
	return fmt.Sprintf("%s %s %s %q", r.World, r.Assign, r.Owners, r.Ranks)
}

// PlaceFaults sets the sources of faults, for a mixture, and changes their positions to
// those in the sources' snapshots.
func PlaceFaults(j *Job, faults []Fault) []Fault { return prefetch.PlaceFaults(j, faults) }

// sample is the index of the first sample of a row, counted from the share's first one.
func (s *Share) sample(row int) int {
	if s.Parts == nil {
		return row
	}
	at, _ := slices.BinarySearchFunc(s.Parts, s.Row+int64(row), func(p Part, row int64) int { return cmp.Compare(p.Row, row) })
	return at
}

// rows is how many there are.
func (s *Share) rows() int {
	if s.Parts == nil {
		return len(s.Positions)
	}
	return int(s.Parts[len(s.Parts)-1].Row + 1 - s.Row)
}

// settle marks the shares that stand. If a step was delivered to different worlds, only
// shares of the last world stand. If several streams delivered rows, only the last
// delivery stands. A share that stands only in part is cut.
func settle(list []Share) []Share {
	var world string
	for i := range list {
		world = sharedBy(list[i].Piece) // the last one began last
	}
	taken := map[int][]bool{} // rows that later streams handed out, by rank
	var out []Share
	for i := len(list) - 1; i >= 0; i-- {
		s := list[i]
		if sharedBy(s.Piece) != world {
			out = append(out, s)
			continue
		}
		if taken[s.Rank] == nil {
			taken[s.Rank] = make([]bool, s.Of)
		}
		rows := taken[s.Rank][s.Row:][:s.rows()]
		for from := 0; from < len(rows); {
			to := from + 1
			for to < len(rows) && rows[to] == rows[from] {
				to++
			}
			part := s
			first, end := s.sample(from), s.sample(to)
			part.Row, part.Positions, part.Stands = s.Row+int64(from), s.Positions[first:end], !rows[from]
			if s.SourceEpochs != nil {
				part.SourceEpochs = s.SourceEpochs[first:end]
			}
			if s.Parts != nil {
				part.Parts = s.Parts[first:end]
			}
			part.Faults = nil
			for k, f := range s.Faults {
				if at := s.faultRows[k] - s.Row; at >= int64(from) && at < int64(to) {
					part.Faults = append(part.Faults, f)
				}
			}
			out = append(out, part)
			from = to
		}
		for k := range rows {
			rows[k] = true
		}
	}
	slices.SortStableFunc(out, func(a, b Share) int {
		switch {
		case a.Stands != b.Stands && a.Stands:
			return -1
		case a.Stands != b.Stands:
			return 1
		case a.Rank != b.Rank:
			return a.Rank - b.Rank
		}
		return int(min(max(a.Row-b.Row, -1), 1))
	})
	return out
}

package prefetch

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"bowstring/fetch/lineage"
	"bowstring/fetch/resolve"
	"bowstring/fetch/store"
	"bowstring/schema"
)

// lineageHead is the head of the stream's record.
func (s *Stream) lineageHead(ctx context.Context) lineage.Head {
	caller := store.CallerFrom(ctx)
	return lineage.Head{
		Job: s.job.Course(), Group: s.job.Group(), Plan: s.job.ID(), Ticket: s.ticket,
		Principal: caller.Principal, Tenant: caller.Tenant,
	}
}

// lineageOf is the record of a batch. Its faults are those of the part, in the same order.
func lineageOf(p *part, faults []Fault) lineage.Batch {
	b := lineage.Batch{Rows: int64(len(p.positions)), Seqs: p.seqs, Next: p.resume}
	if p.packing != nil {
		b.Rows = int64(len(p.packing.Ends))
	}
	for i, f := range faults {
		b.Faults = append(b.Faults, lineage.Fault{
			Row: p.rowOf(p.faults[i].row), Position: f.Position, Column: f.Column, Cause: f.Cause,
			Substitute: f.Substitute,
		})
	}
	return b
}

// rowOf is the row of the batch that has a sample of the part.
func (p *part) rowOf(sample int) int64 {
	if p.packing == nil {
		return int64(sample)
	}
	row, _ := slices.BinarySearch(p.packing.Ends, sample+1)
	return int64(row)
}

// Part is the part of a sample in a sequence.
type Part struct {
	Row          int64 // the sequence, as a row of the share
	From, Tokens int64 // the first token of the sample, and the number of tokens
}

// Held is what a piece of a stream delivered of a rank's share of a step.
type Held struct {
	Row       int64   // the first delivered row, in the share
	Of        int64   // rows of the whole share
	Positions []int64 // of the samples, in the order in which they were delivered
	// Parts is, if rows are sequences, the row and the tokens of each sample; else nil.
	Parts []Part
	// SourceEpochs are, for a mixture, the epochs of the samples' sources; else nil.
	SourceEpochs []uint64
	Faults       []Fault // without ids; substitutes are in Positions, and their failed samples are not
	FaultRows    []int64 // the row of the share of each fault
}

// HeldBy returns what a piece of a stream of the job delivered in a step of an epoch; nil
// if nothing. If the stream read several epochs without a shuffle, the last one counts.
// The caller has opened the job with the rights of the stream's caller. It fails with
// schema.ErrDataLoss if the record contradicts the plan.
func HeldBy(ctx context.Context, j *resolve.Job, p *lineage.Piece, epoch uint64, step int64) (*Held, error) {
	t := p.Head.Ticket
	c, err := newCover(j, t)
	if err != nil {
		return nil, err
	}
	offset, ok := c.offsetOf(epoch, p.Rows)
	if !ok || !c.has(offset, step) {
		return nil, nil //nolint:nilnil // there is nothing
	}
	w := c.at(offset, step)
	n := w.hi - w.lo
	// rows that the piece delivered before the share; negative if a part of the share was
	// delivered before the piece
	first := c.before(offset, step) - c.gone
	from, to := max(first, 0), min(first+n, p.Rows)
	if from >= to {
		return nil, nil //nolint:nilnil // likewise
	}
	h := &Held{Row: from - first, Of: n, Positions: make([]int64, 0, to-from)}
	ranges, err := p.Served(from, to)
	if err != nil {
		return nil, err
	}
	for _, r := range ranges {
		if err := c.positions(ctx, r, h); err != nil {
			return nil, err
		}
	}
	if h.rows() != to-from {
		return nil, fmt.Errorf("%w: the record of step %d has %d rows and says that it has %d", schema.ErrDataLoss,
			step, h.rows(), to-from)
	}
	for _, f := range p.Faults {
		if f.Row < from || f.Row >= to {
			continue
		}
		if f.Substitute != nil {
			h.Positions[f.Row-from] = *f.Substitute
		}
		h.Faults = append(h.Faults, Fault{Position: f.Position, Column: f.Column, Cause: f.Cause,
			Substitute: f.Substitute})
		h.FaultRows = append(h.FaultRows, f.Row-first)
	}
	return h, nil
}

// rows is how many rows there are.
func (h *Held) rows() int64 {
	if len(h.Parts) == 0 {
		return int64(len(h.Positions))
	}
	return h.Parts[len(h.Parts)-1].Row + 1 - h.Row
}

// LastEpoch is the epoch of the last row that a piece delivered. The job shuffles.
func LastEpoch(j *resolve.Job, p *lineage.Piece) (uint64, error) {
	c, err := newCover(j, p.Head.Ticket)
	if err != nil {
		return 0, err
	}
	return c.t.Shuffle.Epoch + uint64(c.lastOffset(p.Rows)), nil
}

// cover maps the rows that a ticket covers to numbers: 0 is row t.Row of step t.Step, in
// the plan's order. It computes and does not iterate, so a step at the end of an epoch
// costs as much as the first one.
type cover struct {
	walk      walk // at the ticket's first row
	t         schema.Ticket
	gone      int64 // rows after t.Row of t.Step that were delivered before the stream began (t.Served)
	firstRows int64 // rows of the first epoch
	laterRows int64 // rows of each later one
}

func newCover(j *resolve.Job, t schema.Ticket) (*cover, error) {
	w, err := newWalk(j, t)
	if err != nil {
		return nil, err
	}
	c := &cover{walk: w, t: t}
	for _, b := range t.Served {
		c.gone += int64(bits.OnesCount8(b))
	}
	c.firstRows = c.rowsTo(w.step, w.stop) - t.Row
	c.laterRows = c.rowsTo(w.first, w.stop)
	return c, nil
}

// rowsTo is how many rows the rank's shares have in the steps from from to before to.
func (c *cover) rowsTo(from, to int64) int64 {
	if from >= to {
		return 0
	}
	return c.walk.plan.RowsFrom(from, c.walk.rank, c.walk.stride, to)
}

// offsetOf is the offset, from the ticket's epoch, of the epoch with a number, after rows
// rows were delivered. ok is false if the ticket does not have that epoch.
func (c *cover) offsetOf(epoch uint64, rows int64) (offset int64, ok bool) {
	if c.t.Shuffle != nil {
		offset = int64(epoch - c.t.Shuffle.Epoch)
		return offset, epoch >= c.t.Shuffle.Epoch && offset < c.walk.epochs
	}
	if epoch != 0 {
		return 0, false
	}
	return c.lastOffset(rows), true
}

// lastOffset is the epoch offset of the last one of that many delivered rows.
func (c *cover) lastOffset(rows int64) int64 {
	if left := rows + c.gone - c.firstRows; left > 0 && c.laterRows > 0 {
		return min((left+c.laterRows-1)/c.laterRows, c.walk.epochs-1)
	}
	return 0
}

// has reports whether the ticket covers a step.
func (c *cover) has(offset, step int64) bool {
	from := c.walk.first
	if offset == 0 {
		from = c.walk.step
	}
	return step >= from && step < c.walk.stop && (step-from)%c.walk.stride == 0
}

// at is a walk at the beginning of a share.
func (c *cover) at(offset, step int64) walk {
	w := c.walk
	w.epochOffset, w.step, w.plan = offset, step, w.job.PlanOf(offset)
	w.share()
	return w
}

// before is the number of a share's first row.
func (c *cover) before(offset, step int64) int64 {
	if offset == 0 {
		return c.rowsTo(c.walk.step, step) - c.t.Row
	}
	return c.firstRows + (offset-1)*c.laterRows + c.rowsTo(c.walk.first, step)
}

// find is a walk at a numbered row.
func (c *cover) find(row int64) walk {
	offset, from := int64(0), c.walk.step
	row += c.t.Row // counted from the beginning of the epoch's first share
	if all := c.firstRows + c.t.Row; row >= all && c.laterRows > 0 {
		offset, from = 1+(row-all)/c.laterRows, c.walk.first
		row = (row - all) % c.laterRows
	}
	// Shares of whole steps have the same length, and only the last step of an epoch may be shorter.
	lo, hi := c.walk.plan.ShareSequences(from, c.walk.rank)
	steps, full := (c.walk.stop-1-from)/c.walk.stride, hi-lo
	if full > 0 {
		steps = min(row/full, steps)
	}
	w := c.at(offset, from+steps*c.walk.stride)
	w.at += row - steps*full
	return w
}

// positions appends the positions of a range of rows to h, and their parts and source
// epochs if they have any.
func (c *cover) positions(ctx context.Context, r lineage.Range, h *Held) error {
	for r.From < r.To {
		w := c.find(r.From)
		n := min(r.To-r.From, w.left())
		if n < 1 {
			return fmt.Errorf("%w: row %d of a stream is not covered by its ticket", schema.ErrDataLoss, r.From)
		}
		shared, known := w.shared()
		if !known {
			var err error
			if shared, err = w.job.Shared(ctx, w.epochOffset, w.step); err != nil {
				return err
			}
		}
		if w.packed() {
			for _, p := range w.parts(n) {
				h.Parts = append(h.Parts, Part{p.Sequence - w.lo, p.From, p.Length})
			}
		}
		h.Positions = append(h.Positions, w.samples(shared, n)...)
		if w.job.Alone() == nil {
			for i := range n {
				h.SourceEpochs = append(h.SourceEpochs, w.job.SourceEpoch(w.plan, w.at+i))
			}
		}
		r.From += n
	}
	return nil
}

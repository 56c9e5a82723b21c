// Package plan computes the order of an epoch: which sample is served at which
// step to which rank, and, the other way round, when a sample is served next.
//
// A [Plan] is a pure function of its [Config]. The order is a keyed permutation
// ([Perm]) of a [Selection] of positions, computed per index together with its
// inverse, so nothing is shuffled or kept: epoch 900 costs what epoch 0 costs,
// and a plan over 10^9 samples is a few hundred bytes. The global batch of a
// step does not depend on the number of ranks, which share it out among them;
// a job stopped at step k on 8 ranks goes on at step k on 6.
//
// The order for given numbers never changes from one release to the next: the
// tickets that clients keep name places in it.
//
// The package does no I/O, reads no clock, draws no randomness of its own and
// starts no goroutine. Everything in it, once built, is immutable and safe for
// concurrent use. Only windows of [Buckets] allocate in queries.
package plan

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"bowstring/schema"
)

// Remainder says what becomes of the samples that do not fill a last batch.
type Remainder int

const (
	// Drop leaves them out: every batch is full. With fewer samples than a batch
	// the epoch has no step at all.
	Drop Remainder = iota
	// Pad fills the last batch with samples from the start of the epoch's order,
	// going round as often as it takes.
	Pad
	// Uneven serves them as a last, short batch.
	Uneven
)

var remainders = [...]string{Drop: "drop", Pad: "pad", Uneven: "uneven"}

// String returns the word that requests use.
func (r Remainder) String() string {
	if r < 0 || int(r) >= len(remainders) {
		return strconv.Itoa(int(r))
	}
	return remainders[r]
}

// ParseRemainder reads the word that requests use, the empty one being
// "uneven". The error is a [schema.FieldError].
func ParseRemainder(s string) (Remainder, error) {
	if s == "" {
		return Uneven, nil
	}
	for r, word := range remainders {
		if s == word {
			return Remainder(r), nil
		}
	}
	return 0, &schema.FieldError{Field: "remainder", Got: strconv.Quote(s), Want: `"drop", "pad" or "uneven"`}
}

// Config is what a plan is a function of, beside the world size: two plans with
// equal configurations are the same on any machine and in any release.
type Config struct {
	// Selection is the samples of the epoch; n below is its length.
	Selection Selection
	// Mix, in the place of Selection, has an epoch be drawn from several sources. It says how each is shuffled, n below is
	// the rows of its epoch, and positions are those of all sources together. Shuffle and Epoch say which epoch it is, and
	// nothing else of how samples are shuffled counts. It is made for this Batch and this Remainder; where
	// documents are packed, for ones of its own, which count documents.
	Mix *Mix
	// Shuffle permutes them by Seed and Epoch. Otherwise they come in ascending
	// order of position and the two are ignored.
	Shuffle     bool
	Seed, Epoch uint64
	// BlockRows, if it is not 0, makes the shuffle one of blocks with that many consecutive
	// samples each. Blocks are permuted, and samples within clusters of ClusterBlocks blocks.
	BlockRows, ClusterBlocks int64
	// Batch is the number of rows of a global batch, over all ranks; at least 1.
	Batch int64
	// World is the number of ranks, at least 1. It decides only who serves which
	// part of a global batch. With more ranks than rows in a batch, the shares of
	// some are empty.
	World int
	// Remainder is what becomes of the last n mod Batch samples.
	Remainder Remainder
	// Buckets has samples of like length go together; nil where lengths count for nothing. It is
	// made for windows of whole batches of these samples, in these numbers of rows, and goes along to other epochs.
	Buckets *Buckets
	// Pack has samples be documents, which are packed into sequences; nil where a row is a sample. Batch and Remainder
	// count sequences then. It is made for these samples in this order, and goes along to other epochs and worlds.
	Pack *Pack
	// Weights, where they are not nil, have samples come by weight, and Balance by class: EpochRows of them an epoch, in
	// the place of each sample once. They are those of the Selection. With Replacement samples are drawn, without it dealt.
	// They go with Shuffle alone, and one without the other.
	Weights     *SampleWeights
	Replacement bool
	Balance     *Balance
	EpochRows   int64
}

// Plan is the order of one epoch and how ranks share it out.
//
// The epoch's order has Rows() indices, from 0. Step k is the global batch of
// indices [k·Batch, (k+1)·Batch), the last one possibly short, for any world
// size. If a global batch has b rows, rank r of w serves its contiguous indices
// from ⌊r·b/w⌋ to ⌊(r+1)·b/w⌋, so that shares differ by one row at most.
//
// Every method takes constant time, with two exceptions: the Selection finds a position
// with a binary search in its directory at most, and windows of Buckets are sorted when
// they are first used. A Plan is immutable and safe for concurrent use.
type Plan struct {
	cfg       Config
	selection Selection // every position, if there are several sources
	n         int64     // samples of the epoch
	rows      int64     // indices in the epoch's order
	sequences int64     // rows of streams: rows, where nothing is packed
	steps     int64
	order     order
	packed    *packed // nil where nothing is
}

// New makes the plan of an epoch. The error is a [schema.FieldError] that names
// the field as requests do.
func New(cfg Config) (*Plan, error) {
	selection, n, err := cfg.samples()
	if err != nil {
		return nil, err
	}
	if cfg.Batch < 1 {
		return nil, &schema.FieldError{Field: "batch", Got: strconv.FormatInt(cfg.Batch, 10), Want: "1 row or more"}
	}
	if cfg.World < 1 {
		return nil, &schema.FieldError{Field: "world.size", Got: strconv.Itoa(cfg.World), Want: "1 rank or more"}
	}

	if err := checkBlocks(&cfg); err != nil {
		return nil, err
	}
	p := &Plan{cfg: cfg, selection: selection, n: n, sequences: n, order: newOrder(&cfg, n)}
	if cfg.Pack != nil {
		if err := p.pack(); err != nil {
			return nil, err
		}
	}
	if err := p.fill(); err != nil {
		return nil, err
	}
	p.rows = p.sequences
	if p.packed != nil {
		if err := p.packed.checkRounds(cfg.Batch); err != nil {
			return nil, err
		}
		p.rows = p.packed.first(p.sequences)
	}
	if b := cfg.Buckets; b != nil && b.rows%cfg.Batch != 0 {
		return nil, fmt.Errorf("%w: windows of %d rows in batches of %d", schema.ErrInvalid, b.rows, cfg.Batch)
	}
	return p, nil
}

// fill says how many rows the epoch has, and steps, by what the remainder says.
func (p *Plan) fill() error {
	n, cfg := p.sequences, &p.cfg
	p.steps = n / cfg.Batch
	rest := n % cfg.Batch
	switch cfg.Remainder {
	case Drop:
		p.sequences -= rest
	case Pad:
		if rest != 0 {
			fill := cfg.Batch - rest
			if n > math.MaxInt64-fill {
				return &schema.FieldError{
					Field: "batch",
					Got:   strconv.FormatInt(cfg.Batch, 10),
					Want:  fmt.Sprintf("a size that pads the %d rows to less than 2^63", n),
				}
			}
			p.sequences += fill
			p.steps++
		}
	case Uneven:
		if rest != 0 {
			p.steps++
		}
	default:
		return &schema.FieldError{Field: "remainder", Got: cfg.Remainder.String(),
			Want: `"drop", "pad" or "uneven"`}
	}
	return nil
}

// samples is what an epoch is made of, and how many there are.
func (c *Config) samples() (Selection, int64, error) {
	if c.Mix != nil {
		n, err := c.Mix.rowsOf(c)
		return All(math.MaxInt64), n, err
	}
	if c.Selection == nil {
		return nil, 0, &schema.FieldError{Field: "selection", Got: "none", Want: "the positions to serve"}
	}
	n := c.Selection.Len()
	if n < 0 {
		return nil, 0, &schema.FieldError{Field: "selection", Got: fmt.Sprintf("%d rows", n), Want: "0 rows or more"}
	}
	if c.Weights != nil || c.Balance != nil {
		return c.Selection, c.EpochRows, checkSample(c)
	}
	return c.Selection, n, nil
}

// Config returns what the plan was made of.
func (p *Plan) Config() Config { return p.cfg }

// Steps is the number of steps of the epoch, the same for every rank.
func (p *Plan) Steps() int64 { return p.steps }

// Rows is the number of indices of the epoch's order: of rows served, over all ranks; where documents are packed, of
// their pieces. [Plan.Sequences] is the number of rows then.
func (p *Plan) Rows() int64 { return p.rows }

// Dropped is the number of selected samples that the remainder leaves out; of pieces, where documents are packed.
func (p *Plan) Dropped() int64 { return max(0, p.all()-p.rows) }

// Padded is the number of indices that repeat a sample, or a piece, to fill the last batch.
func (p *Plan) Padded() int64 { return max(0, p.rows-p.all()) }

// all is how many samples, or pieces, there are.
func (p *Plan) all() int64 {
	if p.packed != nil {
		return p.packed.table.sum.Pieces
	}
	return p.n
}

// RankRows is the number of rows that a rank serves in the epoch; 0 if there is
// no such rank.
func (p *Plan) RankRows(rank int) int64 { return p.RowsFrom(0, rank, 1, p.steps) }

// RowsFrom is the number of rows that a rank serves in the steps step,
// step+stride, step+2·stride and so on below stop and Steps(): what a ticket for
// them yields. It is 0 if there is no such rank or step, and panics if stride is
// less than 1.
func (p *Plan) RowsFrom(step int64, rank int, stride, stop int64) int64 {
	if stride < 1 {
		panic(fmt.Sprintf("plan: stride of %d steps", stride))
	}
	stop = min(stop, p.steps)
	if step < 0 || step >= stop {
		return 0
	}
	more := (stop - 1 - step) / stride     // steps after the first
	lo, hi := p.ShareSequences(step, rank) // full unless it is the last step, and then more is 0
	rows := (hi - lo) * more
	lo, hi = p.ShareSequences(step+more*stride, rank)
	return rows + hi - lo
}

// Share returns the indices [lo, hi) of the epoch's order that a rank serves in
// a step. It is empty if the plan has no such step or rank.
func (p *Plan) Share(step int64, rank int) (lo, hi int64) {
	if lo, hi = p.ShareSequences(step, rank); p.packed != nil {
		lo, hi = p.packed.first(lo), p.packed.first(hi)
	}
	return lo, hi
}

// Rank returns which rank serves an index of the epoch's order: the inverse of
// Share. It panics unless 0 <= index < Rows().
func (p *Plan) Rank(index int64) int {
	index = p.Sequence(index)
	start, size := p.batch(index / p.cfg.Batch)
	// ⌊r·size/world⌋ <= at < ⌊(r+1)·size/world⌋ just if r < (at+1)·world/size <= r+1.
	hi, lo := bits.Mul64(uint64(index-start+1), uint64(p.cfg.World))
	lo, borrow := bits.Sub64(lo, 1, 0)
	r, _ := bits.Div64(hi-borrow, lo, uint64(size))
	return int(r)
}

// batch returns the first row of a step's global batch and its number of rows.
func (p *Plan) batch(step int64) (start, size int64) {
	start = step * p.cfg.Batch
	return start, min(p.cfg.Batch, p.sequences-start)
}

// Position returns the position in the snapshot of the sample at an index of the
// epoch's order. It panics unless 0 <= index < Rows().
func (p *Plan) Position(index int64) int64 {
	p.check(index)
	switch {
	case p.packed != nil:
		index = p.packed.document(index)
	case p.cfg.Buckets != nil:
		index = p.cfg.Buckets.at(p, index)
	}
	return p.plain(index)
}

// check panics unless there is an index.
func (p *Plan) check(index int64) {
	if index < 0 || index >= p.rows {
		panic(fmt.Sprintf("plan: index %d in an epoch of %d rows", index, p.rows))
	}
}

// plain is Position as if there were no buckets, and nothing were packed.
func (p *Plan) plain(index int64) int64 {
	if index >= p.n { // padding
		index %= p.n
	}
	return p.selection.At(p.order.at(index))
}

// Index returns where in the epoch's order the sample at a position is: the
// inverse of Position, and the first time it is served where padding or the order repeats it
// and there are no buckets. ok is false if the position is not selected, or not served.
func (p *Plan) Index(pos int64) (index int64, ok bool) {
	if p.packed != nil {
		return p.Next(pos, 0)
	}
	index, ok = p.About(pos)
	if ok && p.cfg.Buckets != nil {
		index = p.cfg.Buckets.index(p, index)
	}
	return index, ok
}

// Exact reports whether About is as good as Index.
func (p *Plan) Exact() bool {
	o, guesses := p.order.(estimating)
	return p.cfg.Buckets == nil && p.packed == nil && (!guesses || !o.estimates())
}

// About is Index, but that it says no more than the window where there are buckets, or documents are packed: it is
// less than a window off. It takes constant time.
func (p *Plan) About(pos int64) (index int64, ok bool) {
	sample, ok := p.selection.Index(pos)
	if !ok {
		return 0, false
	}
	index, ok = p.order.next(sample, 0)
	if ok && p.packed != nil {
		index, ok = p.packed.about(pos, index)
	}
	if !ok || index >= p.rows {
		return 0, false
	}
	return index, true
}

// Next returns the first index, from an index on, at which the sample at a position is served: by the order, which may
// have it several times, or by padding. ok is false if there is none.
func (p *Plan) Next(pos, from int64) (index int64, ok bool) {
	sample, ok := p.selection.Index(pos)
	from = max(from, 0)
	if !ok || from >= p.rows {
		return 0, false
	}
	if p.packed != nil {
		index, ok = p.packed.next(pos, from)
		return index, ok && index < p.rows
	}
	if p.cfg.Buckets != nil {
		return p.nextByLength(sample, from)
	}
	// Padding repeats the order from its start.
	for round := from / p.n; round <= p.rows/p.n; round++ {
		start := round * p.n
		if i, ok := p.order.next(sample, max(from-start, 0)); ok && i < p.n {
			index, carry := bits.Add64(uint64(start), uint64(i), 0)
			return int64(index), carry == 0 && index < uint64(p.rows)
		}
		if start > from {
			break // a whole round without it
		}
	}
	return 0, false
}

// nextByLength is Next where there are buckets. These go with orders that have each sample once, so that it is repeated
// by padding alone.
func (p *Plan) nextByLength(sample, from int64) (index int64, ok bool) {
	first, ok := p.order.next(sample, 0)
	if !ok {
		return 0, false
	}
	index = math.MaxInt64
	for at := uint64(first); at < uint64(p.rows); at += uint64(p.n) {
		if i := p.cfg.Buckets.index(p, int64(at)); i >= from {
			index = min(index, i)
		}
	}
	return index, index < p.rows
}

// Source says which source of a mixture the row at an index is of, and how many rows of that source come before it, in
// this epoch and all before. It panics unless 0 <= index < Rows() and there is a mixture.
func (p *Plan) Source(index int64) (source int, before int64) {
	p.check(index)
	if p.packed != nil {
		index = p.packed.document(index)
	}
	return p.order.(*mixed).source(index % p.n)
}

// mulDiv returns ⌊x·y/z⌋ for 0 <= x <= z, 0 <= y and 0 < z, whatever the size
// of the product.
func mulDiv(x, y, z int64) int64 {
	hi, lo := bits.Mul64(uint64(x), uint64(y))
	q, _ := bits.Div64(hi, lo, uint64(z))
	return int64(q)
}

// Batch returns the first index of a step's global batch and its number of indices, 0 if the
// plan has no such step.
func (p *Plan) Batch(step int64) (start, size int64) {
	if step < 0 || step >= p.steps {
		return 0, 0
	}
	if start, size = p.batch(step); p.packed != nil {
		end := p.packed.first(start + size)
		start = p.packed.first(start)
		size = end - start
	}
	return start, size
}

package plan

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"slices"
	"sort"
	"strconv"

	"bowstring/schema"
)

// Pick says what sources take turns with.
type Pick int

const (
	// PickRandom has rows take turns, at random as far as every prefix stays near the weights.
	PickRandom Pick = iota
	// PickExact has each batch be as near to the weights as whole rows can be; within it, rows are in random order.
	PickExact
	// PickOneSource has whole batches take turns.
	PickOneSource
)

// End says what becomes of a source that has been read to its end.
type End int

const (
	// Reshuffle begins the source's next epoch, in an order of its own.
	Reshuffle End = iota
	// Stop has the mixture's epoch be no longer than this source's.
	Stop
	// Leave has the source leave the mixture for good. The others go on, by their weights.
	Leave
)

// MaxSources bounds the sources of a mixture, and MaxChanges how often their weights may change.
const (
	MaxSources = schema.MaxSources
	MaxChanges = schema.MaxSegments
)

// maxMixed bounds the rows of all epochs of a mixture together.
const maxMixed = schema.MaxEpochSize

// Source is one source of a mixture.
type Source struct {
	// Selection is its samples.
	Selection Selection
	// Base and Positions map the source's positions, from 0, to the mixture's positions
	// from Base to Base+Positions. The ranges are in the order of the sources, and disjoint.
	Base, Positions int64
	// Shuffle, Seed, BlockRows and ClusterBlocks are as in a Config. Its epochs have numbers of their own, from 0.
	Shuffle                  bool
	Seed                     uint64
	BlockRows, ClusterBlocks int64
	End                      End
}

// Change gives the sources other weights from a step on, counted over all epochs.
type Change struct {
	Step    int64
	Weights []uint64
}

// MixConfig is what a mixture is a function of.
type MixConfig struct {
	Sources []Source
	// Weights are those that the sources begin with, of which only the ratios count. Their sum is less than 2^62. Counts
	// are exact by these numbers, see [Weights].
	Weights []uint64
	// Changes of weights are in ascending order of steps.
	Changes []Change
	// Rows is the rows of an epoch; 0 for as many as the sources have that have a weight. Where sources are to Stop, it
	// may be less, see [Mix.EpochRows].
	Rows int64
	// Batch and Remainder are as in a Config. Steps are counted by them.
	Batch     int64
	Remainder Remainder
	Pick      Pick
	// Seed says how sources take turns, as far as that is random.
	Seed uint64
	// Begin is the epoch that the mixture begins with, and Counts is how many rows of each source were served before it;
	// nil for none. Epochs before are not known.
	Begin  uint64
	Counts []int64
}

// Mix is what a mixture serves, over all its epochs: one sequence of rows that the epochs are cut from, each as long as
// the others. A row is named by its source and by how many rows of that source come before it; of a source with n
// samples, row k is sample k mod n of its own epoch ⌊k/n⌋. So nothing is lost or doubled where weights change, epochs
// end, or sources do, and all of it is computed by index: in a walk through a tree of the sources and one permutation.
//
// The sequence is cut into segments where the weights change. Each carries the counts of the sources over from the one
// before, and what they are owed.
//
// A Mix is immutable and safe for concurrent use. It allocates nothing when asked.
type Mix struct {
	cfg      MixConfig
	sources  []Source
	lens     []int64 // of the sources' selections
	unit     int64   // rows that take turns together
	rows     int64   // of an epoch
	ends     int64   // rows of all epochs, after which no source is left
	segments []segment
	bound    float64
}

// segment is a part of the sequence in which weights stay as they are. It is counted in turns.
type segment struct {
	start  int64   // from the beginning of the mixture
	counts []int64 // turns that each source had before
	*sharing
}

// NewMix makes a mixture. The error is a [schema.FieldError] that names the field as requests do.
func NewMix(cfg MixConfig) (*Mix, error) {
	m := &Mix{cfg: cfg, sources: slices.Clone(cfg.Sources), unit: 1}
	if cfg.Pick == PickOneSource {
		m.unit = cfg.Batch
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := m.setRows(); err != nil {
		return nil, err
	}
	m.grow(maxMixed/m.unit, m.changes())
	if len(m.segments) == 0 {
		return nil, &schema.FieldError{Field: "mixture.carried.rows", Got: "sources that all leave and were read to their end",
			Want: "one source or more that is left"}
	}
	return m, nil
}

func (m *Mix) check() error {
	c := &m.cfg
	if n := len(c.Sources); n < 1 || n > MaxSources {
		return &schema.FieldError{Field: "mixture.sources", Got: fmt.Sprintf("%d sources", n),
			Want: fmt.Sprintf("1 to %d", MaxSources)}
	}
	if c.Batch < 1 {
		return &schema.FieldError{Field: "batch", Got: strconv.FormatInt(c.Batch, 10), Want: "1 row or more"}
	}
	if c.Pick < PickRandom || c.Pick > PickOneSource {
		return &schema.FieldError{Field: "mixture.pick", Got: strconv.Itoa(int(c.Pick)), Want: "one of those that there are"}
	}
	if n := len(c.Changes); n > MaxChanges {
		return &schema.FieldError{Field: "mixture.schedule", Got: fmt.Sprintf("%d changes of weights", n),
			Want: fmt.Sprintf("at most %d", MaxChanges)}
	}
	var end int64
	for j := range c.Sources {
		s, field := &c.Sources[j], fmt.Sprintf("mixture.sources[%d]", j)
		if s.Base < end || s.Positions < 0 || s.Positions > math.MaxInt64-s.Base {
			return fmt.Errorf("%w: %s has %d positions from %d on, and those before end at %d", schema.ErrInvalid, field,
				s.Positions, s.Base, end)
		}
		end = s.Base + s.Positions
		n := s.Selection.Len()
		if n > maxMixed {
			return &schema.FieldError{Field: field, Got: fmt.Sprintf("%d samples", n),
				Want: fmt.Sprintf("at most %d", int64(maxMixed))}
		}
		m.lens = append(m.lens, n)
		if err := checkBlocks(&Config{BlockRows: s.BlockRows, ClusterBlocks: s.ClusterBlocks}); err != nil {
			return err
		}
	}
	if err := m.checkWeights(c.Weights, "mixture.sources"); err != nil {
		return err
	}
	for i, change := range c.Changes {
		field := fmt.Sprintf("mixture.schedule[%d]", i)
		if change.Step < 0 || i > 0 && change.Step <= c.Changes[i-1].Step {
			return &schema.FieldError{Field: field + ".step", Got: strconv.FormatInt(change.Step, 10),
				Want: "steps in ascending order"}
		}
		if err := m.checkWeights(change.Weights, field); err != nil {
			return err
		}
	}
	return m.checkCounts()
}

func (m *Mix) checkWeights(weights []uint64, field string) error {
	if len(weights) != len(m.cfg.Sources) {
		return fmt.Errorf("%w: %s: %d weights of %d sources", schema.ErrInvalid, field, len(weights), len(m.cfg.Sources))
	}
	var sum uint64
	for j, w := range weights {
		if w >= never || sum+w >= never {
			return fmt.Errorf("%w: %s: the sum of the weights is 2^62 or more", schema.ErrInvalid, field)
		}
		sum += w
		if w > 0 && m.lens[j] < m.unit {
			return &schema.FieldError{Field: fmt.Sprintf("mixture.sources[%d]", j), Got: fmt.Sprintf("%d samples", m.lens[j]),
				Want: fmt.Sprintf("%d or more, or weight 0", m.unit)}
		}
	}
	if sum == 0 {
		return &schema.FieldError{Field: field, Got: "weights that are all 0",
			Want: "one source or more with a weight above 0"}
	}
	return nil
}

func (m *Mix) checkCounts() error {
	c := &m.cfg
	if c.Counts == nil {
		m.cfg.Counts = make([]int64, len(c.Sources))
		return nil
	}
	if len(c.Counts) != len(c.Sources) {
		return &schema.FieldError{Field: "mixture.carried.rows", Got: fmt.Sprintf("%d numbers", len(c.Counts)),
			Want: fmt.Sprintf("one for each of the %d sources", len(c.Sources))}
	}
	for j, n := range c.Counts {
		if n < 0 || n > maxMixed || n%m.unit != 0 || c.Sources[j].End == Leave && n > m.lens[j] {
			return &schema.FieldError{Field: fmt.Sprintf("mixture.carried.rows[%d]", j), Got: strconv.FormatInt(n, 10),
				Want: "how many rows of the source were served before: from 0, in whole batches if these are of one source each, " +
					"and no more than a source has that leaves"}
		}
	}
	return nil
}

// setRows finds out how long an epoch is.
func (m *Mix) setRows() error {
	c := &m.cfg
	rows := c.Rows
	if rows == 0 {
		for j, n := range m.lens {
			if c.Weights[j] == 0 {
				continue
			}
			if n > maxMixed-rows {
				return &schema.FieldError{Field: "mixture.epoch_size", Got: "none",
					Want: "one, as the sources have 2^62 rows or more"}
			}
			rows += n
		}
	}
	if rows < 1 || rows > maxMixed {
		return &schema.FieldError{Field: "mixture.epoch_size", Got: strconv.FormatInt(rows, 10),
			Want: fmt.Sprintf("1 to %d rows", int64(maxMixed))}
	}
	m.rows = rows - rows%m.unit
	if m.rows == 0 {
		return &schema.FieldError{Field: "mixture.epoch_size", Got: fmt.Sprintf("%d rows", rows),
			Want: fmt.Sprintf("one batch of %d or more, as each is of one source", m.unit)}
	}
	if c.Begin > 0 || !slices.ContainsFunc(c.Sources, func(s Source) bool { return s.End == Stop }) {
		return nil
	}
	// The first epoch ends where a source has its first turn too many, and all others are as long. A change of weights in
	// a last batch that is left out is one of the next epoch then, so that it may end sooner still.
	for rows = 0; rows != m.rows; {
		rows = m.rows
		m.grow(rows/m.unit, m.changes())
		for j, s := range c.Sources {
			if s.End == Stop && len(m.segments) > 0 {
				m.rows = min(m.rows, mulSat(m.place(j, m.lens[j]/m.unit), m.unit))
			}
		}
	}
	return nil
}

// mulSat is a product of two numbers from 0, or maxMixed if that is less.
func mulSat(x, y int64) int64 {
	if hi, lo := bits.Mul64(uint64(x), uint64(y)); hi == 0 && lo < maxMixed {
		return int64(lo)
	}
	return maxMixed
}

// changes is at which turns weights change.
func (m *Mix) changes() (turns []int64) {
	for _, c := range m.cfg.Changes {
		turns = append(turns, max(0, m.stepStart(c.Step))/m.unit)
	}
	return turns
}

// EpochSteps is how many steps an epoch has.
func (m *Mix) EpochSteps() int64 {
	steps := m.rows / m.cfg.Batch
	if m.cfg.Remainder != Drop && m.rows%m.cfg.Batch != 0 {
		steps++
	}
	return steps
}

// stepStart is the row, from the mixture's beginning on, that a step begins with which is counted over all epochs. It
// is less than 0 for steps before the beginning.
func (m *Mix) stepStart(step int64) int64 {
	steps := m.EpochSteps()
	if steps == 0 {
		return maxMixed
	}
	epoch := uint64(step / steps)
	if epoch < m.cfg.Begin {
		return -1
	}
	return min(mulSat(int64(epoch-m.cfg.Begin), m.rows)+step%steps*m.cfg.Batch, maxMixed)
}

// grow makes the segments up to a turn. A source that leaves ends one, as a change does.
func (m *Mix) grow(turns int64, changes []int64) {
	m.segments, m.bound, m.ends = nil, 0, maxMixed
	n := len(m.sources)
	weights, owed := slices.Clone(m.cfg.Weights), make([]int64, n)
	counts := make([]int64, n)
	for j := range counts {
		counts[j] = m.cfg.Counts[j] / m.unit
	}
	next := 0
	for start := int64(0); start < turns; {
		for ; next < len(changes) && changes[next] <= start; next++ {
			copy(weights, m.cfg.Changes[next].Weights)
		}
		var whole uint64
		var left int64 // what those who leave are owed, which the others share
		for j := range weights {
			if m.sources[j].End == Leave && counts[j] >= m.lens[j]/m.unit {
				weights[j] = 0
				left, owed[j] = left+owed[j], 0
			}
			whole += weights[j]
		}
		if whole == 0 { // no source is left
			m.ends = start * m.unit
			return
		}
		end := turns
		if next < len(changes) {
			end = min(end, changes[next])
		}
		for j, w := range weights {
			owed[j] += partOf(big.NewInt(left), w, whole).Int64()
		}
		s := newSharing(weights, owed, mixSeed(m.cfg.Seed, start), m.cfg.Pick != PickExact)
		m.segments = append(m.segments, segment{start, slices.Clone(counts), s})
		m.bound = max(m.bound, s.bound)
		for j, src := range m.sources {
			if src.End == Leave && weights[j] > 0 {
				end = min(end, start+int64(min(s.place(j, uint64(m.lens[j]/m.unit-counts[j])), uint64(turns-start))))
			}
		}
		for j := range weights {
			had := int64(s.count(j, uint64(end-start)))
			owed[j] = owing(owed[j], weights[j], whole, end-start, had)
			counts[j] += had
		}
		start = end
	}
}

// EpochRows is how many rows an epoch has, before what a last, incomplete batch leaves out or adds.
func (m *Mix) EpochRows() int64 { return m.rows }

// Bound is by how many rows, or with PickOneSource batches, a source can be off at most, in any prefix, from what its
// weights say. It is 1 for up to four sources, and for some weights of more up to 1.2, while weights stay as they are.
// Where they change, it is more if a source had too many when its weight became small.
func (m *Mix) Bound() float64 { return max(m.bound, 1) }

// Sources is how many sources there are.
func (m *Mix) Sources() int { return len(m.sources) }

// rowsOf is how many rows a plan's epoch has.
func (m *Mix) rowsOf(c *Config) (int64, error) {
	if c.Selection != nil || c.BlockRows != 0 || c.Buckets != nil {
		return 0, fmt.Errorf("%w: a mixture with a selection, blocks or buckets of its own", schema.ErrInvalid)
	}
	if c.Pack == nil && (c.Batch != m.cfg.Batch || c.Remainder != m.cfg.Remainder) {
		return 0, fmt.Errorf("%w: a mixture for batches of %d and remainder %s in a plan of %d and %s", schema.ErrInvalid,
			m.cfg.Batch, m.cfg.Remainder, c.Batch, c.Remainder)
	}
	last := m.lastEpoch()
	if e := c.mixEpoch(); e < m.cfg.Begin || e > last {
		return 0, &schema.FieldError{Field: "shuffle.epoch", Got: strconv.FormatUint(e, 10),
			Want: fmt.Sprintf("%d to %d, as an epoch of the mixture has %d rows", m.cfg.Begin, last, m.rows)}
	}
	return max(0, min(m.rows, m.ends-m.startOf(c))), nil
}

// lastEpoch is the last epoch whose rows are counted.
func (m *Mix) lastEpoch() uint64 { return m.cfg.Begin + uint64(maxMixed/m.rows) - 1 }

// LastEpoch is the last epoch that there is a plan of.
func (p *Plan) LastEpoch() uint64 {
	if p.cfg.Mix == nil || !p.cfg.Shuffle { // without a shuffle, all epochs are alike
		return math.MaxUint64
	}
	return p.cfg.Mix.lastEpoch()
}

// startOf is the row of the mixture that a plan's epoch begins with.
func (m *Mix) startOf(c *Config) int64 { return int64(c.mixEpoch()-m.cfg.Begin) * m.rows }

// mixEpoch is which epoch of its mixture a plan is of.
func (c *Config) mixEpoch() uint64 {
	if !c.Shuffle {
		return c.Mix.cfg.Begin
	}
	return c.Epoch
}

// MixtureStep is which step of its mixture a step of the epoch is, counted over all epochs.
func (p *Plan) MixtureStep(step int64) int64 {
	c := &p.cfg
	return int64(c.mixEpoch())*c.Mix.EpochSteps() + step
}

// lastSegment is the last one that meets a condition, the first one in any case. Those before it meet it, too.
func (m *Mix) lastSegment(meets func(*segment) bool) *segment {
	return &m.segments[sort.Search(len(m.segments)-1, func(i int) bool { return !meets(&m.segments[i+1]) })]
}

// segmentAt is the segment that has a turn.
func (m *Mix) segmentAt(turn int64) *segment {
	return m.lastSegment(func(s *segment) bool { return s.start <= turn })
}

// turn says which source has a turn, and how many it had before.
func (m *Mix) turn(turn int64) (source int, before int64) {
	s := m.segmentAt(turn)
	source, had := s.at(uint64(turn - s.start))
	return source, s.counts[source] + int64(had)
}

// turns is how many turns a source has before a turn, those before the mixture's beginning included.
func (m *Mix) turns(source int, turn int64) int64 {
	s := m.segmentAt(turn)
	return s.counts[source] + int64(s.count(source, uint64(turn-s.start)))
}

// place is the place of a source's turn that follows before earlier ones; maxMixed if the
// source never has it, or had it before the mixture's beginning.
func (m *Mix) place(source int, before int64) int64 {
	s := m.lastSegment(func(s *segment) bool { return s.counts[source] <= before })
	if before < s.counts[source] {
		return maxMixed
	}
	at := s.place(source, uint64(before-s.counts[source]))
	if at >= uint64(maxMixed-s.start) {
		return maxMixed
	}
	return s.start + int64(at)
}

// row says of which source a row of the mixture is, and how many of that source's come before.
func (m *Mix) row(row int64) (source int, before int64) {
	if m.unit == 1 {
		return m.turn(row)
	}
	source, before = m.turn(row / m.unit)
	return source, before*m.unit + row%m.unit
}

// before is how many rows of a source come before a row of the mixture, or its end.
func (m *Mix) before(source int, row int64) int64 {
	row = min(row, m.ends)
	turn := row / m.unit
	n := m.turns(source, turn) * m.unit
	if rest := row % m.unit; rest > 0 {
		if now, _ := m.turn(turn); now == source {
			n += rest
		}
	}
	return n
}

// rowOf is the row of the mixture with a source's row that follows before earlier ones;
// maxMixed if there is none.
func (m *Mix) rowOf(source int, before int64) int64 {
	at := m.place(source, before/m.unit)
	if at >= maxMixed/m.unit {
		return maxMixed
	}
	if at = at*m.unit + before%m.unit; at >= m.ends {
		return maxMixed
	}
	return at
}

// position is the position of the sample in a source's row that follows before earlier ones.
func (m *Mix) position(source int, before int64) int64 {
	s, n := &m.sources[source], m.lens[source]
	epoch, index := uint64(before/n), before%n
	switch {
	case s.Shuffle && s.BlockRows > 0:
		b := newBlocks(n, s.BlockRows, s.ClusterBlocks, s.Seed, epoch)
		index = b.at(index)
	case s.Shuffle && n > tableSize:
		p := newFeistel(uint64(n), s.Seed, epoch)
		index = int64(p.value(uint64(index)))
	case s.Shuffle:
		p := NewPerm(uint64(n), s.Seed, epoch)
		index = int64(p.At(uint64(index)))
	}
	return s.Base + s.Selection.At(index)
}

// index is where a sample is in an epoch of its source.
func (m *Mix) index(source int, epoch uint64, sample int64) int64 {
	s, n := &m.sources[source], m.lens[source]
	switch {
	case s.Shuffle && s.BlockRows > 0:
		b := newBlocks(n, s.BlockRows, s.ClusterBlocks, s.Seed, epoch)
		return b.index(sample)
	case s.Shuffle && n > tableSize:
		p := newFeistel(uint64(n), s.Seed, epoch)
		return int64(p.place(uint64(sample)))
	case s.Shuffle:
		p := NewPerm(uint64(n), s.Seed, epoch)
		return int64(p.Index(uint64(sample)))
	}
	return sample
}

// SourceOf is the source that a position is of, and the position there. ok is false if it is of none.
func (m *Mix) SourceOf(position int64) (source int, there int64, ok bool) {
	source = sort.Search(len(m.sources), func(i int) bool { return m.sources[i].Base > position }) - 1
	if source < 0 || position-m.sources[source].Base >= m.sources[source].Positions {
		return 0, 0, false
	}
	return source, position - m.sources[source].Base, true
}

// mixed is the order of an epoch of a mixture: positions of the mixture by index.
type mixed struct {
	mix         *Mix
	start, rows int64 // in the mixture
}

// source is Plan.Source.
func (o *mixed) source(index int64) (source int, before int64) {
	if o.mix.cfg.Pick == PickExact {
		begin, rows := o.batch(index)
		index = begin + int64(rows.value(uint64(index-begin)))
	}
	return o.mix.row(o.start + index)
}

func (o *mixed) at(index int64) int64 { return o.mix.position(o.source(index)) }

// batch is where the batch of an index begins, and how its rows change places.
func (o *mixed) batch(index int64) (begin int64, rows feistel) {
	size := o.mix.cfg.Batch
	begin = index - index%size
	return begin, newFeistel(uint64(min(size, o.rows-begin)), o.mix.cfg.Seed, uint64(o.start+begin))
}

func (o *mixed) next(position, from int64) (index int64, ok bool) {
	m := o.mix
	j, position, ok := m.SourceOf(position)
	if !ok || from >= o.rows {
		return 0, false
	}
	sample, ok := m.sources[j].Selection.Index(position)
	if !ok {
		return 0, false
	}
	exact := m.cfg.Pick == PickExact
	first := o.start + from // the first row that may be it
	if exact {
		first -= from % m.cfg.Batch // any of the batch may be at from or behind it
	}
	n, before := m.lens[j], m.before(j, first)
	best := int64(-1)
	for epoch := before / n; ; epoch++ {
		k := m.index(j, uint64(epoch), sample)
		if k > math.MaxInt64-epoch*n {
			break
		}
		if k += epoch * n; k < before {
			continue
		}
		at := m.rowOf(j, k) - o.start
		if at >= o.rows {
			break
		}
		if !exact {
			return at, true
		}
		if best >= 0 && at/m.cfg.Batch > best/m.cfg.Batch {
			break
		}
		begin, rows := o.batch(at)
		if at = begin + int64(rows.place(uint64(at-begin))); at >= from && (best < 0 || at < best) {
			best = at
		}
		if best >= 0 && (epoch+1)*n-k >= m.cfg.Batch {
			break // its next epoch is beyond this batch
		}
	}
	return best, best >= 0
}

// Count is how many rows of a source are served before a step, counted over all epochs.
func (m *Mix) Count(source int, step int64) int64 {
	return m.before(source, max(0, m.stepStart(step)))
}

// Seen is what part of a source's samples has been served before a step, counted over all epochs.
func (m *Mix) Seen(source int, step int64) float64 {
	if m.lens[source] == 0 {
		return 0
	}
	return min(1, float64(m.Count(source, step))/float64(m.lens[source]))
}

// FirstPass is the step, counted over all epochs, in which the last sample of a source is served for the first time. ok
// is false if that is never, or was before the mixture's beginning.
func (m *Mix) FirstPass(source int) (step int64, ok bool) {
	n := m.lens[source]
	if m.cfg.Pick == PickOneSource && m.sources[source].End == Leave {
		n -= n % m.unit
	}
	at := m.rowOf(source, n-1)
	if n == 0 || at >= maxMixed {
		return 0, false
	}
	epoch := at / m.rows
	in := at % m.rows / m.cfg.Batch
	return mulSat(epoch+int64(m.cfg.Begin), m.EpochSteps()) + in, true
}

// Weights are whole numbers in the ratios of shares, none of which is less than 0. They are exact if their sum is less
// than 2^62 then, and else rounded to the 2^-61th part of the sum, but no share above 0 to 0.
func Weights(shares []*big.Rat) []uint64 {
	common, sum := commonOf(shares)
	weights := make([]uint64, len(shares))
	if sum.Sign() == 0 {
		return weights
	}
	scale := new(big.Rat).SetInt(common)
	if most := new(big.Rat).SetInt64(never - 1); new(big.Rat).Mul(sum, scale).Cmp(most) > 0 {
		scale.Quo(new(big.Rat).SetInt64(never/2), sum)
	}
	half := big.NewRat(1, 2)
	for j, s := range shares {
		w := new(big.Rat).Mul(s, scale)
		w.Add(w, half)
		weights[j] = new(big.Int).Div(w.Num(), w.Denom()).Uint64()
		if s.Sign() > 0 {
			weights[j] = max(weights[j], 1)
		}
	}
	return weights
}

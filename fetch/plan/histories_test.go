package plan

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"bowstring/schema"
)

// historySizes are the rows of the sources of a history. They are made up, as nothing but their number counts.
var historySizes = []int64{1e3, 3e4, 1e6, 3e7, 1e9}

// found is what a history has found.
type found struct {
	lost, doubled, off int64
	beyond             int64 // what is farther off than the bound of its mixture
	// prefix is by how many turns a source was off at most where the weights are those that it began with, and changed
	// is that since the beginning where they are others, with what is owed from before.
	prefix, changed float64
	ticket          int
}

// historyTicket is the ticket of a job with several sources whose weights change. whole says that each batch has quotas
// which are whole numbers.
func historyTicket(rng *rand.Rand) (t schema.Ticket, whole bool) {
	m := &schema.Mixture{EpochSize: 2000 + rng.Int64N(8000)}
	batch := 1 + rng.Int64N(300)
	percent := rng.IntN(3) == 0
	if percent { // whose batches have whole quotas
		batch = 100 * (1 + rng.Int64N(3))
		m.EpochSize = batch * (5 + rng.Int64N(30))
	}
	m.Pick = []string{schema.PickRandom, schema.PickExact, schema.PickOneSource}[rng.IntN(3)]
	weights := func() (list []float64) {
		kind := rng.IntN(4)
		for _, n := range historySizes {
			switch {
			case percent:
				list = append(list, 0)
			case kind == 0:
				list = append(list, float64(n)) // by size
			case kind == 1:
				list = append(list, math.Round(math.Pow(float64(n), 0.3)*1e6)/1e6) // by its root
			default:
				list = append(list, math.Round(rng.Float64()*1000)/1000)
			}
		}
		for left := 100; percent && left > 0; {
			part := 1 + rng.IntN(left)
			list[rng.IntN(len(list))] += float64(part)
			left -= part
		}
		if slices.Max(list) == 0 {
			list[0] = 1
		}
		return list
	}
	now := weights()
	for j := range historySizes {
		s := schema.MixtureSource{Name: fmt.Sprintf("source-%d", j), Dataset: fmt.Sprintf("dataset-%d", j),
			Snapshot: 1 + rng.Int64N(99), Split: "train", Weight: &now[j]}
		if j > 0 && !percent && rng.IntN(8) == 0 {
			s.End = schema.EndDrop
		}
		m.Sources = append(m.Sources, s)
	}
	step := int64(0)
	for range rng.IntN(6) {
		step += 1 + rng.Int64N(60)
		change := schema.MixtureChange{Step: step, Weights: map[string]float64{}}
		for j, w := range weights() {
			change.Weights[m.Sources[j].Name] = w
		}
		if !percent && rng.IntN(3) == 0 {
			change.Over = 1 + rng.Int64N(40)
		}
		step += change.Over
		m.Schedule = append(m.Schedule, change)
	}
	return schema.Ticket{Request: schema.Request{Mixture: m, Columns: []string{"tokens", "position"},
		Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(3)}, Batch: batch, World: &schema.World{Size: 64}},
		Rank: rng.IntN(64), Step: rng.Int64N(1e6), Epochs: 3}, percent
}

// wideTicket is a ticket of as many sources as a mixture may have.
func wideTicket(rng *rand.Rand) schema.Ticket {
	m := &schema.Mixture{EpochSize: 1e9}
	for j := range schema.MaxSources {
		weight := math.Round(1+rng.Float64()*999) / 1e4
		m.Sources = append(m.Sources, schema.MixtureSource{Dataset: fmt.Sprintf("corpus-%02d", j),
			Snapshot: 1 + rng.Int64N(9), Split: "train", Weight: &weight})
	}
	return schema.Ticket{Request: schema.Request{Mixture: m, Columns: []string{"tokens", "position"},
		Shuffle: &schema.Shuffle{Seed: rng.Uint64(), Epoch: rng.Uint64N(100)}, Batch: 1024, World: &schema.World{Size: 64}},
		Rank: rng.IntN(64), Step: rng.Int64N(1e6), Row: rng.Int64N(16), Epochs: 3}
}

// mixOf is the mixture that a ticket asks for.
func mixOf(rng *rand.Rand, t schema.Ticket) MixConfig {
	m := t.Mixture
	cfg := MixConfig{Rows: m.EpochSize, Batch: t.Batch, Remainder: Uneven, Seed: t.Shuffle.Seed,
		Pick: Pick(slices.Index([]string{schema.PickRandom, schema.PickExact, schema.PickOneSource}, m.Pick))}
	var base int64
	for j, s := range m.Leaves() {
		source := Source{Selection: All(historySizes[j]), Base: base, Positions: historySizes[j], Shuffle: rng.IntN(4) > 0,
			Seed: SourceSeed(t.Shuffle.Seed, s.Called())}
		if s.End == schema.EndDrop {
			source.End = Leave
		}
		if rng.IntN(4) == 0 {
			source.BlockRows, source.ClusterBlocks = 76, 16
		}
		cfg.Sources = append(cfg.Sources, source)
		base += historySizes[j]
	}
	for i, s := range m.Shares() {
		if i == 0 {
			cfg.Weights = Weights(s.Shares)
			continue
		}
		cfg.Changes = append(cfg.Changes, Change{s.Step, Weights(s.Shares)})
	}
	return cfg
}

// history walks through the first epochs of a job, which is killed and goes on with other ranks, and counts what each
// rank gets. Then it looks far ahead.
func history(t testing.TB, rng *rand.Rand) (f found) {
	ticket, whole := historyTicket(rng)
	text := ticket.Marshal()
	f.ticket = len(text)
	ticket, err := schema.ParseTicket(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	cfg := mixOf(rng, ticket)
	m := mustMix(t, cfg)
	n := len(cfg.Sources)
	weights, change := slices.Clone(cfg.Weights), 0
	counts, due := make([]int64, n), make([]float64, n)
	rows := make([]map[int64]bool, n)    // of each source
	samples := make([]map[int64]bool, n) // of its epochs
	for j := range n {
		rows[j], samples[j] = map[int64]bool{}, map[int64]bool{}
	}
	step := int64(0)
	world, killed := 1+rng.IntN(64), rng.Int64N(40)
	for epoch := range uint64(3) {
		p := mixPlan(t, m, epoch, world)
		for s := range p.Steps() {
			if killed--; killed < 0 { // and begun again with other ranks, in the same step
				world, killed = 1+rng.IntN(64), rng.Int64N(40)
				p = mixPlan(t, m, epoch, world)
			}
			if change < len(cfg.Changes) && cfg.Changes[change].Step == step {
				copy(weights, cfg.Changes[change].Weights)
				change++
			}
			batch := make([]int64, n)
			for rank := range world {
				lo, hi := p.Share(s, rank)
				for i := lo; i < hi; i++ {
					j, k := p.Source(i)
					pos := p.Position(i)
					if source, there, ok := m.SourceOf(pos); !ok || source != j || there < 0 || there >= historySizes[j] {
						f.lost++
					}
					sample := k/m.lens[j]*m.lens[j] + pos - cfg.Sources[j].Base
					if rows[j][k] || samples[j][sample] {
						f.doubled++
					}
					rows[j][k], samples[j][sample] = true, true
					if at, ok := p.Next(pos, i); !ok || at != i {
						f.lost++
					}
					batch[j]++
					dues(m, p.order.(*mixed).start+i, weights, counts, due)
					counts[j]++
					if cfg.Pick == PickRandom {
						f.check(m, p.order.(*mixed).start+i+1, counts, due)
					}
				}
			}
			if cfg.Pick != PickRandom {
				f.check(m, p.order.(*mixed).start+min((s+1)*cfg.Batch, p.n), counts, due)
			}
			if whole && cfg.Pick == PickExact {
				for j, got := range batch {
					if sum := sumOf(weights); uint64(got)*sum != weights[j]*uint64(cfg.Batch) {
						f.off++
					}
				}
			}
			step++
		}
	}
	for j := range n {
		f.lost += counts[j] - int64(len(rows[j]))
		for k := range counts[j] {
			if !rows[j][k] {
				f.lost++
			}
		}
	}
	for range 20 {
		f.far(rng, m)
	}
	return f
}

func sumOf(weights []uint64) (sum uint64) {
	for _, w := range weights {
		sum += w
	}
	return sum
}

// left reports whether a source that had that many rows has left.
func (s *segment) left(m *Mix, source int, rows int64) bool {
	return m.sources[source].End == Leave && s.leaves[source] == absent && s.root != ^int32(source) &&
		rows >= m.lens[source]-m.lens[source]%m.unit
}

// dues adds what each source is due with one more row. The other sources share what a source that has left was due
// beyond what it had.
func dues(m *Mix, row int64, weights []uint64, counts []int64, due []float64) {
	s := m.segmentAt(row / m.unit)
	var whole, left float64
	for j := range weights {
		if s.left(m, j, counts[j]) {
			weights[j] = 0
			left += due[j] - float64(counts[j])
			due[j] = float64(counts[j])
		}
		whole += float64(weights[j])
	}
	for j, w := range weights {
		due[j] += float64(w) * (1 + left) / whole
	}
}

// check compares what sources have before a row with what they are due.
func (f *found) check(m *Mix, row int64, counts []int64, due []float64) {
	most := &f.prefix
	if len(m.segments) > 1 && row/m.unit > m.segments[1].start {
		most = &f.changed
	}
	for j := range counts {
		by := math.Abs(float64(counts[j])-due[j]) / float64(m.unit)
		*most = max(*most, by)
		if by > m.Bound()+1e-5 {
			f.beyond++
		}
	}
}

// far looks at a row far ahead: from there on, how many each source has, and back.
func (f *found) far(rng *rand.Rand, m *Mix) {
	last := &m.segments[len(m.segments)-1]
	turn := last.start + rng.Int64N(1<<50)
	if turn >= m.ends/m.unit {
		return
	}
	j, before := m.turn(turn)
	if m.place(j, before) != turn || m.turns(j, turn) != before || m.turns(j, turn+1) != before+1 {
		f.lost++
	}
	sum := new(big.Int)
	for _, w := range last.weights(m) {
		sum.Add(sum, new(big.Int).SetUint64(w))
	}
	var all int64
	for j, w := range last.weights(m) {
		due := new(big.Int).Mul(big.NewInt(turn-last.start), new(big.Int).SetUint64(w))
		off := new(big.Rat).SetFrac(due, sum)
		got := m.turns(j, turn) - last.counts[j]
		off.Sub(off, new(big.Rat).SetInt64(got))
		all += got
		by, _ := off.Float64()
		if len(m.segments) == 1 {
			f.prefix = max(f.prefix, math.Abs(by))
		} else if math.Abs(by) > 2*m.Bound() { // what was owed is paid besides
			f.off++
		}
	}
	f.lost += turn - last.start - all
}

// weights are those of a segment, as its tree has them.
func (s *segment) weights(m *Mix) []uint64 {
	weights := make([]uint64, len(m.sources))
	for j := range weights {
		up := s.leaves[j]
		switch {
		case up == absent && s.root == ^int32(j):
			weights[j] = 1
		case up == absent:
		case up&1 == 0:
			weights[j] = s.splits[up>>1].light
		default:
			weights[j] = s.splits[up>>1].whole - s.splits[up>>1].light
		}
	}
	return weights
}

func histories(t testing.TB, rng *rand.Rand, n int) (all found) {
	for range n {
		f := history(t, rng)
		all.lost += f.lost
		all.doubled += f.doubled
		all.off += f.off
		all.beyond += f.beyond
		all.prefix, all.changed = max(all.prefix, f.prefix), max(all.changed, f.changed)
		all.ticket = max(all.ticket, f.ticket)
	}
	return all
}

// Jobs whose weights change, which are killed and go on with other ranks, lose nothing and double nothing.
func TestHistories(t *testing.T) {
	f := histories(t, testRand(t), 40)
	if f.lost != 0 || f.doubled != 0 || f.off != 0 || f.beyond != 0 || f.prefix > 1 || f.ticket > 2048 {
		t.Errorf("lost %d, doubled %d, batches off %d, %d beyond the bound, prefixes off by up to %g and %g, tickets of up to %d bytes",
			f.lost, f.doubled, f.off, f.beyond, f.prefix, f.changed, f.ticket)
	}
	t.Logf("prefixes are off by up to %g, after changes by %g; tickets have up to %d bytes", f.prefix, f.changed, f.ticket)
}

// Each request repeats all sources of a mixture, so they are short.
func TestWideTicket(t *testing.T) {
	want := wideTicket(testRand(t))
	text := want.Marshal()
	if len(text) > 2048 {
		t.Errorf("a ticket of %d sources has %d bytes, want 2,048 or less: %s", schema.MaxSources, len(text), text)
	}
	if got, err := schema.ParseTicket(text); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%s: read as %+v, %v", text, got, err)
	}
	t.Logf("%d bytes", len(text))
}

// BenchmarkMixtureHistories is 1,000 histories. Its time says nothing.
func BenchmarkMixtureHistories(b *testing.B) {
	count := 1000
	if testing.Short() {
		count = 20
	}
	for range b.N {
		f := histories(b, testRand(b), count)
		b.ReportMetric(float64(f.lost), "lost")
		b.ReportMetric(float64(f.doubled), "doubled")
		b.ReportMetric(float64(f.off), "batches_off")
		b.ReportMetric(f.prefix, "prefix_error")
		b.ReportMetric(f.changed, "prefix_error_changed")
		b.ReportMetric(float64(f.ticket), "ticket_bytes")
		b.ReportMetric(float64(len(wideTicket(testRand(b)).Marshal())), "ticket_64_bytes")
	}
}

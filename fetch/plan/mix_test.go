package plan

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func mustMix(t testing.TB, cfg MixConfig) *Mix {
	t.Helper()
	m, err := NewMix(cfg)
	if err != nil {
		t.Fatalf("%+v: %v", cfg, err)
	}
	return m
}

// randomMix is a mixture of few rows, so that its epochs can be walked through.
func randomMix(t testing.TB, rng *rand.Rand) MixConfig {
	cfg := MixConfig{
		Batch: 1 + rng.Int64N(24), Remainder: Remainder(rng.IntN(3)), Pick: Pick(rng.IntN(3)), Seed: rng.Uint64(),
	}
	n := 1 + rng.IntN(6)
	var base int64
	for range n {
		size := cfg.Batch + rng.Int64N(1<<rng.IntN(9))
		selection := All(size)
		if rng.IntN(2) == 0 {
			selection = everyThird(t, size)
		}
		base += rng.Int64N(50)
		s := Source{Selection: selection, Base: base, Positions: 3*size + 2, Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64()}
		if rng.IntN(4) == 0 {
			s.BlockRows, s.ClusterBlocks = 1+rng.Int64N(40), 1+rng.Int64N(9)
		}
		base += s.Positions
		cfg.Sources = append(cfg.Sources, s)
	}
	cfg.Weights = randomWeights(rng, n)
	if rng.IntN(3) > 0 {
		cfg.Rows = cfg.Batch + rng.Int64N(2000)
	}
	for step := rng.Int64N(40); len(cfg.Changes) < 6 && rng.IntN(3) > 0; step += 1 + rng.Int64N(60) {
		cfg.Changes = append(cfg.Changes, Change{step, randomWeights(rng, n)})
	}
	return cfg
}

// epochs are the plans of the first epochs of a mixture.
func epochs(t testing.TB, m *Mix, n int, world int) (plans []*Plan) {
	for e := range n {
		plans = append(plans, mixPlan(t, m, m.cfg.Begin+uint64(e), world))
	}
	return plans
}

// mixPlan is the plan of an epoch of a mixture.
func mixPlan(t testing.TB, m *Mix, epoch uint64, world int) *Plan {
	t.Helper()
	return mustPlan(t, Config{Mix: m, Shuffle: true, Epoch: epoch, Batch: m.cfg.Batch, World: world,
		Remainder: m.cfg.Remainder})
}

// checkMix walks through epochs of a mixture and simulates it with lists: of each source, what is left of its epoch.
func checkMix(t *testing.T, rng *rand.Rand, cfg MixConfig, rounds int) {
	t.Helper()
	m := mustMix(t, cfg)
	left := make([]map[int64]bool, len(cfg.Sources))
	counts := make([]int64, len(cfg.Sources))
	due := make([]float64, len(cfg.Sources))
	weights := slices.Clone(cfg.Weights)
	step, change := int64(0), 0
	for e, p := range epochs(t, m, rounds, 1+rng.IntN(64)) {
		order := slices.Concat(served(t, p)...)
		n := min(p.Rows(), p.n)
		for i := range p.n {
			// Rows that a whole epoch leaves out are in no step. If the mixture ends in an epoch, they may be part of one.
			if i%cfg.Batch == 0 && (i+cfg.Batch <= m.EpochRows() || cfg.Remainder != Drop) {
				for change < len(cfg.Changes) && cfg.Changes[change].Step == step {
					copy(weights, cfg.Changes[change].Weights)
					change++
				}
				step++
			}
			var j int
			var k, pos int64
			if i < n {
				j, k = p.Source(i)
				pos = order[i]
			} else { // what the remainder leaves out counts
				j, k = p.order.(*mixed).source(i)
				pos = p.order.at(i)
			}
			if cfg.Pick == PickRandom && k != counts[j] || k/m.lens[j] < (counts[j]-cfg.Batch)/m.lens[j] {
				t.Fatalf("%+v: epoch %d, index %d is row %d of source %d, which had %d", cfg, e, i, k, j, counts[j])
			}
			if s := cfg.Sources[j]; pos < s.Base || pos >= s.Base+s.Positions {
				t.Fatalf("%+v: epoch %d, index %d is position %d of source %d", cfg, e, i, pos, j)
			}
			source := j
			if cfg.Pick != PickExact { // whose rows change places within batches, and source epochs with them
				if len(left[j]) == 0 {
					left[j] = map[int64]bool{}
					for at := range m.lens[j] {
						left[j][cfg.Sources[j].Base+cfg.Sources[j].Selection.At(at)] = true
					}
				}
				if !left[j][pos] {
					t.Fatalf("%+v: epoch %d, index %d is position %d of source %d, which its epoch had already", cfg, e, i, pos, j)
				}
				delete(left[j], pos)
			}
			var whole, left float64
			now := m.segmentAt((p.order.(*mixed).start + i) / m.unit)
			for j := range weights {
				if now.left(m, j, counts[j]) {
					weights[j] = 0
					left += due[j] - float64(counts[j])
					due[j] = float64(counts[j])
				}
				whole += float64(weights[j])
			}
			for j := range weights {
				due[j] += float64(weights[j]) * (1 + left) / whole
			}
			counts[source]++
			for j := range weights {
				off := math.Abs(due[j] - float64(counts[j]))
				if most := m.Bound() + 1e-5; cfg.Pick == PickRandom && off > most {
					t.Fatalf("%+v: epoch %d, after index %d source %d has %d, and %g are due, most %g", cfg, e, i, j, counts[j], due[j],
						most)
				}
			}
		}
		checkNext(t, rng, p, order)
	}
}

// checkNext compares Next with a search.
func checkNext(t *testing.T, rng *rand.Rand, p *Plan, order []int64) {
	t.Helper()
	if len(order) == 0 {
		return
	}
	for range 60 {
		pos := order[rng.IntN(len(order))]
		if rng.IntN(8) == 0 {
			pos = rng.Int64N(slices.Max(order) + 2)
		}
		from := rng.Int64N(int64(len(order)) + 2)
		want := int64(-1)
		for i := from; i < int64(len(order)); i++ {
			if order[i] == pos {
				want = i
				break
			}
		}
		got, ok := p.Next(pos, from)
		if ok != (want >= 0) || ok && got != want {
			t.Fatalf("%+v: Next(%d, %d) = %d, %v, want %d", p.Config(), pos, from, got, ok, want)
		}
		if from == 0 && p.Exact() {
			if i, found := p.Index(pos); found != ok || i != max(got, 0) && ok {
				t.Fatalf("%+v: Index(%d) = %d, %v, want %d", p.Config(), pos, i, found, want)
			}
		}
	}
}

func TestMixtures(t *testing.T) {
	rng := testRand(t)
	for range 300 {
		checkMix(t, rng, randomMix(t, rng), 1+rng.IntN(4))
	}
}

// The order of other plans is found as that of mixtures is.
func TestNext(t *testing.T) {
	rng := testRand(t)
	for range 300 {
		cfg := inBlocks(rng, Config{
			Selection: everyThird(t, rng.Int64N(300)), Shuffle: rng.IntN(3) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(9),
			Batch: 1 + rng.Int64N(90), World: 1 + rng.IntN(12), Remainder: Remainder(rng.IntN(3)),
		})
		if n := cfg.Selection.Len(); n > 0 && rng.IntN(3) == 0 {
			lengths := make(Lengths, 3*n+2)
			for i := range lengths {
				lengths[i] = rng.Uint32N(50)
			}
			var err error
			if cfg.Buckets, err = NewBuckets(lengths, nil, cfg.Batch*(1+rng.Int64N(5))); err != nil {
				t.Fatal(err)
			}
		}
		p := mustPlan(t, cfg)
		checkNext(t, rng, p, slices.Concat(served(t, p)...))
	}
}

// A source with stop ends the epoch, and has been served once by then.
func TestStop(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		cfg := randomMix(t, rng)
		j := rng.IntN(len(cfg.Sources))
		cfg.Sources[j].End, cfg.Weights[j] = Stop, max(1, cfg.Weights[j])
		cfg.Rows, cfg.Pick = 1<<40, PickRandom
		for i := range cfg.Changes {
			cfg.Changes[i].Weights[j] = max(1, cfg.Changes[i].Weights[j])
		}
		for i := range cfg.Weights { // or it is very long
			cfg.Weights[i] = min(cfg.Weights[i], 40*cfg.Weights[j])
			for _, c := range cfg.Changes {
				c.Weights[i] = min(c.Weights[i], 40*c.Weights[j])
			}
		}
		m := mustMix(t, cfg)
		again := cfg
		if again.Rows = m.EpochRows(); mustMix(t, again).EpochRows() != m.EpochRows() {
			t.Fatalf("%+v: an epoch of %d rows is shorter when it is asked for", cfg, m.EpochRows())
		}
		left := cfg.Remainder == Drop && len(cfg.Changes) > 0 // weights may change in a batch that is left out
		if got := m.before(j, m.EpochRows()); got != m.lens[j] && !left {
			t.Fatalf("%+v: an epoch of %d rows has %d of %d of source %d", cfg, m.EpochRows(), got, m.lens[j], j)
		}
		changes := slices.Contains(m.changes(), m.EpochRows()) // of weights, with the next epoch
		if next, _ := m.row(m.EpochRows()); next != j && !changes && !left {
			t.Fatalf("%+v: after %d rows comes source %d, want %d", cfg, m.EpochRows(), next, j)
		}
		if m.EpochRows() < 5000 {
			checkMix(t, rng, cfg, 2)
		}
	}
}

// A source that leaves is served once and never again; where all do, the mixture ends with the last.
func TestLeave(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		cfg := randomMix(t, rng)
		for j := range cfg.Sources {
			if rng.IntN(3) > 0 {
				cfg.Sources[j].End = Leave
			}
		}
		if cfg.Pick == PickOneSource {
			cfg.Pick = PickRandom
		}
		cfg.Rows = cfg.Batch + rng.Int64N(300)
		m := mustMix(t, cfg)
		checkMix(t, rng, cfg, 4)
		for j, s := range cfg.Sources {
			if got := m.before(j, 1<<50); s.End == Leave && got > m.lens[j] {
				t.Fatalf("%+v: source %d has %d rows of %d", cfg, j, got, m.lens[j])
			}
		}
	}
	// All of them: as many rows as they have together.
	cfg := MixConfig{Batch: 4, Remainder: Uneven, Weights: []uint64{5, 1, 3}, Rows: 40}
	for _, n := range []int64{10, 20, 30} {
		cfg.Sources = append(cfg.Sources, Source{Selection: All(n), Base: 100 * n, Positions: n, End: Leave, Shuffle: true})
	}
	m := mustMix(t, cfg)
	seen := map[int64]int{}
	for _, p := range epochs(t, m, 3, 2) {
		for _, pos := range slices.Concat(served(t, p)...) {
			seen[pos]++
		}
	}
	if len(seen) != 60 || m.ends != 60 {
		t.Errorf("%d of 60 samples are served, and the mixture ends after %d rows", len(seen), m.ends)
	}
	for pos, n := range seen {
		if n != 1 {
			t.Errorf("position %d is served %d times", pos, n)
		}
	}
}

// A batch has its quotas, exactly where these are whole, and with what is left over carried where they are not.
func TestExactBatches(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		n := 1 + rng.IntN(6)
		cfg := MixConfig{Pick: Pick(rng.IntN(2)), Remainder: Uneven, Rows: 5000, Seed: rng.Uint64()}
		var base int64
		for range n {
			cfg.Sources = append(cfg.Sources, Source{Selection: All(1000), Base: base, Positions: 1000, Shuffle: true,
				Seed: rng.Uint64()})
			w := rng.Uint64N(9)
			if base == 0 {
				w++
			}
			cfg.Weights = append(cfg.Weights, w)
			cfg.Batch += int64(w)
			base += 1000
		}
		p := epochs(t, mustMix(t, cfg), 2, 3)[1]
		for start := int64(0); start+cfg.Batch <= p.Rows(); start += cfg.Batch {
			if (cfg.Rows+start)%cfg.Batch != 0 {
				break // a batch that begins between quotas
			}
			counts := make([]uint64, n)
			for i := range cfg.Batch {
				j, _ := p.Source(start + i)
				counts[j]++
			}
			if !slices.Equal(counts, cfg.Weights) {
				t.Fatalf("%+v: the batch at %d has %d of the sources", cfg, start, counts)
			}
		}
	}
	// Not whole: 1/3 and 2/3 of 4 are 1 and 2 or 3, and with the remainders 4 of 12.
	m := mustMix(t, MixConfig{Pick: PickExact, Batch: 4, Remainder: Uneven, Rows: 1200, Weights: []uint64{1, 2},
		Sources: []Source{{Selection: All(50), Positions: 50}, {Selection: All(70), Base: 50, Positions: 70}}})
	p := epochs(t, m, 1, 1)[0]
	counts := []int64{0, 0}
	for i := range p.Rows() {
		j, _ := p.Source(i)
		counts[j]++
		if i%12 == 11 && (counts[0] != (i+1)/3 || counts[1] != (i+1)/3*2) {
			t.Fatalf("after %d rows there are %d", i+1, counts)
		}
	}
}

func TestOneSource(t *testing.T) {
	rng := testRand(t)
	for range 100 {
		cfg := randomMix(t, rng)
		cfg.Pick = PickOneSource
		for _, p := range epochs(t, mustMix(t, cfg), 2, 1) {
			for i := range p.Rows() {
				j, _ := p.Source(i)
				if first, _ := p.Source(i - i%cfg.Batch); first != j {
					t.Fatalf("%+v: index %d is of source %d, and its batch of %d", cfg, i, j, first)
				}
			}
		}
	}
}

// A mixture that is carried over to another request goes on where the first one stands.
func TestCarried(t *testing.T) {
	rng := testRand(t)
	for range 200 {
		cfg := randomMix(t, rng)
		m := mustMix(t, cfg)
		begin := 1 + rng.Uint64N(4)
		at := int64(begin) * m.EpochRows()
		cfg.Begin, cfg.Rows, cfg.Counts = begin, m.EpochRows(), nil
		for j := range cfg.Sources {
			cfg.Counts = append(cfg.Counts, m.before(j, at))
		}
		after := mustMix(t, cfg)
		step := int64(begin)*m.EpochSteps() + rng.Int64N(200)
		for j := range cfg.Sources {
			if got, want := after.Count(j, int64(begin)*m.EpochSteps()), m.before(j, at); got != want {
				t.Fatalf("%+v: source %d begins at %d, want %d", cfg, j, got, want)
			}
			if got, want := after.Count(j, step), m.Count(j, step); math.Abs(float64(got-want)) > float64(2*m.unit)*m.Bound()+2 {
				t.Fatalf("%+v: before step %d source %d has %d rows, without being carried over %d", cfg, step, j, got, want)
			}
		}
		_, err := New(Config{Mix: after, Shuffle: true, Epoch: begin - 1, Batch: cfg.Batch, World: 1, Remainder: cfg.Remainder})
		if err == nil {
			t.Fatal("there is an epoch before the first")
		}
	}
}

// Explain's numbers of a source are those that a walk counts.
func TestPasses(t *testing.T) {
	rng := testRand(t)
	for range 100 {
		cfg := randomMix(t, rng)
		cfg.Pick = Pick(2 * rng.IntN(2))
		m := mustMix(t, cfg)
		counts := make([]int64, len(cfg.Sources))
		passes := make([]int64, len(cfg.Sources))
		var step int64
		for _, p := range epochs(t, m, 3, 1) {
			for s := range p.Steps() {
				for j := range counts {
					if got := m.Count(j, step); got != counts[j] {
						t.Fatalf("%+v: before step %d source %d has %d rows, want %d", cfg, step, j, got, counts[j])
					}
				}
				start, size := p.Batch(s)
				for i := start; i < min(start+size, p.n); i++ {
					j, _ := p.Source(i)
					if counts[j]++; counts[j] == m.lens[j] {
						passes[j] = step + 1
					}
				}
				step++
			}
			for i := p.Rows(); i < p.n; i++ { // left out
				j, _ := p.order.(*mixed).source(i)
				if counts[j]++; counts[j] == m.lens[j] {
					passes[j] = -1
				}
			}
		}
		for j := range counts {
			if got, ok := m.FirstPass(j); passes[j] > 0 && (!ok || got != passes[j]-1) {
				t.Fatalf("%+v: source %d ends in step %d, want %d", cfg, j, got, passes[j]-1)
			}
		}
	}
}

func TestImpossibleMixtures(t *testing.T) {
	ok := func() MixConfig {
		return MixConfig{Batch: 4, Remainder: Uneven, Weights: []uint64{1, 1}, Sources: []Source{
			{Selection: All(10), Positions: 10}, {Selection: All(20), Base: 10, Positions: 20}}}
	}
	for _, c := range []struct {
		field string
		spoil func(*MixConfig)
	}{
		{"mixture.sources", func(c *MixConfig) { c.Sources = nil }},
		{"mixture.sources", func(c *MixConfig) { c.Weights = []uint64{0, 0} }},
		{"mixture.sources[1]", func(c *MixConfig) { c.Sources[1].Selection = All(0) }},
		{"mixture.sources[0]", func(c *MixConfig) { c.Pick, c.Batch = PickOneSource, 11 }},
		{"batch", func(c *MixConfig) { c.Batch = 0 }},
		{"mixture.pick", func(c *MixConfig) { c.Pick = 3 }},
		{"mixture.epoch_size", func(c *MixConfig) { c.Rows = -1 }},
		{"mixture.epoch_size", func(c *MixConfig) { c.Rows = math.MaxInt64 }},
		{"mixture.epoch_size", func(c *MixConfig) { c.Rows, c.Pick = 3, PickOneSource }},
		{"mixture.schedule[1].step", func(c *MixConfig) { c.Changes = []Change{{5, c.Weights}, {5, c.Weights}} }},
		{"mixture.schedule[0]", func(c *MixConfig) { c.Changes = []Change{{5, []uint64{0, 0}}} }},
		{"mixture.carried.rows", func(c *MixConfig) { c.Counts = []int64{1} }},
		{"mixture.carried.rows[1]", func(c *MixConfig) { c.Counts = []int64{1, -1} }},
		{"mixture.carried.rows", func(c *MixConfig) {
			c.Sources[0].End, c.Sources[1].End, c.Counts = Leave, Leave, []int64{10, 20}
		}},
	} {
		cfg := ok()
		c.spoil(&cfg)
		m, err := NewMix(cfg)
		checkField(t, err, c.field)
		if m != nil {
			t.Errorf("%+v: a mixture besides the error", cfg)
		}
	}
	for _, spoil := range []func(*MixConfig){
		func(c *MixConfig) { c.Sources[1].Base = 9 },
		func(c *MixConfig) { c.Weights = c.Weights[:1] },
		func(c *MixConfig) { c.Weights = []uint64{1 << 61, 1 << 61} },
	} {
		cfg := ok()
		spoil(&cfg)
		if _, err := NewMix(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
	m := mustMix(t, ok())
	for _, cfg := range []Config{
		{Mix: m, Batch: 5, World: 1, Remainder: Uneven},
		{Mix: m, Batch: 4, World: 1, Remainder: Pad},
		{Mix: m, Batch: 4, World: 1, Remainder: Uneven, Selection: All(3)},
		{Mix: m, Batch: 4, World: 1, Remainder: Uneven, Shuffle: true, Epoch: math.MaxUint64},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

// mixtureOf has sources of 10^3 to 10^9 rows.
func mixtureOf(t testing.TB, pick Pick) *Mix {
	cfg := MixConfig{Batch: 256, Remainder: Uneven, Pick: pick, Seed: 7, Weights: []uint64{1, 5, 20, 30, 44}}
	var base int64
	for j, n := range []int64{1e3, 3e4, 1e6, 3e7, 1e9} {
		cfg.Sources = append(cfg.Sources, Source{Selection: All(n), Base: base, Positions: n, Shuffle: true,
			Seed: SourceSeed(7, fmt.Sprint("source", j))})
		base += n
	}
	cfg.Changes = []Change{{1000, []uint64{1, 1, 1, 1, 1}}, {100_000, []uint64{0, 1, 2, 3, 4}}}
	return mustMix(t, cfg)
}

func TestMixturesAllocateNothing(t *testing.T) {
	for _, pick := range []Pick{PickRandom, PickExact, PickOneSource} {
		m := mixtureOf(t, pick)
		p := epochs(t, m, 2, 2)[1]
		i := int64(0)
		if got := testing.AllocsPerRun(500, func() {
			i = (i*31 + 7_654_321) % p.Rows()
			p.Source(i)
			pos := p.Position(i)
			p.Next(pos, i)
			p.Index(pos)
			m.Count(1, i)
			m.FirstPass(3)
		}); got != 0 {
			t.Errorf("pick %d: %v allocations a turn", pick, got)
		}
	}
}

// A schedule that grows changes nothing of what comes before its new entries.
func TestScheduleGrows(t *testing.T) {
	rng := testRand(t)
	for range 100 {
		cfg := randomMix(t, rng)
		more := cfg
		last := int64(0)
		if n := len(cfg.Changes); n > 0 {
			last = cfg.Changes[n-1].Step
		}
		step := last + 1 + rng.Int64N(50)
		more.Changes = append(slices.Clone(cfg.Changes), Change{step, randomWeights(rng, len(cfg.Sources))})
		before, after := mustMix(t, cfg), mustMix(t, more)
		end := before.stepStart(step)
		for row := range min(end, 3000) {
			j, k := before.row(row)
			if i, n := after.row(row); i != j || n != k {
				t.Fatalf("%+v: with weights that change in step %d, row %d is row %d of source %d, and was row %d of %d", cfg, step,
					row, n, i, k, j)
			}
		}
	}
}

// A source is shuffled as its name and the seed say, wherever it stands.
func TestSourceSeeds(t *testing.T) {
	seen := map[uint64]string{}
	for seed := range uint64(3) {
		for _, name := range []string{"", "a", "b", "ab", "ba", "a\x00", "aaaaaaaa", "aaaaaaaaa", "aaaaaaaaab", "baaaaaaaa"} {
			s := SourceSeed(seed, name)
			if other, ok := seen[s]; ok {
				t.Errorf("seed %d and %q have the seed of %s", seed, name, other)
			}
			seen[s] = fmt.Sprint(seed, " and ", name)
		}
	}
	if s := SourceSeed(42, "imagenet.train"); s != 0xee90e9caf77320 {
		t.Errorf("the seed of a source has changed: %#x", s)
	}
}

// goldenMixtures must never be edited: tickets that clients keep depend on them.
var goldenMixtures = []struct {
	sources int
	pick    Pick
	crc     uint32
}{
	{5, PickRandom, 0xccb7d24f}, {5, PickExact, 0xb234c117}, {5, PickOneSource, 0xdb3a2fb2}, {10, PickRandom, 0x62445200},
	{64, PickRandom, 0xaa3e6aa0}, {64, PickExact, 0x811afaa3},
}

func TestMixturesNeverChange(t *testing.T) {
	sizes := []int64{100, 1000, 257, 64, 5000}
	weights := [][]uint64{{7, 20, 3, 1, 0}, {1, 1, 1, 1, 1}, {0, 5, 2, 9, 1}}
	for _, g := range goldenMixtures {
		cfg := MixConfig{Batch: 32, Remainder: Uneven, Pick: g.pick, Seed: 42, Rows: 4000,
			Changes: []Change{{Step: 50}, {Step: 200}}}
		var base int64
		for i := range g.sources {
			j, n := i%5, sizes[i%5]
			s := Source{Selection: All(n), Base: base, Positions: n, Shuffle: j != 2, End: End(2 * (j & 1)),
				Seed: SourceSeed(42, fmt.Sprint("source ", i))}
			if j == 4 {
				s.BlockRows, s.ClusterBlocks = 16, 8
			}
			cfg.Sources = append(cfg.Sources, s)
			cfg.Weights = append(cfg.Weights, weights[0][j])
			for c := range cfg.Changes {
				cfg.Changes[c].Weights = append(cfg.Changes[c].Weights, weights[c+1][j])
			}
			base += n
		}
		if g.sources > 5 { // of other weights each
			for j := range cfg.Weights {
				cfg.Weights[j] = uint64(j*j + 1)
			}
		}
		var order []byte
		for _, p := range epochs(t, mustMix(t, cfg), 3, 1) {
			for i := range p.Rows() {
				order = fmt.Appendln(order, p.Position(i))
			}
		}
		if crc := crc32.Checksum(order, crc32.MakeTable(crc32.Castagnoli)); crc != g.crc {
			t.Errorf("the mixture of %d sources and pick %d has changed: %#08x", g.sources, g.pick, crc)
		}
	}
}

func BenchmarkMixture(b *testing.B) {
	for _, pick := range []Pick{PickRandom, PickExact, PickOneSource} {
		p := epochs(b, mixtureOf(b, pick), 2, 2)[1]
		b.Run(fmt.Sprintf("pick=%d", pick), func(b *testing.B) {
			b.ReportAllocs()
			var i int64
			for b.Loop() {
				i = p.Position(i) % p.Rows()
			}
			sink += i
		})
	}
}

func BenchmarkMixtureNext(b *testing.B) {
	for _, pick := range []Pick{PickRandom, PickExact, PickOneSource} {
		p := epochs(b, mixtureOf(b, pick), 2, 2)[1]
		b.Run(fmt.Sprintf("pick=%d", pick), func(b *testing.B) {
			b.ReportAllocs()
			i := int64(12345)
			for b.Loop() {
				at, _ := p.Next(i, 0)
				i = (i*31 + at + 7_654_321) % p.Rows()
			}
			sink += i
		})
	}
}

// A history of changes that puts weight on those sources alone that are owed rows, or on those alone that had too many,
// moves what they are owed to and fro. It does not add up.
func TestChangesDoNotAddUp(t *testing.T) {
	rng := testRand(t)
	const n = 5
	worst := 0.0
	for range 8 {
		cfg := MixConfig{Batch: 1, Remainder: Uneven, Rows: 1 << 40, Seed: rng.Uint64(), Pick: Pick(rng.IntN(2))}
		for j := range int64(n) {
			cfg.Sources = append(cfg.Sources, Source{Selection: All(100), Base: 100 * j, Positions: 100})
		}
		cfg.Weights = randomWeights(rng, n)
		due := [n]float64{}
		step, weights := int64(0), cfg.Weights
		for range 80 {
			const rows = 3000 // until each has what its weight says
			m := mustMix(t, cfg)
			counts := [n]int64{}
			var less, more []int
			for j := range due {
				due[j] += rows * float64(weights[j]) / float64(sumOf(weights))
				counts[j] = m.before(j, step+rows)
				off := due[j] - float64(counts[j])
				if worst = max(worst, math.Abs(off)); math.Abs(off) > min(n-1, m.Bound())+1e-5 {
					t.Fatalf("%d changes: source %d has %d rows, and %g are due; the bound is %g", len(cfg.Changes), j, counts[j],
						due[j], m.Bound())
				}
				if off > 0 {
					less = append(less, j)
				} else {
					more = append(more, j)
				}
			}
			if rng.IntN(2) == 0 || len(less) == 0 {
				less, more = more, less
			}
			if rng.IntN(4) == 0 {
				less = append(less, more[:len(more)/2]...)
			}
			weights = make([]uint64, n)
			for _, j := range less {
				weights[j] = 1 + rng.Uint64N(9)
			}
			weights[less[rng.IntN(len(less))]] = 200
			step += rows
			cfg.Changes = append(cfg.Changes, Change{step, weights})
		}
	}
	t.Logf("sources are off by up to %g", worst)
}

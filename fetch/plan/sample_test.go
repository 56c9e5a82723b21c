package plan

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/schema"
)

// weighed are the weights of values.
func weighed(t testing.TB, values []float64) *SampleWeights {
	t.Helper()
	w := NewSampleWeights(int64(len(values)))
	for i, v := range values {
		w.Set(int64(i), v)
	}
	if err := w.Freeze(atOnce); err != nil {
		t.Fatal(err)
	}
	return w
}

// someWeights draws weights of which some are 0, few are large, and at least one is more than 0.
func someWeights(rng *rand.Rand, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		switch rng.IntN(8) {
		case 0:
		case 1:
			values[i] = math.Exp(10 * rng.NormFloat64())
		case 2:
			values[i] = 1e-30
		default:
			values[i] = rng.Float64()
		}
	}
	values[rng.IntN(n)] = 1
	return values
}

// TestWeightsAreALine holds that samples have parts of the line that follow one another without a gap, as long as their
// weights are, and that each point is found in its part, in whatever order.
func TestWeightsAreALine(t *testing.T) {
	rng := testRand(t)
	for _, n := range []int{1, 2, 63, 64, 65, 1000, weightBlock - 1, weightBlock, weightBlock + 1, 3*weightBlock + 77} {
		values := someWeights(rng, n)
		w := weighed(t, values)
		largest := slices.Max(values)
		for _, l := range []lines{{}, {true, rng.Uint64()}} {
			type part struct {
				from, to uint64
				sample   int64
			}
			var parts []part
			for i := range int64(n) {
				from, to := w.points(i, l)
				if (to == from) != (values[i] == 0) {
					t.Fatalf("sample %d of weight %g has [%d, %d)", i, values[i], from, to)
				}
				if share := float64(to-from) / float64(w.units(float32(largest))); values[i] > 0 &&
					math.Abs(share-values[i]/largest) > max(values[i]/largest/(1<<20), 2/float64(w.units(float32(largest)))) {
					t.Fatalf("sample %d counts %g of the largest, and weighs %g of it", i, share, values[i]/largest)
				}
				if to > from {
					parts = append(parts, part{from, to, i})
				}
			}
			slices.SortFunc(parts, func(a, b part) int { return int(int64(a.from - b.from)) })
			end := uint64(0)
			for _, p := range parts {
				if p.from != end {
					t.Fatalf("n %d: a part begins at %d, and the one before ends at %d", n, p.from, end)
				}
				end = p.to
				for _, point := range []uint64{p.from, p.from + rng.Uint64N(p.to-p.from), p.to - 1} {
					if got := w.find(point, l); got != p.sample {
						t.Fatalf("n %d: point %d is of sample %d, want %d", n, point, got, p.sample)
					}
				}
			}
			if end != w.total() || end > 1<<weightBits || int64(len(parts)) != w.Positive() {
				t.Fatalf("n %d: %d parts end at %d of %d", n, len(parts), end, w.total())
			}
		}
	}
}

// expectations are how often samples are expected in an epoch.
func expectations(w *SampleWeights, rows int64) []float64 {
	out := make([]float64, w.Len())
	for i := range out {
		out[i] = float64(rows) * float64(w.of(int64(i))) / float64(w.total())
	}
	return out
}

// countOf counts the samples of an order.
func countOf(o order, rows, samples int64) []int {
	counts := make([]int, samples)
	for i := range rows {
		counts[o.at(i)]++
	}
	return counts
}

// TestDrawsFollowTheWeights compares what 200 seeds draw with the weights: each of them, and all together. A table in
// which one weight is a quarter more is noticed.
func TestDrawsFollowTheWeights(t *testing.T) {
	rng := testRand(t)
	const samples, rows, seeds = 300, 6000, 200
	values := make([]float64, samples)
	for i := range values {
		values[i] = .2 + rng.Float64()
	}
	values[7] = 1
	w := weighed(t, values)
	want := expectations(w, rows)
	values[7] = 1.25
	flawed := expectations(weighed(t, values), rows)
	f, bad := &findings{}, &findings{}
	all := make([]int, samples)
	for range seeds {
		seed, epoch := rng.Uint64(), rng.Uint64N(10)
		counts := countOf(newDrawn(w, rows, seed, epoch), rows, samples)
		f.add(counts, want, "seed %d epoch %d", seed, epoch)
		for i, c := range counts {
			all[i] += c
		}
	}
	times := func(list []float64) []float64 {
		out := slices.Clone(list)
		for i := range out {
			out[i] *= seeds
		}
		return out
	}
	f.add(all, times(want), "all seeds")
	bad.add(all, times(flawed), "all seeds")
	for _, r := range f.rejected() {
		t.Errorf("draws do not follow the weights: %s", r)
	}
	if len(bad.rejected()) == 0 {
		t.Errorf("a weight that is another one is not noticed: p-values %.3g", bad.ps)
	}
	// Neighbours in the order have nothing to do with each other.
	pairs := make([]int, 4)
	heavy := func(i int64) int {
		if i < samples/2 {
			return 1
		}
		return 0
	}
	d := newDrawn(w, 200_000, rng.Uint64(), 3)
	for i := range int64(200_000 / 2) {
		pairs[2*heavy(d.at(2*i))+heavy(d.at(2*i+1))]++
	}
	var p float64
	for i := range samples / 2 {
		p += want[i] / rows
	}
	g := &findings{}
	g.add(pairs, []float64{1e5 * (1 - p) * (1 - p), 1e5 * p * (1 - p), 1e5 * p * (1 - p), 1e5 * p * p}, "pairs")
	for _, r := range g.rejected() {
		t.Errorf("neighbours depend on each other: %s", r)
	}
}

// TestDealsAreShares holds that what is dealt comes as often as its share of the epoch, rounded down or up, that over
// 200 seeds it comes as often as it should, and anywhere in the order.
func TestDealsAreShares(t *testing.T) {
	rng := testRand(t)
	const seeds = 200
	for _, c := range []struct{ samples, rows int64 }{{300, 40}, {300, 300}, {90, 1000}, {10_000, 3000}} {
		values := make([]float64, c.samples)
		for i := range values {
			values[i] = max(rng.Float64()-.1, 0)
		}
		w := weighed(t, values)
		want := expectations(w, c.rows)
		sum := make([]float64, c.samples)
		var halves [2]int
		for range seeds {
			d := newByShare(w, c.rows, rng.Uint64(), rng.Uint64N(5))
			for i, n := range countOf(d, c.rows, c.samples) {
				if math.Abs(float64(n)-want[i]) >= 1 {
					t.Fatalf("%+v: sample %d comes %d times, and its share is %g", c, i, n, want[i])
				}
				sum[i] += float64(n)
			}
			if d.at(0) < c.samples/2 {
				halves[0]++
			}
			halves[1]++
		}
		for i, n := range sum {
			_, rest := math.Modf(want[i])
			if deviation := math.Sqrt(seeds*rest*(1-rest)) + 1e-6; math.Abs(n-seeds*want[i]) > 7*deviation+1 {
				t.Errorf("%+v: sample %d comes %g times in %d epochs, and its share is %g", c, i, n, seeds, want[i])
			}
		}
		if halves[0] < seeds/5 || halves[0] > seeds*4/5 {
			t.Errorf("%+v: the first sample is of the first half in %d of %d epochs", c, halves[0], halves[1])
		}
	}
}

// TestDealsDiffer holds that epochs have different samples, and that pairs of samples that are far from each other come
// together about as often as chance has it.
func TestDealsDiffer(t *testing.T) {
	rng := testRand(t)
	const samples, rows, epochs = 20_000, 10_000, 60
	values := make([]float64, samples)
	for i := range values {
		values[i] = 1
	}
	w := weighed(t, values)
	sets := map[uint32]bool{}
	together := 0
	seed := rng.Uint64()
	for epoch := range uint64(epochs) {
		counts := countOf(newByShare(w, rows, seed, epoch), rows, samples)
		var b []byte
		for i, n := range counts {
			b = append(b, byte(n))
			if far := (i + 7777) % samples; n > 0 && counts[far] > 0 {
				together++
			}
		}
		sets[crc32.ChecksumIEEE(b)] = true
	}
	if len(sets) != epochs {
		t.Errorf("%d epochs have %d different sets of samples", epochs, len(sets))
	}
	if got := float64(together) / (samples * epochs); math.Abs(got-.25) > .02 {
		t.Errorf("samples that are far from each other come together in %.3f of the cases, want a quarter", got)
	}
}

// checkOrderNext compares next with what a walk through the order shows.
func checkOrderNext(t *testing.T, name string, o order, samples, rows int64, rng *rand.Rand) {
	t.Helper()
	at := make([]int64, rows)
	for i := range at {
		at[i] = o.at(int64(i))
	}
	for range 400 {
		sample, from := rng.Int64N(samples), rng.Int64N(rows+1)
		want := int64(slices.Index(at[from:], sample))
		got, ok := o.next(sample, from)
		if ok != (want >= 0) || ok && got != from+want {
			t.Fatalf("%s: sample %d comes next at %d (%t) from %d on, want %d more", name, sample, got, ok, from, want)
		}
	}
}

func TestDealtNext(t *testing.T) {
	rng := testRand(t)
	for range 60 {
		n := 1 + rng.IntN(3000)
		w := weighed(t, someWeights(rng, n))
		rows := 1 + rng.Int64N(4000)
		o := newByShare(w, rows, rng.Uint64(), rng.Uint64())
		if !o.estimates() {
			checkOrderNext(t, fmt.Sprintf("%d samples, %d rows", n, rows), o, int64(n), rows, rng)
		}
		checkAbout(t, o, w, rows, rng)
	}
	flat := make([]float64, 200)
	for i := range flat {
		flat[i] = 1 + float64(i%3)
	}
	o := newByShare(weighed(t, flat), 777, rng.Uint64(), 1)
	if o.estimates() {
		t.Fatal("an order in which samples come some times is not exact")
	}
	checkOrderNext(t, "flat", o, 200, 777, rng)
}

// checkAbout holds what is true of next even if it is only about right: it is of samples that can come, and within the
// epoch.
func checkAbout(t *testing.T, o order, w *SampleWeights, rows int64, rng *rand.Rand) {
	t.Helper()
	for range 200 {
		sample, from := rng.Int64N(w.Len()), rng.Int64N(rows)
		got, ok := o.next(sample, from)
		if ok && (got < from || got >= rows) || ok && w.of(sample) == 0 {
			t.Fatalf("sample %d of weight %d comes at %d from %d on, of %d", sample, w.of(sample), got, from, rows)
		}
	}
}

func TestDrawnNext(t *testing.T) {
	rng := testRand(t)
	w := weighed(t, someWeights(rng, 900))
	o := newDrawn(w, 5000, rng.Uint64(), 2)
	if !o.estimates() {
		t.Error("draws are said to be known beforehand")
	}
	checkAbout(t, o, w, 5000, rng)
	light, heavy := int64(0), int64(0)
	for i := range w.Len() {
		if w.of(i) > w.of(heavy) {
			heavy = i
		}
		if w.of(i) > 0 && (w.of(light) == 0 || w.of(i) < w.of(light)) {
			light = i
		}
	}
	a, _ := o.next(heavy, 100)
	b, _ := o.next(light, 100)
	if a > b {
		t.Errorf("the heaviest sample is said to come at %d, the lightest at %d", a, b)
	}
}

// TestDistinct compares what is expected of an epoch with epochs.
func TestDistinct(t *testing.T) {
	rng := testRand(t)
	values := make([]float64, 5000)
	for i := range values {
		values[i] = math.Exp(rng.NormFloat64())
	}
	w := weighed(t, values)
	for _, rows := range []int64{100, 5000, 40_000} {
		for _, replacement := range []bool{true, false} {
			var o order = newByShare(w, rows, rng.Uint64(), 0)
			if replacement {
				o = newDrawn(w, rows, rng.Uint64(), 0)
			}
			var got float64
			for _, n := range countOf(o, rows, w.Len()) {
				got += float64(min(n, 1))
			}
			if want := w.Distinct(rows, replacement); math.Abs(got-want) > 7*math.Sqrt(want)+1 {
				t.Errorf("%d rows, replacement %t: %g different samples, want about %g", rows, replacement, got, want)
			}
		}
	}
}

// balancedOf makes a Balance of classes in turn.
func balancedOf(t testing.TB, sizes []int, shares []float64, rng *rand.Rand) *Balance {
	t.Helper()
	var classes Classes
	for c, n := range sizes {
		for range n {
			classes = append(classes, uint16(c))
		}
	}
	rng.Shuffle(len(classes), func(i, j int) { classes[i], classes[j] = classes[j], classes[i] })
	parts, err := Parts(shares)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBalance(classes, parts, atOnce)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBalanceIsExact holds of any classes and shares, over several epochs: in every prefix of the job each class has
// come as often as its share says, to less than one; and each sample of a class as often as any other of it, to one.
func TestBalanceIsExact(t *testing.T) {
	rng := testRand(t)
	for range 60 {
		classes := 1 + rng.IntN(40)
		sizes, shares := make([]int, classes), make([]float64, classes)
		kind := rng.IntN(3)
		for c := range sizes {
			sizes[c] = 1 + rng.IntN(1+rng.IntN(400))
			switch kind {
			case 0:
				shares[c] = 1
			case 1:
				shares[c] = float64(rng.IntN(6))
			default:
				shares[c] = rng.ExpFloat64()
			}
		}
		shares[rng.IntN(classes)] = 1
		b := balancedOf(t, sizes, shares, rng)
		rows, seed, first := 1+rng.Int64N(3000), rng.Uint64(), rng.Uint64N(3)
		name := fmt.Sprintf("sizes %v, parts %v, rows %d", sizes, b.parts, rows)
		counts, samples := make([]int64, classes), make([]int64, len(b.classes))
		passed := int64(0)
		for epoch := range first + 4 {
			o := newBalanced(b, rows, seed, epoch)
			for i := range rows {
				sample := o.at(i)
				counts[b.classes[sample]]++
				samples[sample]++
				passed++
				for c, n := range counts {
					if diff := n*b.period - passed*int64(b.parts[c]); diff >= b.period || diff <= -b.period {
						t.Fatalf("%s: after %d samples class %d has come %d times", name, passed, c, n)
					}
				}
				if c := b.classes[sample]; samples[sample] > counts[c]/int64(sizes[c])+1 {
					t.Fatalf("%s: sample %d has come %d times when its class of %d had come %d times", name, sample,
						samples[sample], sizes[c], counts[c])
				}
			}
			checkOrderNext(t, name, o, int64(len(samples)), rows, rng)
		}
		for s, n := range samples {
			if c := b.classes[s]; n < counts[c]/int64(sizes[c]) {
				t.Fatalf("%s: sample %d has come %d times, others of its class %d times", name, s, n, counts[c]/int64(sizes[c]))
			}
		}
	}
}

// TestBalanceMixes holds that classes of equal shares do not come in one order all the time.
func TestBalanceMixes(t *testing.T) {
	rng := testRand(t)
	sizes, shares := make([]int, 300), make([]float64, 300)
	for c := range sizes {
		sizes[c], shares[c] = 5, 1
	}
	b := balancedOf(t, sizes, shares, rng)
	o := newBalanced(b, 1<<20, rng.Uint64(), 0)
	after := map[[2]uint16]int{}
	for i := range int64(90_000) {
		after[[2]uint16{b.classes[o.at(i)], b.classes[o.at(i+1)]}]++
	}
	for pair, n := range after {
		if n > 20 { // one is expected
			t.Errorf("class %d comes %d times after %d", pair[1], n, pair[0])
		}
	}
}

func TestParts(t *testing.T) {
	for _, c := range []struct {
		shares []float64
		want   []uint32
	}{
		{[]float64{1}, []uint32{1}},
		{[]float64{.3, .7}, []uint32{3, 7}},
		{[]float64{2, 0, 4}, []uint32{1, 0, 2}},
		{[]float64{1, 1, 1.5}, []uint32{2, 2, 3}},
		{[]float64{1e300, 1e300}, []uint32{1, 1}},
		{[]float64{5e-324, 5e-324}, []uint32{1, 1}},
		{[]float64{1. / 3, 2. / 3}, []uint32{1, 2}}, // with sixteen digits
		{[]float64{1, math.Sqrt2}, []uint32{434334, 614242}},
		{[]float64{1, 1e12}, []uint32{1, MaxPeriod - 1}},
	} {
		got, err := Parts(c.shares)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("Parts(%v) = %v, %v, want %v", c.shares, got, err, c.want)
		}
	}
	for _, bad := range [][]float64{{}, {0, 0}, {-1, 2}, {math.NaN()}, {math.Inf(1), 1}} {
		if got, err := Parts(bad); err == nil {
			t.Errorf("Parts(%v) = %v", bad, got)
		}
	}
}

// sampledPlans are plans of a selection of n of 3n positions, one of each kind.
func sampledPlans(t testing.TB, n int64, with func(*Config)) map[string]*Plan {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	values, sizes := make([]float64, n), []int{int(n) - 30, 20, 10}
	for i := range values {
		values[i] = float64(rng.IntN(1000)) / 100
	}
	w, b := weighed(t, values), balancedOf(t, sizes, []float64{1, 2, 1}, rng)
	plans := map[string]*Plan{}
	for name, set := range map[string]func(*Config){
		"drawn":    func(c *Config) { c.Weights, c.Replacement = w, true },
		"dealt":    func(c *Config) { c.Weights = w },
		"balanced": func(c *Config) { c.Balance = b },
	} {
		cfg := Config{Selection: everyThird(t, n), Shuffle: true, Seed: 42, Epoch: 3, Batch: 64, World: 3, Remainder: Uneven,
			EpochRows: 5000}
		set(&cfg)
		if with != nil {
			with(&cfg)
		}
		plans[name] = mustPlan(t, cfg)
	}
	return plans
}

// goldenSamples must never be edited: tickets that clients keep depend on them.
var goldenSamples = map[string]uint32{"drawn": 0x5ed41a3b, "dealt": 0x1584d7e5, "balanced": 0x42b5e837}

func TestSamplesNeverChange(t *testing.T) {
	for name, p := range sampledPlans(t, 1000, nil) {
		var order []byte
		for i := range p.Rows() {
			order = fmt.Appendln(order, p.Position(i))
		}
		if crc := crc32.Checksum(order, crc32.MakeTable(crc32.Castagnoli)); crc != goldenSamples[name] {
			t.Errorf("%s has changed: %#08x", name, crc)
		}
	}
}

func TestSamplesDoNotAllocate(t *testing.T) {
	for name, p := range sampledPlans(t, 1000, nil) {
		i := int64(0)
		if got := testing.AllocsPerRun(500, func() {
			i = (i*31 + 7) % p.Rows()
			p.Index(p.Position(i))
		}); got != 0 {
			t.Errorf("%s: %g allocations", name, got)
		}
	}
}

// TestSampledPlans holds what is true of any plan: steps, padding, epochs and seeds that differ, and what is at the
// limits.
func TestSampledPlans(t *testing.T) {
	for _, remainder := range []Remainder{Drop, Pad, Uneven} {
		for name, p := range sampledPlans(t, 500, func(c *Config) { c.Remainder = remainder }) {
			if p.Steps() != 79-int64(map[Remainder]int{Drop: 1}[remainder]) {
				t.Errorf("%s, %s: %d steps", name, remainder, p.Steps())
			}
			for i := int64(5000); i < p.Rows(); i++ {
				if p.Position(i) != p.Position(i-5000) {
					t.Errorf("%s: row %d is not padding", name, i)
				}
			}
			for i := range p.Rows() {
				pos := p.Position(i)
				if index, ok := p.Index(pos); p.Exact() && (!ok || index > i || p.Position(index) != pos) {
					t.Fatalf("%s, %s: Index(%d) = %d, %t, and it stands at %d", name, remainder, pos, index, ok, i)
				}
			}
			if _, ok := p.Index(0); ok {
				t.Errorf("%s: a position that is not selected comes", name)
			}
		}
	}
	orders := map[string]bool{}
	for _, change := range []func(*Config){func(*Config) {}, func(c *Config) { c.Seed++ }, func(c *Config) { c.Epoch++ },
		func(c *Config) { c.Epoch = math.MaxUint64 }, func(c *Config) { c.EpochRows = schema.MaxEpochSize }} {
		for name, p := range sampledPlans(t, 500, change) {
			var order []int64
			for i := range int64(100) {
				order = append(order, p.Position(i), p.Position(p.Rows()-1-i))
			}
			if key := fmt.Sprint(name, order); orders[key] {
				t.Errorf("%s: an order that another seed, epoch or size has", name)
			} else {
				orders[key] = true
			}
		}
	}
}

func TestSampledPlansRefused(t *testing.T) {
	w := weighed(t, []float64{1, 2, 3})
	for name, change := range map[string]func(*Config){
		"no shuffle":    func(c *Config) { c.Shuffle = false },
		"blocks":        func(c *Config) { c.BlockRows, c.ClusterBlocks = 3, 4 },
		"other samples": func(c *Config) { c.Selection = All(4) },
		"no rows":       func(c *Config) { c.EpochRows = 0 },
		"too many rows": func(c *Config) { c.EpochRows = math.MaxInt64 },
		"no weight":     func(c *Config) { c.Weights = weighed(t, []float64{0, 0, 0}) },
		"weights, classes": func(c *Config) {
			c.Balance = balancedOf(t, []int{3}, []float64{1}, rand.New(rand.NewPCG(1, 1)))
		},
	} {
		cfg := Config{Selection: All(3), Shuffle: true, Batch: 2, World: 1, Weights: w, EpochRows: 9}
		if _, err := New(cfg); err != nil {
			t.Fatal(err)
		}
		change(&cfg)
		if _, err := New(cfg); !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

package plan

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

func mustPlan(t testing.TB, cfg Config) *Plan {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// everyThird is a selection without one position that is its index.
func everyThird(t testing.TB, n int64) Selection {
	t.Helper()
	b := NewBitmap(3*n + 2)
	for i := range n {
		b.Set(3*i + 1)
	}
	return b.Freeze()
}

// served walks through a plan as its ranks would and returns the positions of
// each global batch, after checking that the shares are its parts in order.
func served(t *testing.T, p *Plan) [][]int64 {
	t.Helper()
	cfg := p.Config()
	var steps [][]int64
	var next int64
	rankRows := make([]int64, cfg.World)
	for step := range p.Steps() {
		size := min(cfg.Batch, p.Rows()-next)
		var batch []int64
		for rank := range cfg.World {
			lo, hi := p.Share(step, rank)
			if lo != next || hi < lo || hi-lo < size/int64(cfg.World) ||
				hi-lo > (size+int64(cfg.World)-1)/int64(cfg.World) {
				t.Fatalf("%+v: rank %d of step %d serves [%d, %d), of %d rows from %d", cfg, rank, step, lo, hi, size,
					step*cfg.Batch)
			}
			for i := lo; i < hi; i++ {
				batch = append(batch, p.Position(i))
			}
			rankRows[rank] += hi - lo
			next = hi
		}
		if int64(len(batch)) != size || size < 1 {
			t.Fatalf("%+v: step %d has %d rows, want %d", cfg, step, len(batch), size)
		}
		steps = append(steps, batch)
	}
	if next != p.Rows() {
		t.Fatalf("%+v: %d rows served, Rows() = %d", cfg, next, p.Rows())
	}
	for rank, rows := range rankRows {
		if got := p.RankRows(rank); got != rows {
			t.Fatalf("%+v: RankRows(%d) = %d, served %d", cfg, rank, got, rows)
		}
	}
	return steps
}

// checkPlan checks everything that a plan says against a walk through it.
func checkPlan(t *testing.T, p *Plan) {
	t.Helper()
	cfg := p.Config()
	n := cfg.Selection.Len()

	full, rest := n/cfg.Batch, n%cfg.Batch
	var steps, rows, dropped, padded int64
	switch {
	case rest == 0:
		steps, rows = full, n
	case cfg.Remainder == Drop:
		steps, rows, dropped = full, n-rest, rest
	case cfg.Remainder == Pad:
		steps, rows, padded = full+1, n-rest+cfg.Batch, cfg.Batch-rest
	default:
		steps, rows = full+1, n
	}
	if p.Steps() != steps || p.Rows() != rows || p.Dropped() != dropped || p.Padded() != padded {
		t.Fatalf("%+v of %d: %d steps, %d rows, %d dropped, %d padded; want %d, %d, %d, %d",
			cfg, n, p.Steps(), p.Rows(), p.Dropped(), p.Padded(), steps, rows, dropped, padded)
	}

	order := slices.Concat(served(t, p)...)
	once := order[:min(n, rows)]
	seen := make(map[int64]int64, n)
	for i, pos := range once {
		if _, ok := cfg.Selection.Index(pos); !ok {
			t.Fatalf("%+v: position %d is served and not selected", cfg, pos)
		}
		if _, ok := seen[pos]; ok {
			t.Fatalf("%+v: position %d is served twice", cfg, pos)
		}
		seen[pos] = int64(i)
	}
	for i, pos := range order[len(once):] {
		if want := order[i%int(n)]; pos != want {
			t.Fatalf("%+v: padding %d is %d, want %d", cfg, i, pos, want)
		}
	}
	if !cfg.Shuffle && !slices.IsSorted(once) {
		t.Fatalf("%+v: out of order without a shuffle: %v", cfg, once)
	}
	missing := int64(0)
	for i := range n {
		pos := cfg.Selection.At(i)
		want, served := seen[pos]
		if !served {
			missing++
		}
		index, ok := p.Index(pos)
		if ok != served || index != want {
			t.Fatalf("%+v: Index(%d) = %d, %v, want %d, %v", cfg, pos, index, ok, want, served)
		}
		if _, ok := p.Index(pos + 1); ok && cfg.Selection.At(min(i+1, n-1)) != pos+1 {
			t.Fatalf("%+v: Index(%d): it is not selected", cfg, pos+1)
		}
	}
	if missing != dropped {
		t.Fatalf("%+v: %d samples are never served, Dropped() = %d", cfg, missing, dropped)
	}
}

func TestExactlyOncePerEpoch(t *testing.T) {
	rng := testRand(t)
	sizes := []int64{30, 31, 64, 97, 300}
	for n := range int64(21) {
		sizes = append(sizes, n)
	}
	for _, n := range sizes {
		sel := everyThird(t, n)
		for _, batch := range []int64{1, 2, 3, 4, 5, 7, 8, 10, 16, 20, 33, 100} {
			for _, world := range []int{1, 2, 3, 4, 7, 8, 40} {
				for remainder := Drop; remainder <= Uneven; remainder++ {
					checkPlan(t, mustPlan(t, inBlocks(rng, Config{
						Selection: sel, Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(1000),
						Batch: batch, World: world, Remainder: remainder,
					})))
				}
			}
		}
	}
	if testing.Short() {
		return
	}
	for range 10 {
		checkPlan(t, mustPlan(t, inBlocks(rng, Config{
			Selection: everyThird(t, 1+rng.Int64N(20_000)), Shuffle: true, Seed: rng.Uint64(),
			Batch: 1 + rng.Int64N(500), World: 1 + rng.IntN(20), Remainder: Remainder(rng.IntN(3)),
		})))
	}
}

// TestGlobalBatchesDoNotDependOnTheWorld stops a job at some step and goes on
// with another number of ranks.
func TestGlobalBatchesDoNotDependOnTheWorld(t *testing.T) {
	rng := testRand(t)
	for range 100 {
		cfg := inBlocks(rng, Config{
			Selection: All(rng.Int64N(500)), Shuffle: true, Seed: rng.Uint64(), Epoch: rng.Uint64N(9),
			Batch: 1 + rng.Int64N(40), World: 1 + rng.IntN(12), Remainder: Remainder(rng.IntN(3)),
		})
		before := mustPlan(t, cfg)
		want := served(t, before)
		cfg.World = 1 + rng.IntN(60)
		after := mustPlan(t, cfg)
		got := served(t, after)
		if len(got) != len(want) {
			t.Fatalf("%+v: %d steps, before the change %d", cfg, len(got), len(want))
		}
		stop := rng.Int64N(before.Steps() + 1)
		for step := stop; step < after.Steps(); step++ {
			if !slices.Equal(got[step], want[step]) {
				t.Fatalf("%+v: step %d is %v, before the change %v", cfg, step, got[step], want[step])
			}
		}
		// The old ranks' rows up to stop and the new ranks' rows from there are the epoch.
		var rows int64
		for rank := range before.Config().World {
			rows += before.RowsFrom(0, rank, 1, stop)
		}
		for rank := range after.Config().World {
			rows += after.RowsFrom(stop, rank, 1, after.Steps())
		}
		if rows != after.Rows() {
			t.Fatalf("%+v: %d rows around the change at step %d, want %d", cfg, rows, stop, after.Rows())
		}
	}
}

func TestRowsFrom(t *testing.T) {
	rng := testRand(t)
	for range 3000 {
		p := mustPlan(t, Config{
			Selection: All(rng.Int64N(200)), Batch: 1 + rng.Int64N(20), World: 1 + rng.IntN(9),
			Remainder: Remainder(rng.IntN(3)),
		})
		rank, start, stride, stop := rng.IntN(p.Config().World), rng.Int64N(30), 1+rng.Int64N(6), rng.Int64N(40)
		var want int64
		for step := start; step < min(stop, p.Steps()); step += stride {
			lo, hi := p.Share(step, rank)
			want += hi - lo
		}
		if got := p.RowsFrom(start, rank, stride, stop); got != want {
			t.Fatalf("%+v: RowsFrom(%d, %d, %d, %d) = %d, want %d", p.Config(), start, rank, stride, stop, got, want)
		}
	}
	p := mustPlan(t, Config{Selection: All(10), Batch: 3, World: 2, Remainder: Uneven})
	if got := p.RowsFrom(1, 0, math.MaxInt64, math.MaxInt64); got != 1 {
		t.Errorf("the longest stride serves %d rows, want 1", got)
	}
	mustPanic(t, "stride 0", func() { p.RowsFrom(0, 0, 0, 1) })
}

func TestWhatIsNotInThePlan(t *testing.T) {
	p := mustPlan(t, Config{Selection: All(10), Batch: 4, World: 2, Remainder: Drop, Shuffle: true})
	for _, at := range []struct {
		step int64
		rank int
	}{{-1, 0}, {2, 0}, {math.MaxInt64, 1}, {0, -1}, {0, 2}} {
		if lo, hi := p.Share(at.step, at.rank); lo != hi {
			t.Errorf("Share(%d, %d) = %d, %d, want nothing", at.step, at.rank, lo, hi)
		}
		if rows := p.RowsFrom(at.step, at.rank, 1, math.MaxInt64); rows != 0 {
			t.Errorf("RowsFrom(%d, %d, …) = %d, want 0", at.step, at.rank, rows)
		}
	}
	for _, rank := range []int{-1, 2} {
		if rows := p.RankRows(rank); rows != 0 {
			t.Errorf("RankRows(%d) = %d, want 0", rank, rows)
		}
	}
	for _, index := range []int64{-1, 8, math.MaxInt64} {
		mustPanic(t, fmt.Sprintf("Position(%d)", index), func() { p.Position(index) })
	}
	for _, pos := range []int64{-1, 10, math.MaxInt64} {
		if _, ok := p.Index(pos); ok {
			t.Errorf("Index(%d) is in the plan", pos)
		}
	}
}

func TestImpossiblePlans(t *testing.T) {
	ok := Config{Selection: All(10), Batch: 4, World: 2}
	for _, c := range []struct {
		field string
		spoil func(*Config)
	}{
		{"selection", func(c *Config) { c.Selection = nil }},
		{"selection", func(c *Config) { c.Selection = All(-1) }},
		{"batch", func(c *Config) { c.Batch = 0 }},
		{"batch", func(c *Config) { c.Batch = math.MinInt64 }},
		{"world.size", func(c *Config) { c.World = 0 }},
		{"world.size", func(c *Config) { c.World = -8 }},
		{"remainder", func(c *Config) { c.Remainder = 3 }},
		{"remainder", func(c *Config) { c.Remainder = -1 }},
		{"batch", func(c *Config) { c.Selection, c.Batch, c.Remainder = All(math.MaxInt64), 1<<62, Pad }},
	} {
		cfg := ok
		c.spoil(&cfg)
		p, err := New(cfg)
		checkField(t, err, c.field)
		if p != nil {
			t.Errorf("%+v: a plan besides the error", cfg)
		}
	}
	mustPlan(t, ok)
}

func TestRemainderWords(t *testing.T) {
	for r, word := range map[Remainder]string{Drop: "drop", Pad: "pad", Uneven: "uneven"} {
		if got, err := ParseRemainder(word); err != nil || got != r || r.String() != word {
			t.Errorf("%q is %v (%v), %v is %q", word, got, err, r, r.String())
		}
	}
	if got, err := ParseRemainder(""); err != nil || got != Uneven {
		t.Errorf("the default is %v (%v), want uneven", got, err)
	}
	_, err := ParseRemainder("Drop")
	checkField(t, err, "remainder")
}

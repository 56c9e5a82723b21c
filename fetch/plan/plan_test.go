package plan

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"
	"testing"

	"bowstring/schema"
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
					checkPlan(t, mustPlan(t, Config{
						Selection: sel, Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(1000),
						Batch: batch, World: world, Remainder: remainder,
					}))
				}
			}
		}
	}
	if testing.Short() {
		return
	}
	for range 10 {
		checkPlan(t, mustPlan(t, Config{
			Selection: everyThird(t, 1+rng.Int64N(20_000)), Shuffle: true, Seed: rng.Uint64(),
			Batch: 1 + rng.Int64N(500), World: 1 + rng.IntN(20), Remainder: Remainder(rng.IntN(3)),
		}))
	}
}

// TestGlobalBatchesDoNotDependOnTheWorld stops a job at some step and goes on
// with another number of ranks.
func TestGlobalBatchesDoNotDependOnTheWorld(t *testing.T) {
	rng := testRand(t)
	for range 100 {
		cfg := Config{
			Selection: All(rng.Int64N(500)), Shuffle: true, Seed: rng.Uint64(), Epoch: rng.Uint64N(9),
			Batch: 1 + rng.Int64N(40), World: 1 + rng.IntN(12), Remainder: Remainder(rng.IntN(3)),
		}
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
		// What the old ranks served up to stop and the new ones from there is the epoch.
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

func TestPlansAtTheLimits(t *testing.T) {
	rng := testRand(t)
	large := func() int64 { return math.MaxInt64>>rng.IntN(40) - rng.Int64N(3) }
	for range 2000 {
		cfg := Config{
			Selection: All(large()), Shuffle: rng.IntN(2) == 0, Seed: rng.Uint64(), Epoch: math.MaxUint64,
			Batch: large(), World: int(large() >> rng.IntN(63)), Remainder: Remainder(rng.IntN(3)),
		}
		cfg.World = max(cfg.World, 1)
		p, err := New(cfg)
		if err != nil {
			checkField(t, err, "batch")
			n := cfg.Selection.Len()
			if sum, carry := bits.Add64(uint64(n), uint64(cfg.Batch-n%cfg.Batch), 0); cfg.Remainder != Pad ||
				carry == 0 && sum <= math.MaxInt64 {
				t.Fatalf("%+v: %v", cfg, err)
			}
			continue
		}
		if p.Steps() == 0 {
			continue
		}
		last := p.Steps() - 1
		end := cfg.World - 1
		if lo, _ := p.Share(0, 0); lo != 0 {
			t.Fatalf("%+v: the first share starts at %d", cfg, lo)
		}
		if _, hi := p.Share(last, end); hi != p.Rows() {
			t.Fatalf("%+v: the last share ends at %d, Rows() = %d", cfg, hi, p.Rows())
		}
		if cfg.World > 1 {
			rank := rng.IntN(end)
			step := rng.Int64N(p.Steps())
			_, hi := p.Share(step, rank)
			if lo, _ := p.Share(step, rank+1); lo != hi {
				t.Fatalf("%+v: a gap in step %d between [.., %d) and [%d, ..)", cfg, step, hi, lo)
			}
		}
		for range 5 {
			pos := p.Position(rng.Int64N(p.Rows()))
			index, ok := p.Index(pos)
			if !ok || p.Position(index) != pos {
				t.Fatalf("%+v: Index(%d) = %d, %v", cfg, pos, index, ok)
			}
		}
	}
}

// goldenPlans must never be edited: tickets that clients keep depend on them.
var goldenPlans = []struct {
	ranges    []schema.Range
	batch     int64
	remainder Remainder
	last      string // shares of the last step of 3 ranks
	crc       uint32 // CRC-32C of the positions in the order served, one a line
}{
	{[]schema.Range{{Start: 0, End: 1000}}, 64, Uneven, "[960 973)[973 986)[986 1000)", 0xaa44cc82},
	{[]schema.Range{{Start: 10, End: 20}, {Start: 1000, End: 1500}}, 64, Pad, "[448 469)[469 490)[490 512)",
		0x165db7d8},
	{[]schema.Range{{Start: 5, End: 100_005}}, 256, Drop, "[99584 99669)[99669 99754)[99754 99840)", 0x438563da},
	{[]schema.Range{{Start: 7, End: 9}, {Start: 12, End: 13}}, 10, Pad, "[0 3)[3 6)[6 10)", 0x32e9f8cc},
}

func TestPlanNeverChanges(t *testing.T) {
	for i, g := range goldenPlans {
		sel, err := FromRanges(g.ranges)
		if err != nil {
			t.Fatal(err)
		}
		p := mustPlan(t, Config{Selection: sel, Shuffle: true, Seed: 42, Epoch: 3, Batch: g.batch, World: 3,
			Remainder: g.remainder})
		var order []byte
		for i := range p.Rows() {
			order = fmt.Appendln(order, p.Position(i))
		}
		var last string
		for rank := range 3 {
			lo, hi := p.Share(p.Steps()-1, rank)
			last += fmt.Sprintf("[%d %d)", lo, hi)
		}
		if crc := crc32.Checksum(order, crc32.MakeTable(crc32.Castagnoli)); last != g.last || crc != g.crc {
			t.Errorf("plan %d has changed: %q, %#08x", i, last, crc)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	ranges, err := FromRanges([]schema.Range{{Start: 0, End: 500}, {Start: 1000, End: 2000}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sel := range []Selection{All(1 << 40), All(200), ranges, everyThird(t, 9000)} {
		p := mustPlan(t, Config{Selection: sel, Shuffle: true, Batch: 3, World: 2, Remainder: Pad})
		n := p.Rows()
		i := int64(0)
		if got := testing.AllocsPerRun(500, func() {
			i = (i*31 + 7) % n
			pos := p.Position(i)
			p.Index(pos)
			p.Index(pos + 1)
			p.Share(i/3, 1)
			p.RankRows(1)
			p.RowsFrom(1, 1, 2, i)
		}); got != 0 {
			t.Errorf("%T: %v allocations a turn", sel, got)
		}
	}
	for _, n := range []uint64{10, 1000, 1 << 40} {
		if got := testing.AllocsPerRun(100, func() {
			p := NewPerm(n, 1, 2)
			p.At(p.Index(n - 1))
		}); got != 0 {
			t.Errorf("permutation of %d: %v allocations", n, got)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add(uint16(10), uint16(3), uint8(2), uint8(0), uint64(1), uint64(2), true)
	f.Add(uint16(0), uint16(1), uint8(1), uint8(1), uint64(0), uint64(0), false)
	f.Add(uint16(2), uint16(9), uint8(4), uint8(1), uint64(5), uint64(0), true)
	f.Add(uint16(700), uint16(64), uint8(7), uint8(2), uint64(5), uint64(1<<63), true)
	f.Fuzz(func(t *testing.T, n, batch uint16, world, remainder uint8, seed, epoch uint64, shuffle bool) {
		cfg := Config{
			Selection: everyThird(t, int64(n%2000)), Shuffle: shuffle, Seed: seed, Epoch: epoch,
			Batch: int64(batch % 3000), World: int(world), Remainder: Remainder(remainder),
		}
		p, err := New(cfg)
		if err != nil {
			if cfg.Batch > 0 && cfg.World > 0 && cfg.Remainder <= Uneven {
				t.Fatalf("%+v: %v", cfg, err)
			}
			return
		}
		checkPlan(t, p)
	})
}

func ExamplePlan() {
	split, err := FromRanges([]schema.Range{{Start: 100, End: 106}, {Start: 200, End: 204}})
	if err != nil {
		panic(err)
	}
	p, err := New(Config{Selection: split, Shuffle: true, Seed: 42, Epoch: 7, Batch: 4, World: 2, Remainder: Uneven})
	if err != nil {
		panic(err)
	}
	for step := range p.Steps() {
		for rank := range 2 {
			lo, hi := p.Share(step, rank)
			fmt.Printf("step %d rank %d:", step, rank)
			for i := lo; i < hi; i++ {
				fmt.Printf(" %d", p.Position(i))
			}
			fmt.Println()
		}
	}
	index, _ := p.Index(203)
	fmt.Println("203 is number", index)
	// Output:
	// step 0 rank 0: 104 105
	// step 0 rank 1: 103 201
	// step 1 rank 0: 100 102
	// step 1 rank 1: 203 101
	// step 2 rank 0: 200
	// step 2 rank 1: 202
	// 203 is number 6
}

package plan

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"testing"

	"bowstring/schema"
)

func TestPlansAtTheLimits(t *testing.T) {
	rng := testRand(t)
	large := func() int64 { return math.MaxInt64>>rng.IntN(40) - rng.Int64N(3) }
	for range 2000 {
		cfg := Config{
			Selection: All(large()), Shuffle: rng.IntN(2) == 0, Seed: rng.Uint64(), Epoch: math.MaxUint64,
			Batch: large(), World: int(large() >> rng.IntN(63)), Remainder: Remainder(rng.IntN(3)),
		}
		cfg.World = max(cfg.World, 1)
		if rng.IntN(2) == 0 {
			cfg.BlockRows, cfg.ClusterBlocks = large()>>rng.IntN(63)|1, 1+rng.Int64N(MaxBlocks)
		}
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
	for k, sel := range []Selection{All(1 << 40), All(200), ranges, everyThird(t, 9000), All(1 << 40), All(200), ranges} {
		cfg := Config{Selection: sel, Shuffle: true, Batch: 3, World: 2, Remainder: Pad}
		if k > 3 {
			cfg.BlockRows, cfg.ClusterBlocks = 76, 256
		}
		p := mustPlan(t, cfg)
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
		if epoch&1 != 0 {
			cfg.BlockRows, cfg.ClusterBlocks = 1+int64(seed%97), 1+int64(seed>>32%31)
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

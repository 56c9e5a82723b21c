package plan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/fetch/plan"
)

// costly is a plan of samples that go together by length, or by cost if lengths are nil. With costs, ranks have equal cost.
func costly(tb testing.TB, cfg plan.Config, lengths plan.Lengths, costs plan.Costs, window int64) *plan.Plan {
	tb.Helper()
	if lengths == nil {
		lengths = plan.Lengths(costs)
	}
	b, err := plan.NewBuckets(lengths, costs, window*cfg.Batch)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.Buckets = b
	p, err := plan.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// imbalance is the cost of the costliest rank of a step, divided by the mean of all ranks, over all whole steps.
func imbalance(p *plan.Plan, world int, cost func(position int64) float64) float64 {
	var costliest, all float64
	for step := range p.Steps() {
		start, size := p.Batch(step)
		if size < p.Config().Batch {
			continue
		}
		most := 0.0
		for rank := range int64(world) {
			sum := 0.0
			for i := start + rank*size/int64(world); i < start+(rank+1)*size/int64(world); i++ {
				sum += cost(p.Position(i))
			}
			most, all = max(most, sum), all+sum
		}
		costliest += most
	}
	return costliest * float64(world) / all
}

// TestBalancedBuckets holds that costs move samples within their step alone, each exactly once, the same for any world and
// in whatever order positions are asked for; that Index is the inverse; that what any world's ranks cost differs no more than without;
// and that Imbalance says by how much.
func TestBalancedBuckets(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 100 {
		rows := 1 + rng.Int64N(3000)
		lengths, costs := make(plan.Lengths, rows), make(plan.Costs, rows)
		for i := range costs {
			length := rng.ExpFloat64() * 1000
			cost := length * (1 + rng.Float64())
			if rng.IntN(20) == 0 {
				cost = 0
			}
			lengths[i], costs[i] = uint32(length), math.Float32bits(float32(cost))
		}
		if rng.IntN(3) == 0 {
			lengths = nil
		}
		cfg := plan.Config{
			Selection: plan.All(rows), Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(5),
			Batch: 1 + rng.Int64N(64), World: 1 + rng.IntN(9), Remainder: plan.Remainder(rng.IntN(3)),
		}
		window := 1 + rng.Int64N(12)
		name := fmt.Sprintf("%d rows, shuffle %t, batch %d, world %d, %v, window %d", rows, cfg.Shuffle, cfg.Batch, cfg.World,
			cfg.Remainder, window)
		by := lengths
		if by == nil {
			by = plan.Lengths(costs)
		}
		without, p := bucketed(t, cfg, by, window), costly(t, cfg, lengths, costs, window)
		cfg.World = 1
		other := costly(t, cfg, lengths, costs, window)
		for step := p.Steps() - 1; step >= 0; step-- {
			start, size := p.Batch(step)
			var had, has []int64
			for i := start; i < start+size; i++ {
				pos := p.Position(i)
				had, has = append(had, without.Position(i)), append(has, pos)
				if at := other.Position(i); at != pos {
					t.Fatalf("%s: index %d is %d, %d in another world", name, i, pos, at)
				}
				if again, ok := p.Index(pos); !ok || again != i && cfg.Remainder != plan.Pad {
					t.Fatalf("%s: position %d is at %d, %t; want %d", name, pos, again, ok, i)
				}
			}
			slices.Sort(had)
			slices.Sort(has)
			if !slices.Equal(had, has) {
				t.Fatalf("%s: step %d has %d, without costs %d", name, step, has, had)
			}
		}
		if got, ok := without.Imbalance(p.Steps()); ok {
			t.Fatalf("%s: without costs the imbalance is %v", name, got)
		}
		if rows/cfg.Batch < 4 {
			continue
		}
		cost := func(pos int64) float64 { return float64(math.Float32frombits(costs[pos])) }
		for _, world := range []int{2, 4, 8} {
			if cfg.Batch%int64(world) != 0 {
				continue
			}
			if with, alone := imbalance(p, world, cost), imbalance(without, world, cost); with > alone+1e-4 {
				t.Errorf("%s: the costliest of %d ranks has %v times the mean, %v without balance", name, world, with, alone)
			}
		}
		if p.Rows()%cfg.Batch == 0 && cfg.Batch >= int64(p.Config().World) {
			want := imbalance(p, p.Config().World, cost)
			if got, ok := p.Imbalance(p.Steps()); !ok || math.Abs(got-want) > 1e-9 {
				t.Errorf("%s: it says %v, %t; it is %v", name, got, ok, want)
			}
		}
	}
}

// BenchmarkBalancedBuckets makes lengths like those of photographs, in pixels, and of utterances, in seconds, and says how
// much eight ranks differ in cost: in a shuffle, by length alone, and with balance. An operation is one index.
func BenchmarkBalancedBuckets(b *testing.B) {
	const rows, batch, world, window = 1 << 16, 256, 8, 32
	rng := rand.New(rand.NewPCG(7, 7))
	sides := []float64{480, 600, 720, 768, 1024, 1080, 1536, 2048, 3024, 3456}
	for _, c := range []struct {
		name string
		cost func() float64
	}{
		{"photographs", func() float64 { // either way up, some cropped
			side := sides[rng.IntN(len(sides))]
			return side * math.Round(side*(0.5+rng.Float64()))
		}},
		{"sound", func() float64 { return min(max(math.Exp(1.6+0.6*rng.NormFloat64()), 0.5), 30) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			costs := make(plan.Costs, rows)
			for i := range costs {
				costs[i] = math.Float32bits(float32(c.cost()))
			}
			cost := func(pos int64) float64 { return float64(math.Float32frombits(costs[pos])) }
			cfg := plan.Config{Selection: plan.All(rows), Shuffle: true, Seed: 3, Batch: batch, World: world}
			shuffled, err := plan.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			by, p := bucketed(b, cfg, plan.Lengths(costs), window), costly(b, cfg, nil, costs, window)
			var at, sum int64
			for b.Loop() {
				sum += p.Position(at)
				at = (at + 1) % rows
			}
			if sum < 0 {
				b.Fatal(sum)
			}
			b.ReportMetric(imbalance(shuffled, world, cost), "imbalance_shuffled")
			b.ReportMetric(imbalance(by, world, cost), "imbalance_by_length")
			b.ReportMetric(imbalance(p, world, cost), "imbalance_balanced")
		})
	}
}

package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"bowstring/fetch/plan"
)

func bucketed(tb testing.TB, cfg plan.Config, lengths plan.Lengths, window int64) *plan.Plan {
	tb.Helper()
	return costly(tb, cfg, lengths, nil, window)
}

// waste is the share of a plan's batches that would be padding.
func waste(p *plan.Plan, lengths plan.Lengths) float64 {
	var used, all float64
	for step := range p.Steps() {
		start, size := p.Batch(step)
		longest := uint32(0)
		for i := start; i < start+size; i++ {
			n := lengths[p.Position(i)]
			longest, used = max(longest, n), used+float64(n)
		}
		all += float64(longest) * float64(size)
	}
	return 1 - used/all
}

// TestBuckets: samples are only permuted within their window, each exactly once, the same for any world and any order of
// queries. Index is the inverse, and there is less padding.
func TestBuckets(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 150 {
		rows := 1 + rng.Int64N(3000)
		lengths := make(plan.Lengths, rows)
		for i := range lengths {
			lengths[i] = uint32(rng.ExpFloat64() * 1000)
		}
		selection := plan.All(rows)
		if rng.IntN(2) == 0 {
			b := plan.NewBitmap(rows)
			for pos := range rows {
				if pos == 0 || rng.IntN(3) > 0 {
					b.Set(pos)
				}
			}
			selection = b.Freeze()
		}
		cfg := plan.Config{
			Selection: selection, Shuffle: rng.IntN(4) > 0, Seed: rng.Uint64(), Epoch: rng.Uint64N(5),
			Batch: 1 + rng.Int64N(64), World: 1 + rng.IntN(9), Remainder: plan.Remainder(rng.IntN(3)),
		}
		if rng.IntN(3) == 0 {
			cfg.BlockRows, cfg.ClusterBlocks = 1+rng.Int64N(20), 1+rng.Int64N(5)
		}
		window := 1 + rng.Int64N(12)
		name := fmt.Sprintf("%d rows, %d selected, shuffle %t, batch %d, world %d, %v, window %d", rows,
			selection.Len(), cfg.Shuffle, cfg.Batch, cfg.World, cfg.Remainder, window)
		without, err := plan.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		p := bucketed(t, cfg, lengths, window)
		cfg.World = 1
		other := bucketed(t, cfg, lengths, window) // of another world
		if p.Steps() != without.Steps() || p.Rows() != without.Rows() {
			t.Fatalf("%s: %d steps of %d rows, without buckets %d of %d", name, p.Steps(), p.Rows(), without.Steps(),
				without.Rows())
		}
		order := rng.Perm(int(p.Rows())) // windows are thrown out and put in order again
		got := make([]int64, p.Rows())
		for _, i := range order {
			got[i] = p.Position(int64(i))
		}
		each := window * cfg.Batch
		for start := int64(0); start < p.Rows(); start += each {
			end := min(start+each, p.Rows())
			var want []int64
			for i := start; i < end; i++ {
				want = append(want, without.Position(i))
				if o := other.Position(i); o != got[i] {
					t.Fatalf("%s: index %d is position %d, in another world %d", name, i, got[i], o)
				}
			}
			have := slices.Clone(got[start:end])
			slices.Sort(have)
			slices.Sort(want)
			if !slices.Equal(have, want) {
				t.Fatalf("%s: a window has %v, want %v", name, have, want)
			}
		}
		for _, i := range order[:min(len(order), 200)] {
			index, ok := p.Index(got[i])
			about, known := p.About(got[i])
			if !ok || !known || p.Padded() == 0 && index != int64(i) || p.Position(index) != got[i] {
				t.Fatalf("%s: position %d, which stands at %d, is found at %d, %t", name, got[i], i, index, ok)
			}
			if about/each != index/each {
				t.Fatalf("%s: position %d is about at %d, and stands at %d", name, got[i], about, index)
			}
		}
		// A window of batches that are put in order by length has no more padding than as it came.
		if a, b := waste(p, lengths), waste(without, lengths); a > b+1e-9 {
			t.Errorf("%s: %.3f is padding, without buckets %.3f", name, a, b)
		}
	}
}

// TestBucketsWaste holds how much padding is saved for lengths as those of utterances.
func TestBucketsWaste(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lengths := make(plan.Lengths, 20_000)
	for i := range lengths {
		lengths[i] = uint32(min(max(1000*(12+4*rng.NormFloat64()), 1000), 35000))
	}
	cfg := plan.Config{Selection: plan.All(20_000), Shuffle: true, Seed: 5, Batch: 64, World: 4}
	without, err := plan.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a, b := waste(bucketed(t, cfg, lengths, 32), lengths), waste(without, lengths)
	t.Logf("padding %.4f, without buckets %.4f", a, b)
	if a > b/5 {
		t.Errorf("%.4f is padding, without buckets %.4f", a, b)
	}
}

// TestBucketsStay holds that an order never changes between releases.
func TestBucketsStay(t *testing.T) {
	lengths := make(plan.Lengths, 23)
	for i := range lengths {
		lengths[i] = uint32(i * 7 % 5)
	}
	for _, c := range []struct {
		shuffle bool
		epoch   uint64
		want    []int64
	}{
		{false, 0, []int64{0, 5, 10, 3, 8, 1, 6, 11, 4, 9, 2, 7, 15, 20, 13, 18, 16, 21, 14, 19, 12, 17, 22}},
		{true, 0, []int64{8, 3, 16, 14, 15, 0, 20, 18, 9, 17, 7, 22, 11, 6, 21, 4, 10, 5, 13, 1, 19, 12, 2}},
		{true, 1, []int64{9, 7, 12, 2, 18, 11, 16, 1, 0, 20, 5, 10, 15, 3, 13, 8, 21, 6, 19, 4, 14, 17, 22}},
	} {
		p := bucketed(t, plan.Config{Selection: plan.All(23), Shuffle: c.shuffle, Seed: 9, Epoch: c.epoch, Batch: 4,
			World: 1, Remainder: plan.Uneven}, lengths, 3)
		var got []int64
		for i := range p.Rows() {
			got = append(got, p.Position(i))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("shuffle %t, epoch %d: %#v", c.shuffle, c.epoch, got)
		}
	}
}

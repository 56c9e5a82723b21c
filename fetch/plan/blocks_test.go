package plan

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
)

// inBlocks is a configuration whose shuffle may be one of blocks.
func inBlocks(rng *rand.Rand, cfg Config) Config {
	if rng.IntN(2) == 0 {
		cfg.BlockRows, cfg.ClusterBlocks = 1+rng.Int64N(40), 1+rng.Int64N(9)
	}
	return cfg
}

// listed is the order of blocks, put together as a list.
func listed(n, rows, cluster int64, seed, epoch uint64) (order []int64) {
	count := (n + rows - 1) / rows
	places := NewPerm(uint64(count), blocksSeed(seed, 0), epoch)
	for first := int64(0); first < count; first += cluster {
		var all []int64
		for place := first; place < min(first+cluster, count); place++ {
			block := int64(places.At(uint64(place)))
			for row := block * rows; row < min((block+1)*rows, n); row++ {
				all = append(all, row)
			}
		}
		perm := NewPerm(uint64(len(all)), blocksSeed(seed, uint64(first/cluster)+1), epoch)
		for i := range all {
			order = append(order, all[perm.At(uint64(i))])
		}
	}
	return order
}

// The order by index, and its inverse, are those of the list.
func TestBlocksAreTheList(t *testing.T) {
	rng := testRand(t)
	for range 300 {
		n, rows, cluster := rng.Int64N(3000), 1+rng.Int64N(120), 1+rng.Int64N(12)
		seed, epoch := rng.Uint64(), rng.Uint64N(9)
		b := newBlocks(n, rows, cluster, seed, epoch)
		for i, want := range listed(n, rows, cluster, seed, epoch) {
			if got, index := b.at(int64(i)), b.index(want); got != want || index != int64(i) {
				t.Fatalf("%d samples in blocks of %d, %d a cluster, seed %d: at %d stands %d, want %d; that is found at %d", n,
					rows, cluster, seed, i, got, want, index)
			}
		}
	}
}

// A reader that holds a cluster reads each block once: all samples of a block come within as many rows as a cluster has.
func TestBlocksComeTogether(t *testing.T) {
	rng := testRand(t)
	for range 50 {
		n, rows, cluster := 1+rng.Int64N(20_000), 1+rng.Int64N(100), 1+rng.Int64N(20)
		p := mustPlan(t, Config{Selection: All(n), Shuffle: true, Seed: rng.Uint64(), BlockRows: rows,
			ClusterBlocks: cluster, Batch: 7, World: 1, Remainder: Uneven})
		first, last := map[int64]int64{}, map[int64]int64{}
		for i := range n {
			block := p.Position(i) / rows
			if _, ok := first[block]; !ok {
				first[block] = i
			}
			last[block] = i
		}
		for block := range first {
			if last[block]-first[block] >= cluster*rows {
				t.Fatalf("%d samples in blocks of %d, %d a cluster: block %d is used from %d to %d", n, rows, cluster,
					block, first[block], last[block])
			}
		}
	}
}

// goldenBlocks must never be edited: tickets that clients keep depend on them.
var goldenBlocks = []struct {
	n, rows, cluster int64
	crc              uint32
}{{1000, 76, 4, 0x84215ea7}, {100_000, 9, 256, 0x9a3479db}, {257, 300, 1, 0xbf50d345}, {12, 5, 2, 0x86c0292d}}

func TestBlocksNeverChange(t *testing.T) {
	for i, g := range goldenBlocks {
		p := mustPlan(t, Config{Selection: All(g.n), Shuffle: true, Seed: 42, Epoch: 3, BlockRows: g.rows,
			ClusterBlocks: g.cluster, Batch: 64, World: 3, Remainder: Uneven})
		var order []byte
		for i := range p.Rows() {
			order = fmt.Appendln(order, p.Position(i))
		}
		if crc := crc32.Checksum(order, crc32.MakeTable(crc32.Castagnoli)); crc != g.crc {
			t.Errorf("order %d has changed: %#08x", i, crc)
		}
	}
}

// A shuffle of one cluster with all blocks is as random as any other: its batches have as many classes of a sorted
// dataset. With few blocks a cluster they have fewer.
func TestBlocksMixAsTheySay(t *testing.T) {
	rng := testRand(t)
	const n, classes, batch = 50_000, 100, 256
	distinct := func(cluster int64) float64 {
		p := mustPlan(t, Config{Selection: All(n), Shuffle: true, Seed: rng.Uint64(), BlockRows: 50,
			ClusterBlocks: cluster, Batch: batch, World: 1, Remainder: Drop})
		var counts []int
		for step := range p.Steps() {
			seen := map[int64]bool{}
			for i := step * batch; i < (step+1)*batch; i++ {
				seen[p.Position(i)*classes/n] = true
			}
			counts = append(counts, len(seen))
		}
		slices.Sort(counts)
		return float64(counts[len(counts)/2])
	}
	whole, few := distinct(MaxBlocks), distinct(8)
	if whole < 88 || few > 17 {
		t.Errorf("batches have %g classes in the median with one cluster, and %g with clusters of 8 blocks", whole, few)
	}
}

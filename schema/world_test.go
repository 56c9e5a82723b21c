package schema

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// A rank's share follows from its coordinates in the data dimensions, the last dimension
// changing first. The test compares it with counting through all coordinates in order.
func TestDataRank(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	names := append(append([]string{}, DataDims...), SameDims...)
	for range 300 {
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		dims := names[:1+rng.IntN(len(names))]
		sizes := make([]int, len(dims))
		var parts []string
		for i, name := range dims {
			sizes[i] = 1 + rng.IntN(5)
			parts = append(parts, fmt.Sprintf("%s=%d", name, sizes[i]))
		}
		r := Request{Dataset: "a", World: &World{Mesh: strings.Join(parts, ",")}}
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		at := make([]int, len(dims))
		times := map[int]int64{}
		ranks := 0
		for more := true; more; ranks++ {
			want := 0
			for i, name := range dims {
				if strings.HasPrefix(name, "dp") {
					want = want*sizes[i] + at[i]
				}
			}
			if got := r.DataRank(ranks); got != want {
				t.Fatalf("rank %d of %s has share %d, want %d", ranks, r.World.Mesh, got, want)
			}
			times[want]++
			more = false
			for i := len(dims) - 1; i >= 0 && !more; i-- {
				if at[i]++; at[i] < sizes[i] {
					more = true
				} else {
					at[i] = 0
				}
			}
		}
		if r.WorldSize() != int64(ranks) || r.DataRanks() != int64(len(times)) {
			t.Errorf("%s has %d ranks and %d data ranks, want %d and %d", r.World.Mesh, r.WorldSize(), r.DataRanks(), ranks,
				len(times))
		}
		for data, n := range times {
			if n != r.Replicas() {
				t.Errorf("%d ranks of %s have share %d, want %d", n, r.World.Mesh, data, r.Replicas())
			}
		}
	}
}

// Ranks that follow one another share a share, as in the mesh that says the same.
func TestReplicate(t *testing.T) {
	for size := int64(1); size <= 24; size++ {
		for replicate := int64(1); replicate <= size; replicate++ {
			r := Request{Dataset: "a", World: &World{Size: size, Replicate: replicate}}
			if err := r.Check(); (err == nil) != (size%replicate == 0) {
				t.Fatalf("%s: %v", r.Marshal(), err)
			} else if err != nil {
				continue
			}
			mesh := Request{World: &World{Mesh: fmt.Sprintf("dp=%d,tp=%d", size/replicate, replicate)}}
			for rank := range int(size) {
				if r.DataRank(rank) != mesh.DataRank(rank) {
					t.Errorf("rank %d of %s has share %d, and %d in %s", rank, r.World, r.DataRank(rank),
						mesh.DataRank(rank), mesh.World)
				}
			}
			if r.DataRanks() != mesh.DataRanks() || r.WorldSize() != mesh.WorldSize() || r.Replicas() != replicate {
				t.Errorf("%s and %s are not alike", r.World, mesh.World)
			}
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = (Request{World: &World{Mesh: "pp=2,dp=8,tp=4"}}).DataRank(33) }); n != 0 {
		t.Errorf("%v allocations for the share of a rank", n)
	}
}

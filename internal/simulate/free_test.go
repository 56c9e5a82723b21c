package simulate

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"bowstring/spill"
)

// Two jobs of a free order over the same samples, each with a shuffle of its own, find more in the cache than Belady's rule,
// which knows all that comes, has them find in the plans' orders: each serves first what the other one has read. Those of a
// strict order find no more than that rule.
func TestFreeOrdersHitMoreThanBelady(t *testing.T) {
	const samples, size, batch, epochs, window, budget = 6000, 20_000, 8, 3, 1 << 20, 28 << 20
	hits := map[string]float64{}
	for _, order := range []string{"strict", "free"} {
		job := fmt.Sprintf(`{"dataset": "d", "batch": %d, "epochs": %d, "step_ms": 5, "order": %q, "seed": %%d}`, batch, epochs, order)
		r := simulated(t, fmt.Sprintf(`{"nodes": {"count": 1, "alone": true, "window_bytes": %d}, "store": {"latency_ms": 5},
			"spill": {"bytes": %d}, "datasets": [{"name": "d", "samples": %d, "bytes": %d}], "jobs": [%s, %s]}`, window, budget,
			samples, size, fmt.Sprintf(job, 1), fmt.Sprintf(job, 2)))
		for _, j := range r.Jobs {
			for _, e := range j.Epochs[1:] {
				hits[order] += e.HitRate / float64(len(r.Jobs)*(epochs-1))
			}
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var orders [2][]int
	for range epochs {
		for k := range orders {
			orders[k] = append(orders[k], rng.Perm(samples)...)
		}
	}
	var uses []int
	for at := 0; at < len(orders[0]); at += batch {
		uses = append(append(uses, orders[0][at:at+batch]...), orders[1][at:at+batch]...)
	}
	room := int(spill.Capacity(budget)+window) / size
	best := beladyHits(uses, 2*samples, room)
	t.Logf("room for %.3f: the plan's order hits %.3f, Belady's rule %.3f, a free order %.3f", float64(room)/samples,
		hits["strict"], best, hits["free"])
	if hits["free"] < 1.2*best {
		t.Errorf("a free order hits %.3f, Belady's rule in the plan's order %.3f", hits["free"], best)
	}
	if hits["strict"] > best+0.02 {
		t.Errorf("the plan's order hits %.3f, more than Belady's rule: %.3f", hits["strict"], best)
	}
}

// beladyHits is the share of uses, from one on, that a cache with room for room samples hits by Belady's rule: what is used
// last makes room, and what is used later than all that is there is not kept.
func beladyHits(uses []int, from, room int) float64 {
	next, last := make([]int, len(uses)), map[int]int{}
	for i := len(uses) - 1; i >= 0; i-- {
		next[i] = math.MaxInt
		if at, ok := last[uses[i]]; ok {
			next[i] = at
		}
		last[uses[i]] = i
	}
	held, queue, hits := map[int]int{}, &latest{}, 0
	for i, what := range uses {
		if _, there := held[what]; there && i >= from {
			hits++
		}
		if next[i] == math.MaxInt {
			delete(held, what)
			continue
		}
		held[what] = next[i]
		heap.Push(queue, [2]int{next[i], what})
		for len(held) > room {
			if top := heap.Pop(queue).([2]int); held[top[1]] == top[0] { //nolint:forcetypeassert // nothing else is in it
				delete(held, top[1])
			}
		}
	}
	return float64(hits) / float64(len(uses)-from)
}

// latest is a heap of uses: when, and of what, the last one first.
type latest [][2]int

func (h latest) Len() int           { return len(h) }
func (h latest) Less(i, j int) bool { return h[i][0] > h[j][0] }
func (h latest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *latest) Push(x any)        { *h = append(*h, x.([2]int)) } //nolint:forcetypeassert // nothing else is in it
func (h *latest) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

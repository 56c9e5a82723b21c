package replay

import (
	"container/heap"
	"math"

	"bowstring/spill"
)

// Optimum replays the trace with the rule that no other can beat: on a miss, of what is in the cache and the sample
// itself, what will be used last, in the whole trace, is not kept. That is Belady's MIN where a sample need not be
// stored ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966).
func (t *Trace) Optimum(capacity int) Result {
	return t.OptimumFrom(math.MinInt64, capacity, capacity)
}

// OptimumFrom is what Optimum's rule makes of the part of the trace from a time on, if the cache has another capacity
// from then on: it begins with what the rule has kept until then, as far as there is room. The result counts that part
// alone; its First are the uses in it of samples that the whole trace had not used before.
func (t *Trace) OptimumFrom(at spill.Time, before, after int) Result {
	const never = int32(1<<31 - 1)
	next := make([]int32, len(t.uses)) // when the sample of a use is used again, as an index
	last := make([]int32, t.items)
	for i := range last {
		last[i] = never
	}
	for i := len(t.uses) - 1; i >= 0; i-- {
		item := t.uses[i].item
		next[i] = last[item]
		last[item] = int32(i)
	}
	// last is now the first use of each.

	var r Result
	var latest byNext
	cached := make([]int32, t.items) // next use of what is in the cache, 0 of what is not
	held, capacity, counts := 0, before, false
	// farthest returns the next use of what is used last of all that is held, which is on top then.
	farthest := func() int32 {
		// The top is up to date where it says what the sample's next use is; otherwise it was used meanwhile.
		for cached[latest[0].item] != latest[0].next {
			heap.Pop(&latest)
		}
		return latest[0].next
	}
	evict := func() {
		cached[latest[0].item] = 0
		heap.Pop(&latest)
		held--
		r.Evicted++
	}
	for i, u := range t.uses {
		if !counts && u.at >= at {
			r, counts, capacity = Result{}, true, after
			for held > capacity {
				farthest()
				evict()
			}
		}
		r.Uses++
		if last[u.item] == int32(i) {
			r.First++
		}
		switch {
		case cached[u.item] != 0:
			r.Hits++
		case capacity == 0:
			r.Bypassed++
			continue
		case held == capacity:
			if farthest() <= next[i] {
				r.Bypassed++
				continue
			}
			evict()
			fallthrough
		default:
			held++
			r.Stored++
		}
		cached[u.item] = next[i]
		heap.Push(&latest, reuse{next[i], u.item})
	}
	if !counts {
		return Result{}
	}
	return r
}

// reuse is a sample that is held, and when it is used again.
type reuse struct{ next, item int32 }

// byNext is a heap, the latest next use on top.
type byNext []reuse

func (h byNext) Len() int           { return len(h) }
func (h byNext) Less(i, k int) bool { return h[i].next > h[k].next }
func (h byNext) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *byNext) Push(x any)        { *h = append(*h, x.(reuse)) }
func (h *byNext) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

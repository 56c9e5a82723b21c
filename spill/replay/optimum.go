package replay

import "container/heap"

// Optimum replays the trace with the rule that no other can beat: on a miss, of what is in the cache and the sample
// itself, what will be used last, in the whole trace, is not kept. That is Belady's MIN where a sample need not be stored
// ("A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966).
func (t *Trace) Optimum(capacity int) Result {
	const never = int32(1<<31 - 1)
	next := make([]int32, len(t.uses)) // when the sample of a use is used again, as an index
	last := make([]int32, t.items)
	for i := range last {
		last[i] = never
	}
	r := Result{Uses: int64(len(t.uses)), First: int64(t.items)}
	for i := len(t.uses) - 1; i >= 0; i-- {
		item := t.uses[i].item
		next[i] = last[item]
		last[item] = int32(i)
	}

	cached := make([]int32, t.items) // next use of what is in the cache, 0 of what is not
	var latest byNext
	for i, u := range t.uses {
		now := cached[u.item] != 0
		switch {
		case now:
			r.Hits++
		case capacity == 0:
			r.Bypassed++
			continue
		case len(latest) >= capacity && r.Stored-r.Evicted == int64(capacity):
			// The top is up to date where it says what the sample's next use is; otherwise it was used meanwhile.
			for cached[latest[0].item] != latest[0].next {
				heap.Pop(&latest)
			}
			if latest[0].next <= next[i] {
				r.Bypassed++
				continue
			}
			cached[latest[0].item] = 0
			heap.Pop(&latest)
			r.Evicted++
			r.Stored++
		default:
			r.Stored++
		}
		cached[u.item] = next[i]
		heap.Push(&latest, farthest{next[i], u.item})
	}
	return r
}

type farthest struct{ next, item int32 }

// byNext is a heap, the latest next use on top.
type byNext []farthest

func (h byNext) Len() int           { return len(h) }
func (h byNext) Less(i, k int) bool { return h[i].next > h[k].next }
func (h byNext) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }
func (h *byNext) Push(x any)        { *h = append(*h, x.(farthest)) }
func (h *byNext) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

package admission

// rank is where something stands among others: the least tag is first, and of
// equal ones the one that was served longest ago.
type rank struct {
	tag  int64 // start tag of its next item: what it was given, in virtual time
	last uint64
	at   int // its index in the heap
}

func (r *rank) ranking() *rank { return r }

// advance takes note of an item of that cost, which is the n-th of all.
func (r *rank) advance(cost int64, n uint64) { r.tag, r.last = r.tag+max(cost, 1), n }

// ranked is a heap of what has a rank, for container/heap.
type ranked[E interface{ ranking() *rank }] []E

// Len implements heap.Interface.
func (h ranked[E]) Len() int { return len(h) }

// Less implements heap.Interface.
func (h ranked[E]) Less(i, j int) bool {
	a, b := h[i].ranking(), h[j].ranking()
	return a.tag < b.tag || a.tag == b.tag && a.last < b.last
}

// Swap implements heap.Interface.
func (h ranked[E]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].ranking().at, h[j].ranking().at = i, j
}

// Push implements heap.Interface.
func (h *ranked[E]) Push(x any) {
	e := x.(E)
	e.ranking().at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *ranked[E]) Pop() any {
	old := *h
	e := old[len(old)-1]
	var none E
	old[len(old)-1] = none
	*h = old[:len(old)-1]
	return e
}

package plan

import (
	"bowstring/fetch/layout"
	"bowstring/schema"
)

// MaxLocalBatch bounds the rows of a global batch that is shared out by a [Locality]: it
// is shared out as a whole, in 12 bytes a row.
const MaxLocalBatch = schema.MaxLocalBatch

// Locality divides global batches so that ranks get rows that their nodes own. The [Plan]
// determines the rows of a step, and how many of them each rank gets. The Locality
// determines only which rank gets which row. That is a pure function of the plan, the
// layout, and the node of each rank:
//
//   - In plan order, a row goes to its first or second owner: to the one with the smaller
//     filled part of its quota, if it has quota left. A node's quota is the number of rows
//     of all its ranks.
//   - The other rows fill the remaining quotas, in plan order and in the order of the nodes:
//     first, if there are several zones, rows whose first owner is in the node's zone; then
//     rows without an owner, which are read from the store anyway; then all others. These
//     have to move from node to node.
//   - A node's rows go to its ranks in plan order, to each rank its number of rows.
//
// It follows "Accelerating data loading in deep neural network training" (Yang and Cong, HiPC 2019),
// with owners by hash in the place of what caches happen to hold, so that it can be
// replayed. A Locality is immutable and safe for concurrent use.
type Locality struct {
	layout *layout.Layout
	zones  []int32
	zoned  bool
	ranks  []int32 // by node, and in it ascending
	first  []int32 // of ranks, by node; then their number
}

// NewLocality returns the sharing among len(nodes) ranks: rank r runs beside node
// nodes[r] of the layout.
func NewLocality(l *layout.Layout, nodes []int32) *Locality {
	x := &Locality{layout: l, zones: l.Zones(), ranks: make([]int32, len(nodes)), first: make([]int32, l.Nodes()+1)}
	for _, z := range x.zones {
		x.zoned = x.zoned || z != x.zones[0]
	}
	for _, n := range nodes {
		x.first[n+1]++
	}
	for n := range l.Nodes() {
		x.first[n+1] += x.first[n]
	}
	next := append([]int32(nil), x.first...)
	for r, n := range nodes {
		x.ranks[next[n]] = int32(r)
		next[n]++
	}
	return x
}

// World is the number of ranks.
func (x *Locality) World() int { return len(x.ranks) }

// Assign shares a global batch out. slots has the slot of each of its rows, in plan order.
// The result is the rows, as offsets in the batch, by rank and then in plan order: with lo
// and hi as of [Plan.Share], and start the batch's first index, rank r gets those of
// [lo-start, hi-start).
func (x *Locality) Assign(slots []uint16) []int32 {
	b := share{Locality: x, slots: slots, quota: make([]int32, len(x.first)-1), count: make([]int32, len(x.first)-1),
		who: make([]int16, len(slots))}
	for n := range b.quota {
		for _, r := range x.ranks[x.first[n]:x.first[n+1]] {
			lo, hi := x.rows(int64(r), int64(len(slots)))
			b.quota[n] += int32(hi - lo)
		}
	}
	b.own()
	if x.zoned {
		b.surplus = b.fillZones(b.surplus)
	}
	b.fill(b.unowned)
	b.fill(b.surplus)
	return b.deal()
}

// rows is a rank's range of rows in a batch of that size.
func (x *Locality) rows(rank, size int64) (lo, hi int64) {
	world := int64(len(x.ranks))
	return mulDiv(rank, size, world), mulDiv(rank+1, size, world)
}

// share is a batch being shared out.
type share struct {
	*Locality
	slots        []uint16
	quota, count []int32 // by node: rows that it gets in all, and rows assigned so far
	who          []int16 // node of each row
	unowned      []int32 // unassigned rows without an owner
	surplus      []int32 // other unassigned rows
	deficit      int     // nodes before it have their quota
}

// own gives the rows to their owners.
func (b *share) own() {
	for i, slot := range b.slots {
		o := b.layout.Owners(slot)
		n := o.First
		switch {
		case n == layout.None:
			b.unowned = append(b.unowned, int32(i))
			continue
		case o.Second != layout.None:
			m := o.Second
			// The node with the smaller filled part: cross-multiplied, because a quota may be 0.
			if b.count[n] >= b.quota[n] || b.count[m] < b.quota[m] &&
				int64(b.count[m])*int64(b.quota[n]) < int64(b.count[n])*int64(b.quota[m]) {
				n = m
			}
		}
		if b.count[n] < b.quota[n] {
			b.count[n]++
			b.who[i] = n
		} else {
			b.surplus = append(b.surplus, int32(i))
		}
	}
}

// fillZones gives rows to nodes in the zone of their first owner that have a deficit, and
// returns those that are left.
func (b *share) fillZones(rows []int32) []int32 {
	byZone := map[int32][]int16{}
	for n := range b.quota {
		if b.count[n] < b.quota[n] {
			byZone[b.zones[n]] = append(byZone[b.zones[n]], int16(n))
		}
	}
	left := rows[:0]
	for _, i := range rows {
		zone := b.zones[b.layout.Owners(b.slots[i]).First]
		open := byZone[zone]
		if len(open) == 0 {
			left = append(left, i)
			continue
		}
		n := open[0]
		b.who[i] = n
		if b.count[n]++; b.count[n] == b.quota[n] {
			byZone[zone] = open[1:]
		}
	}
	return left
}

// fill gives rows to the nodes that have a deficit, in their order.
func (b *share) fill(rows []int32) {
	for _, i := range rows {
		for b.count[b.deficit] == b.quota[b.deficit] {
			b.deficit++
		}
		b.count[b.deficit]++
		b.who[i] = int16(b.deficit)
	}
}

// deal gives the rows of each node to its ranks.
func (b *share) deal() []int32 {
	type hand struct{ rank, at, end int32 } // in ranks; in the result
	hands := make([]hand, len(b.quota))
	size := int64(len(b.slots))
	for n := range hands {
		hands[n].rank = b.first[n] - 1
	}
	order := make([]int32, size)
	for i, n := range b.who {
		h := &hands[n]
		for h.at == h.end {
			h.rank++
			lo, hi := b.rows(int64(b.ranks[h.rank]), size)
			h.at, h.end = int32(lo), int32(hi)
		}
		order[h.at] = int32(i)
		h.at++
	}
	return order
}

package layout

import (
	"encoding/binary"
	"math/bits"
	"sync"

	"bowstring/schema"
)

// Slots is how many parts the key space has.
const Slots = 1 << 16

// None is who owns a slot that nobody does.
const None = -1

// SlotOf is the slot of a key: its first 16 bits, by exclusive or with the 16 from byte 12 on.
// Of a content hash either would do. The keys of an attached table all begin alike; from
// byte 12 on they have the content's checksum.
func SlotOf(k schema.Key) uint16 {
	return binary.BigEndian.Uint16(k[:]) ^ binary.BigEndian.Uint16(k[12:])
}

// Layout is a record with the owners that follow from it. It is immutable and safe for
// concurrent use. It takes 256 KiB.
type Layout struct {
	record Record
	name   string
	owners []Owners // by slot
	zones  []int32  // of each node: equal numbers, equal zones
	quota  []int64  // slots that each node owns first
	shares []uint64 // weights of the nodes before each one, and of all
	place  []int32  // node of each rank, where the record says
	index  map[string]int
}

// Owners are the nodes that own a slot, as indexes in the record: the first is None
// if no node has room for it, the second if there is no other with room to spare.
type Owners struct{ First, Second int16 }

// New computes the layout of a record. It takes some 10 ns a slot and node. The error is that of
// [Record.Check].
//
// Each node owns exactly its quota of the slots: its part by weight, but no more than its
// capacity has room for ([quotas]). Slots take their turn in order, and each goes to the node
// that it is cheapest for ([cost]), of those that have quota left. So a node that leaves
// gives its slots to the others, and hardly any other slot moves. What capacity is left beyond the
// quotas holds second owners in the same way: in another zone than the first, where one
// has room.
func New(record Record) (*Layout, error) {
	if err := record.Check(); err != nil {
		return nil, err
	}
	l := &Layout{record: record, name: record.Name(), owners: make([]Owners, Slots),
		zones: make([]int32, len(record.Nodes)), index: map[string]int{}}
	numbers := map[string]int32{}
	caps, weights := make([]int64, len(record.Nodes)), make([]int64, len(record.Nodes))
	l.shares = make([]uint64, 1, len(record.Nodes)+1)
	for i, n := range record.Nodes {
		if _, ok := numbers[n.Zone]; !ok {
			numbers[n.Zone] = int32(len(numbers))
		}
		l.zones[i], l.index[n.ID] = numbers[n.Zone], i
		caps[i], weights[i] = slotsIn(n.Capacity, record.Bytes), n.Weight
		l.shares = append(l.shares, l.shares[i]+uint64(n.Weight))
	}
	if l.shares[len(record.Nodes)] == 0 { // nobody has a rank: all are alike
		for i := range record.Nodes {
			l.shares[i+1] = uint64(i + 1)
		}
	}
	for _, i := range record.Ranks {
		l.place = append(l.place, int32(i))
	}
	l.quota = quotas(Slots, weights, caps)
	var owned int64
	for i, q := range l.quota {
		owned += q
		caps[i] -= q
	}
	l.assign(l.quota, quotas(owned, weights, caps), len(numbers) > 1)
	return l, nil
}

// slotsIn is how many slots fit into a capacity, where all of them have so many bytes.
func slotsIn(capacity, size int64) int64 {
	if capacity >= size {
		if capacity == 0 {
			return 0
		}
		return Slots
	}
	hi, lo := bits.Mul64(uint64(capacity), Slots)
	q, _ := bits.Div64(hi, lo, uint64(size))
	return int64(q)
}

// assign gives each slot its owners, of which each node takes as many as first and second say.
func (l *Layout) assign(first, second []int64, zoned bool) {
	n := len(l.record.Nodes)
	one, two := append([]int64(nil), first...), append([]int64(nil), second...)
	seeds, reciprocals, costs := make([]uint64, n), make([]uint64, n), make([]uint64, n)
	for i, node := range l.record.Nodes {
		seeds[i], reciprocals[i] = seedOf(node.ID), weightUnit/uint64(max(node.Weight, 1))
	}
	for slot := range l.owners {
		seed := seedOfSlot(slot)
		best, cheapest := None, ^uint64(0)
		for i := range costs {
			c := cost(draw(seed, seeds[i]), reciprocals[i])
			costs[i] = c
			if c < cheapest && one[i] > 0 {
				best, cheapest = i, c
			}
		}
		l.owners[slot] = Owners{None, None}
		if best == None {
			continue
		}
		one[best]--
		l.owners[slot].First = int16(best)
		other := None
		if zoned {
			other = cheapestOf(costs, two, func(i int) bool { return l.zones[i] != l.zones[best] })
		}
		if other == None {
			other = cheapestOf(costs, two, func(i int) bool { return i != best })
		}
		if other != None {
			two[other]--
			l.owners[slot].Second = int16(other)
		}
	}
}

// cheapestOf is the node with the least cost of those that have quota left and may have it.
func cheapestOf(costs []uint64, quota []int64, may func(int) bool) int {
	best, cheapest := None, ^uint64(0)
	for i, c := range costs {
		if c < cheapest && quota[i] > 0 && may(i) {
			best, cheapest = i, c
		}
	}
	return best
}

// Record is what the layout was made of; it is not to be changed.
func (l *Layout) Record() Record { return l.record }

// Name is the name of the record.
func (l *Layout) Name() string { return l.name }

// Nodes is the number of nodes.
func (l *Layout) Nodes() int { return len(l.record.Nodes) }

// Node is the node of an index.
func (l *Layout) Node(i int) Node { return l.record.Nodes[i] }

// Index is the index of the node with that id.
func (l *Layout) Index(id string) (i int, ok bool) {
	i, ok = l.index[id]
	return i, ok
}

// Owners are those of a slot.
func (l *Layout) Owners(slot uint16) Owners { return l.owners[slot] }

// Zones returns a number for each node. Those of one zone have the same. The slice is the
// layout's own, and not to be changed.
func (l *Layout) Zones() []int32 { return l.zones }

// Owned is how many slots a node owns first.
func (l *Layout) Owned(node int) int64 { return l.quota[node] }

// NodeOf is the node that a rank of a world runs beside. Where the record does not say it of
// a world of this size, ranks are dealt out in order: of w ranks, the nodes before which
// there are x of all W weights have ⌊x·w/W⌋ before them.
func (l *Layout) NodeOf(rank, world int) int {
	if len(l.place) == world {
		return int(l.place[rank])
	}
	// The last node before which there are no more than rank.
	all := l.shares[len(l.shares)-1]
	lo, hi := 0, l.Nodes()-1
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if l.shares[mid]*uint64(world)/all <= uint64(rank) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// NodesOf are the nodes that the ranks of a world run beside, by rank: NodeOf of each of them.
func (l *Layout) NodesOf(world int) []int32 {
	nodes := make([]int32, world)
	if len(l.place) == world {
		copy(nodes, l.place)
		return nodes
	}
	all := l.shares[len(l.shares)-1]
	before := func(node int) uint64 { return l.shares[node] * uint64(world) / all } // ranks
	node, next := 0, uint64(0)
	if l.Nodes() > 1 {
		next = before(1)
	}
	for r := range nodes {
		for node < l.Nodes()-1 && next <= uint64(r) {
			if node++; node < l.Nodes()-1 {
				next = before(node + 1)
			}
		}
		nodes[r] = int32(node)
	}
	return nodes
}

// Lone is the layout of a server that is in no cluster: its one node, "node", owns everything. It
// is the same everywhere, so that tickets which name it work on any such server.
var Lone = sync.OnceValue(func() *Layout {
	r, err := NewRecord(0, []Node{{ID: "node", Weight: 1, Capacity: 1}}, nil)
	if err != nil {
		panic(err)
	}
	l, err := New(r)
	if err != nil {
		panic(err)
	}
	return l
})

// KeyIn is a key that lies in a slot.
func KeyIn(slot uint16) (k schema.Key) {
	binary.BigEndian.PutUint16(k[:], slot)
	return k
}

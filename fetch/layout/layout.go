// Package layout says which node of a cluster owns which blob.
//
// A [Record] lists nodes with their weights and capacities. It is immutable and is
// named by the hash of its canonical encoding. A [Layout] is what follows from a
// record: of each of 65,536 slots of the key space, the node that owns it, and perhaps
// a second one. It is the same on every machine and in every release: the arithmetic
// is of integers alone.
//
// Ownership is advice. It says which node to ask for a blob first, and which rank is
// to have a sample; whether a node has the blob, only that node knows.
//
// The package does no I/O, reads no clock, draws no randomness and starts no
// goroutine. Which nodes there are is the business of fetch/members, and which rank
// gets which sample that of fetch/plan.
package layout

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"

	"bowstring/schema"
)

// Slots is how many parts the key space has.
const Slots = 1 << 16

// None is the owner of a slot without an owner.
const None = -1

// SlotOf is the slot of a blob.
//
// All blobs of a chunk of an object have one slot, so that its owner reads the chunk as a
// whole. The slot of any other blob is the first 16 bits of its key, xor the 16 bits from
// byte 12 on. For a content hash either of the two would do. But all keys of an attached
// table have the same first bytes, and the content's checksum from byte 12 on.
func SlotOf(ref schema.BlobRef) uint16 {
	k := &ref.Key
	if !ref.Hashed() {
		// No set has more objects. An id of a row that looks like an address nevertheless is one in 2^24.
		if a, ok := schema.ParseObjectAddress(*k); ok && a.Object < schema.MaxObjects {
			return slotOfChunk(&a)
		}
	}
	return binary.BigEndian.Uint16(k[:]) ^ binary.BigEndian.Uint16(k[12:])
}

// slotOfChunk is the slot of the chunk of an object that contains a blob.
func slotOfChunk(a *schema.ObjectAddress) uint16 {
	x := mixed(binary.BigEndian.Uint64(a.Prefix[:]))
	x = mixed(x + uint64(a.Object))
	return uint16(mixed(x+uint64(a.Chunk())) >> 48)
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

// New computes the layout of a record. It takes some 10 ns a slot and node. The error is
// that of [Record.Check].
//
// Each node owns exactly its quota of the slots: its part by weight, within its capacity
// ([quotas]). Slots are assigned in order, each to the node with the least [cost] among
// those with quota left. So if a node leaves, its slots go to the others, and hardly any
// other slot moves. Capacity beyond the quotas holds second owners, which are assigned in
// the same way: in another zone than the first owner, if one has room.
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
	if l.shares[len(record.Nodes)] == 0 { // no node has a rank: all have the same share
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

// slotsIn is how many slots fit into a capacity if all slots together have size bytes.
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

// assign gives each slot its owners. Each node becomes an owner as often as first and second say.
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

// RefIn is a reference with a given slot, which does not refer to a blob in an object.
func RefIn(slot uint16) (ref schema.BlobRef) {
	binary.BigEndian.PutUint16(ref.Key[:], slot)
	ref.Sum = 1 // so that the key counts as a hash
	return ref
}

// ZoneCaches returns the zone cache of each slot for a zone, as an index in the record; None
// if the zone has no node with a spill. Only the zone cache requests the slot's blobs from
// an owner in another zone, and it caches them for all nodes of its zone if that pays.
//
// If an owner is in the zone, it is the slot's zone cache, the first owner before the
// second. Otherwise the zone cache is the node of the zone with the least cost for the
// slot, by the same weighted rendezvous as owners, without quotas. So only a node's own
// part moves when it joins or leaves, and all nodes of the zone agree without messages.
func (l *Layout) ZoneCaches(zone int32) []int16 {
	type candidate struct {
		node             int16
		seed, reciprocal uint64
	}
	var in []candidate
	for i, n := range l.record.Nodes {
		if l.zones[i] == zone && n.Capacity > 0 {
			in = append(in, candidate{int16(i), seedOf(n.ID), weightUnit / uint64(max(n.Weight, 1))})
		}
	}
	zoneCaches := make([]int16, Slots)
	for slot := range zoneCaches {
		o := l.owners[slot]
		switch {
		case o.First != None && l.zones[o.First] == zone:
			zoneCaches[slot] = o.First
			continue
		case o.Second != None && l.zones[o.Second] == zone:
			zoneCaches[slot] = o.Second
			continue
		}
		zoneCaches[slot] = None
		seed, cheapest := seedOfSlot(slot), ^uint64(0)
		for _, c := range in {
			if price := cost(draw(seed, c.seed), c.reciprocal); price < cheapest {
				zoneCaches[slot], cheapest = c.node, price
			}
		}
	}
	return zoneCaches
}

// quotas divides total by weight. No node gets more than its cap. The rest that caps leave
// goes to the other nodes by weight, and then evenly to nodes of weight 0. The sum is
// total, or the sum of the caps if that is less. Shares of nodes below their cap differ
// from the exact ones by less than one: the largest remainders are rounded up (Hamilton's
// method), the first one of equal remainders.
func quotas(total int64, weights, caps []int64) []int64 {
	quota := make([]int64, len(weights))
	open := make([]int, 0, len(weights))
	for round := range 2 {
		open = open[:0]
		for i := range weights {
			if (weights[i] > 0) == (round == 0) && caps[i] > 0 {
				open = append(open, i)
			}
		}
		total -= fill(total, open, quota, caps, func(i int) int64 { return max(weights[i], 1) })
	}
	return quota
}

// fill shares total out over the open nodes, and returns how much they took.
func fill(total int64, open []int, quota, caps []int64, weight func(int) int64) (took int64) {
	for total > took && len(open) > 0 {
		var sum int64
		for _, i := range open {
			sum += weight(i)
		}
		left := total - took
		// A node whose share exceeds its cap gets its cap, and the others share the rest.
		var full []int
		for _, i := range open {
			if left*weight(i) >= sum*caps[i] { // below 2^16 · 2^16 · MaxNodes
				full = append(full, i)
			}
		}
		if len(full) > 0 {
			for _, i := range full {
				quota[i] = caps[i]
				took += caps[i]
			}
			open = slices.DeleteFunc(open, func(i int) bool { return quota[i] == caps[i] })
			continue
		}
		rest := left
		remainder := map[int]int64{}
		for _, i := range open {
			quota[i] = left * weight(i) / sum
			remainder[i] = left * weight(i) % sum
			rest -= quota[i]
		}
		slices.SortStableFunc(open, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
		for _, i := range open[:rest] {
			quota[i]++
		}
		return total
	}
	return took
}

// mixed is the finalizer of splitmix64: one to one, and each bit of the result depends on all
// of x.
func mixed(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// seedOf is a node's seed: 64 bits of the FNV-1a hash of its id, mixed.
func seedOf(id string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 0x100000001b3
	}
	return mixed(h)
}

// seedOfSlot is that of a slot.
func seedOfSlot(slot int) uint64 { return mixed(uint64(slot)*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d) }

// draw is the number that a node draws for a slot, uniform in 64 bits.
func draw(slot, node uint64) uint64 {
	x := (slot ^ node) * 0xbf58476d1ce4e5b9
	x ^= x >> 32
	x *= 0x94d049bb133111eb
	return x ^ x>>29
}

const (
	logBits  = 8 // of a mantissa are looked up, and the next logSteps interpolated
	logSteps = 24
)

// logs[i] is log2(1 + i/256) in units of 2^-32.
var logs = func() (t [1<<logBits + 1]uint64) {
	for i := range t {
		// The bits of a binary logarithm, one by one: square, and halve where that is 2 or more.
		x := (1<<logBits + uint64(i)) << (62 - logBits) // 2^62 is 1
		var log uint64
		if x >= 1<<63 { // the last entry is exactly 1
			t[i] = 1 << 32
			continue
		}
		for range 33 { // one bit more, to round by
			hi, lo := bits.Mul64(x, x)
			x = hi<<2 | lo>>62
			log <<= 1
			if x >= 1<<63 {
				x >>= 1
				log |= 1
			}
		}
		t[i] = (log + 1) >> 1
	}
	return t
}()

// surprise is -log2((x+1)/2^64) in units of 2^-32, rounded: of a uniform x, it is
// distributed exponentially. It never grows as x does.
func surprise(x uint64) uint64 {
	x |= 1
	n := bits.LeadingZeros64(x)
	m := x << n << 1 // without the leading 1
	i := m >> (64 - logBits)
	part := m << logBits >> (64 - logSteps)
	log := logs[i] + (logs[i+1]-logs[i])*part>>logSteps
	return uint64(n)<<32 + (1<<32 - log)
}

// weightUnit is the reciprocal of a weight of 1.
const weightUnit = 1 << 25

// cost is what a node with that reciprocal of its weight asks for a slot for which it drew x.
// The cheapest node has it: by the exponential distribution, with odds in proportion to
// the weights (weighted rendezvous hashing: Schindelhauer and Schomaker, "Weighted
// distributed hash tables", SPAA 2005).
func cost(x, reciprocal uint64) uint64 { return surprise(x) * reciprocal } // < 2^(6+32+25)

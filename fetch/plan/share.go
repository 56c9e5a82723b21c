package plan

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/big"
	"math/bits"
	"slices"
)

// never is a place in a sequence that is never reached. All that are reached are less.
const never = 1 << 62

// carryBits is how many binary places what one segment carries over to the next has.
const carryBits = 32

// sharing is the sequence in which sources take turns while their weights stay as they are: which source place v has,
// how often each had a turn before, and where a source has its k-th turn, each by a walk through a binary tree. The
// leaves are the sources, and each split shares the turns that come to it out between its two halves, as their weights
// say.
//
// A split alone is exact to within half a turn in every prefix. What a source is off by is the sum of that over the
// splits above it, each by the share of the source in the half below that split: bound says how much that can be at
// most. The tree is chosen for a small bound, which is 1 or less but for odd weights. What a bound of less than 1
// leaves free is used to have turns come at random.
//
// Rounding sums of weights instead, source j having C(j)-C(j-1) of p turns with C(j) = ⌊p·(w1+…+wj)/W⌋, is as near in
// every prefix and is no sequence: a source that has a turn can lose it again, as with shares of 0.5, 0.1 and 0.4 at p
// = 6.
type sharing struct {
	splits []split
	root   int32   // a split, or ^source where there is one source alone
	leaves []int32 // by source: where it hangs, as split.up; absent if it has no weight
	bound  float64
}

// split shares what comes to it out between two halves. The lighter half is due item k of its own as soon as its part of
// what came exceeds k and an offset, in units of the whole: k·whole + offset(k) < (m+1)·light + turns·whole + carry. It
// has no more than has come: where it is owed much, it gets one after the other.
type split struct {
	light, whole uint64 // weights: of the lighter half, and of both
	first, width uint64 // offsets are from first to first+width
	turns        int64  // what the lighter half is owed from before: whole turns, rounded down,
	carry        uint64 // and the rest, less than whole
	seed         uint64 // of offsets
	halves       [2]int32
	up           int32 // the split above, times two, plus 1 if this is its heavier half; absent at the root
}

const absent = -1

// offset is that of an item of the lighter half.
func (s *split) offset(k uint64) uint64 {
	if s.width == 0 {
		return s.first
	}
	r := splitmix64(s.seed ^ k*0x9e3779b97f4a7c15)
	return s.first + below(r.next(), s.width+1)
}

// take says how many of the first m items go to the lighter half, and whether the next one does.
func (s *split) take(m uint64) (taken uint64, next bool) {
	hi, lo := bits.Mul64(m, s.light)
	lo, c := bits.Add64(lo, s.carry, 0)
	q, rest := bits.Div64(hi+c, lo, s.whole)
	due := int64(q) + s.turns
	switch {
	case due < -1:
		return 0, false
	case due == -1:
		return 0, s.offset(0)+s.whole-rest < s.light
	}
	taken = uint64(due)
	gap := s.offset(taken) // from the sum to where the next item is due
	if gap < rest {
		taken++
		gap = s.offset(taken) + s.whole
	}
	if taken > m {
		return m, true
	}
	return taken, gap-rest < s.light
}

// lighter is which item the k-th of the lighter half is.
func (s *split) lighter(k uint64) uint64 {
	if k >= never {
		return never
	}
	due := int64(k) - s.turns
	if due < 0 {
		return k
	}
	hi, lo := bits.Mul64(uint64(due), s.whole)
	lo, c := bits.Add64(lo, s.offset(k), 0)
	hi += c
	lo, c = bits.Sub64(lo, s.carry, 0)
	if hi < c {
		return k
	}
	if hi -= c; hi >= s.light {
		return never
	}
	q, _ := bits.Div64(hi, lo, s.light)
	return min(max(q, k), never)
}

// heavier is which item the k-th of the heavier half is: it comes after k of its own, and after the i of the lighter half
// that have no more than k of the heavier before them.
func (s *split) heavier(k uint64) uint64 {
	if k >= never {
		return never
	}
	hi, lo := bits.Mul64(k+1, s.light)
	lo, c := bits.Add64(lo, s.carry, 0)
	hi += c
	if s.turns < 0 {
		h, l := bits.Mul64(uint64(-s.turns), s.whole)
		lo, c = bits.Sub64(lo, l, 0)
		if hi, c = bits.Sub64(hi, h, c); c != 0 {
			return k
		}
	} else {
		h, l := bits.Mul64(uint64(s.turns), s.whole)
		lo, c = bits.Add64(lo, l, 0)
		hi += h + c
	}
	heavy := s.whole - s.light
	var i uint64
	if last := s.first + s.width; hi > 0 || lo > last { // these come before, whatever their offsets
		l, c := bits.Sub64(lo, last+1, 0)
		q, _ := bits.Div64(hi-c, l, heavy)
		i = q + 1
	}
	for {
		h, l := bits.Mul64(i, heavy)
		l, c := bits.Add64(l, s.offset(i), 0)
		if h += c; h > hi || h == hi && l >= lo {
			return min(k+i, never)
		}
		i++
	}
}

// at says which source has a place, and how many turns it had before.
func (s *sharing) at(place uint64) (source int, turn uint64) {
	node := s.root
	for node >= 0 {
		x := &s.splits[node]
		if taken, light := x.take(place); light {
			node, place = x.halves[0], taken
		} else {
			node, place = x.halves[1], place-taken
		}
	}
	return int(^node), place
}

// count is how many turns a source has before a place.
func (s *sharing) count(source int, place uint64) uint64 {
	up := s.leaves[source]
	if up == absent && s.root != ^int32(source) {
		return 0
	}
	var path [64]int32 // there are no more splits
	n := 0
	for ; up != absent; up = s.splits[up>>1].up {
		path[n] = up
		n++
	}
	for n--; n >= 0; n-- {
		taken, _ := s.splits[path[n]>>1].take(place)
		if path[n]&1 != 0 {
			taken = place - taken
		}
		place = taken
	}
	return place
}

// place is where a source has the turn that comes after so many of its own; never if it has not so many.
func (s *sharing) place(source int, turn uint64) uint64 {
	up := s.leaves[source]
	if up == absent && s.root != ^int32(source) {
		return never
	}
	for ; up != absent; up = s.splits[up>>1].up {
		if x := &s.splits[up>>1]; up&1 == 0 {
			turn = x.lighter(turn)
		} else {
			turn = x.heavier(turn)
		}
	}
	return min(turn, never)
}

// newSharing is the sequence of some weights, not all of which are 0, and whose sum is less than 2^62. owed is what
// sources are owed from before, with carryBits binary places; random has turns come at random, as the seed says.
func newSharing(weights []uint64, owed []int64, seed uint64, random bool) *sharing {
	s := &sharing{leaves: make([]int32, len(weights))}
	g := grower{sharing: s, weights: slices.Clone(weights), owed: owed, seed: seed, random: random}
	for j := range weights {
		s.leaves[j] = absent
		if weights[j] > 0 {
			g.order = append(g.order, j)
		}
	}
	g.scale()
	slices.SortStableFunc(g.order, func(a, b int) int { return cmp.Compare(g.weights[b], g.weights[a]) })
	g.sums = make([]uint64, len(g.order)+1)
	for i, j := range g.order {
		g.sums[i+1] = g.sums[i] + g.weights[j]
	}
	g.choose()
	for i := range g.order {
		off := g.off(i)
		s.bound = max(s.bound, off)
		g.room = append(g.room, max(0, 0.999999-off))
	}
	s.root = g.grow(0, len(g.order), absent)
	return s
}

// grower makes the tree of a sharing.
type grower struct {
	*sharing
	weights []uint64
	owed    []int64
	seed    uint64
	random  bool
	order   []int    // sources by weight, the heaviest first
	sums    []uint64 // of the weights of the first ones in this order
	cuts    [][]cut  // by where an interval of that order begins and ends
	// room is what is left of a turn, by source in that order, that it may be off by.
	room []float64
}

// cut is where an interval of the order is split, and what its sources are off by then, in halves of a turn, beside
// what they are off by anyhow.
type cut struct {
	at  int
	off []float64
}

// scale makes weights that mean the same be the same, and large enough that offsets are fine.
func (g *grower) scale() {
	var divisor, sum uint64
	for _, w := range g.weights {
		for w != 0 {
			divisor, w = w, divisor%w
		}
	}
	for j, w := range g.weights {
		g.weights[j] = w / divisor
		sum += w / divisor
	}
	const enough = 56
	shift := max(0, enough-bits.Len64(sum))
	for j := range g.weights {
		g.weights[j] <<= shift
	}
}

// choose finds where each interval is cut best: where the source that is off by most is off by least. Divisions and
// sums of floating point are the same on every machine, as no product is added to anything.
func (g *grower) choose() {
	n := len(g.order)
	g.cuts = make([][]cut, n)
	for i := range g.cuts {
		g.cuts[i] = make([]cut, n+1)
		g.cuts[i][i+1].off = []float64{0}
	}
	for length := 2; length <= n; length++ {
		for i := 0; i+length <= n; i++ {
			g.cuts[i][i+length] = g.cut(i, i+length)
		}
	}
}

func (g *grower) cut(begin, end int) cut {
	whole := float64(g.sums[end] - g.sums[begin])
	if end-begin == len(g.order) {
		whole = math.Inf(1) // what comes to the root is exact
	}
	add := make([]float64, end-begin)
	for i := range add {
		add[i] = float64(g.weights[g.order[begin+i]]) / whole
	}
	best, at := math.Inf(1), begin+1
	for middle := begin + 1; middle < end; middle++ {
		worst := 0.0
		for i, off := range g.cuts[begin][middle].off {
			worst = max(worst, off+add[i])
		}
		for i, off := range g.cuts[middle][end].off {
			worst = max(worst, off+add[middle-begin+i])
		}
		if worst < best {
			best, at = worst, middle
		}
	}
	off := slices.Concat(g.cuts[begin][at].off, g.cuts[at][end].off)
	for i := range off {
		off[i] += add[i]
	}
	return cut{at, off}
}

// off is by how many turns a source can be off, without offsets that are random.
func (g *grower) off(i int) float64 {
	if len(g.order) == 1 {
		return 0
	}
	return (1 + g.cuts[0][len(g.order)].off[i]) / 2
}

// grow makes the tree of an interval, and returns its root.
func (g *grower) grow(begin, end int, up int32) int32 {
	if end-begin == 1 {
		g.leaves[g.order[begin]] = up
		return ^int32(g.order[begin])
	}
	node := int32(len(g.splits))
	at := g.cuts[begin][end].at
	light, heavy := part{begin, at}, part{at, end}
	if g.weight(light) > g.weight(heavy) {
		light, heavy = heavy, light
	}
	name := splitmix64(g.seed + uint64(node))
	s := split{up: up, light: g.weight(light), whole: g.sums[end] - g.sums[begin], seed: name.next()}
	s.turns, s.carry = g.carry(light, heavy, &s)
	if g.random {
		s.width = min(s.whole-s.light, uint64(g.most(light, heavy)*float64(s.whole)))
		g.use(light, float64(s.width)/float64(s.whole))
		g.use(heavy, float64(s.width)/float64(s.whole))
	}
	s.first = (s.whole - s.width) / 2
	g.splits = append(g.splits, s)
	first := g.grow(light.begin, light.end, node<<1)
	second := g.grow(heavy.begin, heavy.end, node<<1|1)
	g.splits[node].halves = [2]int32{first, second}
	return node
}

// part is an interval of the order.
type part struct{ begin, end int }

func (g *grower) weight(p part) uint64 { return g.sums[p.end] - g.sums[p.begin] }

// carry is what the lighter half is owed: what it lacks beyond its part of what both lack.
func (g *grower) carry(light, heavy part, s *split) (turns int64, rest uint64) {
	owed := func(p part) (sum int64) {
		for _, j := range g.order[p.begin:p.end] {
			sum += g.owed[j]
		}
		return sum
	}
	c := new(big.Int).Mul(big.NewInt(owed(light)), new(big.Int).SetUint64(s.whole))
	c.Sub(c, new(big.Int).Mul(big.NewInt(owed(light)+owed(heavy)), new(big.Int).SetUint64(s.light)))
	c.Rsh(c, carryBits)
	left := new(big.Int)
	c.DivMod(c, new(big.Int).SetUint64(s.whole), left)
	return c.Int64(), left.Uint64()
}

// most is what part of the whole offsets may take, so that no source is off by more than a turn. The splits above, whose
// offsets cost sources less, come first.
func (g *grower) most(parts ...part) float64 {
	most := 1.0
	for _, p := range parts {
		for i := p.begin; i < p.end; i++ {
			most = min(most, 2*g.room[i]*g.part(i, p))
		}
	}
	return most
}

// part is a half by one of its sources.
func (g *grower) part(i int, p part) float64 {
	return float64(g.weight(p)) / float64(g.weights[g.order[i]])
}

// use takes what offsets of some part of the whole cost the sources of a half.
func (g *grower) use(p part, width float64) {
	for i := p.begin; i < p.end; i++ {
		cost := width / g.part(i, p) / 2 // a quotient, as a product may be rounded together with the difference
		g.room[i] = max(0, g.room[i]-cost)
	}
}

// owing is what a source of a weight is owed after some places of which it had so many: what it was owed, and what it
// lacks.
func owing(owed int64, weight, whole uint64, places, had int64) int64 {
	due := new(big.Int).Mul(big.NewInt(places), new(big.Int).SetUint64(weight))
	due.Lsh(due, carryBits)
	due.Div(due, new(big.Int).SetUint64(whole))
	due.Sub(due, new(big.Int).Lsh(big.NewInt(had), carryBits))
	return owed + due.Int64()
}

// mixSeed is the seed of how sources take turns, for a segment that begins at a place.
func mixSeed(seed uint64, place int64) uint64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte("mixture\x00")))
	s = splitmix64(s.next() ^ uint64(place))
	return s.next()
}

// SourceSeed is the seed by which the samples of a source of a mixture change places. It depends on the source's name,
// and not on its place among the others.
func SourceSeed(seed uint64, name string) uint64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte("source\x00\x00")))
	h := s.next()
	for len(name) > 0 {
		var word [8]byte
		n := copy(word[:], name)
		name = name[n:]
		s = splitmix64(h ^ binary.LittleEndian.Uint64(word[:]))
		h = s.next() + uint64(n)
	}
	return h
}

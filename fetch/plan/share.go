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
// A split alone is exact to within half a turn in every prefix. The error of a source is
// the sum of these errors over the splits above it, each times the share of the source in
// the half below that split. The tree is chosen so that the maximum error is small: 1 or
// less for up to four sources, 1.03 for five, 1.2 for more. If the maximum is less than 1,
// the difference is used to place turns at random.
//
// Sources may be owed turns from before, or have had too many. Those that have a weight are together owed what those
// without one have too many, and each comes to be owed the same part of that. So errors do not add up, however often
// weights change: of n sources, the k that are owed most are together owed k·(n-k) at most, as sharing out alike among
// some of them keeps that so. (By weight instead, the heaviest one would be owed all, and after each change another one
// more.) A source that had too many gets none until its weight has made up for them; meanwhile the others have less.
// bound says how much a source can be off at most, with what is owed from before.
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

// split shares what comes to it out between two halves. The lighter half is due item k of its own as soon as its part
// of what came exceeds k and an offset, in units of the whole: k·whole + offset(k) < (m+1)·light + turns·whole + carry.
// It has no more than has come: where it is owed much, it gets one after the other.
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
	r := splitmix64(s.seed ^ k*splitmixStep)
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

// heavier is which item the k-th of the heavier half is: it comes after k of its own, and after the i of the lighter
// half that have no more than k of the heavier before them.
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

// place is the place of a source's turn number turn, from 0; never if the source does not
// have that many turns.
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

// newSharing is the sequence of some weights. At least one is not 0, and their sum is less than 2^62. owed is what
// sources are owed from before, with carryBits binary places; random has turns come at random, as the seed says.
func newSharing(weights []uint64, owed []int64, seed uint64, random bool) *sharing {
	s := &sharing{leaves: make([]int32, len(weights))}
	g := grower{sharing: s, weights: slices.Clone(weights), owed: owed, seed: seed, random: random}
	var left int64
	for j := range weights {
		s.leaves[j] = absent
		if weights[j] > 0 {
			g.order = append(g.order, j)
			left += owed[j]
		}
	}
	g.aim = left / int64(len(g.order))
	g.scale()
	slices.SortStableFunc(g.order, func(a, b int) int { return cmp.Compare(g.weights[b], g.weights[a]) })
	best := g.cutBest()
	if n := len(g.order); n > 2 && n <= maxSearched {
		best = cmp.Or(g.search(g.leavesOf(1<<n-1), math.Inf(1), g.bound(best, math.Inf(1))), best)
	}
	g.room = make([]float64, len(weights))
	g.spare(best, math.Inf(1))
	s.root = g.grow(best, absent)
	off := turnsOf(left)
	s.bound = g.reach(best, s.root, off, off)
	return s
}

// maxSearched is up to how many sources all trees are looked at.
const maxSearched = 7

// grower makes the tree of a sharing.
type grower struct {
	*sharing
	weights []uint64
	owed    []int64
	aim     int64 // what each source comes to be owed
	seed    uint64
	random  bool
	order   []int     // sources by weight, the heaviest first
	room    []float64 // what is left of a turn that a source may be off by
}

// shape is a part of a tree: a source, or two halves.
type shape struct {
	sources []int
	weight  uint64
	halves  [2]*shape // nil for a source
}

func join(a, b *shape) *shape {
	return &shape{slices.Concat(a.sources, b.sources), a.weight + b.weight, [2]*shape{a, b}}
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

// per is what counts of the splits above the halves of a part, by what counts of those above the part. A source is off
// by half a turn, and for each split above its own by half a turn times its share of the half there: so it is the sum
// of 1/weight of these halves, and infinite above the root. Quotients, sums of them and single products of floating
// point are the same on every machine.
func (x *shape) per(above float64) float64 {
	if math.IsInf(above, 1) {
		return 0 // what comes to the root is exact
	}
	return above + 1/float64(x.weight)
}

// bound is what a source of a part is off by at most, beyond half a turn, in halves of a turn.
func (g *grower) bound(x *shape, above float64) float64 {
	if x.halves[0] == nil {
		if math.IsInf(above, 1) {
			return 0
		}
		return float64(float64(x.weight) * above) // rounded here, and not together with a sum that it goes into
	}
	above = x.per(above)
	return max(g.bound(x.halves[0], above), g.bound(x.halves[1], above))
}

// spare notes what is left of a turn for each source.
func (g *grower) spare(x *shape, above float64) {
	if x.halves[0] == nil {
		g.room[x.sources[0]] = max(0, 1-2e-6-g.bound(x, above)) / 2
		return
	}
	above = x.per(above)
	g.spare(x.halves[0], above)
	g.spare(x.halves[1], above)
}

// cuts are, by where an interval of the order begins and ends, where that is cut best, and what each of its sources is
// off by then, in halves of a turn beyond the first one.
type cuts [][]struct {
	at  int
	off []float64
}

// cutBest is the tree that cuts the sources, in the order of their weights, where the one that is off by most is off by
// least; first all pairs of neighbours, then three, and so on.
func (g *grower) cutBest() *shape {
	n := len(g.order)
	best := make(cuts, n)
	sums, add := make([]uint64, n+1), make([]float64, n)
	for i, j := range g.order {
		best[i] = make([]struct {
			at  int
			off []float64
		}, n+1)
		best[i][i+1].off = []float64{0}
		sums[i+1] = sums[i] + g.weights[j]
	}
	for length := 2; length <= n; length++ {
		for i := 0; i+length <= n; i++ {
			end := i + length
			if length < n { // what comes to the root is exact
				for k := range length {
					add[k] = float64(g.weights[g.order[i+k]]) / float64(sums[end]-sums[i])
				}
			} else {
				clear(add)
			}
			least, at := math.Inf(1), 0
			first, last := g.between(sums, i, end)
			for middle := first; middle <= last; middle++ {
				most := 0.0
				left, right := best[i][middle].off, best[middle][end].off
				for k := 0; k < len(left) && most < least; k++ {
					most = max(most, left[k]+add[k])
				}
				for k := 0; k < len(right) && most < least; k++ {
					most = max(most, right[k]+add[len(left)+k])
				}
				if most < least {
					least, at = most, middle
				}
			}
			off := slices.Concat(best[i][at].off, best[at][end].off)
			for k := range off {
				off[k] += add[k]
			}
			best[i][end].at, best[i][end].off = at, off
		}
	}
	return g.cutAt(best, 0, n)
}

// between is between which places an interval is cut: anywhere or, of many sources, near where its halves weigh alike.
func (g *grower) between(sums []uint64, begin, end int) (first, last int) {
	const many, near = 16, 3
	if len(g.order) <= many {
		return begin + 1, end - 1
	}
	middle, _ := slices.BinarySearch(sums[begin+1:end], sums[begin]+(sums[end]-sums[begin])/2)
	middle += begin + 1
	return max(begin+1, min(middle, end-1)-near), min(end-1, middle+near)
}

func (g *grower) cutAt(best cuts, begin, end int) *shape {
	if end-begin == 1 {
		j := g.order[begin]
		return &shape{sources: []int{j}, weight: g.weights[j]}
	}
	at := best[begin][end].at
	return join(g.cutAt(best, begin, at), g.cutAt(best, at, end))
}

// leavesOf are some of the sources, which are to be a part.
func (g *grower) leavesOf(set uint) *shape {
	x := &shape{}
	for i, j := range g.order {
		if set>>i&1 != 0 {
			x.sources = append(x.sources, i)
			x.weight += g.weights[j]
		}
	}
	return x
}

// search is the tree of some of the sources, by their places in the order, whose bound is the least, and less than one
// that is known; nil if there is none.
func (g *grower) search(x *shape, above, known float64) (best *shape) {
	if len(x.sources) == 1 {
		leaf := &shape{sources: []int{g.order[x.sources[0]]}, weight: x.weight}
		if g.bound(leaf, above) < known {
			return leaf
		}
		return nil
	}
	above = x.per(above)
	if float64(g.weights[g.order[x.sources[0]]])*above >= known { // the heaviest comes first
		return nil
	}
	last := uint(1)<<(len(x.sources)-1) - 1
	for set := last; set > 0; set-- { // which are not in the half of the first
		var in, out uint
		for k, i := range x.sources {
			if k > 0 && set>>(k-1)&1 != 0 {
				out |= 1 << i
			} else {
				in |= 1 << i
			}
		}
		first := g.search(g.leavesOf(in), above, known)
		if first == nil {
			continue
		}
		if second := g.search(g.leavesOf(out), above, known); second != nil {
			best = join(first, second)
			known = max(g.bound(first, above), g.bound(second, above))
		}
	}
	return best
}

// grow makes the tree of a part, and returns its root.
func (g *grower) grow(x *shape, up int32) int32 {
	if x.halves[0] == nil {
		g.leaves[x.sources[0]] = up
		return ^int32(x.sources[0])
	}
	node := int32(len(g.splits))
	light, heavy := x.halves[0], x.halves[1]
	if light.weight > heavy.weight {
		light, heavy = heavy, light
	}
	name := splitmix64(g.seed + uint64(node))
	s := split{up: up, light: light.weight, whole: x.weight, seed: name.next()}
	s.turns, s.carry = g.carry(light, heavy)
	if g.random {
		s.width = min(heavy.weight, uint64(min(g.most(light), g.most(heavy))*float64(s.whole)))
		g.use(light, float64(s.width)/float64(s.whole))
		g.use(heavy, float64(s.width)/float64(s.whole))
	}
	s.first = (s.whole - s.width) / 2
	g.splits = append(g.splits, s)
	first := g.grow(light, node<<1)
	second := g.grow(heavy, node<<1|1)
	g.splits[node].halves = [2]int32{first, second}
	return node
}

// owes is what the sources of a part are owed, and how much of that is more than they come to be owed.
func (g *grower) owes(x *shape) (owed, more int64) {
	for _, j := range x.sources {
		owed += g.owed[j]
		more += g.owed[j] - g.aim
	}
	return owed, more
}

// turnsOf is turns with carryBits binary places.
func turnsOf(owed int64) float64 { return float64(owed) / (1 << carryBits) }

// carry is what the lighter half is owed: what it lacks beyond its part of what both lack.
func (g *grower) carry(light, heavy *shape) (turns int64, rest uint64) {
	_, inLight := g.owes(light)
	_, inHeavy := g.owes(heavy)
	whole := new(big.Int).SetUint64(light.weight + heavy.weight)
	c := new(big.Int).Mul(big.NewInt(inLight), whole)
	c.Sub(c, new(big.Int).Mul(big.NewInt(inLight+inHeavy), new(big.Int).SetUint64(light.weight)))
	c.Rsh(c, carryBits)
	left := new(big.Int)
	c.DivMod(c, whole, left)
	return c.Int64(), left.Uint64()
}

// reach is what a source of a part is off by at most, where the part is owed from least to most turns all the time.
func (g *grower) reach(x *shape, node int32, least, most float64) float64 {
	if node < 0 {
		return max(-least, most)
	}
	s := &g.splits[node]
	halves := [2]*shape{x.halves[0], x.halves[1]}
	if halves[0].weight > halves[1].weight {
		halves[0], halves[1] = halves[1], halves[0]
	}
	aim := turnsOf(g.aim)
	all := aim * float64(len(x.sources))
	by := (1 + float64(s.width)/float64(s.whole)) / 2
	var from, to [2]float64
	for i, half := range halves {
		part := float64(half.weight) / float64(s.whole)
		from[i] = aim*float64(len(half.sources)) + part*(least-all) - by
		to[i] = aim*float64(len(half.sources)) + part*(most-all) + by
	}
	carry := float64(s.turns) + float64(s.carry)/float64(s.whole)
	if math.Abs(carry) > 0.999*(1-by) { // one of them waits
		wait := 0
		if carry > 0 {
			wait = 1
		}
		owed, _ := g.owes(halves[wait])
		from[wait] = min(from[wait], turnsOf(owed))
		to[1-wait] = max(to[1-wait], most-turnsOf(owed))
	}
	return max(g.reach(halves[0], s.halves[0], from[0], to[0]), g.reach(halves[1], s.halves[1], from[1], to[1]))
}

// most is what part of the whole offsets may take, so that no source of a half is off by more than a turn. The splits
// above, whose offsets cost sources less, come first.
func (g *grower) most(x *shape) float64 {
	most := 1.0
	for _, j := range x.sources {
		most = min(most, 2*g.room[j]*(float64(x.weight)/float64(g.weights[j])))
	}
	return most
}

// use takes what offsets of some part of the whole cost the sources of a half.
func (g *grower) use(x *shape, width float64) {
	for _, j := range x.sources {
		cost := width / (float64(x.weight) / float64(g.weights[j])) / 2
		g.room[j] = max(0, g.room[j]-cost)
	}
}

// owing is the number of places that a source of a weight is owed after places places, if it got
// had of them: what it was owed before, plus what it lacks.
func owing(owed int64, weight, whole uint64, places, had int64) int64 {
	due := new(big.Int).Lsh(big.NewInt(places), carryBits)
	due = partOf(due, weight, whole)
	due.Sub(due, new(big.Int).Lsh(big.NewInt(had), carryBits))
	return owed + due.Int64()
}

// partOf is the part of a number that belongs to a weight, rounded down.
func partOf(number *big.Int, weight, whole uint64) *big.Int {
	part := new(big.Int).Mul(number, new(big.Int).SetUint64(weight))
	return part.Div(part, new(big.Int).SetUint64(whole))
}

// mixSeed is the seed of how sources take turns, for a segment that begins at a place.
func mixSeed(seed uint64, place int64) uint64 {
	return uint64(sampleSeed(seed, uint64(place), "mixture\x00"))
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

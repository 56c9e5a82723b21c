package plan

import (
	"container/heap"
	"fmt"
	"math/big"
	"math/bits"
	"slices"
	"strconv"

	"bowstring/schema"
)

const (
	// MaxClasses bounds the classes of a Balance.
	MaxClasses = 1 << 16
	// MaxBalanced bounds the samples of one.
	MaxBalanced = 1<<32 - 1
	// MaxPeriod bounds after how many samples the classes of a Balance come in the same numbers again.
	MaxPeriod = 1 << 20
	// balancePiece is how many samples are sorted at a turn: some milliseconds.
	balancePiece = 1 << 18
)

// Classes has which class each sample of a selection is of, by index in the selection. It is only read.
type Classes []uint16

// Balance has the classes of a selection's samples come in given shares. It is immutable and safe for concurrent use.
//
// A job's samples, one epoch after the other, are cut into periods. In each period class c comes as often as its
// part says. Within a period the places are dealt to classes so that in every prefix each class has come as often
// as it should, to less than one: item k of a class with w parts of a period of d has to come within the places
// [⌊k·d/w⌋, ⌈(k+1)·d/w⌉), and the most urgent goes first, which always works (Baruah, Cohen, Plaxton, Varvel,
// "Proportionate progress", 1996). Classes of equal parts change places from period to period.
//
// The k-th sample of a class is the one that its own permutation has there, and when all have come, another permutation
// begins: so samples of a small class come again while those of a large one come for the first time, and each of a
// class comes as often as any other, to one.
type Balance struct {
	classes Classes
	members []uint32 // samples by class, ascending in each
	first   []uint32 // of a class in members; and their number

	parts  []uint32 // of a period, by class
	period int64
	slots  []uint16 // by slot of a period: its class, before changes among classes of equal parts
	before []uint32 // how many places a slot's class has before it
	places []uint32 // slots by class, ascending in each
	start  []uint32 // of a class in places; and their number
	group  []int32  // of a class: those of equal parts
	rank   []uint16 // of a class in its group
	groups [][]uint16
}

// BalanceBytes is the memory of a Balance with these numbers of samples and classes and
// this period, in bytes.
func BalanceBytes(samples, classes, period int64) int64 {
	return 6*samples + 20*classes + 10*period
}

// Parts makes whole numbers of shares of which none is below 0 and one is above: by what decimal fractions they are
// exactly where the sum is at most MaxPeriod then, and otherwise rounded to parts of MaxPeriod, but what is more than 0
// to at least one. A share of 0 is 0.
func Parts(shares []float64) ([]uint32, error) {
	exact := make([]*big.Rat, len(shares))
	for i, s := range shares {
		r, ok := new(big.Rat).SetString(strconv.FormatFloat(s, 'g', -1, 64))
		if !ok || r.Sign() < 0 || len(shares) > MaxClasses {
			return nil, fmt.Errorf("%w: share %v", schema.ErrInvalid, s)
		}
		exact[i] = r
	}
	common, sum := commonOf(exact)
	if sum.Sign() == 0 {
		return nil, fmt.Errorf("%w: no share is more than 0", schema.ErrInvalid)
	}
	whole := make([]*big.Int, len(shares))
	all, divisor := new(big.Int), new(big.Int)
	for i, r := range exact {
		n := new(big.Int).Mul(r.Num(), common)
		whole[i] = n.Div(n, r.Denom())
		all.Add(all, whole[i])
		divisor.GCD(nil, nil, divisor, whole[i])
	}
	if all.Div(all, divisor); all.IsInt64() && all.Int64() <= MaxPeriod {
		parts := make([]uint32, len(shares))
		for i, n := range whole {
			parts[i] = uint32(n.Div(n, divisor).Uint64())
		}
		return parts, nil
	}
	return rounded(exact, sum), nil
}

// commonOf are the least common denominator of shares, and their sum.
func commonOf(shares []*big.Rat) (denominator *big.Int, sum *big.Rat) {
	denominator, sum = big.NewInt(1), new(big.Rat)
	for _, s := range shares {
		gcd := new(big.Int).GCD(nil, nil, denominator, s.Denom())
		denominator.Mul(denominator, new(big.Int).Div(s.Denom(), gcd))
		sum.Add(sum, s)
	}
	return denominator, sum
}

// rounded makes parts of MaxPeriod, the sum, of shares: what is lost by rounding down goes to those that lost most.
func rounded(shares []*big.Rat, sum *big.Rat) []uint32 {
	parts := make([]uint32, len(shares))
	lost := make([]*big.Rat, len(shares))
	left := int64(MaxPeriod)
	for i, s := range shares {
		of := new(big.Rat).Mul(s, big.NewRat(MaxPeriod, 1))
		of.Quo(of, sum)
		n := new(big.Int).Div(of.Num(), of.Denom()).Int64()
		lost[i] = of.Sub(of, big.NewRat(n, 1))
		if n == 0 && s.Sign() > 0 {
			n, lost[i] = 1, new(big.Rat)
		}
		parts[i] = uint32(n)
		left -= n
	}
	by := make([]int, len(shares))
	for i := range by {
		by[i] = i
	}
	slices.SortStableFunc(by, func(a, b int) int { return lost[b].Cmp(lost[a]) })
	for _, i := range by { // none where small shares were made larger: the period may be longer by these
		if left <= 0 {
			break
		}
		if lost[i].Sign() > 0 {
			parts[i]++
			left--
		}
	}
	return parts
}

// NewBalance returns a Balance that gives each class its part of an epoch; parts are from
// Parts. A class with parts must have samples. It works in pieces through turn, so that
// other work can run in between. The Balance keeps classes.
func NewBalance(classes Classes, parts []uint32, turn func(piece func() error) error) (*Balance, error) {
	b := &Balance{classes: classes, parts: parts, first: make([]uint32, len(parts)+1)}
	b.members = make([]uint32, len(classes))
	if err := b.sort(turn); err != nil {
		return nil, err
	}
	for c, n := range parts {
		if n > 0 && b.first[c] == b.first[c+1] {
			return nil, fmt.Errorf("%w: class %d has no samples", schema.ErrInvalid, c)
		}
		b.period += int64(n)
	}
	if b.period == 0 {
		return nil, fmt.Errorf("%w: no class has a part", schema.ErrInvalid)
	}
	return b, turn(func() error {
		b.schedule()
		b.arrange()
		return nil
	})
}

// sort puts samples in order of their classes.
func (b *Balance) sort(turn func(piece func() error) error) error {
	n := int64(len(b.classes))
	err := InPieces(n, balancePiece, turn, func(from, to int64) {
		for _, c := range b.classes[from:to] {
			b.first[c+1]++
		}
	})
	if err != nil {
		return err
	}
	for c := range b.parts {
		b.first[c+1] += b.first[c]
	}
	next := slices.Clone(b.first)
	return InPieces(n, balancePiece, turn, func(from, to int64) {
		for i, c := range b.classes[from:to] {
			b.members[next[c]] = uint32(from) + uint32(i)
			next[c]++
		}
	})
}

// item is the next one of a class that is to get a slot: from release on, and before due.
type item struct {
	class, number uint32
	release, due  int64
}

// urgent has items by one of their times.
type urgent struct {
	items []item
	less  func(a, b *item) bool
}

func (u *urgent) Len() int           { return len(u.items) }
func (u *urgent) Less(i, j int) bool { return u.less(&u.items[i], &u.items[j]) }
func (u *urgent) Swap(i, j int)      { u.items[i], u.items[j] = u.items[j], u.items[i] }
func (u *urgent) Push(x any)         { u.items = append(u.items, x.(item)) }
func (u *urgent) Pop() any {
	last := u.items[len(u.items)-1]
	u.items = u.items[:len(u.items)-1]
	return last
}

// schedule gives the slots of a period to classes.
func (b *Balance) schedule() {
	d := b.period
	b.slots, b.before, b.places = make([]uint16, d), make([]uint32, d), make([]uint32, d)
	b.start = make([]uint32, len(b.parts)+1)
	for c, n := range b.parts {
		b.start[c+1] = b.start[c] + n
	}
	waiting := &urgent{less: func(a, b *item) bool {
		return a.release < b.release || a.release == b.release && a.class < b.class
	}}
	ready := &urgent{less: func(a, b *item) bool { return a.due < b.due || a.due == b.due && a.class < b.class }}
	of := func(class, number uint32) item {
		n := int64(b.parts[class])
		return item{class, number, int64(number) * d / n, (int64(number+1)*d + n - 1) / n}
	}
	for c, n := range b.parts {
		if n > 0 {
			waiting.items = append(waiting.items, of(uint32(c), 0))
		}
	}
	heap.Init(waiting)
	for slot := range d {
		for waiting.Len() > 0 && waiting.items[0].release <= slot {
			heap.Push(ready, heap.Pop(waiting))
		}
		x := heap.Pop(ready).(item)
		if slot >= x.due {
			panic(fmt.Sprintf("plan: item %d of class %d comes in slot %d, and had to before %d", x.number, x.class, slot,
				x.due))
		}
		b.slots[slot], b.before[slot], b.places[b.start[x.class]+x.number] = uint16(x.class), x.number, uint32(slot)
		if x.number+1 < b.parts[x.class] {
			heap.Push(waiting, of(x.class, x.number+1))
		}
	}
}

// arrange puts classes of equal parts in groups.
func (b *Balance) arrange() {
	of := map[uint32]int32{}
	b.group, b.rank = make([]int32, len(b.parts)), make([]uint16, len(b.parts))
	for c, n := range b.parts {
		g, ok := of[n]
		if !ok {
			g = int32(len(b.groups))
			of[n] = g
			b.groups = append(b.groups, nil)
		}
		b.group[c], b.rank[c] = g, uint16(len(b.groups[g]))
		b.groups[g] = append(b.groups[g], uint16(c))
	}
}

// Period is after how many samples classes have come as often as their parts say.
func (b *Balance) Period() int64 { return b.period }

// Samples is how many samples there are of a class.
func (b *Balance) Samples(class int) int64 { return int64(b.first[class+1] - b.first[class]) }

// Share is which part of a job's samples are of a class.
func (b *Balance) Share(class int) float64 { return float64(b.parts[class]) / float64(b.period) }

// Distinct is how many different samples an epoch of that many rows has, within one for
// each class.
func (b *Balance) Distinct(rows int64) (n float64) {
	for c := range b.parts {
		n += min(b.Share(c)*float64(rows), float64(b.Samples(c)))
	}
	return n
}

// balanced is the order of an epoch in which classes come in shares.
type balanced struct {
	*Balance
	rows    int64
	seed    splitmix64
	period0 uint64 // in which the epoch begins, of the job's
	slot0   uint64 // and at which slot of it
}

func newBalanced(b *Balance, rows int64, seed, epoch uint64) *balanced {
	o := &balanced{Balance: b, rows: rows, seed: sampleSeed(seed, 0, "balance\x00")}
	hi, lo := bits.Mul64(epoch, uint64(rows))
	o.period0, o.slot0 = divide(hi, lo, uint64(b.period))
	return o
}

// divide returns a quotient, less what of it is beyond 64 bits, and the remainder.
func divide(hi, lo, by uint64) (quotient, rest uint64) { return bits.Div64(hi%by, lo, by) }

// locate says which slot of which period an index is.
func (o *balanced) locate(index int64) (period, slot uint64) {
	at := o.slot0 + uint64(index)
	return o.period0 + at/uint64(o.Balance.period), at % uint64(o.Balance.period)
}

// changed says how the classes of a group change places in a period.
func (o *balanced) changed(group int32, period uint64) Perm {
	s := splitmix64(uint64(o.seed) ^ uint64(group+1)*splitmixStep)
	return NewPerm(uint64(len(o.groups[group])), s.next(), period)
}

// classAt is the class that has the slots of another one in a period.
func (o *balanced) classAt(class uint16, period uint64) uint16 {
	g := o.group[class]
	if len(o.groups[g]) == 1 {
		return class
	}
	p := o.changed(g, period)
	return o.groups[g][p.At(uint64(o.rank[class]))]
}

// slotsOf is the class whose slots a class has in a period.
func (o *balanced) slotsOf(class uint16, period uint64) uint16 {
	g := o.group[class]
	if len(o.groups[g]) == 1 {
		return class
	}
	p := o.changed(g, period)
	return o.groups[g][p.Index(uint64(o.rank[class]))]
}

// samples is the order of a class's samples when they come for another time.
func (o *balanced) samples(class uint16, time uint64) Perm {
	s := splitmix64(uint64(o.seed) + uint64(class+1)*splitmixStep)
	return NewPerm(uint64(o.Samples(int(class))), s.next(), time)
}

// number is that of an item of a class among all that the job has of it: how often all of the class have come before,
// and how many since.
func (o *balanced) number(class uint16, period, before uint64) (time, since uint64) {
	hi, lo := bits.Mul64(period, uint64(o.parts[class]))
	lo, carry := bits.Add64(lo, before, 0)
	return divide(hi+carry, lo, uint64(o.Samples(int(class))))
}

// at is which sample stands at an index.
func (o *balanced) at(index int64) int64 {
	period, slot := o.locate(index)
	class := o.classAt(o.slots[slot], period)
	time, since := o.number(class, period, uint64(o.before[slot]))
	order := o.samples(class, time)
	return int64(o.members[uint64(o.first[class])+order.At(since)])
}

// next says when a sample comes next, from an index on.
func (o *balanced) next(sample, from int64) (int64, bool) {
	class := o.classes[sample]
	parts := uint64(o.parts[class])
	if parts == 0 || from >= o.rows {
		return 0, false
	}
	own, _ := slices.BinarySearch(o.members[o.first[class]:o.first[class+1]], uint32(sample))
	period, slot := o.locate(from)
	slots := o.slotsOf(class, period)
	passed, _ := slices.BinarySearch(o.places[o.start[slots]:o.start[slots+1]], uint32(slot))
	time, since := o.number(class, period, uint64(passed))
	order := o.samples(class, time)
	at := order.Index(uint64(own))
	if at < since { // it has come: when they come for the next time
		order = o.samples(class, time+1)
		at = uint64(o.Samples(int(class))) + order.Index(uint64(own))
	}
	item := uint64(passed) + at - since // of those from the period on
	later := item / parts
	slot = uint64(o.places[uint64(o.start[o.slotsOf(class, period+later)])+item%parts])
	hi, index := bits.Mul64(period-o.period0+later, uint64(o.Balance.period))
	index += slot - o.slot0
	if hi > 0 || index >= uint64(o.rows) {
		return 0, false
	}
	return int64(index), true
}

package plan

import (
	"fmt"
	"math/bits"
)

const (
	// tableSize is the largest domain whose permutation is kept as a table. A
	// Feistel network is a poor shuffle there: its halves have so few values
	// that many permutations are out of its reach.
	tableSize = 256

	// rounds of the Feistel network, half of them on each side. With random
	// round functions, where any two values go is then within 3e-9 of uniform, in
	// total variation, for the smallest network (17 by 16), and closer for larger
	// ones.
	rounds = 8
)

// Perm is a keyed permutation of [0, n) with its inverse, for any n, each
// computed per value in constant time and without memory of its own.
//
// It is a generalized Feistel network over Z_a × Z_b with addition as its group
// operation (Luby and Rackoff 1988; Black and Rogaway, "Ciphers with arbitrary
// finite domains", CT-RSA 2002). b is a power of two close to √n and a = ⌈n/b⌉,
// so that a·b exceeds n by less than b; what falls between is permuted again
// until it is below n (cycle walking, ibid.), which takes less than 1 + √(2/n)
// turns on average. Up to 256 values it is instead a table that a Fisher-Yates
// shuffle fills, its draws taken from a generator of 64 bits of state.
//
// The numbers it gives for (n, seed, epoch) are part of the protocol: they never
// change. They are for shuffling; this is no cipher.
//
// A Perm is immutable and safe for concurrent use.
type Perm struct {
	feistel // of n alone, where at and index are used
	// at and index are the permutation and its inverse where n <= tableSize.
	at, index [tableSize]uint8
}

// feistel is the network. It is made in little time, and for few values a poor shuffle.
type feistel struct {
	n    uint64
	a    uint64 // values of the left half
	mask uint64 // b-1, b being the values of the right half
	bits uint8  // log2 b
	keys [rounds]uint64
}

// NewPerm returns the permutation of [0, n) for a seed and an epoch. Orders for
// different seeds, epochs or n have nothing to do with each other.
func NewPerm(n, seed, epoch uint64) Perm {
	if n > tableSize {
		return Perm{feistel: newFeistel(n, seed, epoch)}
	}
	p, rng := Perm{feistel: feistel{n: n}}, permKeys(n, seed, epoch)
	for i := range n {
		p.at[i] = uint8(i)
	}
	for i := n; i > 1; i-- {
		j := below(rng.next(), i)
		p.at[i-1], p.at[j] = p.at[j], p.at[i-1]
	}
	for i := range n {
		p.index[p.at[i]] = uint8(i)
	}
	return p
}

// newFeistel is the network for n values, at least one.
func newFeistel(n, seed, epoch uint64) feistel {
	p, rng := feistel{n: n}, permKeys(n, seed, epoch)
	p.bits = uint8(bits.Len64(n-1) / 2)
	p.mask = 1<<p.bits - 1
	p.a = (n-1)>>p.bits + 1
	for i := range p.keys {
		p.keys[i] = rng.next()
	}
	return p
}

// permKeys draws the keys of a permutation. It is one to one in each of the three arguments while the others are fixed,
// so that no two epochs of a run can share their keys.
func permKeys(n, seed, epoch uint64) splitmix64 {
	rng := splitmix64(seed)
	rng = splitmix64(rng.next() ^ epoch)
	rng = splitmix64(rng.next() ^ n)
	return splitmix64(rng.next())
}

// Len is n, the number of values permuted.
func (p *Perm) Len() uint64 { return p.n }

// At returns the value at index i of the permuted order. It panics unless i < n.
func (p *Perm) At(i uint64) uint64 {
	if i >= p.n {
		panic(fmt.Sprintf("plan: index %d in a permutation of %d", i, p.n))
	}
	if p.n <= tableSize {
		return uint64(p.at[i])
	}
	return p.value(i)
}

// Index returns where in the permuted order the value v is: the inverse of At.
// It panics unless v < n.
func (p *Perm) Index(v uint64) uint64 {
	if v >= p.n {
		panic(fmt.Sprintf("plan: value %d in a permutation of %d", v, p.n))
	}
	if p.n <= tableSize {
		return uint64(p.index[v])
	}
	return p.place(v)
}

// value is At by the network, and place is Index.
func (p *feistel) value(i uint64) uint64 {
	for {
		if i = p.forward(i); i < p.n {
			return i
		}
	}
}

func (p *feistel) place(v uint64) uint64 {
	for {
		if v = p.backward(v); v < p.n {
			return v
		}
	}
}

// forward permutes [0, a·b).
func (p *feistel) forward(x uint64) uint64 {
	l, r := x>>(p.bits&63), x&p.mask
	top := (64 - p.bits) & 63
	for i := 0; i < rounds; i += 2 {
		l += below(scramble(r, p.keys[i]), p.a)
		if t := l - p.a; l >= p.a {
			l = t
		}
		r = (r + scramble(l, p.keys[i+1])>>top) & p.mask
	}
	return l<<(p.bits&63) | r
}

// backward undoes forward.
func (p *feistel) backward(x uint64) uint64 {
	l, r := x>>(p.bits&63), x&p.mask
	top := (64 - p.bits) & 63
	for i := rounds - 2; i >= 0; i -= 2 {
		r = (r - scramble(l, p.keys[i+1])>>top) & p.mask
		f := below(scramble(r, p.keys[i]), p.a)
		t := l - f
		if l < f {
			t += p.a
		}
		l = t
	}
	return l<<(p.bits&63) | r
}

// scramble is the round function: a keyed hash of half a value. Callers use
// its upper bits, which depend on every bit of x and of the key; the
// multipliers are those of splitmix64's finalizer.
func scramble(x, key uint64) uint64 {
	x = (x ^ key) * 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return x * 0x94d049bb133111eb
}

// below maps a uniform 64-bit number to [0, n) by its upper bits (Lemire, "Fast
// random integer generation in an interval", 2019). Its bias is below n/2^64:
// not to be seen, n being at most 2^32 here.
func below(x, n uint64) uint64 {
	hi, _ := bits.Mul64(x, n)
	return hi
}

// splitmix64 is the generator of Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", 2014.
type splitmix64 uint64

// splitmixStep is from one state of the generator to the next.
const splitmixStep = 0x9e3779b97f4a7c15

func (s *splitmix64) next() uint64 {
	*s += splitmixStep
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

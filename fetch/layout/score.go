package layout

import "math/bits"

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

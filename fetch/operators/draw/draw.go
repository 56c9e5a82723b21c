// Package draw generates the random numbers of operators.
//
// They come from a counter-based generator, Philox4x64-10 (Salmon, Moraes, Dror and Shaw:
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a number is a pure function of
// a key and a counter. The key is (seed, epoch). The counter is (block, operator,
// position, 0). So the same sample in the same epoch gets the same numbers on any node,
// in any rank and in any order, and no state has to be stored to generate them again.
// numpy.random.Philox gives the same numbers from the same key and counter.
//
// The package does no I/O and keeps no state except that of a [Source].
package draw

import (
	"math"
	"math/bits"
)

// Key names the sample that numbers are generated for.
type Key struct {
	// Seed is the request's.
	Seed uint64
	// Epoch counts from 0. A new epoch has new numbers.
	Epoch uint64
	// Position is the sample's row in its snapshot.
	Position uint64
}

const (
	multiplier0 = 0xD2E7470EE14C6C93
	multiplier1 = 0xCA5A826395121157
	weyl0       = 0x9E3779B97F4A7C15 // the golden ratio
	weyl1       = 0xBB67AE8584CAA73B // the square root of three, less one
	rounds      = 10
)

// philox is the generator's bijection of counters under a key.
func philox(c [4]uint64, k0, k1 uint64) [4]uint64 {
	for range rounds {
		hi0, lo0 := bits.Mul64(multiplier0, c[0])
		hi1, lo1 := bits.Mul64(multiplier1, c[2])
		c = [4]uint64{hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0}
		k0 += weyl0
		k1 += weyl1
	}
	return c
}

// Source is the sequence of numbers of one operator for one sample. A copy continues
// independently from the same point. It is not safe for concurrent use.
type Source struct {
	key      Key
	operator uint64
	block    uint64
	numbers  [4]uint64
	left     int
}

// New returns the sequence of an operator for a sample, from its beginning.
func New(key Key, operator uint64) Source {
	return Source{key: key, operator: operator}
}

// Uint64 is uniform over all its values.
func (s *Source) Uint64() uint64 {
	if s.left == 0 {
		s.numbers = philox([4]uint64{s.block, s.operator, s.key.Position, 0}, s.key.Seed, s.key.Epoch)
		s.block++
		s.left = len(s.numbers)
	}
	v := s.numbers[len(s.numbers)-s.left]
	s.left--
	return v
}

// Float64 is uniform in [0, 1), a multiple of 2⁻⁵³. It takes one number.
func (s *Source) Float64() float64 {
	return float64(s.Uint64()>>11) * 0x1p-53
}

// Uniform is in [low, high), or low if they are equal. It takes one number.
func (s *Source) Uniform(low, high float64) float64 {
	// The conversions prevent compilers from fusing the product with the sum, which would
	// give other bits on some CPUs.
	return low + float64(s.Float64()*(high-low))
}

// IntN is uniform in [0, n), with a bias below n·2⁻⁶⁴. It always takes one number, so the
// count of numbers that an operator takes does not depend on their values. Rejection
// sampling would be unbiased but take a varying count. It panics if n < 1.
func (s *Source) IntN(n int) int {
	if n < 1 {
		panic("draw: IntN of less than one value")
	}
	hi, _ := bits.Mul64(s.Uint64(), uint64(n))
	return int(hi)
}

// Chance is true with probability p. It takes one number.
func (s *Source) Chance(p float64) bool {
	return s.Float64() < p
}

// Operator is the number of the operator at index i of a column's list. A column that
// follows another one passes that column's name, and so gets its numbers.
func Operator(column string, i int) uint64 {
	// FNV-1a of the name: different columns draw different numbers.
	h := uint64(0xcbf29ce484222325)
	for _, b := range []byte(column) {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	return h + uint64(i)*weyl0
}

// LogUniform is exp of a uniform number between the logarithms of low and high, which are
// positive. Random crops use it for aspect ratios. It takes one number.
//
// Go's math.Exp and math.Log have assembly on some CPUs, whose last bits differ. The
// result has to be rounded to whole pixels before it is used.
func (s *Source) LogUniform(low, high float64) float64 {
	return math.Exp(s.Uniform(math.Log(low), math.Log(high)))
}

package plan

import (
	"math/bits"
	"testing"
)

// family is a way to shuffle: it returns the order of an epoch as a function
// from index to value.
type family func(n, seed, epoch uint64) func(i uint64) uint64

func permFamily(n, seed, epoch uint64) func(uint64) uint64 {
	p := NewPerm(n, seed, epoch)
	return p.At
}

// affineFamily is i ↦ m·i + c: any value at any index, but always in step.
func affineFamily(n, seed, epoch uint64) func(uint64) uint64 {
	rng := splitmix64(seed*0x9e3779b97f4a7c15 ^ epoch)
	rng.next()
	m, c := below(rng.next(), n)|1, below(rng.next(), n)
	for gcd(m, n) != 1 {
		m = below(rng.next(), n) | 1
	}
	return func(i uint64) uint64 { return (m*i + c) % n }
}

// halfFamily rotates by less than half.
func halfFamily(n, seed, epoch uint64) func(uint64) uint64 {
	rng := splitmix64(seed*0x9e3779b97f4a7c15 ^ epoch)
	rng.next()
	c := below(rng.next(), (n+1)/2)
	return func(i uint64) uint64 { return (i + c) % n }
}

// sumFamily is one good order, which seed and epoch only rotate.
func sumFamily(n, seed, epoch uint64) func(uint64) uint64 {
	p := NewPerm(n, 7, 7)
	return func(i uint64) uint64 { return (p.At(i) + seed + epoch) % n }
}

func TestEveryPermutationOfFewIsEquallyLikely(t *testing.T) {
	judge(t, affineFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		for n := uint64(2); n <= 6; n++ {
			cells := 1
			for k := 2; k <= int(n); k++ {
				cells *= k
			}
			counts := make([]int, cells)
			for s := range uint64(60_000) {
				at := order(n, seed+s, 0)
				cell := 0
				for i := range n { // rank of the permutation by its Lehmer code
					less := 0
					for j := i + 1; j < n; j++ {
						if at(j) < at(i) {
							less++
						}
					}
					cell = cell*int(n-i) + less
				}
				counts[cell]++
			}
			f.addUniform(counts, "permutations of %d", n)
		}
		return f
	})
}

func TestEveryValueIsEquallyLikelyAtEveryIndex(t *testing.T) {
	judge(t, halfFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		for _, n := range []uint64{2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 20, 64, 255, 256, 257, 258, 272, 300, 511, 513,
			1000} {
			indices := []uint64{0, 1, n / 2, n - 1}
			if n <= 20 {
				indices = indices[:0]
				for i := range n {
					indices = append(indices, i)
				}
			}
			counts := make([][]int, len(indices))
			for k := range counts {
				counts[k] = make([]int, n)
			}
			for s := range 4000 + 10*n {
				at := order(n, seed+s, 0)
				for k, i := range indices {
					counts[k][at(i)]++
				}
			}
			for k, i := range indices {
				f.addUniform(counts[k], "value at index %d of %d", i, n)
			}
		}
		return f
	})
}

func TestPairsAreIndependent(t *testing.T) {
	judge(t, affineFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		for _, n := range []uint64{3, 4, 5, 6, 7, 8, 11, 16, 20, 256, 257, 272} {
			pairs := [][2]uint64{{0, 1}, {0, n - 1}, {n / 2, n/2 + 1}}
			if n <= 8 {
				pairs = pairs[:0]
				for i := range n {
					for j := i + 1; j < n; j++ {
						pairs = append(pairs, [2]uint64{i, j})
					}
				}
			}
			counts := make([][]int, len(pairs))
			for k := range counts {
				counts[k] = make([]int, n*(n-1))
			}
			samples := 20 * n * (n - 1)
			if n > 20 { // mean of a cell: 2, enough where there are 65,000
				samples = min(2*n*(n-1), 140_000)
			}
			for s := range max(samples, 4000) {
				at := order(n, seed, s)
				for k, p := range pairs {
					counts[k][pairCell(n, at(p[0]), at(p[1]))]++
				}
			}
			for k, p := range pairs {
				f.addUniform(counts[k], "values at %d and %d of %d", p[0], p[1], n)
			}
		}
		// In larger domains by their difference: neighbours, and indices whose
		// halves in the network are equal or differ by a bit.
		for _, n := range []uint64{257, 300, 1000, 1025, 10_000, 1 << 20, 1e9 + 7, 1e12} {
			net := NewPerm(n, 0, 0)
			row := net.mask + 1
			pairs := [][2]uint64{{0, 1}, {1, 2}, {0, n - 1}, {0, row}, {row, row + 1}, {3, 3 + row*(n/row-1)}}
			cells := min(n-1, 256)
			counts := make([][]int, len(pairs))
			expected := make([]float64, cells)
			for c := range expected { // differences d-1 in 0..n-2 fall into cells as evenly as they can
				first := (uint64(c)*(n-1) + cells - 1) / cells
				next := (uint64(c+1)*(n-1) + cells - 1) / cells
				expected[c] = 8000 * float64(next-first) / float64(n-1)
			}
			for k := range counts {
				counts[k] = make([]int, cells)
			}
			for s := range uint64(8000) {
				at := order(n, seed+s, 5)
				for k, p := range pairs {
					d := (at(p[0])+n-at(p[1]))%n - 1
					hi, lo := bits.Mul64(d, cells)
					cell, _ := bits.Div64(hi, lo, n-1)
					counts[k][cell]++
				}
			}
			for k, p := range pairs {
				f.add(counts[k], expected, "difference of the values at %d and %d of %d", p[0], p[1], n)
			}
		}
		return f
	})
}

func TestPermutationsAreOddAsOftenAsEven(t *testing.T) {
	even := func(n, _, epoch uint64) func(uint64) uint64 { // rotations of an odd number
		return func(i uint64) uint64 { return (i + epoch) % (n | 1) % n }
	}
	judge(t, even, func(order family, seed uint64) *findings {
		f := &findings{}
		for _, n := range []uint64{3, 15, 21, 255, 257, 273, 301} {
			var counts [2]int
			seen := make([]bool, n)
			for epoch := range uint64(1000) {
				at := order(n, seed, epoch)
				clear(seen)
				cycles := uint64(0)
				for i := range n {
					if !seen[i] {
						cycles++
					}
					for j := i; !seen[j]; j = at(j) {
						seen[j] = true
					}
				}
				counts[(n-cycles)%2]++
			}
			f.addUniform(counts[:], "parity of permutations of %d", n)
		}
		return f
	})
}

func TestNeighboursInTheStoreAreNotNeighboursInTheOrder(t *testing.T) {
	judge(t, affineFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		for _, step := range []uint64{1, 2, 64} { // apart in the order, as in the store
			const n, samples = 1024, 1000
			counts := make([]int, manyEvents+1)
			for epoch := range uint64(samples) {
				at := order(n, seed, epoch)
				same := 0
				for i := range uint64(n) {
					if (at((i+step)%n)+n-at(i))%n == step {
						same++
					}
				}
				counts[min(same, manyEvents)]++
			}
			f.add(counts, poisson1(samples), "samples still %d apart", step)
		}
		return f
	})
}

func TestEpochsAndSeedsAreUnrelated(t *testing.T) {
	judge(t, sumFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		type key struct{ seed, epoch uint64 }
		others := []struct {
			name string
			of   func(k key) key
		}{
			{"next epoch", func(k key) key { return key{k.seed, k.epoch + 1} }},
			{"epoch after next", func(k key) key { return key{k.seed, k.epoch + 2} }},
			{"epoch with its top bit flipped", func(k key) key { return key{k.seed, k.epoch ^ 1<<63} }},
			{"next seed", func(k key) key { return key{k.seed + 1, k.epoch} }},
			{"seed with its top bit flipped", func(k key) key { return key{k.seed ^ 1<<63, k.epoch} }},
			{"complement of the seed", func(k key) key { return key{^k.seed, k.epoch} }},
			{"next seed, last epoch", func(k key) key { return key{k.seed + 1, k.epoch - 1} }},
			{"seed and epoch exchanged", func(k key) key { return key{k.epoch, k.seed} }},
		}
		for _, n := range []uint64{16, 256, 257} {
			for _, o := range others {
				const samples = 1000
				same := make([]int, manyEvents+1)
				apart := make([]int, 16)
				expected := make([]float64, len(apart))
				for d := range n {
					expected[d*16/n] += samples * 4 / float64(n)
				}
				for s := range uint64(samples) {
					k := key{seed + s*s, s * 3}
					l := o.of(k)
					a, b := order(n, k.seed, k.epoch), order(n, l.seed, l.epoch)
					matches := 0
					for i := range n {
						if a(i) == b(i) {
							matches++
						}
					}
					same[min(matches, manyEvents)]++
					for _, i := range []uint64{0, 1, n / 2, n - 1} {
						apart[(a(i)+n-b(i))%n*16/n]++
					}
				}
				f.add(same, poisson1(samples), "indices of %d with the same value in the %s", n, o.name)
				// Four indices of one order are not quite independent below n = 256.
				if n >= 256 {
					f.add(apart, expected, "way of a value of %d to the %s", n, o.name)
				}
			}
		}
		return f
	})
}

// TestClassMixOfBatches lays classes out one after the other, as an import of
// a directory per class does, and compares how many of a class each global
// batch gets with the chances of drawing from an urn.
func TestClassMixOfBatches(t *testing.T) {
	judge(t, affineFamily, func(order family, seed uint64) *findings {
		f := &findings{}
		const leastExpected = 20 // a cell with less strays further than chi-square supposes
		for _, c := range []struct{ n, classes, batch, epochs int }{
			{200, 4, 32, 1000},
			{1000, 10, 64, 800},
		} {
			size := c.n / c.classes
			var lo, hi int // of the counts that are likely enough for a cell of their own
			often := func(k int) bool {
				return float64(c.epochs)*hypergeometric(c.n, size, c.batch, k) >= leastExpected
			}
			for !often(lo) {
				lo++
			}
			for hi = min(size, c.batch); !often(hi); {
				hi--
			}
			expected := make([]float64, hi-lo+1)
			for k := range min(size, c.batch) + 1 {
				expected[min(max(k, lo), hi)-lo] += float64(c.epochs) * hypergeometric(c.n, size, c.batch, k)
			}
			steps := c.n / c.batch
			counts := make([][]int, steps*c.classes)
			for i := range counts {
				counts[i] = make([]int, len(expected))
			}
			mix := make([]int, c.classes)
			for epoch := range c.epochs {
				at := order(uint64(c.n), seed, uint64(epoch))
				for step := range steps {
					clear(mix)
					for i := step * c.batch; i < (step+1)*c.batch; i++ {
						mix[int(at(uint64(i)))/size]++
					}
					for class, k := range mix {
						counts[step*c.classes+class][min(max(k, lo), hi)-lo]++
					}
				}
			}
			for i, cnt := range counts {
				f.add(cnt, expected, "class %d in batch %d of %d rows", i%c.classes, i/c.classes, c.n)
			}
		}
		// One large epoch: the histogram of a batch over all classes.
		const n, classes, batch = 1_000_000, 200, 4096
		var sum float64
		for epoch := range uint64(30) {
			at := order(n, seed, epoch)
			mix := make([]int, classes)
			for i := range uint64(batch) {
				mix[at(epoch*batch+i)/(n/classes)]++
			}
			var x2 float64
			const mean = float64(batch) / classes
			for _, k := range mix {
				x2 += (float64(k) - mean) * (float64(k) - mean) / mean
			}
			// Drawing without replacement varies less than the urn that chi-square supposes.
			x2 *= float64(n-1) / float64(n-batch)
			f.addX2(x2, classes-1, "classes in batch %d of a million rows", epoch)
			sum += x2
		}
		f.addX2(sum, 30*(classes-1), "classes in 30 batches of a million rows")
		return f
	})
}

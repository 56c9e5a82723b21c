package plan

import (
	"fmt"
	"math"
	"math/bits"
	"testing"
)

// The tests of this file run on many orders and reject one whose statistic would
// come up less than once in 10^9 times if every permutation were equally
// likely; with some hundreds of statistics a run, a good permutation fails one
// run in a million. Each is also given an order with a known flaw, which it must
// reject: a test that cannot see that one proves nothing.
const reject = 1e-9

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

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// findings collects the p-values of a test.
type findings struct {
	names []string
	ps    []float64
	tail  []bool // too regular to be chance is a flaw too
}

// add compares counts with their expectations, which have the same sum.
func (f *findings) add(counts []int, expected []float64, format string, args ...any) {
	var x2 float64
	for i, c := range counts {
		d := float64(c) - expected[i]
		x2 += d * d / expected[i]
	}
	f.addX2(x2, float64(len(counts)-1), format, args...)
}

func (f *findings) addX2(x2, df float64, format string, args ...any) {
	f.names = append(f.names, fmt.Sprintf(format, args...))
	f.ps = append(f.ps, chiSquareTail(x2, df))
	f.tail = append(f.tail, df >= 20)
}

func (f *findings) addUniform(counts []int, format string, args ...any) {
	var sum int
	for _, c := range counts {
		sum += c
	}
	expected := make([]float64, len(counts))
	for i := range expected {
		expected[i] = float64(sum) / float64(len(counts))
	}
	f.add(counts, expected, format, args...)
}

// rejected lists what is not plausible.
func (f *findings) rejected() []string {
	var out []string
	for i, p := range f.ps {
		if p < reject || f.tail[i] && p > 1-reject {
			out = append(out, fmt.Sprintf("%s: p=%.3g", f.names[i], p))
		}
	}
	return out
}

// judge runs a test on the permutation and on a flawed one.
func judge(t *testing.T, flawed family, test func(f family, seed uint64) *findings) {
	t.Helper()
	seed := testRand(t).Uint64()
	for _, r := range test(permFamily, seed).rejected() {
		t.Errorf("not random: %s", r)
	}
	if bad := test(flawed, seed); len(bad.rejected()) == 0 {
		t.Errorf("the test does not notice a flawed order: p-values %.3g", bad.ps)
	}
}

// chiSquareTail is the probability that a chi-square variable with df degrees of
// freedom is at least x2: the regularized incomplete gamma function Q(df/2,
// x2/2), by its series where that converges fast and else by Lentz's continued
// fraction.
func chiSquareTail(x2, df float64) float64 {
	a, x := df/2, x2/2
	if x <= 0 {
		return 1
	}
	lg, _ := math.Lgamma(a)
	front := math.Exp(a*math.Log(x) - x - lg)
	if x < a+1 {
		term, sum := 1/a, 1/a
		for k := 1.; term > sum*1e-16; k++ {
			term *= x / (a + k)
			sum += term
		}
		return 1 - front*sum
	}
	b, c := x+1-a, math.Inf(1)
	d := 1 / b
	h := d
	for k := 1.; k < 1e6; k++ {
		an := -k * (k - a)
		b += 2
		d = 1 / (an*d + b)
		c = b + an/c
		h *= d * c
		if math.Abs(d*c-1) < 1e-15 {
			break
		}
	}
	return front * h
}

func TestChiSquareTail(t *testing.T) {
	// The first two have closed forms, erfc(√(x/2)) and exp(-x/2); the third is
	// exp(-x/2)·Σ (x/2)^k/k! for k < 10.
	poisson := 0.
	for k, term := 0, math.Exp(-15.); k < 10; k++ {
		poisson += term
		term *= 15 / float64(k+1)
	}
	for _, c := range []struct{ x2, df, want float64 }{
		{1, 1, math.Erfc(math.Sqrt(.5))},
		{37, 1, math.Erfc(math.Sqrt(18.5))},
		{.5, 2, math.Exp(-.25)},
		{41, 2, math.Exp(-20.5)},
		{30, 20, poisson},
	} {
		if got := chiSquareTail(c.x2, c.df); math.Abs(got/c.want-1) > 1e-9 {
			t.Errorf("chiSquareTail(%v, %v) = %v, want %v", c.x2, c.df, got, c.want)
		}
	}
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

// pairCell numbers the ordered pairs of different values below n.
func pairCell(n, v, w uint64) uint64 {
	if w > v {
		w--
	}
	return v*(n-1) + w
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

// poisson1 returns the expected numbers, of samples, of 0, 1, 2, 3 and manyEvents
// or more events of which there is one on average.
func poisson1(samples int) []float64 {
	out := make([]float64, manyEvents+1)
	left, term := float64(samples), float64(samples)/math.E
	for k := range manyEvents {
		out[k] = term
		left -= term
		term /= float64(k + 1)
	}
	out[manyEvents] = left
	return out
}

const manyEvents = 4

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

// hypergeometric is the probability of k in a sample of b out of n, m of which
// count.
func hypergeometric(n, m, b, k int) float64 {
	choose := func(n, k int) float64 {
		x, _ := math.Lgamma(float64(n + 1))
		y, _ := math.Lgamma(float64(k + 1))
		z, _ := math.Lgamma(float64(n - k + 1))
		return x - y - z
	}
	if k < 0 || k > m || k > b || b-k > n-m {
		return 0
	}
	return math.Exp(choose(m, k) + choose(n-m, b-k) - choose(n, b))
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

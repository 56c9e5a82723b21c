package plan

import (
	"fmt"
	"math"
	"testing"
)

// The tests of this file run on many orders and reject one whose statistic would
// come up less than once in 10^9 times if every permutation were equally
// likely; with some hundreds of statistics a run, a good permutation fails one
// run in a million. Each is also given an order with a known flaw, which it must
// reject: a test that cannot see that one proves nothing.
const reject = 1e-9

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

// pairCell numbers the ordered pairs of different values below n.
func pairCell(n, v, w uint64) uint64 {
	if w > v {
		w--
	}
	return v*(n-1) + w
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

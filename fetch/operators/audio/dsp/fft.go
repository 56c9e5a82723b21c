// Package dsp has the computations of operators on sound: Fourier transforms, mel bands,
// resampling, decibels.
//
// Its results are equal bit for bit on every CPU. Products are rounded before they are
// added: an explicit conversion prevents compilers from fusing the two. Sums have a fixed
// order. Functions that Go's math package implements in assembly on some CPUs are
// implemented here.
//
// The package knows neither files nor requests, and starts no goroutine.
package dsp

import "math/bits"

// point is a complex number.
type point struct{ re, im float32 }

// pass is one pass of a transform: radix p, over m groups of stride s. twiddle has p−1
// factors for each group. It is immutable.
type pass struct {
	radix, m, s int
	twiddle     []point
	roots       []point // of unity, if the radix has no butterfly of its own
}

// fft is a forward complex transform of a fixed length: Stockham's algorithm, which needs
// no reordering, with radices 4, 2, 3, 5 and, more slowly, other primes up to largestRadix.
// A length with a larger prime factor uses a chirp. It is immutable. Every length that a
// user can name is supported, so no length is refused.
type fft struct {
	n      int
	passes []pass
	chirp  *chirp // instead of passes
}

// largestRadix is the largest prime for which a pass by definition is faster than a
// chirp.
const largestRadix = 31

// turn is exp(−2πik/n). k is reduced first, so that the angle is exact.
func turn(k, n int) point {
	k %= n
	x := 2 * float64(k) / float64(n)
	return point{float32(CosPi(x)), float32(-SinPi(x))}
}

// newFFT makes the tables for n points: passes by the factors of n, or Bluestein's
// algorithm for a large prime factor. The product of the radices is n.
func newFFT(n int) *fft {
	f := &fft{n: n}
	if largestPrime(n) > largestRadix {
		f.chirp = newChirp(n)
		return f
	}
	for left, s := n, 1; left > 1; {
		r := radixOf(left)
		m := left / r
		p := pass{radix: r, m: m, s: s, twiddle: make([]point, m*(r-1))}
		for g := range m {
			for j := 1; j < r; j++ {
				p.twiddle[g*(r-1)+j-1] = turn(g*j, left)
			}
		}
		if r > 5 {
			p.roots = make([]point, r)
			for k := range r {
				p.roots[k] = turn(k, r)
			}
		}
		f.passes = append(f.passes, p)
		left, s = m, s*r
	}
	return f
}

// radixOf is the next radix for a length: 5 and 4 before the primes, as they have the
// fastest butterflies. n is at least 2.
func radixOf(n int) int {
	if n%5 == 0 {
		return 5
	}
	if n%4 == 0 {
		return 4
	}
	for r := 2; r*r <= n; r++ {
		if n%r == 0 {
			return r
		}
	}
	return n
}

// largestPrime is the largest prime factor of n, or 1. It decides whether passes or a chirp
// are faster.
func largestPrime(n int) int {
	largest := 1
	for p := 2; p*p <= n; p++ {
		for n%p == 0 {
			largest, n = p, n/p
		}
	}
	return max(largest, n)
}

// points is the least length of run's two buffers.
func (f *fft) points() int {
	if f.chirp != nil {
		return len(f.chirp.kernel)
	}
	return f.n
}

// steps is about how many multiplications and additions with their loads and stores one run
// takes. It is for the cost of a step and not for a choice between algorithms.
func (f *fft) steps() int64 {
	if f.chirp != nil {
		return 2*f.chirp.inner.steps() + 12*int64(f.points())
	}
	n := int64(0)
	for _, p := range f.passes {
		n += int64(f.n) * int64(max(2, p.radix))
		if p.roots != nil {
			n += 3 * int64(f.n) * int64(p.radix)
		}
	}
	return n
}

// run transforms the first n points of x, with y as scratch, and returns the result, which
// is in one of the two. Both have at least points points. x and y change; the caller must
// not assume in which of them the result is.
func (f *fft) run(x, y []point) []point {
	if f.chirp != nil {
		return f.chirp.run(x, y)
	}
	x, y = x[:f.n], y[:f.n]
	for i := range f.passes {
		p := &f.passes[i]
		switch p.radix {
		case 2:
			p.two(x, y)
		case 3:
			p.three(x, y)
		case 4:
			p.four(x, y)
		case 5:
			p.five(x, y)
		default:
			p.any(x, y)
		}
		x, y = y, x
	}
	return x
}

// times is the complex product. Its real products are rounded before they are added.
func times(re, im float32, w point) point {
	return point{float32(re*w.re) - float32(im*w.im), float32(re*w.im) + float32(im*w.re)}
}

// two is a pass of radix 2. The twiddle factor is applied to the difference: decimation in
// frequency.
func (p *pass) two(x, y []point) {
	s, h := p.s, p.s*p.m
	for g := range p.m {
		w := p.twiddle[g]
		a := x[s*g:][:s]
		b := x[s*g+h:][:s]
		c := y[s*2*g:][:s]
		d := y[s*2*g+s:][:s]
		for q := range s {
			u, v := a[q], b[q]
			c[q] = point{u.re + v.re, u.im + v.im}
			d[q] = times(u.re-v.re, u.im-v.im, w)
		}
	}
}

// three is a pass of radix 3.
func (p *pass) three(x, y []point) {
	const half, root = 0.5, 0.86602540378443864676 // cos and sin of a sixth of a turn
	s, h := p.s, p.s*p.m
	for g := range p.m {
		w1, w2 := p.twiddle[2*g], p.twiddle[2*g+1]
		x0, x1, x2 := x[s*g:][:s], x[s*g+h:][:s], x[s*g+2*h:][:s]
		y0, y1, y2 := y[s*3*g:][:s], y[s*3*g+s:][:s], y[s*3*g+2*s:][:s]
		for q := range s {
			a, b, c := x0[q], x1[q], x2[q]
			tr, ti := b.re+c.re, b.im+c.im
			dr, di := float32(root*(b.re-c.re)), float32(root*(b.im-c.im))
			mr, mi := a.re-float32(half*tr), a.im-float32(half*ti)
			y0[q] = point{a.re + tr, a.im + ti}
			y1[q] = times(mr+di, mi-dr, w1)
			y2[q] = times(mr-di, mi+dr, w2)
		}
	}
}

// four is a pass of radix 4.
func (p *pass) four(x, y []point) {
	s, h := p.s, p.s*p.m
	for g := range p.m {
		w := p.twiddle[3*g : 3*g+3 : 3*g+3]
		w1, w2, w3 := w[0], w[1], w[2]
		x0, x1, x2, x3 := x[s*g:][:s], x[s*g+h:][:s], x[s*g+2*h:][:s], x[s*g+3*h:][:s]
		out := y[s*4*g:][:4*s]
		y0, y1, y2, y3 := out[:s], out[s:][:s], out[2*s:][:s], out[3*s:][:s]
		for q := range s {
			a, b, c, d := x0[q], x1[q], x2[q], x3[q]
			er, ei, fr, fi := a.re+c.re, a.im+c.im, a.re-c.re, a.im-c.im
			gr, gi, hr, hi := b.re+d.re, b.im+d.im, b.re-d.re, b.im-d.im
			y0[q] = point{er + gr, ei + gi}
			y1[q] = times(fr+hi, fi-hr, w1)
			y2[q] = times(er-gr, ei-gi, w2)
			y3[q] = times(fr-hi, fi+hr, w3)
		}
	}
}

const (
	cos1 = 0.30901699437494742410 // of a fifth of a turn
	sin1 = 0.95105651629515357212
	cos2 = -0.80901699437494742410 // of two fifths
	sin2 = 0.58778525229247312917
)

// five is a pass of radix 5.
func (p *pass) five(x, y []point) {
	s, h := p.s, p.s*p.m
	for g := range p.m {
		w := p.twiddle[4*g : 4*g+4 : 4*g+4]
		w1, w2, w3, w4 := w[0], w[1], w[2], w[3]
		x0, x1, x2, x3, x4 := x[s*g:][:s], x[s*g+h:][:s], x[s*g+2*h:][:s], x[s*g+3*h:][:s], x[s*g+4*h:][:s]
		out := y[s*5*g:][:5*s]
		y0, y1, y2, y3, y4 := out[:s], out[s:][:s], out[2*s:][:s], out[3*s:][:s], out[4*s:][:s]
		for q := range s {
			a, b, c, d, e := x0[q], x1[q], x2[q], x3[q], x4[q]
			br, bi, cr, ci := b.re+e.re, b.im+e.im, c.re+d.re, c.im+d.im
			dr, di, er, ei := b.re-e.re, b.im-e.im, c.re-d.re, c.im-d.im
			ur := a.re + float32(cos1*br) + float32(cos2*cr)
			ui := a.im + float32(cos1*bi) + float32(cos2*ci)
			vr := a.re + float32(cos2*br) + float32(cos1*cr)
			vi := a.im + float32(cos2*bi) + float32(cos1*ci)
			pr := float32(sin1*dr) + float32(sin2*er)
			pi := float32(sin1*di) + float32(sin2*ei)
			qr := float32(sin2*dr) - float32(sin1*er)
			qi := float32(sin2*di) - float32(sin1*ei)
			y0[q] = point{a.re + br + cr, a.im + bi + ci}
			y1[q] = times(ur+pi, ui-pr, w1)
			y2[q] = times(vr+qi, vi-qr, w2)
			y3[q] = times(vr-qi, vi+qr, w3)
			y4[q] = times(ur-pi, ui+pr, w4)
		}
	}
}

// any is a pass by definition, for radices without a butterfly. It takes radix² products
// for each group, which is acceptable up to largestRadix.
func (p *pass) any(x, y []point) {
	s, h, r := p.s, p.s*p.m, p.radix
	for g := range p.m {
		for q := range s {
			for j := range r {
				var sum point
				for k := range r {
					a := x[s*g+k*h+q]
					t := times(a.re, a.im, p.roots[j*k%r])
					sum = point{sum.re + t.re, sum.im + t.im}
				}
				if j > 0 {
					sum = times(sum.re, sum.im, p.twiddle[g*(r-1)+j-1])
				}
				y[s*(r*g+j)+q] = sum
			}
		}
	}
}

// chirp computes a transform of any length n as a convolution of length m, a power of two
// of at least 2n−1 (L. Bluestein, "A linear filtering approach to the computation of
// discrete Fourier transform", 1970). By definition, a length with a large prime factor p
// would take n·p multiplications; this takes two transforms of length m. It is immutable.
type chirp struct {
	inner  *fft
	turns  []point // exp(−iπk²/n) for each k below n
	kernel []point // transform of the conjugate of turns, divided by m
}

// newChirp makes the tables of Bluestein's algorithm for n points. The kernel is symmetric,
// so its second half is the mirror image of the first.
func newChirp(n int) *chirp {
	m := 1 << bits.Len(uint(2*n-2))
	c := &chirp{inner: newFFT(m), turns: make([]point, n)}
	kernel := make([]point, m)
	for k := range n {
		// k² is reduced as an integer: the angle of k² itself would lose precision.
		c.turns[k] = turn(k*k%(2*n), 2*n)
		w := point{c.turns[k].re / float32(m), -c.turns[k].im / float32(m)}
		kernel[k] = w
		if k > 0 {
			kernel[m-k] = w
		}
	}
	c.kernel = c.inner.run(kernel, make([]point, m))
	return c
}

// run transforms the first n points of x, with y as scratch. Both have the length of the
// convolution.
func (c *chirp) run(x, y []point) []point {
	n, m := len(c.turns), len(c.kernel)
	x, y = x[:m], y[:m]
	for k, w := range c.turns {
		x[k] = times(x[k].re, x[k].im, w)
	}
	clear(x[n:])
	z := c.inner.run(x, y)
	// The inverse transform is the conjugate of the transform of the conjugate.
	for k, w := range c.kernel {
		p := times(z[k].re, z[k].im, w)
		z[k] = point{p.re, -p.im}
	}
	other := x
	if &z[0] == &x[0] {
		other = y
	}
	out := c.inner.run(z, other)
	for k, w := range c.turns {
		out[k] = times(out[k].re, -out[k].im, w)
	}
	return out[:n]
}

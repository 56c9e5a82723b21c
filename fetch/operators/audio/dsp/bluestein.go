package dsp

import "math/bits"

// chirp computes a transform of any length n as a convolution of length m, a power of two of at least 2n−1 (L. Bluestein, "A
// linear filtering approach to the computation of discrete Fourier transform", 1970). A length with a large prime factor p
// would take n·p multiplications by its definition; this takes two transforms of length m. It is immutable.
type chirp struct {
	inner  *fft
	turns  []point // exp(−iπk²/n), of each k below n
	kernel []point // the transform of the conjugate of turns, as the convolution needs it, divided by m
}

func newChirp(n int) *chirp {
	m := 1 << bits.Len(uint(2*n-2))
	c := &chirp{inner: newFFT(m), turns: make([]point, n)}
	kernel := make([]point, m)
	for k := range n {
		// k² is reduced in whole numbers: the angle of k² itself would lose its digits.
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

// run transforms the first n points of x, with y as room. Both have the convolution's length.
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

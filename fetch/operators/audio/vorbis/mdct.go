package vorbis

import "bowstring/fetch/operators/audio/dsp"

// transform is the inverse MDCT of a block of 2m samples, as a cosine transform of kind IV of m numbers: its second
// half and its first one, each followed by its mirror, are the block. It is computed by a complex Fourier transform of
// m/2 points with a rotation before and after (N. Ahmed et al. and, so arranged, J.-P. Princen, A. W. Johnson and
// A. B. Bradley, "Subband/transform coding using filter bank designs based on time domain aliasing cancellation",
// ICASSP 1987; P. Duhamel, Y. Mahieux and J. P. Petit, "A fast algorithm for the implementation of filter banks based
// on time domain aliasing cancellation", ICASSP 1991). It is immutable.
type transform struct {
	m       int
	rotate  []point // by (8k+1)/16m of a turn
	twiddle []point // of the Fourier transform: k/(m/2) of a turn
	reverse []uint16
	window  []float32 // that rises over m samples: section 4.3.1's
}

type point struct{ re, im float32 }

func turn(x float64) point { return point{float32(dsp.CosPi(2 * x)), float32(-dsp.SinPi(2 * x))} }

func newTransform(m int) *transform {
	n := m / 2
	t := &transform{m: m, rotate: make([]point, n), twiddle: make([]point, n), reverse: make([]uint16, n),
		window: make([]float32, m)}
	for k := range n {
		t.rotate[k] = turn(float64(8*k+1) / float64(16*m))
		if k > 0 {
			t.reverse[k] = t.reverse[k/2]/2 | uint16(k&1*n/2)
		}
	}
	// The factors of a pass lie side by side: those of 2h points from h on.
	for h := 1; h < n; h *= 2 {
		for k := range h {
			t.twiddle[h+k] = turn(float64(k) / float64(2*h))
		}
	}
	for i := range t.window {
		s := dsp.SinPi((float64(i) + 0.5) / float64(m) / 2)
		t.window[i] = float32(dsp.SinPi(float64(s*s) / 2))
	}
	return t
}

// run replaces x, of m numbers, by its cosine transform: sums of x[k] times cos(π/m (i+½)(k+½)). Room has m/2 points.
// Products are rounded before they are added, on every machine.
func (t *transform) run(x []float32, room []point) {
	n := t.m / 2
	x, room = x[:2*n], room[:n]
	for k, w := range t.rotate {
		re, im := x[2*k], x[2*n-1-2*k]
		room[t.reverse[k]] = point{float32(re*w.re) - float32(im*w.im), float32(re*w.im) + float32(im*w.re)}
	}
	t.fourier(room)
	for k, w := range t.rotate {
		z := room[k]
		x[2*k] = float32(z.re*w.re) - float32(z.im*w.im)
		x[2*n-1-2*k] = -(float32(z.re*w.im) + float32(z.im*w.re))
	}
}

// fourier is the transform of points that are in reversed order: passes of radix 2, two at a time.
func (t *transform) fourier(z []point) {
	n, h := len(z), 1
	for ; 4*h <= n; h *= 4 {
		w, v := t.twiddle[h:2*h], t.twiddle[2*h:4*h]
		for at := 0; at < n; at += 4 * h {
			a, b, c, d := z[at:][:h], z[at+h:][:h], z[at+2*h:][:h], z[at+3*h:][:h]
			for k := range a {
				wb, w1, w2 := w[k], v[k], v[h+k]
				br, bi := times(b[k], wb)
				dr, di := times(d[k], wb)
				pr, pi, qr, qi := a[k].re+br, a[k].im+bi, a[k].re-br, a[k].im-bi
				er, ei := times(point{c[k].re + dr, c[k].im + di}, w1)
				fr, fi := times(point{c[k].re - dr, c[k].im - di}, w2)
				a[k], c[k] = point{pr + er, pi + ei}, point{pr - er, pi - ei}
				b[k], d[k] = point{qr + fr, qi + fi}, point{qr - fr, qi - fi}
			}
		}
	}
	if h < n {
		w := t.twiddle[h:]
		a, b := z[:h], z[h:][:h]
		for k := range a {
			br, bi := times(b[k], w[k])
			a[k], b[k] = point{a[k].re + br, a[k].im + bi}, point{a[k].re - br, a[k].im - bi}
		}
	}
}

func times(z, w point) (re, im float32) {
	return float32(z.re*w.re) - float32(z.im*w.im), float32(z.re*w.im) + float32(z.im*w.re)
}

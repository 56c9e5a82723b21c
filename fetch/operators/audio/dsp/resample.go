package dsp

import (
	"fmt"
	"math"
)

// MaxTaps bounds the numbers in the table of a Resampler: 4 MiB. All common rates need
// far fewer.
const MaxTaps = 1 << 20

// ResampleOptions are those of torchaudio.functional.resample.
type ResampleOptions struct {
	// From and To are in samples a second.
	From, To int
	// Width is the number of zero crossings of the sinc on each side. Rolloff times the
	// lower Nyquist frequency is the cutoff.
	Width   int
	Rolloff float64
	// Kaiser selects a Kaiser window with Beta instead of Hann's.
	Kaiser bool
	Beta   float64
}

// Resampler changes rates by windowed sinc interpolation: it has a filter for each
// position that an output sample can have between two input samples (J. O. Smith,
// "Digital Audio Resampling"). It is immutable.
type Resampler struct {
	from, to int // divided by their greatest common divisor
	phases   []phase
}

// phase computes the output samples j of every to samples. Its taps apply to x[at] and
// the following samples, relative to the block.
type phase struct {
	at   int
	taps []float32
}

// gcd is the greatest common divisor.
func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// taps bounds the length of a filter; from and to are reduced.
func (o ResampleOptions) taps() (from, to, taps int) {
	g := gcd(o.From, o.To)
	from, to = o.From/g, o.To/g
	base := float64(float64(min(from, to)) * o.Rolloff)
	return from, to, int(2*float64(o.Width)*float64(from)/base) + 2
}

// Check fails if the table would exceed MaxTaps.
func (o ResampleOptions) Check() error {
	if o.From < 1 || o.To < 1 {
		return fmt.Errorf("rates of %d and %d samples a second; both have to be positive", o.From, o.To)
	}
	if _, to, taps := o.taps(); int64(to)*int64(taps) > MaxTaps {
		return fmt.Errorf("from %d to %d samples a second takes %d filters of %d taps, more than %d numbers",
			o.From, o.To, to, taps, MaxTaps)
	}
	return nil
}

// NewResampler makes the table, in some milliseconds. The options must have passed Check.
func NewResampler(o ResampleOptions) *Resampler {
	from, to, _ := o.taps()
	r := &Resampler{from: from, to: to}
	base := float64(float64(min(from, to)) * o.Rolloff)
	width := float64(o.Width)
	reach := int(math.Ceil(float64(width*float64(from)) / base))
	for j := range to {
		p := phase{}
		// torchaudio computes this quotient in single precision, and the rest of its
		// table in double.
		shift := float64(float32(j) / float32(to))
		middle := float64(j) * float64(from) / float64(to)
		first, last := max(int(middle)-reach-1, -reach), min(int(middle)+reach+2, reach+from)
		for k := first; k < last; k++ {
			t := float64((float64(k)/float64(from) - shift) * base)
			if math.Abs(t) >= width {
				if p.taps != nil {
					break
				}
				continue
			}
			if p.taps == nil {
				p.at = k
			}
			p.taps = append(p.taps, float32(float64(sinc(t)*o.window(t/width))*base/float64(from)))
		}
		r.phases = append(r.phases, p)
	}
	return r
}

// sinc is sin(t) / t.
func sinc(t float64) float64 {
	if t == 0 {
		return 1
	}
	return SinPi(t) / float64(math.Pi*t)
}

// window is the window at x, from -1 to 1.
func (o ResampleOptions) window(x float64) float64 {
	if o.Kaiser {
		return besselI0(float64(o.Beta*math.Sqrt(1-float64(x*x)))) / besselI0(o.Beta)
	}
	c := CosPi(x / 2)
	return float64(c * c)
}

// ResampledLength is the number of output samples for n input samples. torchaudio rounds
// the quotient to single precision before rounding up, and so does this.
func ResampledLength(n, from, to int) int {
	g := gcd(from, to)
	from, to = from/g, to/g
	exact := float64(to) * float64(n) / float64(from)
	return min(int(math.Ceil(float64(float32(exact)))), to*(n/from+1))
}

// Run computes y, a part of the ResampledLength output samples from sample first on.
// Samples outside of x count as zero.
func (r *Resampler) Run(x, y []float32, first int) {
	block, i := first/len(r.phases)*r.from, first%len(r.phases)
	for j := 0; j < len(y); block, i = block+r.from, 0 {
		for ; i < len(r.phases) && j < len(y); i++ {
			p := &r.phases[i]
			at, taps := block+p.at, p.taps
			if at < 0 {
				taps, at = taps[min(-at, len(taps)):], 0
			}
			if at >= len(x) {
				y[j] = 0
			} else {
				part := x[at:]
				y[j] = dot(part[:min(len(part), len(taps))], taps)
			}
			j++
		}
	}
}

// dot has four sums, so that an addition need not wait for the one before. The order of
// additions is part of the contract.
func dot(x, w []float32) float32 {
	w = w[:len(x)]
	var a, b, c, d float32
	for len(x) >= 4 && len(w) >= 4 {
		a += float32(x[0] * w[0])
		b += float32(x[1] * w[1])
		c += float32(x[2] * w[2])
		d += float32(x[3] * w[3])
		x, w = x[4:], w[4:]
	}
	for i := range x {
		a += float32(x[i] * w[i])
	}
	return (a + b) + (c + d)
}

// Taps bounds the multiplications for an output sample.
func (o ResampleOptions) Taps() int {
	_, _, taps := o.taps()
	return taps
}

// Steps bounds the work of making the table: each number needs a sine, and a Bessel
// function or a cosine.
func (o ResampleOptions) Steps() int64 {
	_, to, taps := o.taps()
	return int64(to) * int64(taps) * 256
}

// Bytes bounds the memory of the table.
func (o ResampleOptions) Bytes() int64 {
	_, to, taps := o.taps()
	return int64(to) * (int64(taps)*8 + 64)
}

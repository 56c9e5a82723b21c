package dsp

import (
	"fmt"
	"math"
)

// MaxTaps bounds the numbers in the table of a Resampler: 4 MiB. All common rates need far less.
const MaxTaps = 1 << 20

// ResampleOptions are torchaudio.functional.resample's.
type ResampleOptions struct {
	// From and To are in samples a second.
	From, To int
	// Width is how many zeros of the sinc are on either side; Rolloff times the lower Nyquist frequency is where it
	// cuts.
	Width   int
	Rolloff float64
	// Kaiser takes a Kaiser window of Beta, and not Hann's.
	Kaiser bool
	Beta   float64
}

// Resampler changes rates by windowed sinc interpolation: a filter for each of the
// positions that an output sample may have between two input samples (J. O. Smith,
// "Digital Audio Resampling"). It is immutable.
type Resampler struct {
	from, to int // without their common divisor
	phases   []phase
}

// phase computes output samples j of every to: taps lie at x[at] on, relative to the block.
type phase struct {
	at   int
	taps []float32
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// taps bounds the length of a filter.
func (o ResampleOptions) taps() (from, to, taps int) {
	g := gcd(o.From, o.To)
	from, to = o.From/g, o.To/g
	base := float64(float64(min(from, to)) * o.Rolloff)
	return from, to, int(2*float64(o.Width)*float64(from)/base) + 2
}

// Check says whether the table stays within MaxTaps.
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

// NewResampler makes tables, of some milliseconds' work. Check has passed.
func NewResampler(o ResampleOptions) *Resampler {
	from, to, _ := o.taps()
	r := &Resampler{from: from, to: to}
	base := float64(float64(min(from, to)) * o.Rolloff)
	width := float64(o.Width)
	reach := int(math.Ceil(float64(width*float64(from)) / base))
	for j := range to {
		p := phase{}
		// torchaudio has this quotient in single precision, and all else of its tables in double.
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

func sinc(t float64) float64 {
	if t == 0 {
		return 1
	}
	return SinPi(t) / float64(math.Pi*t)
}

// window is at x of -1 to 1.
func (o ResampleOptions) window(x float64) float64 {
	if o.Kaiser {
		return besselI0(float64(o.Beta*math.Sqrt(1-float64(x*x)))) / besselI0(o.Beta)
	}
	c := CosPi(x / 2)
	return float64(c * c)
}

// ResampledLength is how many samples n become. torchaudio rounds the quotient to
// single precision before it rounds up; so does this.
func ResampledLength(n, from, to int) int {
	g := gcd(from, to)
	from, to = from/g, to/g
	exact := float64(to) * float64(n) / float64(from)
	return min(int(math.Ceil(float64(float32(exact)))), to*(n/from+1))
}

// Run resamples x into y: a part, from sample first on, of the ResampledLength samples that there are. Samples beyond x
// count as zero.
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

// dot has four sums, so that an addition need not wait for the one before.
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

// Taps bounds how many multiplications an output sample takes.
func (o ResampleOptions) Taps() int {
	_, _, taps := o.taps()
	return taps
}

// Steps bounds the work of making the table: each number takes a sine, and a Bessel function or a cosine.
func (o ResampleOptions) Steps() int64 {
	_, to, taps := o.taps()
	return int64(to) * int64(taps) * 256
}

// Bytes bounds what the table takes.
func (o ResampleOptions) Bytes() int64 {
	_, to, taps := o.taps()
	return int64(to) * (int64(taps)*8 + 64)
}

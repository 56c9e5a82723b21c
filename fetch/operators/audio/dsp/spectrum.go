package dsp

import "math"

// MaxFFT is the longest transform of an operator. It bounds the tables that a request can
// demand.
const MaxFFT = 1 << 15

// Spectrum computes the power of each frequency of windowed frames. It is immutable.
type Spectrum struct {
	n      int
	window []float32
	fft    *fft
	turns  []point // of the full length, for transforms of even length
	magn   bool    // magnitude instead of power
}

// SpectrumRoom is the scratch memory of one goroutine for running a Spectrum. Its zero
// value is empty; a Frame grows it.
type SpectrumRoom struct{ a, b []point }

// Window shapes are torch's, periodic. x runs from 0 to below 1.
var windows = map[string]func(x float64) float64{
	"hann_window":    func(x float64) float64 { return 0.5 - float64(0.5*CosPi(2*x)) },
	"hamming_window": func(x float64) float64 { return 0.54 - float64(0.46*CosPi(2*x)) },
	"blackman_window": func(x float64) float64 {
		return 0.42 - float64(0.5*CosPi(2*x)) + float64(0.08*CosPi(4*x))
	},
	"ones": func(float64) float64 { return 1 },
}

// Windows are the shapes that NewSpectrum accepts.
func Windows() []string { return []string{"hann_window", "hamming_window", "blackman_window", "ones"} }

// SpectrumOptions are those of torch.stft. Shape is one of Windows.
type SpectrumOptions struct {
	// N is the length of the transform, at most MaxFFT; Length, that of the window, is at
	// most N.
	N, Length int
	Shape     string
	// Magnitude selects the root of the power.
	Magnitude bool
	// NormalizeWindow divides by the root of the window's energy; NormalizeLength by the
	// root of N.
	NormalizeWindow, NormalizeLength bool
}

// NewSpectrum makes tables. The caller has checked the options. A window that is shorter
// than the transform is centred in it, as in torch.
func NewSpectrum(o SpectrumOptions) *Spectrum {
	s := &Spectrum{n: o.N, window: make([]float32, o.N), magn: o.Magnitude}
	at, energy := (o.N-o.Length)/2, 0.0
	shape := windows[o.Shape]
	for i := range o.Length {
		v := shape(float64(i) / float64(o.Length))
		energy += float64(v * v)
		s.window[at+i] = float32(v)
	}
	scale := 1.0
	if o.NormalizeWindow {
		scale = 1 / math.Sqrt(energy)
	}
	if o.NormalizeLength {
		scale /= math.Sqrt(float64(o.N))
	}
	if scale != 1 {
		for i := range s.window {
			s.window[i] = float32(float64(s.window[i]) * scale)
		}
	}
	// An odd length cannot be halved, so it is transformed as complex numbers.
	if o.N%2 != 0 {
		s.fft = newFFT(o.N)
		return s
	}
	s.fft = newFFT(o.N / 2)
	for k := range o.N/4 + 1 {
		s.turns = append(s.turns, turn(k, o.N))
	}
	return s
}

// Bins is the number of frequencies.
func (s *Spectrum) Bins() int { return s.n/2 + 1 }

// Steps is about how many multiplications and additions with their loads and stores a
// Frame takes.
func (s *Spectrum) Steps() int64 { return s.fft.steps() + 8*int64(s.n) }

// RoomBytes is the memory of a SpectrumRoom after a Frame has used it.
func (s *Spectrum) RoomBytes() int64 { return 2 * 8 * int64(s.fft.points()) }

// Bytes is the memory of a room.
func (r *SpectrumRoom) Bytes() int64 { return 8 * int64(len(r.a)+len(r.b)) }

// Frame computes the power of each frequency of the frame x, which has N samples, into
// out, which has Bins numbers. A frame of even length is transformed at half its length,
// as complex numbers.
func (s *Spectrum) Frame(x, out []float32, room *SpectrumRoom) {
	n, window := s.n, s.window
	if points := s.fft.points(); len(room.a) < points {
		room.a, room.b = make([]point, points), make([]point, points)
	}
	a := room.a[:s.fft.n]
	x = x[:n]
	if n%2 != 0 {
		for i := range a {
			a[i] = point{re: float32(x[i] * window[i])}
		}
		z := s.fft.run(room.a, room.b)
		for k := range out {
			out[k] = float32(z[k].re*z[k].re) + float32(z[k].im*z[k].im)
		}
	} else {
		for i := range a {
			a[i] = point{float32(x[2*i] * window[2*i]), float32(x[2*i+1] * window[2*i+1])}
		}
		s.powers(s.fft.run(room.a, room.b), out)
	}
	if s.magn {
		for k, v := range out {
			out[k] = float32(math.Sqrt(float64(v)))
		}
	}
}

// powers unfolds the transform z of a real sequence whose even and odd samples were the
// real and imaginary parts. Each pair of results needs one factor, so the loop runs over
// half of them.
func (s *Spectrum) powers(z []point, out []float32) {
	h := len(z)
	out = out[:h+1]
	r, i := z[0].re+z[0].im, z[0].re-z[0].im
	out[0], out[h] = float32(r*r), float32(i*i)
	for k := 1; k < len(s.turns); k++ {
		p, q, w := z[k], z[h-k], s.turns[k]
		er, ei := float32(0.5*(p.re+q.re)), float32(0.5*(p.im-q.im))
		or, oi := float32(0.5*(p.im+q.im)), float32(0.5*(q.re-p.re))
		tr, ti := float32(or*w.re)-float32(oi*w.im), float32(or*w.im)+float32(oi*w.re)
		ur, ui, vr, vi := er+tr, ei+ti, er-tr, ei-ti
		out[k] = float32(ur*ur) + float32(ui*ui)
		out[h-k] = float32(vr*vr) + float32(vi*vi)
	}
}

// MelOptions are those of torchaudio.functional.melscale_fbanks.
type MelOptions struct {
	Rate, Bins, Mels int
	Low, High        float64
	// Slaney selects Slaney's scale instead of HTK's; Area divides by the width of bands.
	Slaney, Area bool
}

// Mel sums powers of frequencies into mel bands. It is immutable.
type Mel struct {
	bands []band
}

// band has the weights of a band for the frequencies from at on; others are zero. Bands
// overlap by half; most weights of a full matrix would be zero.
type band struct {
	at     int
	weight []float32
}

// Below 1000 Hz Slaney's scale is linear with this step, above it is logarithmic.
const (
	slaneyStep  = 200.0 / 3
	slaneyBreak = 1000.0
)

// slaneyLog is the step of the logarithmic part of Slaney's scale.
func slaneyLog() float64 { return Log(6.4) / 27 }

// toMel converts a frequency in Hz. The result is in mels of the chosen scale.
func toMel(hz float64, slaney bool) float64 {
	if !slaney {
		return float64(2595 * Log10(1+hz/700))
	}
	if hz < slaneyBreak {
		return hz / slaneyStep
	}
	return slaneyBreak/slaneyStep + Log(hz/slaneyBreak)/slaneyLog()
}

// fromMel rounds as torch does, whose tensors have single precision. Bands that are
// narrower than the distance of two frequencies have weights that depend on it.
func fromMel(mel float32, slaney bool) float32 {
	if !slaney {
		return float32(700 * (float32(Exp10(float64(mel/2595))) - 1))
	}
	if at := float32(slaneyBreak / slaneyStep); mel >= at {
		return float32(slaneyBreak * float32(Exp(float64(float32(float32(slaneyLog())*(mel-at))))))
	}
	return float32(slaneyStep * mel)
}

// linspace is torch.linspace: n numbers, computed from both ends. n is at least 2.
func linspace(from, to float32, n int) []float32 {
	out := make([]float32, n)
	step := (to - from) / float32(n-1)
	for i := range out {
		if i < n/2 {
			out[i] = from + float32(step*float32(i))
		} else {
			out[i] = to - float32(step*float32(n-1-i))
		}
	}
	return out
}

// NewMel makes tables. The caller has checked the options. A band between two frequencies
// has no weight, and is zero, as in torchaudio.
func NewMel(o MelOptions) *Mel {
	hz := linspace(float32(toMel(o.Low, o.Slaney)), float32(toMel(o.High, o.Slaney)), o.Mels+2)
	for i, v := range hz {
		hz[i] = fromMel(v, o.Slaney)
	}
	m := &Mel{}
	freqs := linspace(0, float32(o.Rate/2), o.Bins)
	for b := range o.Mels {
		left, middle, right := hz[b], hz[b+1], hz[b+2]
		out := band{}
		for k, f := range freqs {
			v := min((f-left)/(middle-left), (right-f)/(right-middle))
			if !(v > 0) {
				if out.weight != nil {
					break
				}
				continue
			}
			if o.Area {
				v = float32(v * (2 / (right - left)))
			}
			if out.weight == nil {
				out.at = k
			}
			out.weight = append(out.weight, v)
		}
		m.bands = append(m.bands, out)
	}
	return m
}

// Weights is how many numbers of a frame are summed, over all bands.
func (m *Mel) Weights() int64 {
	n := int64(len(m.bands))
	for i := range m.bands {
		n += int64(len(m.bands[i].weight))
	}
	return n
}

// Sum computes the bands of frames, which are rows of powers of bins frequencies: band b
// of frame i goes to out[b·stride+i].
func (m *Mel) Sum(powers []float32, bins int, out []float32, stride int) {
	frames, i := len(powers)/bins, 0
	for ; i+4 <= frames; i += 4 {
		m.four(powers[i*bins:], bins, out[i:], stride)
	}
	for ; i < frames; i++ {
		row := powers[i*bins:][:bins]
		for k := range m.bands {
			b := &m.bands[k]
			var sum float32
			p := row[b.at:][:len(b.weight)]
			for j, w := range b.weight {
				sum += float32(p[j] * w)
			}
			out[k*stride+i] = sum
		}
	}
}

// four processes four frames at a time, because the additions of one frame depend on each
// other. The result of each frame is the same as without it.
func (m *Mel) four(powers []float32, bins int, out []float32, stride int) {
	p0, p1, p2, p3 := powers[:bins], powers[bins:][:bins], powers[2*bins:][:bins], powers[3*bins:][:bins]
	for k := range m.bands {
		b := &m.bands[k]
		weight := b.weight
		q0, q1, q2, q3 := p0[b.at:][:len(weight)], p1[b.at:][:len(weight)], p2[b.at:][:len(weight)],
			p3[b.at:][:len(weight)]
		var s0, s1, s2, s3 float32
		for j, w := range weight {
			s0 += float32(q0[j] * w)
			s1 += float32(q1[j] * w)
			s2 += float32(q2[j] * w)
			s3 += float32(q3[j] * w)
		}
		to := out[k*stride:][:4]
		to[0], to[1], to[2], to[3] = s0, s1, s2, s3
	}
}

// Half is the bits of the half-precision number nearest to v, ties to even.
func Half(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x477ff000: // rounds above the largest, 65504
		return sign | 0x7c00
	case b < 0x33000001: // at most half of the smallest
		return sign
	case b < 0x38800000: // subnormal: a multiple of 2⁻²⁴
		shift := 126 - b>>23
		m := b&0x7fffff | 0x800000
		return sign | uint16((m+(1<<(shift-1)-1)+m>>shift&1)>>shift)
	default:
		return sign | uint16((b-0x38000000+0xfff+b>>13&1)>>13)
	}
}

// FromHalf is the number with the bits h.
func FromHalf(h uint16) float32 {
	sign, e, m := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch e {
	case 0:
		v := float32(m) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	default:
		return math.Float32frombits(sign | (e+112)<<23 | m<<13)
	}
}

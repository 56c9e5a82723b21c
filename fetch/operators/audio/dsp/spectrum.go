package dsp

import "math"

// MaxFFT is the largest transform that operators may ask for.
const MaxFFT = 1 << 15

// Spectrum gives the power of each frequency of windowed frames. It is immutable.
type Spectrum struct {
	n      int
	window []float32
	fft    *fft
	turns  []point // of the full length, for real transforms of even length
	magn   bool
}

// SpectrumRoom is what one goroutine needs to run a Spectrum.
type SpectrumRoom struct{ a, b []point }

// Window shapes are those of torch, periodic.
var windows = map[string]func(x float64) float64{
	"hann_window":    func(x float64) float64 { return 0.5 - float64(0.5*CosPi(2*x)) },
	"hamming_window": func(x float64) float64 { return 0.54 - float64(0.46*CosPi(2*x)) },
	"blackman_window": func(x float64) float64 {
		return 0.42 - float64(0.5*CosPi(2*x)) + float64(0.08*CosPi(4*x))
	},
	"ones": func(float64) float64 { return 1 },
}

// Windows are the names that NewSpectrum takes.
func Windows() []string { return []string{"hann_window", "hamming_window", "blackman_window", "ones"} }

// SpectrumOptions are torch.stft's.
type SpectrumOptions struct {
	// N is the transform's length, at most MaxFFT; Window's length is at most N.
	N, Length int
	Shape     string
	// Magnitude asks for the root of the power.
	Magnitude bool
	// NormalizeWindow divides by the window's root of energy; NormalizeLength by the root of N.
	NormalizeWindow, NormalizeLength bool
}

// NewSpectrum makes tables. The options have been checked.
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

// Bins is how many frequencies there are.
func (s *Spectrum) Bins() int { return s.n/2 + 1 }

// Steps is about how many multiplications and additions with their loads and stores a Frame takes.
func (s *Spectrum) Steps() int64 { return s.fft.steps() + 8*int64(s.n) }

// RoomBytes is how much memory a SpectrumRoom takes once a Frame has used it.
func (s *Spectrum) RoomBytes() int64 { return 2 * 8 * int64(s.fft.points()) }

// Bytes is how much memory a room takes.
func (r *SpectrumRoom) Bytes() int64 { return 8 * int64(len(r.a)+len(r.b)) }

// Frame gives the power of each frequency of the frame x, of N samples, in out, of Bins numbers.
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

// powers unfolds the transform z of a real sequence whose even and odd samples were its real and imaginary parts.
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

package dsp

// MelOptions are torchaudio.functional.melscale_fbanks'.
type MelOptions struct {
	Rate, Bins, Mels int
	Low, High        float64
	// Slaney takes Slaney's scale, and not HTK's; Area divides by the width of bands.
	Slaney, Area bool
}

// Mel sums powers of frequencies to bands. It is immutable.
type Mel struct {
	bands []band
}

// band is what a band takes from frequency at on.
type band struct {
	at     int
	weight []float32
}

const (
	slaneyStep  = 200.0 / 3
	slaneyBreak = 1000.0
)

func slaneyLog() float64 { return Log(6.4) / 27 }

func toMel(hz float64, slaney bool) float64 {
	if !slaney {
		return float64(2595 * Log10(1+hz/700))
	}
	if hz < slaneyBreak {
		return hz / slaneyStep
	}
	return slaneyBreak/slaneyStep + Log(hz/slaneyBreak)/slaneyLog()
}

// fromMel rounds as torch does, whose tensors are of single precision: bands that are
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

// linspace is torch's: n numbers, from both ends.
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

// NewMel makes tables. The options have been checked.
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

// Sum gives band b of the powers in frame, in out[b·stride].
func (m *Mel) Sum(frame, out []float32, stride int) {
	for i := range m.bands {
		b := &m.bands[i]
		p := frame[b.at:][:len(b.weight)]
		var even, odd float32
		for len(p) >= 2 {
			w := b.weight[len(b.weight)-len(p):]
			even += float32(p[0] * w[0])
			odd += float32(p[1] * w[1])
			p = p[2:]
		}
		if len(p) == 1 {
			even += float32(p[0] * b.weight[len(b.weight)-1])
		}
		out[i*stride] = even + odd
	}
}

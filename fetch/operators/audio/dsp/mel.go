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

// Weights is how many numbers of a frame are summed, over all bands.
func (m *Mel) Weights() int64 {
	n := int64(len(m.bands))
	for i := range m.bands {
		n += int64(len(m.bands[i].weight))
	}
	return n
}

// Sum gives the bands of frames, which are rows of powers of bins frequencies, side by
// side: band b of frame i in out[b·stride+i].
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

// four does four frames at a time, as one's additions wait for each other.
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

package audio

import (
	"encoding/json"
	"fmt"
	"slices"

	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// spectrogram is torchaudio.transforms.Spectrogram: the power of each frequency, frame by frame.
type spectrogram struct {
	NFFT       int     `json:"n_fft"`
	WinLength  int     `json:"win_length"` // n_fft where it is 0
	HopLength  int     `json:"hop_length"` // half of win_length where it is 0
	Pad        int     `json:"pad"`
	WindowFn   string  `json:"window_fn"`
	Power      float64 `json:"power"`
	Normalized any     `json:"normalized"`
	Center     bool    `json:"center"`
	PadMode    string  `json:"pad_mode"`

	spectrum *dsp.Spectrum
}

// specDefaults are torchaudio's.
var specDefaults = spectrogram{NFFT: 400, WindowFn: "hann_window", Power: 2, Normalized: false, Center: true,
	PadMode: "reflect"}

func newSpectrogram(raw json.RawMessage) (step, error) {
	s := specDefaults
	if err := parse(raw, &s); err != nil {
		return nil, err
	}
	return &s, s.check()
}

// check fills in lengths and makes tables.
func (s *spectrogram) check() error {
	if err := within("n_fft", s.NFFT, 2, dsp.MaxFFT); err != nil {
		return err
	}
	if s.WinLength == 0 {
		s.WinLength = s.NFFT
	}
	if err := within("win_length", s.WinLength, 1, s.NFFT); err != nil {
		return err
	}
	if s.HopLength == 0 {
		s.HopLength = max(1, s.WinLength/2)
	}
	// A hop far shorter than a window makes a cell many times as large as its waveform.
	if err := within("hop_length", s.HopLength, max(1, s.NFFT/256), 1<<20); err != nil {
		return err
	}
	if err := within("pad", s.Pad, 0, 1<<20); err != nil {
		return err
	}
	if s.Power != 1 && s.Power != 2 {
		return wrong("power", "got %g; it takes 1 and 2", s.Power)
	}
	if err := oneOf("window_fn", s.WindowFn, dsp.Windows()...); err != nil {
		return err
	}
	if err := oneOf("pad_mode", s.PadMode, "reflect", "constant", "replicate", "circular"); err != nil {
		return err
	}
	o := dsp.SpectrumOptions{N: s.NFFT, Length: s.WinLength, Shape: s.WindowFn, Magnitude: s.Power == 1}
	switch s.Normalized {
	case false:
	case true, "window":
		o.NormalizeWindow = true
	case "frame_length":
		o.NormalizeLength = true
	default:
		return wrong("normalized", `got %v; it takes true, false, "window" and "frame_length"`, s.Normalized)
	}
	s.spectrum = dsp.NewSpectrum(o)
	return nil
}

// count is how many frames n samples have.
func (s *spectrogram) count(n int) (int, error) {
	n += 2 * s.Pad
	if s.Center {
		side := s.NFFT / 2
		if s.PadMode == "reflect" && side >= n || s.PadMode != "constant" && side > n || n == 0 {
			return 0, fmt.Errorf("a waveform of %d samples is too short for %q of %d on either side", n, s.PadMode,
				side)
		}
		n += 2 * side
	}
	if n < s.NFFT {
		return 0, fmt.Errorf("a waveform of %d samples is shorter than n_fft, %d", n, s.NFFT)
	}
	return (n-s.NFFT)/s.HopLength + 1, nil
}

func (s *spectrogram) next(e extent) (extent, error) {
	e, err := e.waveform()
	if err != nil {
		return e, err
	}
	e.kind, e.axes, e.features = program.Spectrogram, "CFT", s.spectrum.Bins()
	if e.frames != unknown {
		e.frames, err = s.count(e.frames)
	}
	return e, err
}

// tables implements tabled.
func (s *spectrogram) tables(e extent) program.Amount { return s.tablesFor(e, s.spectrum.Bins()) }

// tablesFor is a waveform with its edges, the powers of some frames, and what a transform needs.
func (s *spectrogram) tablesFor(e extent, features int) program.Amount {
	return program.Count(int64(s.edged(e.frames))).Plus(program.Product(together, s.spectrum.Bins()+features)).Times(4).
		Plus(program.Count(s.spectrum.RoomBytes()))
}

// edged is how many samples a waveform of n has with its edges.
func (s *spectrogram) edged(n int) int { return n + 2*s.Pad + 2*(s.NFFT/2) }

func (s *spectrogram) work(e extent) program.Amount {
	return s.workFor(e, s.spectrum.Steps(), s.spectrum.Bins())
}

// edging is how many steps a sample takes on its way into a waveform with edges, and laying a number out by frequency.
const edging = 2

// workFor is the work of frames that take so many steps, of which each becomes so many features.
func (s *spectrogram) workFor(e extent, steps int64, features int) program.Amount {
	frames, err := s.count(e.frames)
	if err != nil {
		return program.Amount{} // next has refused it
	}
	each := program.Count(steps).Plus(program.Count(int64(features)).Times(edging))
	// Frames are computed some at a time.
	all := each.Times(int64(frames + together)).Plus(program.Count(int64(s.edged(e.frames))).Times(edging))
	return all.Times(int64(e.channels))
}

func (s *spectrogram) run(o *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, s.each(o, s.spectrum.Steps(), s.spectrum.Bins(), func(powers []float32, bins int, out []float32, stride int) {
		for i := range len(powers) / bins {
			for k, v := range powers[i*bins:][:bins] {
				out[k*stride+i] = v
			}
		}
	})
}

// together is how many frames are computed before they are laid out by frequency.
const together = 16

// each gives the powers of some frames at a time to sum, which makes features numbers of each. A frame takes so many
// steps, with what sum takes of it.
func (s *spectrogram) each(o *sound, steps int64, features int,
	sum func(powers []float32, bins int, out []float32, stride int)) error {
	frames, err := s.count(o.frames)
	if err != nil {
		panic("audio: a spectrogram of what next has refused: " + err.Error())
	}
	n, bins, r := s.NFFT, s.spectrum.Bins(), o.room
	if err := o.meter.Hold(s.tablesFor(o.extent, features).Int64()); err != nil {
		return err
	}
	r.powers = slices.Grow(r.powers[:0], together*(bins+features))
	powers := r.powers[:together*bins]
	block := r.powers[len(powers) : len(powers)+together*features]
	out, err := o.spare(o.channels * features * frames)
	if err != nil {
		return err
	}
	for c := range o.channels {
		if err := o.spend(s.edged(o.frames), edging); err != nil {
			return err
		}
		x := s.padded(o.row(c), r)
		to := out[c*features*frames:][:features*frames]
		for t := 0; t < frames; t += together {
			k := min(together, frames-t)
			if err := o.spend(k, steps+edging*int64(features)); err != nil {
				return err
			}
			for i := range k {
				s.spectrum.Frame(x[(t+i)*s.HopLength:][:n], powers[i*bins:][:bins], &r.spectrum)
			}
			sum(powers[:k*bins], bins, block, together)
			for f := range features {
				copy(to[f*frames+t:][:k], block[f*together:])
			}
		}
	}
	o.take(out)
	o.features, o.frames = features, frames
	return nil
}

// padded is x with its edges, in room's memory.
func (s *spectrogram) padded(x []float32, r *room) []float32 {
	side := 0
	if s.Center {
		side = s.NFFT / 2
	}
	if side == 0 && s.Pad == 0 {
		return x
	}
	n := len(x) + 2*s.Pad
	r.frame = slices.Grow(r.frame[:0], n+2*side)
	all := r.frame[:n+2*side]
	inner := all[side:][:n]
	clear(inner[:s.Pad])
	copy(inner[s.Pad:], x)
	clear(inner[n-s.Pad:])
	for i := range side {
		before, after := float32(0), float32(0)
		switch s.PadMode {
		case "reflect":
			before, after = inner[side-i], inner[n-2-i]
		case "replicate":
			before, after = inner[0], inner[n-1]
		case "circular":
			before, after = inner[n-side+i], inner[i]
		}
		all[i], all[side+n+i] = before, after
	}
	return all
}

// melSpectrogram is torchaudio.transforms.MelSpectrogram.
type melSpectrogram struct {
	SampleRate int      `json:"sample_rate"`
	FMin       float64  `json:"f_min"`
	FMax       *float64 `json:"f_max"` // half of the rate where it is nil
	NMels      int      `json:"n_mels"`
	Norm       *string  `json:"norm"`
	MelScale   string   `json:"mel_scale"`
	spectrogram
	mel *dsp.Mel
}

func newMelSpectrogram(raw json.RawMessage) (step, error) {
	m := &melSpectrogram{SampleRate: 16000, NMels: 128, MelScale: "htk", spectrogram: specDefaults}
	if err := parse(raw, m); err != nil {
		return nil, err
	}
	if err := within("sample_rate", m.SampleRate, 2, 768000); err != nil {
		return nil, err
	}
	if m.FMax == nil {
		half := float64(m.SampleRate / 2)
		m.FMax = &half
	}
	if err := between("f_max", *m.FMax, 1e-3, float64(m.SampleRate)); err != nil {
		return nil, err
	}
	if !(m.FMin >= 0 && m.FMin < *m.FMax) {
		return nil, wrong("f_min", "got %g; it takes 0 and more, less than f_max, %g", m.FMin, *m.FMax)
	}
	if err := within("n_mels", m.NMels, 1, 1024); err != nil {
		return nil, err
	}
	if err := oneOf("mel_scale", m.MelScale, "htk", "slaney"); err != nil {
		return nil, err
	}
	if m.Norm != nil && *m.Norm != "slaney" {
		return nil, wrong("norm", `got %q; it takes null and "slaney"`, *m.Norm)
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	m.mel = dsp.NewMel(dsp.MelOptions{Rate: m.SampleRate, Bins: m.spectrum.Bins(), Mels: m.NMels,
		Low: m.FMin, High: *m.FMax, Slaney: m.MelScale == "slaney", Area: m.Norm != nil})
	return m, nil
}

func (m *melSpectrogram) next(e extent) (extent, error) {
	if e.rate != 0 && e.rate != m.SampleRate {
		return e, wrong("sample_rate", "is %d; the waveform has %d samples a second: put Resample before", m.SampleRate,
			e.rate)
	}
	e, err := m.spectrogram.next(e)
	e.rate, e.features = m.SampleRate, m.NMels
	return e, err
}

func (m *melSpectrogram) run(o *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, m.each(o, m.steps(), m.NMels, m.mel.Sum)
}

// steps is how many a frame takes.
func (m *melSpectrogram) steps() int64 { return m.spectrum.Steps() + 2*m.mel.Weights() }

func (m *melSpectrogram) work(e extent) program.Amount { return m.workFor(e, m.steps(), m.NMels) }

func (m *melSpectrogram) tables(e extent) program.Amount { return m.tablesFor(e, m.NMels) }

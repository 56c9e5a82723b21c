package audio

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// spectrogram is torchaudio.transforms.Spectrogram: the power of each frequency, for each
// frame. check makes the tables; afterwards it is immutable.
type spectrogram struct {
	plain
	NFFT       int     `json:"n_fft"`
	WinLength  int     `json:"win_length"` // 0: n_fft
	HopLength  int     `json:"hop_length"` // 0: half of win_length
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

// check completes the lengths and makes tables. A length of 0 means torchaudio's default.
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
	// A hop far shorter than the window would make a cell many times larger than its
	// waveform.
	if err := cmp.Or(within("hop_length", s.HopLength, max(1, s.NFFT/256), 1<<20), within("pad", s.Pad, 0, 1<<20)); err != nil {
		return err
	}
	if s.Power != 1 && s.Power != 2 {
		return wrong("power", "got %g; it takes 1 and 2", s.Power)
	}
	if err := cmp.Or(oneOf("window_fn", s.WindowFn, dsp.Windows()...),
		oneOf("pad_mode", s.PadMode, "reflect", "constant", "replicate", "circular")); err != nil {
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

// count is the number of frames of n samples. It fails if the waveform is too short for its
// padding. Padding by reflection needs more samples than it makes.
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

// next implements step: waveforms of C channels become [C, n_fft/2+1, frames].
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

// tables implements step.
func (s *spectrogram) tables(e extent) program.Amount { return s.tablesFor(e, s.spectrum.Bins()) }

// tablesFor is the memory of a padded waveform, the powers of some frames, and the
// transform's scratch. features is the number of results for each frame.
func (s *spectrogram) tablesFor(e extent, features int) program.Amount {
	return program.Count(int64(s.edged(e.frames))).Plus(program.Product(together, s.spectrum.Bins()+features)).Times(4).
		Plus(program.Count(s.spectrum.RoomBytes()))
}

// edged is the length of a waveform of n samples with its padding.
func (s *spectrogram) edged(n int) int { return n + 2*s.Pad + 2*(s.NFFT/2) }

// work implements step.
func (s *spectrogram) work(e extent) program.Amount {
	return s.workFor(e, s.spectrum.Steps(), s.spectrum.Bins())
}

// edging is how many steps the padding takes for a sample, and the transposition for a
// number.
const edging = 2

// workFor is the work for frames that take that number of steps each, and have that number
// of features. All frames cost the same.
func (s *spectrogram) workFor(e extent, steps int64, features int) program.Amount {
	frames, err := s.count(e.frames)
	if err != nil {
		return program.Amount{} // next has refused it
	}
	each := program.Count(steps).Plus(program.Count(int64(features)).Times(edging))
	// The last group of frames may be incomplete.
	all := each.Times(int64(frames + together)).Plus(program.Count(int64(s.edged(e.frames))).Times(edging))
	return all.Times(int64(e.channels))
}

// run implements step.
func (s *spectrogram) run(o *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, s.each(o, s.spectrum.Steps(), s.spectrum.Bins(), func(powers []float32, bins int, out []float32, stride int) {
		for i := range len(powers) / bins {
			for k, v := range powers[i*bins:][:bins] {
				out[k*stride+i] = v
			}
		}
	})
}

// together is how many frames are computed before they are transposed to rows of
// frequencies: their columns are then copied in runs.
const together = 16

// each passes the powers of some frames at a time to sum, which makes features numbers of
// each frame. steps is the cost of a frame, including sum. A group of frames is computed
// frame by frame, and then transposed: the cell has a row for each feature.
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
			// The last group may have fewer frames.
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

// padded is x with its padding, in room's memory. The result is x itself if there is no
// padding. It is valid until the next channel.
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
	// Both ends are filled in one loop, from the outside inwards.
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
	FMax       *float64 `json:"f_max"` // nil: half of the rate
	NMels      int      `json:"n_mels"`
	Norm       *string  `json:"norm"`
	MelScale   string   `json:"mel_scale"`
	spectrogram
	mel *dsp.Mel
}

// check implements step. It completes the lengths, and makes the filter bank.
func (m *melSpectrogram) check() error {
	if err := within("sample_rate", m.SampleRate, 2, 768000); err != nil {
		return err
	}
	if m.FMax == nil {
		half := float64(m.SampleRate / 2)
		m.FMax = &half
	}
	if err := between("f_max", *m.FMax, 1e-3, float64(m.SampleRate)); err != nil {
		return err
	}
	if !(m.FMin >= 0 && m.FMin < *m.FMax) {
		return wrong("f_min", "got %g; it takes 0 and more, less than f_max, %g", m.FMin, *m.FMax)
	}
	if err := cmp.Or(within("n_mels", m.NMels, 1, 1024), oneOf("mel_scale", m.MelScale, "htk", "slaney")); err != nil {
		return err
	}
	if m.Norm != nil && *m.Norm != "slaney" {
		return wrong("norm", `got %q; it takes null and "slaney"`, *m.Norm)
	}
	if err := m.spectrogram.check(); err != nil {
		return err
	}
	m.mel = dsp.NewMel(dsp.MelOptions{Rate: m.SampleRate, Bins: m.spectrum.Bins(), Mels: m.NMels,
		Low: m.FMin, High: *m.FMax, Slaney: m.MelScale == "slaney", Area: m.Norm != nil})
	return nil
}

// next implements step: waveforms of C channels become [C, n_mels, frames].
func (m *melSpectrogram) next(e extent) (extent, error) {
	if e.rate != 0 && e.rate != m.SampleRate {
		return e, wrong("sample_rate", "is %d; the waveform has %d samples a second: put Resample before", m.SampleRate,
			e.rate)
	}
	e, err := m.spectrogram.next(e)
	e.rate, e.features = m.SampleRate, m.NMels
	return e, err
}

// run implements step.
func (m *melSpectrogram) run(o *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, m.each(o, m.steps(), m.NMels, m.mel.Sum)
}

// steps is the cost of a frame.
func (m *melSpectrogram) steps() int64 { return m.spectrum.Steps() + 2*m.mel.Weights() }

// work implements step.
func (m *melSpectrogram) work(e extent) program.Amount { return m.workFor(e, m.steps(), m.NMels) }

// tables implements step.
func (m *melSpectrogram) tables(e extent) program.Amount { return m.tablesFor(e, m.NMels) }

// spectral accepts spectrograms.
func (e extent) spectral() (extent, error) {
	if e.kind != program.Spectrogram {
		return e, wrong("", "got a waveform; it takes a spectrogram: put MelSpectrogram before")
	}
	return e, nil
}

// masks are n bands of an axis that are set to a value, as in
// torchaudio.functional.mask_along_axis: a width uniform in [0, param), at a uniform
// place. Each mask takes two random numbers.
type masks struct {
	name     string
	n, param int
	p        float64 // maximum share of the axis
	time     bool    // the axis is time
	each     bool    // each channel has its own masks
}

// apply masks the cell, and appends its random choices to drawn. The numbers of a mask are
// drawn even if it has no width.
func (m masks) apply(s *sound, from *draw.Source, value float32, drawn []program.Value) ([]program.Value, error) {
	size := s.features
	if m.time {
		size = s.frames
	}
	param := m.param
	if m.p < 1 {
		param = min(param, int(float64(float64(size)*m.p)))
	}
	// Either all channels share a mask, or each channel has its own.
	groups, channels := 1, s.channels
	if m.each {
		groups, channels = s.channels, 1
	}
	for k := range m.n {
		for g := range groups {
			width := float64(from.Float64() * float64(param))
			place := float64(from.Float64() * (float64(size) - width))
			start, end := 0, 0
			if param >= 1 {
				start, end = max(int(place), 0), min(max(int(place)+int(width), 0), size)
				for c := g * channels; c < (g+1)*channels; c++ {
					if err := s.mask(c, m.time, start, end, value); err != nil {
						return nil, err
					}
				}
			}
			name := fmt.Sprintf("%s%d", m.name, k*groups+g)
			drawn = append(drawn, program.Value{Name: name + ".start", Number: float64(start)},
				program.Value{Name: name + ".length", Number: float64(max(end-start, 0))})
		}
	}
	return drawn, nil
}

// masked is the work of n masks and of their description, which is about 128 bytes for
// each mask of a channel.
func masked(e extent, n int) program.Amount {
	return e.size().Plus(program.Product(e.channels, 256)).Times(int64(n))
}

// maskTables is the memory of the description of n masks.
func maskTables(e extent, n int) program.Amount { return program.Product(e.channels, 128, n) }

// mask sets a band of channel c. start may be equal to end: nothing is masked then.
func (s *sound) mask(c int, time bool, start, end int, value float32) error {
	if err := s.spend(s.features*s.frames, 1); err != nil {
		return err
	}
	for f := range s.features {
		row := s.row(c*s.features + f)
		if !time {
			if f < start || f >= end {
				continue
			}
			for i := range row {
				row[i] = value
			}
			continue
		}
		for i := start; i < end; i++ {
			row[i] = value
		}
	}
	return nil
}

// masking is for steps that mask spectrograms. Each of them draws.
type masking struct{ ofSpectrogram }

func (masking) draws() bool { return true }

// frequencyMasking is torchaudio.transforms.FrequencyMasking.
type frequencyMasking struct {
	masking
	Param int  `json:"freq_mask_param"`
	IID   bool `json:"iid_masks"`
}

func (m *frequencyMasking) check() error                   { return within("freq_mask_param", m.Param, 1, maxFrames) }
func (m *frequencyMasking) work(e extent) program.Amount   { return masked(e, 1) }
func (m *frequencyMasking) tables(e extent) program.Amount { return maskTables(e, 1) }

// run implements step.
func (m *frequencyMasking) run(s *sound, from *draw.Source) ([]program.Value, error) {
	return masks{name: "freq", n: 1, param: m.Param, p: 1, each: m.IID}.apply(s, from, 0, nil)
}

// timeMasking is torchaudio.transforms.TimeMasking.
type timeMasking struct {
	masking
	Param int     `json:"time_mask_param"`
	IID   bool    `json:"iid_masks"`
	P     float64 `json:"p"`
}

// check implements step.
func (m *timeMasking) check() error {
	return cmp.Or(within("time_mask_param", m.Param, 1, maxFrames), between("p", m.P, 0, 1))
}

func (m *timeMasking) work(e extent) program.Amount   { return masked(e, 1) }
func (m *timeMasking) tables(e extent) program.Amount { return maskTables(e, 1) }

// run implements step.
func (m *timeMasking) run(s *sound, from *draw.Source) ([]program.Value, error) {
	return masks{name: "time", n: 1, param: m.Param, p: m.P, time: true, each: m.IID}.apply(s, from, 0, nil)
}

// specAugment is torchaudio.transforms.SpecAugment (Park et al., Interspeech 2019).
type specAugment struct {
	masking
	TimeMasks int     `json:"n_time_masks"`
	TimeParam int     `json:"time_mask_param"`
	FreqMasks int     `json:"n_freq_masks"`
	FreqParam int     `json:"freq_mask_param"`
	IID       bool    `json:"iid_masks"`
	P         float64 `json:"p"`
	Zero      bool    `json:"zero_masking"`
}

// check implements step.
func (a *specAugment) check() error {
	return cmp.Or(within("n_time_masks", a.TimeMasks, 0, 64), within("n_freq_masks", a.FreqMasks, 0, 64),
		within("time_mask_param", a.TimeParam, 0, maxFrames), within("freq_mask_param", a.FreqParam, 0, maxFrames),
		between("p", a.P, 0, 1))
}

// work implements step: the masks, and the mean.
func (a *specAugment) work(e extent) program.Amount {
	return masked(e, a.TimeMasks+a.FreqMasks).Plus(e.size().Times(2))
}

func (a *specAugment) tables(e extent) program.Amount { return maskTables(e, a.TimeMasks+a.FreqMasks) }

// run implements step. Masks have the value 0, or the mean of the whole cell. Those of
// time come first, as in torchaudio.
func (a *specAugment) run(s *sound, from *draw.Source) ([]program.Value, error) {
	// torchaudio masks with the mean unless zeros are requested.
	value := float32(0)
	if !a.Zero && len(s.data) > 0 {
		mean, err := s.mean()
		if err != nil {
			return nil, err
		}
		value = float32(mean)
	}
	drawn, err := masks{name: "time", n: a.TimeMasks, param: a.TimeParam, p: a.P, time: true, each: a.IID}.apply(s,
		from, value, nil)
	if err != nil {
		return nil, err
	}
	return masks{name: "freq", n: a.FreqMasks, param: a.FreqParam, p: a.P, each: a.IID}.apply(s, from, value, drawn)
}

// mean is the mean of all numbers, summed in double precision. Single precision would lose
// small numbers in a long cell.
func (s *sound) mean() (float64, error) {
	sum := 0.0
	err := s.inParts(s.data, 2, func(x []float32) {
		for _, v := range x {
			sum += float64(v)
		}
	})
	return sum / float64(len(s.data)), err
}

// amplitudeToDB is torchaudio.transforms.AmplitudeToDB.
type amplitudeToDB struct {
	ofSpectrogram
	Stype string   `json:"stype"`
	TopDB *float64 `json:"top_db"`
}

// check implements step.
func (a *amplitudeToDB) check() error {
	if a.TopDB != nil {
		if err := between("top_db", *a.TopDB, 0, 1000); err != nil {
			return err
		}
	}
	return oneOf("stype", a.Stype, "power", "magnitude")
}

// ofLog is how many steps a logarithm takes.
const ofLog = 16

func (a *amplitudeToDB) work(e extent) program.Amount { return e.size().Times(ofLog + 4) }

// run implements step: 10 log10(max(x, 1e-10)) for power, 20 log10 for magnitude. With
// top_db, values are at least the cell's maximum minus top_db. Two passes: the maximum is
// known only after the first.
func (a *amplitudeToDB) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	scale := 10 / math.Ln10
	if a.Stype == "magnitude" {
		scale *= 2
	}
	if err := s.inParts(s.data, ofLog, func(x []float32) { dsp.Log32(x, 0, 1e-10, float32(scale)) }); err != nil {
		return nil, err
	}
	if a.TopDB == nil || len(s.data) == 0 {
		return nil, nil
	}
	loudest := s.data[0]
	if err := s.inParts(s.data, 2, func(x []float32) { loudest = max(loudest, slices.Max(x)) }); err != nil {
		return nil, err
	}
	least := loudest - float32(*a.TopDB)
	return nil, s.inParts(s.data, 2, func(x []float32) {
		for i, v := range x {
			x[i] = max(v, least)
		}
	})
}

// logOf is torch.log(x + offset). Values below the smallest normal number count as that.
type logOf struct {
	ofSpectrogram
	Offset float64 `json:"offset"`
}

func (l *logOf) check() error                 { return between("offset", l.Offset, 0, 1e6) }
func (l *logOf) work(e extent) program.Amount { return e.size().Times(ofLog) }

// run implements step.
func (l *logOf) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, s.inParts(s.data, ofLog, func(x []float32) { dsp.Log32(x, float32(l.Offset), 0x1p-126, 1) })
}

// normalize subtracts mean and divides by std: one number each, or one for each channel
// of a waveform or feature of a spectrogram.
type normalize struct {
	plain
	Mean numbers `json:"mean"`
	Std  numbers `json:"std"`
}

// check implements step.
func (n *normalize) check() error {
	if len(n.Mean) == 0 || len(n.Std) == 0 {
		return wrong("mean", "mean and std are needed, each a number or a list")
	}
	for _, v := range n.Mean {
		if err := between("mean", v, -1e30, 1e30); err != nil {
			return err
		}
	}
	for _, v := range n.Std {
		if err := between("std", v, 1e-30, 1e30); err != nil {
			return err
		}
	}
	return nil
}

// next implements step: mean and std have one number, or one for each row. The number of
// rows is checked when the list is compiled, if it is known by then.
func (n *normalize) next(e extent) (extent, error) {
	rows, what := e.channels, "channels"
	if e.kind == program.Spectrogram {
		rows, what = e.features, "features"
	}
	for param, given := range map[string]int{"mean": len(n.Mean), "std": len(n.Std)} {
		if given != 1 && given != rows {
			if rows == unknown {
				return e, wrong(param, "got %d numbers; how many channels there are is not known before: put Mono "+
					"before, or give one", given)
			}
			return e, wrong(param, "got %d numbers; there are %d %s", given, rows, what)
		}
	}
	return e, nil
}

// work implements step.
func (n *normalize) work(e extent) program.Amount { return e.size().Times(4) }

// run implements step, in single precision.
func (n *normalize) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	for i := range s.rows() {
		mean, std := float32(n.Mean[i%len(n.Mean)]), float32(n.Std[i%len(n.Std)])
		if err := s.inParts(s.row(i), 4, func(x []float32) {
			for k, v := range x {
				x[k] = (v - mean) / std
			}
		}); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// standardize gives a cell mean 0 and variance 1: the whole cell, or each channel or
// feature over time.
type standardize struct {
	plain
	Per string  `json:"per"`
	Eps float64 `json:"eps"`
}

// check implements step.
func (n *standardize) check() error {
	return cmp.Or(between("eps", n.Eps, 1e-30, 1), oneOf("per", n.Per, "cell", "row"))
}

// standardizing is how many steps each of the three passes takes for a number.
const standardizing = 4

func (n *standardize) work(e extent) program.Amount { return e.size().Times(3 * standardizing) }

// run implements step. The variance is that of the population, plus eps.
func (n *standardize) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if n.Per == "cell" {
		return nil, n.scale(s, s.data)
	}
	for i := range s.rows() {
		if err := n.scale(s, s.row(i)); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// scale standardizes x in three passes, which are more precise than a running sum of
// squares. eps keeps a constant cell finite.
func (n *standardize) scale(s *sound, x []float32) error {
	if len(x) == 0 {
		return nil
	}
	sum, squares := 0.0, 0.0
	if err := s.inParts(x, standardizing, func(part []float32) {
		for _, v := range part {
			sum += float64(v)
		}
	}); err != nil {
		return err
	}
	mean := sum / float64(len(x))
	if err := s.inParts(x, standardizing, func(part []float32) {
		for _, v := range part {
			d := float64(v) - mean
			squares += float64(d * d)
		}
	}); err != nil {
		return err
	}
	std := math.Sqrt(squares/float64(len(x)) + n.Eps)
	return s.inParts(x, standardizing, func(part []float32) {
		for i, v := range part {
			part[i] = float32((float64(v) - mean) / std)
		}
	})
}

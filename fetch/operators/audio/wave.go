package audio

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// maxFrames bounds what parameters count in samples.
const maxFrames = 1 << 31

// waveform lets through what is one.
func (e extent) waveform() (extent, error) {
	if e.kind != program.Audio {
		return e, wrong("", "got a spectrogram; it takes a waveform")
	}
	return e, nil
}

// decode is torchaudio.load: samples of -1 to 1, of every channel.
type decode struct {
	FrameOffset int `json:"frame_offset"`
	NumFrames   int `json:"num_frames"` // -1 for all that there are
}

func newDecode(raw json.RawMessage) (step, error) {
	d := &decode{NumFrames: -1}
	if err := parse(raw, d); err != nil {
		return nil, err
	}
	if err := within("frame_offset", d.FrameOffset, 0, maxFrames); err != nil {
		return nil, err
	}
	if d.NumFrames == 0 || d.NumFrames < -1 || d.NumFrames > maxFrames {
		return nil, wrong("num_frames", "got %d; it takes 1 to %d, and -1 for all", d.NumFrames, maxFrames)
	}
	return d, nil
}

func (d *decode) next(extent) (extent, error) {
	return extent{kind: program.Audio, channels: unknown, frames: unknown, dtype: program.Float32, axes: "CT"}, nil
}

// opened is what a file becomes.
func (d *decode) opened(info codec.Info) (extent, error) {
	e, _ := d.next(extent{})
	if err := info.Readable(); err != nil {
		return e, err
	}
	e.channels, e.rate = info.Channels, info.Rate
	if d.FrameOffset > 0 && d.FrameOffset >= info.Frames {
		return e, fmt.Errorf("frame_offset is %d; the file has %d samples of each channel", d.FrameOffset, info.Frames)
	}
	e.frames = info.Frames - d.FrameOffset
	if d.NumFrames > 0 {
		e.frames = min(e.frames, d.NumFrames)
	}
	return e, nil
}

// work is none: codec.Info says what decoding takes.
func (d *decode) work(extent) program.Amount { return program.Amount{} }

func (d *decode) run(*sound, *draw.Source) ([]program.Value, error) { return nil, nil }

// resample is torchaudio.transforms.Resample. What has the rate already passes as it is.
type resample struct {
	OrigFreq     int     `json:"orig_freq,omitempty"` // 0 for the file's; files of others are refused
	NewFreq      int     `json:"new_freq"`
	Method       string  `json:"resampling_method"`
	FilterWidth  int     `json:"lowpass_filter_width"`
	Rolloff      float64 `json:"rolloff"`
	Beta         float64 `json:"beta"`
	tablesByRate resamplers
}

// resamplers are tables by rate. Few rates are in one dataset; beyond those that are kept, tables are made each time.
type resamplers struct {
	mu   sync.Mutex
	kept map[int]*dsp.Resampler
}

const keptResamplers = 8

func newResample(raw json.RawMessage) (step, error) {
	r := &resample{NewFreq: 16000, Method: "sinc_interp_hann", FilterWidth: 6, Rolloff: 0.99, Beta: 14.769656459379492}
	if err := parse(raw, r); err != nil {
		return nil, err
	}
	if err := within("orig_freq", r.OrigFreq, 0, 768000); err != nil {
		return nil, err
	}
	if err := within("new_freq", r.NewFreq, 1, 768000); err != nil {
		return nil, err
	}
	if err := within("lowpass_filter_width", r.FilterWidth, 1, 256); err != nil {
		return nil, err
	}
	if err := between("rolloff", r.Rolloff, 0.01, 1); err != nil {
		return nil, err
	}
	if err := between("beta", r.Beta, 0, 100); err != nil {
		return nil, err
	}
	if err := oneOf("resampling_method", r.Method, "sinc_interp_hann", "sinc_interp_kaiser"); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *resample) options(from int) dsp.ResampleOptions {
	return dsp.ResampleOptions{From: from, To: r.NewFreq, Width: r.FilterWidth, Rolloff: r.Rolloff,
		Kaiser: r.Method == "sinc_interp_kaiser", Beta: r.Beta}
}

func (r *resample) next(e extent) (extent, error) {
	e, err := e.waveform()
	if err != nil {
		return e, err
	}
	from := e.rate
	if from == 0 {
		from = r.OrigFreq
	}
	if r.OrigFreq != 0 && from != r.OrigFreq {
		return e, wrong("orig_freq", "is %d samples a second; the waveform has %d", r.OrigFreq, from)
	}
	if from != 0 && from != r.NewFreq {
		if err := r.options(from).Check(); err != nil {
			return e, wrong("new_freq", "%v", err)
		}
		if e.frames != unknown {
			e.frames = dsp.ResampledLength(e.frames, from, r.NewFreq)
		}
	} else if from == 0 {
		e.frames = unknown
	}
	e.rate = r.NewFreq
	return e, nil
}

// tables implements tabled.
func (r *resample) tables(e extent) program.Amount {
	if e.rate == r.NewFreq {
		return program.Amount{}
	}
	return program.Count(r.options(e.rate).Bytes())
}

// work has the making of the table, too, which may be there.
func (r *resample) work(e extent) program.Amount {
	if e.rate == r.NewFreq {
		return program.Amount{}
	}
	o := r.options(e.rate)
	n := dsp.ResampledLength(e.frames, e.rate, r.NewFreq)
	return program.Product(e.channels, n, o.Taps()+filtering).Plus(program.Count(o.Steps()))
}

// filtering is how many steps an output sample takes besides its taps.
const filtering = 8

func (r *resample) table(s *sound, from int) (*dsp.Resampler, error) {
	r.tablesByRate.mu.Lock()
	t := r.tablesByRate.kept[from]
	r.tablesByRate.mu.Unlock()
	if t != nil {
		return t, nil
	}
	o := r.options(from)
	if err := errors.Join(s.meter.Hold(o.Bytes()), s.meter.Spend(o.Steps())); err != nil {
		return nil, err
	}
	t = dsp.NewResampler(o)
	r.tablesByRate.mu.Lock()
	defer r.tablesByRate.mu.Unlock()
	if len(r.tablesByRate.kept) < keptResamplers {
		if r.tablesByRate.kept == nil {
			r.tablesByRate.kept = map[int]*dsp.Resampler{}
		}
		r.tablesByRate.kept[from] = t
	}
	return t, nil
}

func (r *resample) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.rate == r.NewFreq {
		return nil, nil
	}
	n := dsp.ResampledLength(s.frames, s.rate, r.NewFreq)
	out, err := s.spare(s.channels * n)
	if err != nil {
		return nil, err
	}
	t, err := r.table(s, s.rate)
	if err != nil {
		return nil, err
	}
	each := r.options(s.rate).Taps() + filtering
	for c := range s.channels {
		x, y := s.row(c), out[c*n:(c+1)*n]
		for at := 0; at < n; {
			part := y[at:min(n, at+max(1, chunk/each))]
			if err := s.spend(len(part), int64(each)); err != nil {
				return nil, err
			}
			t.Run(x, part, at)
			at += len(part)
		}
	}
	s.take(out)
	s.frames = n
	return nil, nil
}

// mono is the mean of channels, as waveform.mean(0, keepdim=True).
type mono struct{}

func newMono(raw json.RawMessage) (step, error) {
	m := &mono{}
	return m, parse(raw, m)
}

func (m *mono) next(e extent) (extent, error) {
	e, err := e.waveform()
	e.channels = 1
	return e, err
}

func (m *mono) work(e extent) program.Amount { return e.size().Times(4) }

func (m *mono) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.channels == 1 {
		return nil, nil
	}
	sum := s.row(0)
	for c := 1; c < s.channels; c++ {
		at := 0
		if err := s.inParts(s.row(c), 2, func(x []float32) {
			for i, v := range x {
				sum[at+i] += v
			}
			at += len(x)
		}); err != nil {
			return nil, err
		}
	}
	n := float32(s.channels)
	if err := s.inParts(sum, 4, func(x []float32) {
		for i := range x {
			x[i] /= n
		}
	}); err != nil {
		return nil, err
	}
	s.data, s.channels = sum, 1
	return nil, nil
}

// vol is torchaudio.transforms.Vol: samples times a ratio, kept within -1 to 1.
type vol struct {
	Gain     float64 `json:"gain"`
	GainType string  `json:"gain_type"`
}

func newVol(raw json.RawMessage) (step, error) {
	v := &vol{Gain: -1, GainType: "amplitude"}
	if err := parse(raw, v); err != nil {
		return nil, err
	}
	if err := oneOf("gain_type", v.GainType, "amplitude", "power", "db"); err != nil {
		return nil, err
	}
	if v.GainType == "db" {
		return v, between("gain", v.Gain, -200, 200)
	}
	return v, between("gain", v.Gain, 0, 1e10)
}

func (v *vol) next(e extent) (extent, error) { return e.waveform() }

// amplifying is how many steps a sample takes.
const amplifying = 4

func (v *vol) work(e extent) program.Amount { return e.size().Times(amplifying) }

func (v *vol) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	switch {
	case v.GainType == "db":
		return nil, s.amplify(float32(dsp.Exp10(v.Gain / 20)))
	case v.GainType == "power" && v.Gain > 0:
		return nil, s.amplify(float32(dsp.Exp10(dsp.Log10(v.Gain) / 2)))
	default:
		return nil, s.amplify(float32(v.Gain))
	}
}

func (s *sound) amplify(ratio float32) error {
	return s.inParts(s.data, amplifying, func(x []float32) {
		for i, v := range x {
			x[i] = min(max(float32(v*ratio), -1), 1)
		}
	})
}

// randomGain is Vol in decibels, uniform between two bounds and whole in thousandths, with probability p.
type randomGain struct {
	Low  float64 `json:"min_gain_db"`
	High float64 `json:"max_gain_db"`
	P    float64 `json:"p"`
}

func newRandomGain(raw json.RawMessage) (step, error) {
	g := &randomGain{Low: -6, High: 6, P: 1}
	if err := parse(raw, g); err != nil {
		return nil, err
	}
	if err := between("min_gain_db", g.Low, -200, 200); err != nil {
		return nil, err
	}
	if err := between("max_gain_db", g.High, g.Low, 200); err != nil {
		return nil, err
	}
	return g, between("p", g.P, 0, 1)
}

func (g *randomGain) draws() {}

func (g *randomGain) next(e extent) (extent, error) { return e.waveform() }

func (g *randomGain) work(e extent) program.Amount { return e.size().Times(amplifying) }

func (g *randomGain) run(s *sound, from *draw.Source) ([]program.Value, error) {
	applied, low := from.Chance(g.P), g.Low
	db := float64(int(float64(from.Uniform(low, g.High)*1000))) / 1000
	if !applied {
		return []program.Value{{Name: "gain_db", Number: 0}}, nil
	}
	return []program.Value{{Name: "gain_db", Number: db}}, s.amplify(float32(dsp.Exp10(db / 20)))
}

// preemphasis is torchaudio.transforms.Preemphasis: a sample less coeff times the one before.
type preemphasis struct {
	Coeff float64 `json:"coeff"`
}

func newPreemphasis(raw json.RawMessage) (step, error) {
	p := &preemphasis{Coeff: 0.97}
	if err := parse(raw, p); err != nil {
		return nil, err
	}
	return p, between("coeff", p.Coeff, -1, 1)
}

func (p *preemphasis) next(e extent) (extent, error) { return e.waveform() }

func (p *preemphasis) work(e extent) program.Amount { return e.size().Times(2) }

func (p *preemphasis) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	k := float32(p.Coeff)
	for c := range s.channels {
		x := s.row(c)
		for end := len(x); end > 1; end -= min(chunk, end) { // from the end: a sample takes the one before as it was
			if err := s.spend(min(chunk, end), 2); err != nil {
				return nil, err
			}
			for i := end - 1; i >= max(end-chunk, 1); i-- {
				x[i] -= float32(k * x[i-1])
			}
		}
	}
	return nil, nil
}

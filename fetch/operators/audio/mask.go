package audio

import (
	"encoding/json"
	"fmt"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// spectral lets through what has frequencies.
func (e extent) spectral() (extent, error) {
	if e.kind != program.Spectrogram {
		return e, wrong("", "got a waveform; it takes a spectrogram: put MelSpectrogram before")
	}
	return e, nil
}

// masks are n bands of an axis that are set to a value, as torchaudio.functional.mask_along_axis:
// a width uniform in [0, param), at a uniform place. Each mask takes two numbers.
type masks struct {
	name     string
	n, param int
	p        float64
	time     bool
	each     bool // channel has masks of its own
}

// apply appends what it draws to drawn.
func (m masks) apply(s *sound, from *draw.Source, value float32, drawn []program.Value) ([]program.Value, error) {
	size := s.features
	if m.time {
		size = s.frames
	}
	param := m.param
	if m.p < 1 {
		param = min(param, int(float64(float64(size)*m.p)))
	}
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

// masked is the work of so many masks, and what they have drawn, which is some 128 bytes for each mask of a channel.
func masked(e extent, n int) program.Amount {
	return e.size().Plus(program.Product(e.channels, 256)).Times(int64(n))
}

func maskTables(e extent, n int) program.Amount { return program.Product(e.channels, 128, n) }

// mask sets a band of channel c.
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

// frequencyMasking is torchaudio.transforms.FrequencyMasking.
type frequencyMasking struct {
	Param int  `json:"freq_mask_param"`
	IID   bool `json:"iid_masks"`
}

func newFrequencyMasking(raw json.RawMessage) (step, error) {
	m := &frequencyMasking{}
	if err := parse(raw, m); err != nil {
		return nil, err
	}
	return m, within("freq_mask_param", m.Param, 1, maxFrames)
}

func (m *frequencyMasking) draws() {}

func (m *frequencyMasking) next(e extent) (extent, error) { return e.spectral() }

func (m *frequencyMasking) work(e extent) program.Amount { return masked(e, 1) }

func (m *frequencyMasking) tables(e extent) program.Amount { return maskTables(e, 1) }

func (m *frequencyMasking) run(s *sound, from *draw.Source) ([]program.Value, error) {
	return masks{name: "freq", n: 1, param: m.Param, p: 1, each: m.IID}.apply(s, from, 0, nil)
}

// timeMasking is torchaudio.transforms.TimeMasking.
type timeMasking struct {
	Param int     `json:"time_mask_param"`
	IID   bool    `json:"iid_masks"`
	P     float64 `json:"p"`
}

func newTimeMasking(raw json.RawMessage) (step, error) {
	m := &timeMasking{P: 1}
	if err := parse(raw, m); err != nil {
		return nil, err
	}
	if err := within("time_mask_param", m.Param, 1, maxFrames); err != nil {
		return nil, err
	}
	return m, between("p", m.P, 0, 1)
}

func (m *timeMasking) draws() {}

func (m *timeMasking) next(e extent) (extent, error) { return e.spectral() }

func (m *timeMasking) work(e extent) program.Amount { return masked(e, 1) }

func (m *timeMasking) tables(e extent) program.Amount { return maskTables(e, 1) }

func (m *timeMasking) run(s *sound, from *draw.Source) ([]program.Value, error) {
	return masks{name: "time", n: 1, param: m.Param, p: m.P, time: true, each: m.IID}.apply(s, from, 0, nil)
}

// specAugment is torchaudio.transforms.SpecAugment (Park et al., Interspeech 2019).
type specAugment struct {
	TimeMasks int     `json:"n_time_masks"`
	TimeParam int     `json:"time_mask_param"`
	FreqMasks int     `json:"n_freq_masks"`
	FreqParam int     `json:"freq_mask_param"`
	IID       bool    `json:"iid_masks"`
	P         float64 `json:"p"`
	Zero      bool    `json:"zero_masking"`
}

func newSpecAugment(raw json.RawMessage) (step, error) {
	a := &specAugment{IID: true, P: 1}
	if err := parse(raw, a); err != nil {
		return nil, err
	}
	for _, c := range []struct {
		name     string
		got, top int
	}{{"n_time_masks", a.TimeMasks, 64}, {"n_freq_masks", a.FreqMasks, 64},
		{"time_mask_param", a.TimeParam, maxFrames}, {"freq_mask_param", a.FreqParam, maxFrames}} {
		if err := within(c.name, c.got, 0, c.top); err != nil {
			return nil, err
		}
	}
	return a, between("p", a.P, 0, 1)
}

func (a *specAugment) draws() {}

func (a *specAugment) next(e extent) (extent, error) { return e.spectral() }

func (a *specAugment) work(e extent) program.Amount {
	return masked(e, a.TimeMasks+a.FreqMasks).Plus(e.size().Times(2))
}

func (a *specAugment) tables(e extent) program.Amount { return maskTables(e, a.TimeMasks+a.FreqMasks) }

func (a *specAugment) run(s *sound, from *draw.Source) ([]program.Value, error) {
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

func (s *sound) mean() (float64, error) {
	sum := 0.0
	err := s.inParts(s.data, 2, func(x []float32) {
		for _, v := range x {
			sum += float64(v)
		}
	})
	return sum / float64(len(s.data)), err
}

package audio

import (
	"encoding/json"
	"math"

	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// amplitudeToDB is torchaudio.transforms.AmplitudeToDB.
type amplitudeToDB struct {
	Stype string   `json:"stype"`
	TopDB *float64 `json:"top_db"`
}

func newAmplitudeToDB(raw json.RawMessage) (step, error) {
	a := &amplitudeToDB{Stype: "power"}
	if err := parse(raw, a); err != nil {
		return nil, err
	}
	if a.TopDB != nil {
		if err := between("top_db", *a.TopDB, 0, 1000); err != nil {
			return nil, err
		}
	}
	return a, oneOf("stype", a.Stype, "power", "magnitude")
}

func (a *amplitudeToDB) next(e extent) (extent, error) { return e.spectral() }

func (a *amplitudeToDB) run(s *sound, _ *draw.Source) []program.Value {
	scale := 10 / math.Ln10
	if a.Stype == "magnitude" {
		scale *= 2
	}
	dsp.Log32(s.data, 0, 1e-10, float32(scale))
	if a.TopDB != nil && len(s.data) > 0 {
		loudest := s.data[0]
		for _, v := range s.data {
			loudest = max(loudest, v)
		}
		least := loudest - float32(*a.TopDB)
		for i, v := range s.data {
			s.data[i] = max(v, least)
		}
	}
	return nil
}

// logOf is torch.log(x + offset), of what is at least the smallest normal number.
type logOf struct {
	Offset float64 `json:"offset"`
}

func newLog(raw json.RawMessage) (step, error) {
	l := &logOf{Offset: 1e-6}
	if err := parse(raw, l); err != nil {
		return nil, err
	}
	return l, between("offset", l.Offset, 0, 1e6)
}

func (l *logOf) next(e extent) (extent, error) { return e.spectral() }

func (l *logOf) run(s *sound, _ *draw.Source) []program.Value {
	dsp.Log32(s.data, float32(l.Offset), 0x1p-126, 1)
	return nil
}

// normalize takes mean away and divides by std: one of each, or one for each channel of a waveform or feature of a
// spectrogram.
type normalize struct {
	Mean numbers `json:"mean"`
	Std  numbers `json:"std"`
}

func newNormalize(raw json.RawMessage) (step, error) {
	n := &normalize{}
	if err := parse(raw, n); err != nil {
		return nil, err
	}
	if len(n.Mean) == 0 || len(n.Std) == 0 {
		return nil, wrong("mean", "mean and std are needed, each a number or a list")
	}
	for _, v := range n.Mean {
		if err := between("mean", v, -1e30, 1e30); err != nil {
			return nil, err
		}
	}
	for _, v := range n.Std {
		if err := between("std", v, 1e-30, 1e30); err != nil {
			return nil, err
		}
	}
	return n, nil
}

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

func (n *normalize) run(s *sound, _ *draw.Source) []program.Value {
	for i := range s.rows() {
		mean, std := float32(n.Mean[i%len(n.Mean)]), float32(n.Std[i%len(n.Std)])
		row := s.row(i)
		for k, v := range row {
			row[k] = (v - mean) / std
		}
	}
	return nil
}

// standardize gives a cell mean 0 and variance 1: the whole of it, or each channel or feature over time.
type standardize struct {
	Per string  `json:"per"`
	Eps float64 `json:"eps"`
}

func newStandardize(raw json.RawMessage) (step, error) {
	n := &standardize{Per: "cell", Eps: 1e-7}
	if err := parse(raw, n); err != nil {
		return nil, err
	}
	if err := between("eps", n.Eps, 1e-30, 1); err != nil {
		return nil, err
	}
	return n, oneOf("per", n.Per, "cell", "row")
}

func (n *standardize) next(e extent) (extent, error) { return e, nil }

func (n *standardize) run(s *sound, _ *draw.Source) []program.Value {
	if n.Per == "cell" {
		n.scale(s.data)
		return nil
	}
	for i := range s.rows() {
		n.scale(s.row(i))
	}
	return nil
}

func (n *standardize) scale(x []float32) {
	if len(x) == 0 {
		return
	}
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += float64(v)
	}
	mean := sum / float64(len(x))
	for _, v := range x {
		d := float64(v) - mean
		squares += float64(d * d)
	}
	std := math.Sqrt(squares/float64(len(x)) + n.Eps)
	for i, v := range x {
		x[i] = float32((float64(v) - mean) / std)
	}
}

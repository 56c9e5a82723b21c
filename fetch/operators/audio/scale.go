package audio

import (
	"encoding/json"
	"math"
	"slices"

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

// ofLog is how many steps a logarithm takes.
const ofLog = 16

func (a *amplitudeToDB) work(e extent) program.Amount { return e.size().Times(ofLog + 4) }

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

func (l *logOf) work(e extent) program.Amount { return e.size().Times(ofLog) }

func (l *logOf) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	return nil, s.inParts(s.data, ofLog, func(x []float32) { dsp.Log32(x, float32(l.Offset), 0x1p-126, 1) })
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

func (n *normalize) work(e extent) program.Amount { return e.size().Times(4) }

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

// standardizing is how many steps each of the three passes takes for a number.
const standardizing = 4

func (n *standardize) work(e extent) program.Amount { return e.size().Times(3 * standardizing) }

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

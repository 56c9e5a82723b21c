package audio

import (
	"encoding/json"

	"bowstring/fetch/operators/audio/dsp"
	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// These steps cut and lengthen the last axis: samples of waveforms, frames of spectrograms.

// moving is how many steps a number takes that is copied.
const moving = 1

// moved is the work of copying every number of a cell once, or as many as it has in the end.
func moved(e, next extent) program.Amount { return e.size().Or(next.size()).Times(moving) }

// cut keeps n frames of each row, from start on.
func (s *sound) cut(start, n int) error {
	for i := range s.rows() {
		if err := s.spend(n, moving); err != nil {
			return err
		}
		copy(s.data[i*n:(i+1)*n], s.data[i*s.frames+start:])
	}
	s.data, s.frames = s.data[:s.rows()*n], n
	return nil
}

// lengthen puts value around each row, to n frames, of which before come first.
func (s *sound) lengthen(before, n int, value float32) error {
	out, err := s.spare(s.rows() * n)
	if err != nil {
		return err
	}
	for i := range s.rows() {
		if err := s.spend(n, moving); err != nil {
			return err
		}
		to := out[i*n : (i+1)*n]
		for k := range to[:before] {
			to[k] = value
		}
		end := before + copy(to[before:], s.row(i))
		for k := range to[end:] {
			to[end+k] = value
		}
	}
	s.take(out)
	s.frames = n
	return nil
}

// trim leaves out silence at both ends, as librosa.effects.trim: frames more than
// top_db decibels below the loudest.
type trim struct {
	TopDB  float64 `json:"top_db"`
	Length int     `json:"frame_length"`
	Hop    int     `json:"hop_length"`
}

func newTrim(raw json.RawMessage) (step, error) {
	t := &trim{TopDB: 60, Length: 2048, Hop: 512}
	if err := parse(raw, t); err != nil {
		return nil, err
	}
	if err := between("top_db", t.TopDB, 0, 200); err != nil {
		return nil, err
	}
	if err := within("frame_length", t.Length, 2, 1<<16); err != nil {
		return nil, err
	}
	return t, within("hop_length", t.Hop, max(1, t.Length/64), 1<<16)
}

func (t *trim) next(e extent) (extent, error) {
	e, err := e.waveform()
	return e, err
}

// tables implements tabled: the energies of all frames.
func (t *trim) tables(e extent) program.Amount { return program.Product(8, e.frames/t.Hop+1) }

func (t *trim) work(e extent) program.Amount {
	windows := program.Product(e.channels, e.frames/t.Hop+1, min(t.Length, e.frames)+8).Times(2)
	return windows.Plus(moved(e, e))
}

func (t *trim) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if err := s.meter.Hold(t.tables(s.extent).Int64()); err != nil {
		return nil, err
	}
	energy := make([]float64, s.frames/t.Hop+1)
	for c := range s.channels {
		x := s.row(c)
		for k := range energy {
			middle, sum := k*t.Hop, 0.0
			window := x[min(max(0, middle-t.Length/2), len(x)):min(len(x), middle-t.Length/2+t.Length)]
			if err := s.spend(len(window)+8, 2); err != nil {
				return nil, err
			}
			for _, v := range window {
				sum += float64(float64(v) * float64(v))
			}
			energy[k] = max(energy[k], sum/float64(t.Length))
		}
	}
	const floor = 1e-10
	loudest := floor
	for _, v := range energy {
		loudest = max(loudest, v)
	}
	limit := float64(loudest * dsp.Exp10(-t.TopDB/10))
	first, last := -1, -1
	for k, v := range energy {
		if max(floor, v) > limit {
			if first < 0 {
				first = k
			}
			last = k
		}
	}
	if first < 0 {
		return nil, s.cut(0, 0)
	}
	start := min(first*t.Hop, s.frames)
	return nil, s.cut(start, min((last+1)*t.Hop, s.frames)-start)
}

// truncate keeps the first length frames.
type truncate struct {
	Length int `json:"length"`
}

func newTruncate(raw json.RawMessage) (step, error) {
	t := &truncate{}
	if err := parse(raw, t); err != nil {
		return nil, err
	}
	return t, within("length", t.Length, 1, maxFrames)
}

func (t *truncate) next(e extent) (extent, error) {
	if e.frames != unknown {
		e.frames = min(e.frames, t.Length)
	}
	return e, nil
}

func (t *truncate) work(e extent) program.Amount { return moved(e, e) }

func (t *truncate) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.frames > t.Length {
		return nil, s.cut(0, t.Length)
	}
	return nil, nil
}

// pad lengthens to length frames. What is longer stays as long, or is cut: as torchaudio's PadTrim was.
type pad struct {
	Length int     `json:"length"`
	Value  float64 `json:"value"`
	Side   string  `json:"side"`
	Cut    bool    `json:"truncate"`
}

func newPad(raw json.RawMessage) (step, error) {
	p := &pad{Side: "end"}
	if err := parse(raw, p); err != nil {
		return nil, err
	}
	if err := within("length", p.Length, 1, maxFrames); err != nil {
		return nil, err
	}
	if err := between("value", p.Value, -1e30, 1e30); err != nil {
		return nil, err
	}
	return p, oneOf("side", p.Side, "end", "start", "both")
}

func (p *pad) next(e extent) (extent, error) {
	switch {
	case p.Cut:
		e.frames = p.Length
	case e.frames != unknown:
		e.frames = max(e.frames, p.Length)
	}
	return e, nil
}

func (p *pad) work(e extent) program.Amount { return lengthened(e, p.Length) }

// lengthened is the work of cutting or lengthening a cell to so many frames.
func lengthened(e extent, frames int) program.Amount {
	next := e
	next.frames = frames
	return moved(e, next)
}

func (p *pad) run(s *sound, _ *draw.Source) ([]program.Value, error) {
	if s.frames > p.Length && p.Cut {
		return nil, s.cut(0, p.Length)
	}
	if missing := p.Length - s.frames; missing > 0 {
		before := map[string]int{"end": 0, "start": missing, "both": missing / 2}[p.Side]
		return nil, s.lengthen(before, p.Length, float32(p.Value))
	}
	return nil, nil
}

// randomCrop keeps length frames from a uniform start on. What is shorter is
// lengthened at its end, or stays as it is where pad_if_needed is false.
type randomCrop struct {
	Length      int     `json:"length"`
	PadIfNeeded bool    `json:"pad_if_needed"`
	Fill        float64 `json:"fill"`
}

func newRandomCrop(raw json.RawMessage) (step, error) {
	r := &randomCrop{PadIfNeeded: true}
	if err := parse(raw, r); err != nil {
		return nil, err
	}
	if err := within("length", r.Length, 1, maxFrames); err != nil {
		return nil, err
	}
	return r, between("fill", r.Fill, -1e30, 1e30)
}

func (r *randomCrop) draws() {}

func (r *randomCrop) next(e extent) (extent, error) {
	switch {
	case r.PadIfNeeded:
		e.frames = r.Length
	case e.frames != unknown:
		e.frames = min(e.frames, r.Length)
	}
	return e, nil
}

// start draws where to cut frames.
func (r *randomCrop) start(frames int, from *draw.Source) int {
	return from.IntN(max(frames-r.Length, 0) + 1)
}

// drawn is the box, of the frames that were there.
func (r *randomCrop) drawn(start, frames int) []program.Value {
	return []program.Value{{Name: "start", Number: float64(start)},
		{Name: "length", Number: float64(min(frames, r.Length))}}
}

// fill lengthens what was shorter.
func (r *randomCrop) fill(s *sound) error {
	if r.PadIfNeeded && s.frames < r.Length {
		return s.lengthen(0, r.Length, float32(r.Fill))
	}
	return nil
}

func (r *randomCrop) work(e extent) program.Amount { return lengthened(e, r.Length) }

func (r *randomCrop) run(s *sound, from *draw.Source) ([]program.Value, error) {
	whole := s.frames
	start := r.start(whole, from)
	if whole > r.Length {
		if err := s.cut(start, r.Length); err != nil {
			return nil, err
		}
	}
	return r.drawn(start, whole), r.fill(s)
}

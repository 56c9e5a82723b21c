package audio

import (
	"context"
	"fmt"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/program"
)

// Split implements program.Splitter. Between the two lie the numbers of single precision that steps work on.
func (p *pipeline) Split() (head, tail program.Program, ok bool) {
	n := p.Deterministic()
	if p.in.Kind != program.Encoded || n == len(p.steps) {
		return nil, nil, false
	}
	cut := &pipeline{in: p.in, between: p.between[:n+1], names: p.names[:n], steps: p.steps[:n], listed: p.listed[:n]}
	return &splitHead{cut}, &splitTail{p, n}, true
}

// splitHead is the steps that draw nothing.
type splitHead struct{ *pipeline }

// Result implements program.Program.
func (h *splitHead) Result() program.Form {
	return program.Form{Kind: program.Encoded, MIME: program.MIMEBetween}
}

// Cost implements program.Program.
func (h *splitHead) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	cost, err := h.pipeline.Cost(cell, limits)
	cost.Result = cost.Result.Plus(program.Count(program.BetweenHeader))
	return cost, err
}

// Run implements program.Program.
func (h *splitHead) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (program.Outcome, error) {
	outcome, err := h.run(ctx, cell, by, func(s *sound) error {
		b := program.Between{Kind: s.kind, Type: program.Float32, Dims: s.dims(), Rate: s.rate}
		return s.write(func(n int) []byte {
			to := alloc(n)
			if len(to) == n {
				b.PutHeader(to)
			}
			return to
		}, program.BetweenHeader)
	})
	outcome.Dims = nil
	return outcome, err
}

// splitTail is the steps from the first that draws on.
type splitTail struct {
	*pipeline
	from int
}

// parse checks what lies between against what is known of it since the list was compiled.
func (t *splitTail) parse(cell []byte) (extent, []byte, error) {
	b, elements, err := program.ParseBetween(cell)
	if err != nil {
		return extent{}, nil, t.at(t.from-1, err)
	}
	e := extent{kind: b.Kind, channels: b.Dims[0], frames: b.Dims[len(b.Dims)-1], rate: b.Rate, dtype: b.Type}
	if b.Kind == program.Spectrogram {
		e.features = b.Dims[1]
	}
	e.axes = e.native()
	known := t.between[t.from]
	differ := func(known, is int) bool { return known != unknown && known != is }
	if e.kind != known.kind || differ(known.channels, e.channels) || differ(known.features, e.features) ||
		differ(known.frames, e.frames) ||
		known.rate != 0 && known.rate != e.rate || e.channels < 1 {
		return e, nil, t.at(t.from-1, fmt.Errorf("%w: what lies between two steps has other sizes than "+
			"these steps make", program.ErrDamaged))
	}
	return e, elements, nil
}

// Cost implements program.Program.
func (t *splitTail) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	e, _, err := t.parse(cell)
	if err != nil {
		return program.Cost{}, err
	}
	return t.costFrom(codec.Info{}, e, t.from, limits)
}

// Run implements program.Program.
func (t *splitTail) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (program.Outcome, error) {
	e, elements, err := t.parse(cell)
	if err != nil {
		return program.Outcome{}, err
	}
	cost, err := t.costFrom(codec.Info{}, e, t.from, program.Ceiling)
	if err != nil {
		return program.Outcome{}, err
	}
	r := rooms.Get().(*room)
	defer r.free()
	s := &sound{extent: e, room: r, meter: program.NewMeter(ctx, cost)}
	var out program.Outcome
	if err := s.fill(elements); err != nil {
		return out, s.because(t.at(t.from, err))
	}
	if err := t.rest(s, t.from, by, &out); err != nil {
		return out, s.because(err)
	}
	out.Dims = s.dims()
	return out, s.because(s.write(alloc, 0))
}

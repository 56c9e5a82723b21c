package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"bowstring/fetch/operators/program"
)

// split is where a program is cut: behind the last stage that draws nothing and comes before the first that draws.
type split struct {
	whole  *compiled
	stages int // of head
	steps  int // of head
}

// Split implements program.Splitter. Pixels lie between; elements are laid out by tail.
func (p *compiled) Split() (head, tail program.Program, ok bool) {
	if p.in.Kind != program.Encoded || p.wide > 0 || p.deterministic >= len(p.steps) {
		return nil, nil, false
	}
	at := split{whole: p}
	for _, g := range p.stages {
		if g.step >= p.deterministic {
			break
		}
		at.stages++
		// Steps that only say how the result is laid out are tail's, wherever they stand.
		at.steps = g.step + 1
	}
	return &splitHead{at}, &splitTail{at}, true
}

// splitHead makes pixels of files.
type splitHead struct{ split }

func (h *splitHead) Result() program.Form {
	return program.Form{Kind: program.Encoded, MIME: program.MIMEBetween}
}
func (h *splitHead) Steps() []program.Step { return h.whole.steps[:h.steps] }
func (h *splitHead) Deterministic() int    { return h.steps }

// Cost implements program.Program.
func (h *splitHead) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	p := h.whole
	e, cost, err := p.opened(cell, limits)
	if err != nil {
		return cost, err
	}
	if e, err = e.through(p.stages[:h.stages], &cost, limits); err != nil {
		return cost, err
	}
	cost.Steps = cost.Steps.Plus(e.bytes().Times(2*rowSteps + 1))
	cost.Result = e.bytes().Plus(program.Count(program.BetweenHeader))
	return cost, p.held(cost, limits)
}

// Run implements program.Program.
func (h *splitHead) Run(ctx context.Context, cell []byte, _ program.Draws,
	alloc func(n int) []byte) (program.Outcome, error) {
	cost, err := h.Cost(cell, program.Ceiling)
	if err != nil {
		return program.Outcome{}, err
	}
	var outcome program.Outcome
	return outcome, withScratch(program.NewMeter(ctx, cost), func(s *scratch) error {
		c := &s.canvas
		c.s, c.file = s, cell
		if err := h.whole.apply(c, h.whole.stages[:h.stages], program.Draws{}, &outcome); err != nil {
			return err
		}
		pix := c.raster()
		if c.err != nil {
			return about(h.whole.from, h.whole.steps[0].Name, program.ErrDamaged, c.err)
		}
		b := program.Between{Kind: program.Image, Type: program.Uint8, Dims: []int{c.height, c.width, c.channels}}
		c.spend(len(pix))
		to := alloc(int(b.Size()))
		if int64(len(to)) < b.Size() {
			return fmt.Errorf("%w: there is no memory for %d bytes between two steps", program.ErrTooLarge, b.Size())
		}
		b.PutHeader(to)
		copy(to[program.BetweenHeader:], pix)
		return nil
	})
}

// splitTail makes results of pixels.
type splitTail struct{ split }

func (t *splitTail) Result() program.Form  { return t.whole.result }
func (t *splitTail) Steps() []program.Step { return t.whole.steps }
func (t *splitTail) Deterministic() int    { return t.whole.deterministic }

// pixels checks what lies between against what is known of it since the list was compiled.
func (t *splitTail) pixels(cell []byte, limits program.Limits) (dims extent, pix []byte, err error) {
	b, pix, err := program.ParseBetween(cell)
	if err == nil && b.Kind != program.Image {
		err = fmt.Errorf("%w: it is of kind %d, and no image", program.ErrDamaged, b.Kind)
	}
	if err != nil {
		return dims, nil, about(t.steps-1, t.whole.steps[t.steps-1].Name, program.ErrDamaged, err)
	}
	dims = extent{w: b.Dims[1], h: b.Dims[0], channels: b.Dims[2]}
	known := t.whole.after[t.steps-1]
	if dims.channels > 4 || differ(known.w, dims.w) || differ(known.h, dims.h) ||
		differ(known.channels, dims.channels) {
		return dims, nil, about(t.steps-1, t.whole.steps[t.steps-1].Name, program.ErrDamaged,
			errors.New("it has other sizes than these steps make"))
	}
	if n := int64(dims.w) * int64(dims.h); n > cmp.Or(limits.Pixels, program.Ceiling.Pixels) {
		return dims, nil, about(t.steps-1, t.whole.steps[t.steps-1].Name, program.ErrTooLarge,
			fmt.Errorf("it has %d pixels", n))
	}
	return dims, pix, nil
}

func differ(known, is int) bool { return known != program.Unknown && known != is }

// Cost implements program.Program.
func (t *splitTail) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	dims, _, err := t.pixels(cell, limits)
	if err != nil {
		return program.Cost{}, err
	}
	dims.channels = 4 // the most that a later step may make of it
	return t.whole.costFrom(dims, program.Cost{}, t.stages, limits)
}

// Run implements program.Program.
func (t *splitTail) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (outcome program.Outcome, err error) {
	cost, err := t.Cost(cell, program.Ceiling)
	if err != nil {
		return outcome, err
	}
	dims, pix, err := t.pixels(cell, program.Ceiling)
	if err != nil {
		return outcome, err
	}
	err = withScratch(program.NewMeter(ctx, cost), func(s *scratch) error {
		c := &s.canvas
		c.s = s
		c.reset(pix, dims.w, dims.h, dims.channels)
		c.borrowed = true
		outcome, err = t.whole.rest(c, t.stages, by, alloc)
		return err
	})
	return outcome, err
}

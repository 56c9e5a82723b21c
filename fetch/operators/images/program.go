package images

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// compiled is a program.
type compiled struct {
	from          int
	in            program.Form
	steps         []program.Step
	deterministic int
	after         []extent // what is known of the sizes after each step
	stages        []stage
	erasures      []stage // after the result is laid out
	encoder       *encodeJPEG
	planar        bool
	wide          bool // pixels have 16 bits a channel; so extents count two for each
	dtype         program.DType
	table         *table
	result        program.Form
}

func (p *compiled) Result() program.Form  { return p.result }
func (p *compiled) Steps() []program.Step { return p.steps }
func (p *compiled) Deterministic() int    { return p.deterministic }

// about wraps what is wrong with a sample.
func about(step int, name string, kind, err error) error {
	return fmt.Errorf("step %d (%s): %w: %w", step, name, kind, err)
}

// extent is the most that an image has at a step.
type extent struct{ w, h, channels int }

func (e extent) bytes() program.Amount { return program.Product(e.w, e.h, e.channels) }

// Cost bounds by the header what a run takes. A limit of zero is the ceiling's.
func (p *compiled) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	e, cost, err := p.opened(cell, limits)
	if err != nil {
		return cost, err
	}
	return p.costFrom(e, cost, 0, limits)
}

// opened is what a cell is before the first stage, and what it takes to read it.
func (p *compiled) opened(cell []byte, limits program.Limits) (extent, program.Cost, error) {
	cost := program.Cost{}
	if p.in.Kind == program.Image {
		e := extent{h: p.in.Dims[0], w: p.in.Dims[1], channels: p.in.Dims[2]}
		if int64(len(cell)) != e.bytes().Int64() {
			return e, cost, about(p.from, p.steps[0].Name, program.ErrDamaged,
				fmt.Errorf("there are %d bytes of %v", len(cell), p.in.Dims))
		}
		return e, cost, nil
	}
	header, err := codec.Read(cell)
	if err != nil {
		return extent{}, cost, about(p.from, p.steps[0].Name, program.ErrDamaged, err)
	}
	e := extent{w: header.Width, h: header.Height, channels: 4}
	if pixels, most := int64(e.w)*int64(e.h), cmp.Or(limits.Pixels, program.Ceiling.Pixels); pixels > most {
		return e, cost, about(p.from, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("the %v is %d x %d, %d pixels, and may have %d", header.Format, e.w, e.h, pixels, most))
	}
	if p.wide {
		e.channels = 6
	}
	cost.Working = program.Count(header.Bytes)
	if p.stages[0].operator.(*decode).turns(header) && header.Orientation > 4 {
		e.w, e.h = e.h, e.w
	}
	return e, cost, nil
}

// through is what stages make of an image, and adds what they take to cost.
func (e extent) through(stages []stage, cost *program.Cost) extent {
	most := program.Product(e.w, e.h)
	for _, s := range stages {
		w, h, extra := s.bound(e.w, e.h, e.channels)
		cost.Working = cost.Working.Plus(program.Count(extra))
		e.w, e.h = w, h
		most = most.Or(program.Product(w, h))
	}
	// Two buffers, of the pixels before and after an operator.
	cost.Working = cost.Working.Plus(most.Times(2 * int64(e.channels))).Plus(program.Count(1 << 16))
	return e
}

// costFrom is the cost of the stages from one on, and of the result.
func (p *compiled) costFrom(e extent, cost program.Cost, from int, limits program.Limits) (program.Cost, error) {
	e = e.through(p.stages[from:], &cost)
	cost.Result = e.bytes().Times(int64(sizeOf(p.dtype)))
	if p.wide {
		cost.Result = e.bytes()
	}
	if p.encoder != nil {
		cost.Result = program.Count(p.encoder.bound(e.w, e.h))
		cost.Working = cost.Working.Plus(cost.Result)
	}
	return cost, p.held(cost, limits)
}

// held holds a cost against the limits.
func (p *compiled) held(cost program.Cost, limits program.Limits) error {
	if most := cmp.Or(limits.Bytes, program.Ceiling.Bytes); cost.Working.Plus(cost.Result).Beyond(most) {
		return about(p.from, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("it takes up to %v bytes and makes %v of them, and may take %d", cost.Working, cost.Result,
				most))
	}
	return nil
}

var pool = sync.Pool{New: func() any { return new(scratch) }}

// Run makes the result of a cell.
func (p *compiled) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (outcome program.Outcome, err error) {
	if _, err := p.Cost(cell, program.Ceiling); err != nil {
		return program.Outcome{}, err
	}
	err = withScratch(func(s *scratch) error {
		c := &s.canvas
		c.s = s
		if p.in.Kind == program.Image {
			c.reset(cell, p.in.Dims[1], p.in.Dims[0], p.in.Dims[2])
			c.borrowed = true
		} else {
			c.file = cell
		}
		outcome, err = p.rest(c, 0, by, alloc)
		return err
	})
	return outcome, err
}

// withScratch calls f with memory to work in.
func withScratch(f func(s *scratch) error) error {
	s := pool.Get().(*scratch)
	err := f(s)
	s.release()
	if s.held() <= keep {
		pool.Put(s)
	}
	return err
}

// release lets go of the input and the result.
func (s *scratch) release() {
	s.canvas, s.output = canvas{}, output{}
	s.decoder.Release()
}

// apply carries stages out.
func (p *compiled) apply(c *canvas, stages []stage, by program.Draws, outcome *program.Outcome) error {
	for i := range stages {
		g := &stages[i]
		numbers := by.Source(g.step)
		values, err := g.apply(c, &numbers)
		if err == nil {
			err = c.err
		}
		if err != nil {
			return about(g.step, g.name, program.ErrDamaged, err)
		}
		if g.random {
			outcome.Drawn = append(outcome.Drawn, program.Drawn{Step: g.step, Values: values})
		}
	}
	return nil
}

// rest carries out the stages from one on, and makes the result.
func (p *compiled) rest(c *canvas, from int, by program.Draws, alloc func(n int) []byte) (program.Outcome, error) {
	var outcome program.Outcome
	if err := p.apply(c, p.stages[from:], by, &outcome); err != nil {
		return outcome, err
	}
	if p.encoder != nil {
		return outcome, p.encode(c, alloc)
	}
	return p.layOut(c, by, outcome, alloc)
}

func (p *compiled) layOut(c *canvas, by program.Draws, outcome program.Outcome,
	alloc func(n int) []byte) (program.Outcome, error) {
	o := &c.s.output
	o.width, o.height = c.size()
	o.planar, o.dtype, o.table, o.wide = p.planar, p.dtype, p.table, p.wide
	t := begin{o: o, alloc: alloc, c: c}
	c.finish(&t)
	if c.err != nil {
		return outcome, about(p.from, p.steps[0].Name, program.ErrDamaged, c.err)
	}
	for i := range p.erasures {
		g := &p.erasures[i]
		numbers := by.Source(g.step)
		values := g.operator.(*erasing).lay(o, &numbers)
		outcome.Drawn = append(outcome.Drawn, program.Drawn{Step: g.step, Values: values})
	}
	outcome.Dims = []int{o.height, o.width, o.channels}
	if p.planar {
		outcome.Dims = []int{o.channels, o.height, o.width}
	}
	return outcome, nil
}

// begin asks for the result's memory with the first row: by then the file has been
// read, and its channels are known.
type begin struct {
	o     *output
	c     *canvas
	alloc func(n int) []byte
}

var _ resample.Sink = (*begin)(nil)

func (t *begin) Row(y int, pixels []byte) {
	if y == 0 {
		t.o.channels = t.c.channels
		if t.o.wide {
			t.o.channels /= 2
		}
		t.o.dst = t.alloc(t.o.width * t.o.height * t.o.channels * sizeOf(t.o.dtype))
	}
	t.o.Row(y, pixels)
}

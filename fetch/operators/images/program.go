package images

import (
	"cmp"
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
	stages        []stage
	erasures      []stage // after the result is laid out
	encoder       *encodeJPEG
	planar        bool
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

// Cost bounds by the header what a run takes. A limit of zero is the ceiling's.
func (p *compiled) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	var w, h, channels int
	cost := program.Cost{}
	limits.Pixels = cmp.Or(limits.Pixels, program.Ceiling.Pixels)
	limits.Bytes = cmp.Or(limits.Bytes, program.Ceiling.Bytes)
	stages := p.stages
	if p.in.Kind == program.Image {
		h, w, channels = p.in.Dims[0], p.in.Dims[1], p.in.Dims[2]
		if len(cell) != w*h*channels {
			return cost, about(p.from, p.steps[0].Name, program.ErrDamaged, fmt.Errorf("there are %d bytes of %v", len(cell), p.in.Dims))
		}
	} else {
		header, err := codec.Read(cell)
		if err != nil {
			return cost, about(p.from, p.steps[0].Name, program.ErrDamaged, err)
		}
		w, h, channels = header.Width, header.Height, 4
		if pixels := int64(w) * int64(h); pixels > limits.Pixels {
			return cost, about(p.from, p.steps[0].Name, program.ErrTooLarge,
				fmt.Errorf("the %v is %d x %d, %d pixels, and may have %d", header.Format, w, h, pixels, limits.Pixels))
		}
		cost.Working = header.Bytes
		if stages[0].operator.(*decode).turns(header) && header.Orientation > 4 {
			w, h = h, w
		}
	}
	most := int64(w) * int64(h)
	for _, s := range stages {
		bw, bh, extra := s.bound(w, h, channels)
		cost.Working += extra
		w, h = bw, bh
		most = max(most, int64(w)*int64(h))
	}
	// Two buffers, of the pixels before and after an operator.
	cost.Working += 2*most*int64(channels) + 1<<16
	result := int64(w) * int64(h) * int64(channels) * int64(sizeOf(p.dtype))
	if p.encoder != nil {
		result = p.encoder.bound(w, h)
		cost.Working += result
	}
	cost.Result = result
	if cost.Working+cost.Result > limits.Bytes {
		return cost, about(p.from, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("it takes up to %d bytes and makes %d of them, and may take %d", cost.Working, cost.Result, limits.Bytes))
	}
	return cost, nil
}

var pool = sync.Pool{New: func() any { return new(scratch) }}

// Run makes the result of a cell.
func (p *compiled) Run(cell []byte, by program.Draws, alloc func(n int) []byte) (program.Outcome, error) {
	if _, err := p.Cost(cell, program.Ceiling); err != nil {
		return program.Outcome{}, err
	}
	s := pool.Get().(*scratch)
	outcome, err := p.run(s, cell, by, alloc)
	s.release()
	if s.held() <= keep {
		pool.Put(s)
	}
	return outcome, err
}

// release lets go of the input and the result.
func (s *scratch) release() {
	s.canvas, s.output = canvas{}, output{}
	s.decoder.Release()
}

func (p *compiled) run(s *scratch, cell []byte, by program.Draws, alloc func(n int) []byte) (program.Outcome, error) {
	c := &s.canvas
	c.s = s
	var outcome program.Outcome
	if p.in.Kind == program.Image {
		h, w, channels := p.in.Dims[0], p.in.Dims[1], p.in.Dims[2]
		if len(cell) != w*h*channels {
			return outcome, about(p.from, p.steps[0].Name, program.ErrDamaged, fmt.Errorf("there are %d bytes of %v", len(cell), p.in.Dims))
		}
		c.reset(cell, w, h, channels)
		c.borrowed = true
	} else {
		c.file = cell
	}
	for i := range p.stages {
		g := &p.stages[i]
		numbers := by.Source(g.step)
		values, err := g.apply(c, &numbers)
		if err == nil {
			err = c.err
		}
		if err != nil {
			return outcome, about(g.step, g.name, program.ErrDamaged, err)
		}
		if g.random {
			outcome.Drawn = append(outcome.Drawn, program.Drawn{Step: g.step, Values: values})
		}
	}
	if p.encoder != nil {
		return outcome, p.encode(c, alloc)
	}
	return p.layOut(c, by, outcome, alloc)
}

func (p *compiled) layOut(c *canvas, by program.Draws, outcome program.Outcome, alloc func(n int) []byte) (program.Outcome, error) {
	o := &c.s.output
	o.width, o.height = c.size()
	o.planar, o.dtype, o.table = p.planar, p.dtype, p.table
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
		t.o.dst = t.alloc(t.o.width * t.o.height * t.o.channels * sizeOf(t.o.dtype))
	}
	t.o.Row(y, pixels)
}

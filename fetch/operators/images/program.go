package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// compiled is a program.Program.
type compiled struct {
	steps         []program.Step
	deterministic int      // number of steps before the first random one
	after         []extent // what is known about the size after each step
	stages        []stage
	erasures      []stage     // applied to the result
	encoder       *encodeJPEG // nil: the result is a tensor
	planar        bool
	wide          int // bytes of a channel if they are more than one; else 0. Extents count each as a channel
	dtype         program.DType
	table         *table // nil: bytes are copied
	result        program.Form
}

// Result implements program.Program.
func (p *compiled) Result() program.Form { return p.result }

// Steps implements program.Program.
func (p *compiled) Steps() []program.Step { return p.steps }

// Deterministic implements program.Program.
func (p *compiled) Deterministic() int { return p.deterministic }

// about adds the step to an error of a sample. ErrNotSupported stays; any other error is of
// that kind. The kind decides whether the sample or the limit is at fault.
func about(step int, name string, kind, err error) error {
	if errors.Is(err, program.ErrNotSupported) {
		return fmt.Errorf("step %d (%s): %w", step, name, err)
	}
	return fmt.Errorf("step %d (%s): %w: %w", step, name, kind, err)
}

// Cost implements program.Program: it bounds the cost of a run by the file's header. A
// limit of 0 means that of program.Ceiling.
func (p *compiled) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	e, cost, err := p.opened(cell, limits)
	if err != nil {
		return cost, err
	}
	return p.costFrom(e, cost, 0, limits)
}

// opened returns the size of the decoded image and the cost of decoding it, from the
// header. The orientation is applied. channels is the maximum.
func (p *compiled) opened(cell []byte, limits program.Limits) (extent, program.Cost, error) {
	cost := program.Cost{}
	header, err := codec.Read(cell)
	if err != nil {
		return extent{}, cost, about(0, p.steps[0].Name, program.ErrDamaged, err)
	}
	e := extent{w: header.Width, h: header.Height, channels: 4}
	if pixels, most := int64(e.w)*int64(e.h), cmp.Or(limits.Pixels, program.Ceiling.Pixels); pixels > most {
		return e, cost, about(0, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("the %v is %d x %d, %d pixels, and may have %d", header.Format, e.w, e.h, pixels, most))
	}
	// At most three channels of two bytes.
	if p.wide == 2 {
		e.channels = 6
	}
	cost.Working, cost.Steps = program.Count(header.Bytes), program.Count(header.Steps)
	if p.stages[0].operator.(*decode).turns(header) && header.Orientation > 4 {
		e.w, e.h = e.h, e.w
		cost.Steps = cost.Steps.Plus(e.pixels().Times(turnSteps)).Plus(e.bytes().Times(2 * rowSteps))
	}
	return e, cost, nil
}

// costFrom adds the cost of the stages from index from on, and of the result. The tail of a
// split program begins at its own first stage.
func (p *compiled) costFrom(e extent, cost program.Cost, from int, limits program.Limits) (program.Cost, error) {
	e, err := e.through(p.stages[from:], &cost, limits)
	if err != nil {
		return cost, err
	}
	cost.Result = e.bytes().Times(int64(sizeOf(p.dtype)))
	if p.wide > 0 {
		cost.Result = e.bytes()
	}
	// The pending geometry, the result's elements and the erased elements.
	cost.Steps = cost.Steps.Plus(e.bytes().Times(int64(2*rowSteps + layoutSteps + eraseSteps*len(p.erasures))))
	if p.encoder != nil {
		var takes program.Cost
		takes, cost.Result = p.encoder.bound(e)
		cost = with(cost, takes)
	}
	return cost, p.held(cost, limits)
}

// bytesOf is the limit of memory in bytes.
func bytesOf(limits program.Limits) int64 { return cmp.Or(limits.Bytes, program.Ceiling.Bytes) }

// stepsOf is the limit of work in steps.
func stepsOf(limits program.Limits) int64 { return cmp.Or(limits.Steps, program.Ceiling.Steps) }

// held fails if a cost exceeds the limits. It is checked before any pixel is decoded.
func (p *compiled) held(cost program.Cost, limits program.Limits) error {
	if most := bytesOf(limits); cost.Working.Plus(cost.Result).Beyond(most) {
		return about(0, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("it takes up to %v bytes and makes %v of them, and may take %d", cost.Working, cost.Result,
				most))
	}
	if most := stepsOf(limits); cost.Steps.Beyond(most) {
		return about(0, p.steps[0].Name, program.ErrTooLarge,
			fmt.Errorf("it takes up to %v steps of work, and may take %d", cost.Steps, most))
	}
	return nil
}

// pool has scratches for all programs. A scratch has no state of a run, so any program may
// use it.
var pool = sync.Pool{New: func() any { return new(scratch) }}

// Run implements program.Program.
func (p *compiled) Run(ctx context.Context, cell []byte, by program.Draws,
	alloc func(n int) []byte) (outcome program.Outcome, err error) {
	cost, err := p.Cost(cell, program.Ceiling)
	if err != nil {
		return program.Outcome{}, err
	}
	err = withScratch(program.NewMeter(ctx, cost), func(s *scratch) error {
		c := &s.canvas
		c.s, c.file = s, cell
		outcome, err = p.rest(c, 0, by, alloc)
		return err
	})
	return outcome, err
}

// stopped is the panic that ends a run in the middle of a pass, because callbacks of
// libraries cannot return errors. withScratch recovers it.
type stopped struct{ err error }

// withScratch calls f with working memory and that meter. If the meter has refused
// something, its error is the result, whatever f returns.
func withScratch(meter *program.Meter, f func(s *scratch) error) (err error) {
	if err := meter.Check(); err != nil {
		return err
	}
	s := pool.Get().(*scratch)
	s.meter = meter
	defer func() {
		// Other panics are defects and go on.
		if p := recover(); p != nil {
			stop, ok := p.(stopped)
			if !ok {
				panic(p)
			}
			err = s.ended(stop.err)
		} else if err != nil {
			if failed := meter.Check(); failed != nil {
				err = s.ended(failed)
			}
		}
		s.release()
		if s.held() <= keep {
			pool.Put(s)
		}
	}()
	return f(s)
}

// ended adds the step in which the meter ended the run.
func (s *scratch) ended(err error) error {
	if errors.Is(err, program.ErrTooLarge) {
		return fmt.Errorf("%w: %w", err, &program.StepError{Step: s.step, Name: s.name, Reason: "the run was ended in it"})
	}
	return fmt.Errorf("step %d (%s): %w", s.step, s.name, err)
}

// release drops all references to the input, the result and the run. Otherwise the pool
// would keep files and results alive.
func (s *scratch) release() {
	s.canvas, s.output, s.meter, s.charged, s.step, s.name = canvas{}, output{}, nil, [2]int{}, 0, ""
	s.decoder.Release()
}

// apply runs stages and records the draws of the random ones in outcome. Each step has its
// own source of numbers, by its index in the whole list.
func (p *compiled) apply(c *canvas, stages []stage, by program.Draws, outcome *program.Outcome) error {
	for i := range stages {
		g := &stages[i]
		c.s.step, c.s.name = g.step, g.name
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

// rest runs the stages from index from on and makes the result.
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

// layOut applies the pending geometry, and writes the rows into memory from alloc. Erasing
// comes last, because it is a step on the elements of the result.
func (p *compiled) layOut(c *canvas, by program.Draws, outcome program.Outcome,
	alloc func(n int) []byte) (program.Outcome, error) {
	o := &c.s.output
	o.width, o.height = c.size()
	o.planar, o.dtype, o.table, o.wide = p.planar, p.dtype, p.table, p.wide
	t := begin{o: o, alloc: alloc, c: c}
	c.finish(&t)
	if c.err != nil {
		return outcome, about(0, p.steps[0].Name, program.ErrDamaged, c.err)
	}
	for i := range p.erasures {
		g := &p.erasures[i]
		numbers := by.Source(g.step)
		values := g.operator.(*erasing).lay(c, o, &numbers)
		outcome.Drawn = append(outcome.Drawn, program.Drawn{Step: g.step, Values: values})
	}
	// The dimensions are in the order of the axes.
	outcome.Dims = []int{o.height, o.width, o.channels}
	if p.planar {
		outcome.Dims = []int{o.channels, o.height, o.width}
	}
	return outcome, nil
}

// begin is a resample.Sink that allocates the result with the first row: only then is the
// number of channels known.
type begin struct {
	o     *output
	c     *canvas
	alloc func(n int) []byte
}

var _ resample.Sink = (*begin)(nil)

// Row implements resample.Sink.
func (t *begin) Row(y int, pixels []byte) {
	if y == 0 {
		t.o.channels = t.c.channels
		if t.o.wide > 0 {
			t.o.channels /= t.o.wide
		}
		n := t.o.width * t.o.height * t.o.channels * sizeOf(t.o.dtype)
		if t.o.dst = t.alloc(n); len(t.o.dst) < n {
			panic(stopped{fmt.Errorf("%w: there is no memory for a result of %d bytes", program.ErrTooLarge, n)})
		}
	}
	t.c.spend(t.c.perLine + t.o.width*t.o.channels*layoutSteps)
	t.o.Row(y, pixels)
}

// split is the point at which a program is divided: after the last stage before the first
// random one. It is immutable.
type split struct {
	whole  *compiled // the undivided program
	stages int       // number of stages of head
	steps  int       // number of steps of head
}

// Split implements program.Splitter. Pixels are passed between head and tail; tail lays
// out the result.
func (p *compiled) Split() (head, tail program.Program, ok bool) {
	if p.wide > 0 || p.deterministic >= len(p.steps) {
		return nil, nil, false
	}
	at := split{whole: p}
	for _, g := range p.stages {
		if g.step >= p.deterministic {
			break
		}
		at.stages++
		// Steps that only determine the layout of the result belong to tail.
		at.steps = g.step + 1
	}
	return &splitHead{at}, &splitTail{at}, true
}

// splitHead decodes a file and runs the steps before the first random one. Its result is
// pixels with a header, program.Between. Its result does not depend on draws, so a cache
// can keep it for all epochs.
type splitHead struct{ split }

// Result implements program.Program.
func (h *splitHead) Result() program.Form {
	return program.Form{Kind: program.Encoded, MIME: program.MIMEBetween}
}

// Steps implements program.Program.
func (h *splitHead) Steps() []program.Step { return h.whole.steps[:h.steps] }

// Deterministic implements program.Program: no step of it draws.
func (h *splitHead) Deterministic() int { return h.steps }

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
			return about(0, h.whole.steps[0].Name, program.ErrDamaged, c.err)
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

// splitTail makes results from the pixels of splitHead. It does not copy its input: the
// canvas is marked as shared.
type splitTail struct{ split }

// Result implements program.Program.
func (t *splitTail) Result() program.Form { return t.whole.result }

// Steps implements program.Program: it includes those of head, so that draws of a step
// are those of the whole program.
func (t *splitTail) Steps() []program.Step { return t.whole.steps }

// Deterministic implements program.Program.
func (t *splitTail) Deterministic() int { return t.whole.deterministic }

// pixels checks the pixels between head and tail against the sizes that are known from
// compilation. They may be damaged: they come from a cache.
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

// differ compares a size that may be program.Unknown.
func differ(known, is int) bool { return known != program.Unknown && known != is }

// Cost implements program.Program.
func (t *splitTail) Cost(cell []byte, limits program.Limits) (program.Cost, error) {
	dims, _, err := t.pixels(cell, limits)
	if err != nil {
		return program.Cost{}, err
	}
	dims.channels = 4 // the maximum of all later steps
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
		c.shared = true
		outcome, err = t.whole.rest(c, t.stages, by, alloc)
		return err
	})
	return outcome, err
}

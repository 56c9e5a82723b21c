package images

import (
	"fmt"

	"bowstring/fetch/operators/program"
)

// Steps of work by what they are done on, each about a nanosecond; bench_test.go measures them.
const (
	rowSteps      = 6       // of a byte that is read from a file or an image, and laid into the next one
	layoutSteps   = 3       // of an element of the result
	acrossSteps   = 1       // of a byte of the result and a byte of the source that is weighed in it, along rows
	downSteps     = 1       // the same, along columns
	weightSteps   = 40      // of a weight: a filter is computed
	profileSteps  = 30      // of a pixel whose colours are converted
	turnSteps     = 16      // of a pixel that is turned by a quarter
	padSteps      = 8       // of a pixel of a padded image
	fillSteps     = 8       // of a pixel of one colour
	warpSteps     = 20      // of a pixel of a transformed image
	mixedSteps    = 60      // the same, of four pixels mixed
	mapSteps      = 3       // of a byte that goes through a table
	lumaSteps     = 8       // of a pixel that luma is made of
	saturateSteps = 24      // of a pixel
	hueSteps      = 90      // of a pixel
	sharpenSteps  = 10      // of a byte
	binSteps      = 4       // of a byte that is counted, and goes through a table
	tapSteps      = 3       // of a byte and a weight of a blur
	eraseSteps    = 8       // of a byte
	encodeSteps   = 50      // of a pixel that is encoded
	baseSteps     = 1 << 20 // of a run: headers, tables, kernels
)

// Working memory besides pixels.
const (
	baseBytes    = 1 << 16
	profileBytes = 2 << 20 // an ICC profile, inflated, with the buffers that were outgrown, and what is made of it
)

// passes bounds what it takes to resize from e to w x h: rows of the new width, and weights.
func passes(e extent, w, h int) program.Cost {
	weights := func(in, out int) program.Amount { return program.Product(out, weightsOf(in, out)) }
	all := weights(e.w, w).Plus(weights(e.h, h))
	bytes := program.Product(w, e.h, e.channels).Plus(all.Times(4)).Plus(program.Product(w, 24)).
		Plus(program.Product(max(ceil(e.w, w), ceil(e.h, h)), 64))
	steps := all.Times(weightSteps).
		Plus(program.Product(w, e.h, e.channels, taps(e.w, w), acrossSteps)).
		Plus(program.Product(w, h, e.channels, taps(e.h, h), downSteps))
	return program.Cost{Working: bytes.Plus(program.Product(e.w, 8)), Steps: steps}
}

// rowBytes bounds the rows that are read and written while an image is w pixels wide.
func rowBytes(w, channels int) program.Amount {
	return program.Product(w, channels, 4).Plus(program.Count(64))
}

// taps is the most pixels of one axis that one of the result is made of: three on either side, of the larger grid.
func taps(in, out int) int { return 6*ceil(in, out) + 3 }

// weightsOf is how many numbers there are of one pixel of the result.
func weightsOf(in, out int) int { return taps(in, out) + 8 }

func ceil(a, b int) int { return (a + b - 1) / b }

// extent is the most that an image has at a step.
type extent struct{ w, h, channels int }

func (e extent) pixels() program.Amount { return program.Product(e.w, e.h) }
func (e extent) bytes() program.Amount  { return program.Product(e.w, e.h, e.channels) }

// of gives the extent another size.
func (e extent) of(w, h int) extent { return extent{w: w, h: h, channels: e.channels} }

// each is a cost of so many steps for each pixel, and no memory.
func (e extent) each(steps int) program.Cost {
	return program.Cost{Steps: e.pixels().Times(int64(steps))}
}

// with adds what is known of the working memory and the steps of two costs.
func with(a, b program.Cost) program.Cost {
	a.Working, a.Steps = a.Working.Plus(b.Working), a.Steps.Plus(b.Steps)
	return a
}

// through is what stages make of an image. It adds what they take to cost, and fails with the first one that would take
// more than the limits allow.
func (e extent) through(stages []stage, cost *program.Cost, limits program.Limits) (extent, error) {
	most, wide := e.bytes(), e.w
	for _, s := range stages {
		next, takes := s.bound(e)
		// What the steps before have put off is carried out by one that looks at pixels.
		takes.Steps = takes.Steps.Plus(e.bytes().Plus(next.bytes()).Times(rowSteps))
		*cost = with(*cost, takes)
		most, wide = most.Or(next.bytes()), max(wide, next.w)
		if next.pixels().Beyond(program.Ceiling.Pixels) {
			return e, s.large(e, "it would become up to %d x %d pixels, %v in all, and may have %d", next.w, next.h,
				next.pixels(), program.Ceiling.Pixels)
		}
		if n := cost.Working.Plus(most.Times(2)); n.Beyond(bytesOf(limits)) {
			return e, s.large(e, "it takes up to %v bytes with the steps before, and may take %d", n, bytesOf(limits))
		}
		if cost.Steps.Beyond(stepsOf(limits)) {
			return e, s.large(e, "it takes up to %v steps of work with the steps before, and may take %d", cost.Steps,
				stepsOf(limits))
		}
		e = next
	}
	// Two buffers, of the pixels before and after an operator.
	*cost = with(*cost, program.Cost{Working: most.Times(2).Plus(rowBytes(wide, e.channels)).Plus(program.Count(baseBytes)),
		Steps: program.Count(baseSteps)})
	return e, nil
}

// large says that a stage would make too much of an image.
func (s *stage) large(e extent, format string, values ...any) error {
	return fmt.Errorf("%w: %w", program.ErrTooLarge, &program.StepError{Step: s.step, Name: s.name,
		Reason: fmt.Sprintf("of up to %d x %d pixels "+format, append([]any{e.w, e.h}, values...)...)})
}

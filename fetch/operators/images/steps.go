package images

import (
	"fmt"

	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// Steps of work by what they are done on, each about a nanosecond of a processor of 2024. BenchmarkSteps measures them.
const (
	rowSteps      = 1       // of a byte that is read from an image, or laid into the next one
	fileSteps     = 4       // of a byte that is read from a file's pixels
	layoutSteps   = 1       // of an element of the result
	weightSteps   = 20      // of a weight: a filter is computed
	profileSteps  = 20      // of a pixel whose colours are converted
	turnSteps     = 8       // of a pixel that is turned by a quarter
	padSteps      = 4       // of a pixel of a padded image
	fillSteps     = 2       // of a pixel of one colour
	warpSteps     = 8       // of a pixel of a transformed image
	mixedSteps    = 22      // the same, of four pixels mixed
	mapSteps      = 1       // of a byte that goes through a table
	lumaSteps     = 3       // of a pixel that luma is made of
	saturateSteps = 10      // of a pixel
	hueSteps      = 55      // of a pixel
	sharpenSteps  = 5       // of a byte
	binSteps      = 4       // of a byte that is counted, and goes through a table
	tapSteps      = 2       // of a byte and a weight of a blur
	eraseSteps    = 4       // of a byte
	encodeSteps   = 40      // of a pixel that is encoded
	baseSteps     = 1 << 18 // of a run: headers, tables, kernels
	weighed       = 4       // bytes that are weighed in a step, of a resize
)

// Working memory besides pixels.
const (
	baseBytes    = 1 << 16
	profileBytes = 2 << 20 // an ICC profile, inflated, with the buffers that were outgrown, and what is made of it
)

// passes bounds what it takes to resize from e to w x h: rows of the new width, and weights.
func passes(e extent, w, h int, filter resample.Filter) program.Cost {
	across, down := filter.Taps(e.w, w), filter.Taps(e.h, h)
	weights := program.Product(w, across+4).Plus(program.Product(h, down+4))
	bytes := program.Product(w, e.h, e.channels).Plus(weights.Times(4)).Plus(program.Product(w, 24)).
		Plus(program.Product(max(across, down), 8)).Plus(program.Product(e.w, 8))
	steps := weights.Times(weightSteps).Plus(program.Product(w, e.h, e.channels, ceil(across, weighed))).
		Plus(program.Product(w, h, e.channels, ceil(down, weighed)))
	return program.Cost{Working: bytes, Steps: steps}
}

func ceil(a, b int) int { return (a + b - 1) / b }

// rowBytes bounds the rows that are read and written while an image is w pixels wide.
func rowBytes(w, channels int) program.Amount {
	return program.Product(w, channels, 4).Plus(program.Count(64))
}

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

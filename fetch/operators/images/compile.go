// Package images compiles lists of operators on images into programs: decoding,
// geometry, colours and the layout of the resulting tensor. Names, parameters and
// defaults are those of torchvision.transforms.v2. Pixels are equal to those of
// torchvision for images of Pillow 12.1.
//
// A program draws its random numbers before it decodes. It decodes only what a crop
// needs. It resizes, mirrors, normalises and lays out the pixels in one pass into the
// memory of the result. Several crops, one resize and mirrorings together are one pass,
// regardless of the number of operators.
//
// This package defines the operators. The packages codec and jpeg decode files, and
// resample resizes. Pixels are interleaved rows of bytes (HWC); a result may be CHW.
package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// ContractVersion identifies the arithmetic: with the canonical steps and the input it
// determines the bytes of a result. It must change whenever any result changes.
const ContractVersion = "images/2"

// Engine names the implementation: "go", or "go avx2" if the CPU supports the AVX2
// versions of the inner loops. Results are identical.
func Engine() string {
	if jpeg.Wide() && resample.Wide() {
		return "go avx2"
	}
	return "go"
}

// operator is a validated step.
type operator interface {
	// apply changes the canvas and returns the drawn values. Errors mean that the sample
	// is invalid for the operator.
	apply(c *canvas, numbers *draw.Source) ([]program.Value, error)
	// bound returns the maximum size of the result for an image of size e, and the
	// maximum cost without the memory of the pixels themselves.
	bound(e extent) (extent, program.Cost)
}

// stage is an operator with its index and name in the list of steps.
type stage struct {
	operator
	step   int
	name   string
	random bool // it draws random numbers
}

// builder is the state of a compilation: what is known about the image after the steps so
// far.
type builder struct {
	at       int // index of the current step
	name     string
	mask     bool
	begun    bool // Decode was compiled
	ended    bool // EncodeJPEG was compiled
	width    int  // width, height and channels may be program.Unknown
	height   int
	channels int
	planar   bool // the layout is CHW
	dtype    program.DType
	wide     int     // bytes of a channel if they are more than one; else 0
	table    *floats // set by ToDtype: the value of each byte
	stages   []stage
	erasures []stage // RandomErasing after ToDtype
	encoder  *encodeJPEG
	random   bool // the current step draws
	// shapeless is set after a rotation with expand: the aspect ratio is unknown.
	shapeless bool
}

// Compile validates steps for encoded files and returns their program. Errors are
// *program.StepError.
func Compile(steps []program.Step) (program.Program, error) { return compile(steps, false) }

// CompileMask returns the program of a mask, from the list of its image. It has the same
// geometry, does not mix pixels, and ignores all operators on colours. The pixels of a
// mask are classes: grey values or palette indices. With the draws of the image, a mask
// of the same size gets the same crop.
func CompileMask(steps []program.Step) (program.Program, error) { return compile(steps, true) }

// compile implements Compile and CompileMask.
func compile(steps []program.Step, mask bool) (program.Program, error) {
	b := builder{mask: mask, channels: program.Unknown, width: program.Unknown, height: program.Unknown,
		dtype: program.Uint8}
	if len(steps) == 0 {
		return nil, &program.StepError{Reason: "there is no such step: a list has at least one"}
	}
	p := &compiled{deterministic: len(steps)}
	for i := range steps {
		b.at, b.name, b.random = i, steps[i].Name, false
		canonical, err := b.add(steps[i])
		if err != nil {
			return nil, err
		}
		p.steps = append(p.steps, canonical)
		p.after = append(p.after, extent{b.width, b.height, b.channels})
		if b.random {
			p.deterministic = min(p.deterministic, i)
		}
	}
	p.stages, p.erasures, p.encoder = b.stages, b.erasures, b.encoder
	p.planar, p.dtype, p.wide, p.result = b.planar, b.dtype, b.wide, b.form()
	if b.table != nil {
		p.table = b.table.bits()
	}
	if wrong, ok := errors.AsType[*program.StepError](p.possible()); ok {
		return nil, wrong
	}
	return p, nil
}

// possible refuses a list whose result always exceeds the limits. It checks the steps
// from the first one on that makes the size known.
func (p *compiled) possible() error {
	e, known := extent{}, false
	for i := range p.stages {
		s := &p.stages[i]
		if known {
			var cost program.Cost
			next, err := e.through(p.stages[i:i+1], &cost, program.Ceiling)
			if err != nil {
				return err
			}
			e = next
		}
		// From here on the size is known, whatever the file is.
		if after := p.after[s.step]; after.w != program.Unknown && after.h != program.Unknown {
			e, known = extent{w: after.w, h: after.h, channels: max(after.channels, 1)}, true
		}
	}
	return nil
}

// fail is an error of the current step.
func (b *builder) fail(format string, values ...any) *program.StepError {
	return &program.StepError{Step: b.at, Name: b.name, Reason: fmt.Sprintf(format, values...)}
}

// constructor validates the parameters of a step and adds the step to the builder.
type constructor func(b *builder, p *params) *program.StepError

// constructors is filled in init: newX functions refer to it through Names.
var constructors map[string]constructor

func init() {
	constructors = map[string]constructor{
		"Decode": newDecode, "Resize": newResize, "CenterCrop": newCenterCrop, "RandomCrop": newRandomCrop,
		"RandomResizedCrop": newRandomResizedCrop, "Pad": newPad,
		"RandomHorizontalFlip": newHorizontalFlip, "RandomVerticalFlip": newVerticalFlip,
		"Grayscale": newGrayscale, "ToImage": newToImage, "ToDtype": newToDtype, "Normalize": newNormalize,
		"ColorJitter": newColorJitter, "GaussianBlur": newGaussianBlur, "RandAugment": newRandAugment,
		"RandomRotation": newRandomRotation, "RandomErasing": newRandomErasing, "EncodeJPEG": newEncodeJPEG,
	}
}

// Names returns the names of all operators, sorted.
func Names() []string {
	names := make([]string, 0, len(constructors))
	for n := range constructors {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// add compiles one step and returns it with all parameters in canonical form.
func (b *builder) add(s program.Step) (program.Step, error) {
	make, ok := constructors[s.Name]
	if !ok {
		return program.Step{}, b.fail("there is no such operator on images; there are %s", strings.Join(Names(), ", "))
	}
	if b.ended {
		return program.Step{}, b.fail("it comes after EncodeJPEG, which has to be the last")
	}
	if s.Name == "Decode" && b.begun {
		return program.Step{}, b.fail("the image is decoded already")
	}
	if s.Name != "Decode" && !b.begun {
		return program.Step{}, b.fail("the image is not decoded yet: begin with Decode")
	}
	p := paramsOf(b.at, s)
	if err := make(b, p); err != nil {
		return program.Step{}, err
	}
	canonical, err := p.done()
	if err != nil {
		return program.Step{}, err
	}
	return canonical, nil
}

// bytes fails if the pixels are not bytes at this point of the list.
func (b *builder) bytes() *program.StepError {
	if b.table != nil {
		return b.fail("it takes uint8; put it before ToDtype")
	}
	if b.wide > 0 {
		return b.fail("it takes uint8, and Decode gives %s here; what moves pixels as they are takes both", b.wideType())
	}
	return nil
}

// wideType names the type of Decode's wide modes.
func (b *builder) wideType() string {
	if b.wide == 4 {
		return "float32"
	}
	return "uint16"
}

// moves reports whether an operator only moves pixels, so that it also works for pixels
// of more than one byte.
func moves(o operator) bool {
	switch o := o.(type) {
	case *decode, *centerCrop:
		return true
	case *randomCrop:
		return o.padding.empty()
	case *pad:
		return o.empty()
	case *resize:
		return o.filter == resample.Nearest
	case *randomResizedCrop:
		return o.filter == resample.Nearest
	}
	return false
}

// pixels adds an operator that works before ToDtype.
func (b *builder) pixels(o operator, random bool) *program.StepError {
	if b.wide == 0 || !moves(o) {
		if err := b.bytes(); err != nil {
			return err
		}
	}
	b.put(o, random)
	return nil
}

// late adds an operator that moves whole elements of any type, so it may follow ToDtype.
func (b *builder) late(o operator) *program.StepError {
	if err := b.unerased(); err != nil {
		return err
	}
	b.put(o, true)
	return nil
}

// unerased fails if RandomErasing has been compiled after ToDtype: that is applied last,
// to the result.
func (b *builder) unerased() *program.StepError {
	if len(b.erasures) > 0 {
		return b.fail("it comes after RandomErasing of floating point; put it before")
	}
	return nil
}

// put appends a stage.
func (b *builder) put(o operator, random bool) {
	b.stages = append(b.stages, stage{operator: o, step: b.at, name: b.name, random: random})
	b.random = b.random || random
}

// colours adds an operator on colours for images with one of these numbers of channels. A
// mask only consumes the operator's draws.
func (b *builder) colours(o operator, random bool, channels ...int) *program.StepError {
	if b.mask {
		b.random = random
		return nil
	}
	if !slices.Contains(channels, b.channels) {
		return b.fail("it takes images of %v channels, and gets %s; Decode can make RGB", channels, known(b.channels))
	}
	return b.pixels(o, random)
}

// known describes a number of channels in messages.
func known(n int) string {
	if n == program.Unknown {
		return "a number that each file decides"
	}
	return fmt.Sprint(n)
}

// form is the form of the result; sizes that depend on the file are program.Unknown.
func (b *builder) form() program.Form {
	if b.ended {
		return program.Form{Kind: program.Encoded, MIME: "image/jpeg"}
	}
	f := program.Form{Kind: program.Image, Type: b.dtype, Axes: "HWC", Dims: []int{b.height, b.width, b.channels}}
	if b.planar {
		f.Axes, f.Dims = "CHW", []int{b.channels, b.height, b.width}
	}
	return f
}

// params reads the parameters of a step and collects them in canonical form. The first
// error stays in err; reads after it return defaults.
type params struct {
	step  int
	name  string
	raw   map[string]json.RawMessage
	known []string     // parameters that were read
	out   bytes.Buffer // canonical parameters, comma-separated
	err   *program.StepError
}

// paramsOf parses the JSON object of a step's parameters. Absent and null are the empty
// object.
func paramsOf(at int, s program.Step) *params {
	p := &params{step: at, name: s.Name}
	if len(s.Params) == 0 || string(bytes.TrimSpace(s.Params)) == "null" {
		return p
	}
	if err := json.Unmarshal(s.Params, &p.raw); err != nil {
		p.fail("", "its parameters are %s, and have to be a JSON object", short(s.Params))
	}
	return p
}

// short truncates a client's JSON for a message.
func short(raw []byte) string {
	if len(raw) > 60 {
		return string(raw[:57]) + "..."
	}
	return string(raw)
}

// fail records the first error. param is "" for an error of the whole step.
func (p *params) fail(param, format string, values ...any) {
	if p.err == nil {
		p.err = &program.StepError{Step: p.step, Name: p.name, Param: param, Reason: fmt.Sprintf(format, values...)}
	}
}

// get returns the JSON of a parameter. Absent and null are nil.
func (p *params) get(name string) json.RawMessage {
	p.known = append(p.known, name)
	raw := p.raw[name]
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// put adds a parameter to the canonical form.
func (p *params) put(name string, value any) {
	if p.out.Len() > 0 {
		p.out.WriteByte(',')
	}
	text, err := json.Marshal(value)
	if err != nil {
		p.fail(name, "%v", err)
		return
	}
	fmt.Fprintf(&p.out, "%q:%s", name, text)
}

// done returns the canonical step. It fails if a parameter was never read, because it is
// unknown.
func (p *params) done() (program.Step, *program.StepError) {
	var names []string
	for name := range p.raw {
		if !slices.Contains(p.known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 && len(p.known) == 0 {
		p.fail(names[0], "it has no such parameter, and takes none")
	} else if len(names) > 0 {
		p.fail(names[0], "it has no such parameter, and takes %s", strings.Join(p.known, ", "))
	}
	if p.err != nil {
		return program.Step{}, p.err
	}
	return program.Step{Name: p.name, Params: json.RawMessage("{" + p.out.String() + "}")}, nil
}

// numbers reads a number or a list of one of these lengths. An absent parameter is nil.
func (p *params) numbers(name, takes string, counts ...int) []float64 {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var one float64
	var several []*float64 // pointers: null would leave a number unchanged, so it would count as 0
	list := []float64{}
	if json.Unmarshal(raw, &one) == nil {
		list = append(list, one)
	} else if json.Unmarshal(raw, &several) != nil || slices.Contains(several, nil) {
		p.fail(name, "got %s, takes %s", short(raw), takes)
		return nil
	}
	for _, v := range several {
		list = append(list, *v)
	}
	if !slices.Contains(counts, len(list)) {
		p.fail(name, "got %s, takes %s", short(raw), takes)
		return nil
	}
	return list
}

// number reads one number from low to high.
func (p *params) number(name string, otherwise, low, high float64) float64 {
	takes := "a number from " + text(low) + " to " + text(high)
	v := otherwise
	if list := p.numbers(name, takes, 1); list != nil {
		v = list[0]
		if v < low || v > high {
			p.fail(name, "got %s, takes %s", text(v), takes)
			v = otherwise
		}
	}
	p.put(name, v)
	return v
}

// text is the shortest decimal that parses to v.
func text(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// integers reads integers from low to high: one number or a list of one of these lengths.
func (p *params) integers(name, takes string, low, high int, counts ...int) []int {
	list := p.numbers(name, takes, counts...)
	if list == nil {
		return nil
	}
	whole := make([]int, len(list))
	for i, v := range list {
		if v != math.Trunc(v) || v < float64(low) || v > float64(high) {
			p.fail(name, "got %s, takes %s", text(v), takes)
			return nil
		}
		whole[i] = int(v)
	}
	return whole
}

// integer reads one integer from low to high.
func (p *params) integer(name string, otherwise, low, high int) int {
	v := otherwise
	if list := p.integers(name, fmt.Sprintf("a whole number from %d to %d", low, high), low, high, 1); list != nil {
		v = list[0]
	}
	p.put(name, v)
	return v
}

// boolean reads true or false.
func (p *params) boolean(name string, otherwise bool) bool {
	v := otherwise
	if raw := p.get(name); raw != nil && json.Unmarshal(raw, &v) != nil {
		p.fail(name, "got %s, takes true or false", short(raw))
		v = otherwise
	}
	p.put(name, v)
	return v
}

// word reads one of the allowed names.
func (p *params) word(name, otherwise string, allowed ...string) string {
	v := otherwise
	if raw := p.get(name); raw != nil {
		if json.Unmarshal(raw, &v) != nil || !slices.Contains(allowed, v) {
			p.fail(name, "got %s, takes %s", short(raw), quoted(allowed))
			v = otherwise
		}
	}
	p.put(name, v)
	return v
}

// quoted lists names for a message.
func quoted(names []string) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = strconv.Quote(n)
	}
	return strings.Join(list, ", ")
}

// maxSide is the maximum side in pixels that a request may specify. The limits of a
// program bound the cost of a sample.
const maxSide = 1 << 15

// size reads [height, width] in pixels. One number means both.
func (p *params) size(name string) (h, w int) {
	takes := "a size in pixels, or [height, width]"
	list := p.integers(name, takes, 1, maxSide, 1, 2)
	switch len(list) {
	case 0:
		p.fail(name, "it has to be given: %s", takes)
		return 1, 1
	case 1:
		h, w = list[0], list[0]
	default:
		h, w = list[0], list[1]
	}
	p.put(name, []int{h, w})
	return h, w
}

// interval reads [low, high] with least <= low <= high <= most.
func (p *params) interval(name string, low, high, least, most float64) (float64, float64) {
	takes := fmt.Sprintf("[low, high] with %s <= low <= high <= %s", text(least), text(most))
	if list := p.numbers(name, takes, 2); list != nil {
		if list[0] > list[1] || list[0] < least || list[1] > most {
			p.fail(name, "got [%s, %s], takes %s", text(list[0]), text(list[1]), takes)
		} else {
			low, high = list[0], list[1]
		}
	}
	p.put(name, []float64{low, high})
	return low, high
}

// Work in steps of about one nanosecond of a CPU of 2024. BenchmarkSteps measures them.
const (
	rowSteps      = 1       // per byte read from an image or written to the next
	fileSteps     = 4       // per byte of a file's pixels
	layoutSteps   = 1       // per element of the result
	weightSteps   = 20      // per computed filter weight
	profileSteps  = 20      // per pixel with converted colours
	turnSteps     = 8       // per pixel rotated by 90°
	padSteps      = 4       // per pixel of a padded image
	fillSteps     = 2       // per pixel filled with one colour
	warpSteps     = 8       // per pixel of an affine transform, nearest
	mixedSteps    = 22      // per pixel of an affine transform, bilinear
	mapSteps      = 1       // per byte mapped by a table
	lumaSteps     = 3       // per pixel whose luma is computed
	saturateSteps = 10      // per pixel
	hueSteps      = 55      // per pixel
	sharpenSteps  = 5       // per byte
	binSteps      = 4       // per byte counted and then mapped by a table
	tapSteps      = 2       // per byte and weight of a blur
	eraseSteps    = 4       // per byte
	encodeSteps   = 40      // per encoded pixel
	baseSteps     = 1 << 18 // per run: headers, tables, kernels
	weighed       = 4       // bytes that a resize weighs in one step
)

// Working memory in bytes, without pixels.
const (
	baseBytes    = 1 << 16
	profileBytes = 2 << 20 // an inflated ICC profile, buffers that grew while inflating, and the transform
)

// passes bounds the cost of resizing e to w by h: intermediate rows of the new width, and
// weights.
func passes(e extent, w, h int, filter resample.Filter) program.Cost {
	across, down := filter.Taps(e.w, w), filter.Taps(e.h, h)
	weights := program.Product(w, across+4).Plus(program.Product(h, down+4))
	bytes := program.Product(w, e.h, e.channels).Plus(weights.Times(4)).Plus(program.Product(w, 24)).
		Plus(program.Product(max(across, down), 8)).Plus(program.Product(e.w, 8))
	steps := weights.Times(weightSteps).Plus(program.Product(w, e.h, e.channels, ceil(across, weighed))).
		Plus(program.Product(w, h, e.channels, ceil(down, weighed)))
	return program.Cost{Working: bytes, Steps: steps}
}

// ceil is a / b, rounded up.
func ceil(a, b int) int { return (a + b - 1) / b }

// rowBytes bounds the bytes of the row buffers while an image of width w is processed.
func rowBytes(w, channels int) program.Amount {
	return program.Product(w, channels, 4).Plus(program.Count(64))
}

// extent is the maximum size of an image at a step: pixels, and bytes per pixel.
type extent struct{ w, h, channels int }

// pixels and bytes are saturating: an Amount does not overflow.
func (e extent) pixels() program.Amount { return program.Product(e.w, e.h) }
func (e extent) bytes() program.Amount  { return program.Product(e.w, e.h, e.channels) }

// resized is the extent with another size.
func (e extent) resized(w, h int) extent { return extent{w: w, h: h, channels: e.channels} }

// each is the cost of that many steps for every pixel, without memory.
func (e extent) each(steps int) program.Cost {
	return program.Cost{Steps: e.pixels().Times(int64(steps))}
}

// with adds the working memory and the steps of two costs.
func with(a, b program.Cost) program.Cost {
	a.Working, a.Steps = a.Working.Plus(b.Working), a.Steps.Plus(b.Steps)
	return a
}

// through returns the extent after the stages and adds their cost to cost. It fails for
// the first stage that exceeds the limits.
func (e extent) through(stages []stage, cost *program.Cost, limits program.Limits) (extent, error) {
	// The two pixel buffers have the size of the largest image so far.
	most, wide := e.bytes(), e.w
	for _, s := range stages {
		next, takes := s.bound(e)
		// An operator that needs pixels also executes the pending geometry of earlier
		// steps.
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

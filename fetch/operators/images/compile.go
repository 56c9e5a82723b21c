// Package images compiles lists of operators on images into programs: decoding,
// geometry, colours and the form of the tensor that comes out. Names, parameters and
// defaults are those of torchvision.transforms.v2; pixels are those that torchvision
// gives for images of Pillow 12.1.
//
// A program draws before it decodes, decodes no more than a crop needs, and resizes,
// mirrors, normalises and lays out in one pass into the result's memory. Crops, one
// resize and mirroring are one step of work, whatever the number of operators.
//
// Here is what the operators are. Files are read in codec and jpeg, sizes changed in
// resample. Engines, requests and schemas are not here.
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

// ContractVersion names what the bytes of a result depend on besides the canonical
// steps and the input. It changes whenever any result does.
const ContractVersion = "images/2"

// Engine names what carries operators out: "go", and "go avx2" where the processor has
// the instructions that the inner loops have versions for. Results are the same.
func Engine() string {
	if jpeg.Wide() && resample.Wide() {
		return "go avx2"
	}
	return "go"
}

// operator is a step that was checked.
type operator interface {
	// apply changes the canvas. What is at fault in the sample is an error.
	apply(c *canvas, numbers *draw.Source) ([]program.Value, error)
	// bound is what an image becomes at most, and what that takes besides the pixels before and after.
	bound(e extent) (extent, program.Cost)
}

// stage is an operator at its place in the list.
type stage struct {
	operator
	step   int
	name   string
	random bool
}

// builder is the state of a compilation: what is known of the image after the steps so far.
type builder struct {
	at       int
	name     string
	mask     bool
	begun    bool // there are pixels
	ended    bool // they were encoded
	width    int  // or program.Unknown, as are height and channels
	height   int
	channels int
	planar   bool
	dtype    program.DType
	wide     int // bytes of a channel of pixels that have more than one; else 0
	table    *floats
	stages   []stage
	erasures []stage
	encoder  *encodeJPEG
	random   bool // the step draws
	// shapeless says that the sides' ratio is not the file's, and not known.
	shapeless bool
}

// Compile checks a list of steps for encoded files and makes a program of it. An error is a *program.StepError.
func Compile(steps []program.Step) (program.Program, error) { return compile(steps, false) }

// CompileMask makes the program of a mask from the list of its image: the same
// geometry, without mixing of pixels, and nothing else. A mask's pixels are classes:
// grey, or indices into a palette. With the image's draws it gets the image's crop, as
// long as it has the image's size.
func CompileMask(steps []program.Step) (program.Program, error) { return compile(steps, true) }

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

// possible refuses a list that makes more of an image than any may become, whatever the image is: from the first step on
// that gives it a size.
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
		if after := p.after[s.step]; after.w != program.Unknown && after.h != program.Unknown {
			e, known = extent{w: after.w, h: after.h, channels: max(after.channels, 1)}, true
		}
	}
	return nil
}

func (b *builder) fail(format string, values ...any) *program.StepError {
	return &program.StepError{Step: b.at, Name: b.name, Reason: fmt.Sprintf(format, values...)}
}

// constructor reads the parameters of a step and adds it.
type constructor func(b *builder, p *params) *program.StepError

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

// Names are those of all operators, in order.
func Names() []string {
	names := make([]string, 0, len(constructors))
	for n := range constructors {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

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

// bytes requires that elements are still what a picture has.
func (b *builder) bytes() *program.StepError {
	if b.table != nil {
		return b.fail("it takes uint8; put it before ToDtype")
	}
	if b.wide > 0 {
		return b.fail("it takes uint8, and Decode gives %s here; what moves pixels as they are takes both", b.wideType())
	}
	return nil
}

// wideType is the type of what Decode gives that is wider than a byte.
func (b *builder) wideType() string {
	if b.wide == 4 {
		return "float32"
	}
	return "uint16"
}

// moves reports whether an operator moves pixels as they are, whatever is in them.
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

// pixels adds an operator on pixels of bytes.
func (b *builder) pixels(o operator, random bool) *program.StepError {
	if b.wide == 0 || !moves(o) {
		if err := b.bytes(); err != nil {
			return err
		}
	}
	b.put(o, random)
	return nil
}

// late adds an operator that moves whole elements, of whatever type.
func (b *builder) late(o operator) *program.StepError {
	if err := b.unerased(); err != nil {
		return err
	}
	b.put(o, true)
	return nil
}

// unerased requires that no element of floating point was erased yet.
func (b *builder) unerased() *program.StepError {
	if len(b.erasures) > 0 {
		return b.fail("it comes after RandomErasing of floating point; put it before")
	}
	return nil
}

func (b *builder) put(o operator, random bool) {
	b.stages = append(b.stages, stage{operator: o, step: b.at, name: b.name, random: random})
	b.random = b.random || random
}

// colours adds an operator on colours. A mask keeps what it is.
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

func known(n int) string {
	if n == program.Unknown {
		return "a number that each file decides"
	}
	return fmt.Sprint(n)
}

// form is the result's.
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

// params reads a step's parameters, and writes the canonical ones. The first mistake
// stays; what is read after it are defaults.
type params struct {
	step  int
	name  string
	raw   map[string]json.RawMessage
	known []string
	out   bytes.Buffer
	err   *program.StepError
}

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

// short is what a message shows of a client's JSON.
func short(raw []byte) string {
	if len(raw) > 60 {
		return string(raw[:57]) + "..."
	}
	return string(raw)
}

func (p *params) fail(param, format string, values ...any) {
	if p.err == nil {
		p.err = &program.StepError{Step: p.step, Name: p.name, Param: param, Reason: fmt.Sprintf(format, values...)}
	}
}

// get takes a parameter's JSON. It is nil where there is none, or null.
func (p *params) get(name string) json.RawMessage {
	p.known = append(p.known, name)
	raw := p.raw[name]
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// put writes a parameter in its canonical form.
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

// done fails for a parameter that nobody read.
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

// numbers reads a number or a list of them. It is nil where the parameter is absent.
func (p *params) numbers(name, takes string, counts ...int) []float64 {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var one float64
	var several []*float64 // a null among them is no number: it would be left as it is, and so count as 0
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

// number reads one, from low to high.
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

func text(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// integers reads whole numbers from low to high.
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

func (p *params) integer(name string, otherwise, low, high int) int {
	v := otherwise
	if list := p.integers(name, fmt.Sprintf("a whole number from %d to %d", low, high), low, high, 1); list != nil {
		v = list[0]
	}
	p.put(name, v)
	return v
}

func (p *params) boolean(name string, otherwise bool) bool {
	v := otherwise
	if raw := p.get(name); raw != nil && json.Unmarshal(raw, &v) != nil {
		p.fail(name, "got %s, takes true or false", short(raw))
		v = otherwise
	}
	p.put(name, v)
	return v
}

// word reads one of the names given, in any case of letters where that tells them apart.
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

func quoted(names []string) string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = strconv.Quote(n)
	}
	return strings.Join(list, ", ")
}

// maxSide bounds what a request may ask for. Limits bound what a sample takes.
const maxSide = 1 << 15

// size reads height and width, of which one number is both.
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

// interval reads [low, high] within bounds.
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

package images

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

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

// Compile checks a list of steps and makes a program of it. in is an encoded file, or
// pixels of known size with their channels last. An error is a *program.StepError.
func Compile(in program.Form, steps []program.Step) (program.Program, error) {
	return compile(in, steps, 0, false)
}

// CompileFrom makes a program of the steps from index from on, for an input that those
// before it have made. Steps keep their indices, and so their random numbers.
func CompileFrom(in program.Form, steps []program.Step, from int) (program.Program, error) {
	return compile(in, steps, from, false)
}

// CompileMask makes the program of a mask from the list of its image: the same
// geometry, without mixing of pixels, and nothing else. A mask's pixels are classes:
// grey, or indices into a palette. With the image's draws it gets the image's crop, as
// long as it has the image's size.
func CompileMask(in program.Form, steps []program.Step) (program.Program, error) {
	return compile(in, steps, 0, true)
}

func compile(in program.Form, steps []program.Step, from int, mask bool) (program.Program, error) {
	b := builder{mask: mask, channels: program.Unknown, width: program.Unknown, height: program.Unknown,
		dtype: program.Uint8, at: from}
	if from >= len(steps) || from < 0 {
		return nil, &program.StepError{Step: from, Reason: "there is no such step: a list has at least one"}
	}
	if err := b.input(in, steps[from].Name); err != nil {
		return nil, err
	}
	p := &compiled{from: from, in: in, deterministic: len(steps) - from}
	for i := from; i < len(steps); i++ {
		b.at, b.name, b.random = i, steps[i].Name, false
		canonical, err := b.add(steps[i])
		if err != nil {
			return nil, err
		}
		p.steps = append(p.steps, canonical)
		p.after = append(p.after, extent{b.width, b.height, b.channels})
		if b.random {
			p.deterministic = min(p.deterministic, i-from)
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
	e, known := extent{}, p.in.Kind == program.Image
	if known {
		e = extent{h: p.in.Dims[0], w: p.in.Dims[1], channels: p.in.Dims[2]}
	}
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
		if after := p.after[s.step-p.from]; after.w != program.Unknown && after.h != program.Unknown {
			e, known = extent{w: after.w, h: after.h, channels: max(after.channels, 1)}, true
		}
	}
	return nil
}

func (b *builder) fail(format string, values ...any) *program.StepError {
	return &program.StepError{Step: b.at, Name: b.name, Reason: fmt.Sprintf(format, values...)}
}

// input takes what the first step gets.
func (b *builder) input(in program.Form, first string) error {
	b.name = first
	switch in.Kind {
	case program.Encoded:
		return nil
	case program.Image:
		if in.Axes != "HWC" || len(in.Dims) != 3 || in.Type != program.Uint8 ||
			slices.ContainsFunc(in.Dims, func(d int) bool { return d < 1 }) {
			return b.fail("it gets pixels %s of sizes %v and type %d, and takes uint8, HWC, of sizes that are known",
				in.Axes, in.Dims, in.Type)
		}
		if in.Dims[2] > 4 {
			return b.fail("it gets %d channels, and takes up to 4", in.Dims[2])
		}
		b.begun, b.height, b.width, b.channels = true, in.Dims[0], in.Dims[1], in.Dims[2]
		return nil
	}
	return b.fail("it gets what is no image")
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

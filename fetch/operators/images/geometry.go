package images

import (
	"errors"
	"fmt"
	"image"
	"math"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/icc"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// decode reads a file.
type decode struct {
	mode    codec.Mode
	orient  bool
	profile string
	mask    bool
}

func newDecode(b *builder, p *params) *program.StepError {
	mode := p.word("mode", "RGB", "RGB", "L", "UNCHANGED", "I;16", "RGB;16", "F")
	o := &decode{orient: p.boolean("apply_exif_orientation", false), profile: p.word("icc_profile", "ignore", "ignore",
		"fail", "srgb"), mask: b.mask}
	if o.profile == "srgb" && mode != "RGB" && !b.mask {
		p.fail("icc_profile", `got "srgb" with mode %q, takes mode "RGB"; Grayscale makes grey of it`, mode)
	}
	switch {
	case b.mask:
		o.mode, b.channels = codec.Unchanged, 1
	case mode == "RGB":
		o.mode, b.channels = codec.RGB, 3
	case mode == "I;16":
		o.mode, b.channels, b.wide, b.dtype = codec.Grey16, 1, 2, program.Uint16
	case mode == "RGB;16":
		o.mode, b.channels, b.wide, b.dtype = codec.RGB16, 3, 2, program.Uint16
	case mode == "F":
		o.mode, b.channels, b.wide, b.dtype = codec.Float, 1, 4, program.Float32
	case mode == "UNCHANGED":
		o.mode, b.channels = codec.Unchanged, program.Unknown
	default:
		o.mode, b.channels = codec.L, 1
	}
	b.begun = true
	return b.pixels(o, false)
}

func (o *decode) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	h, err := codec.Read(c.file)
	if err != nil {
		return nil, err
	}
	if h.Profile && o.profile == "fail" {
		return nil, errors.New("it has an ICC profile, which icc_profile refuses: colours are not converted")
	}
	c.header, c.mode, c.width, c.height = h, o.mode, h.Width, h.Height
	if h.Profile && o.profile == "srgb" && !o.mask {
		c.s.hold(profileBytes)
		c.spend(baseSteps)
		if c.colours, err = coloursOf(c.file, h); err != nil {
			return nil, err
		}
	}
	c.view(h.Width, h.Height)
	// Otherwise they are known with the pixels.
	c.channels = map[codec.Mode]int{codec.RGB: 3, codec.L: 1, codec.Grey16: 2, codec.RGB16: 6, codec.Float: 4}[o.mode]
	if o.mask {
		// How many channels there are is known with the pixels, and a mask may have one.
		if c.raster(); c.err == nil && c.channels != 1 {
			return nil, fmt.Errorf("a mask has to be grey or paletted, and this one has %d channels", c.channels)
		}
	}
	if o.turns(h) && c.err == nil {
		c.orient(h.Orientation)
	}
	return nil, nil
}

// coloursOf is how pixels of a file, as RGB, become those of sRGB.
func coloursOf(file []byte, h codec.Header) (*icc.Transform, error) {
	data, err := codec.Profile(file, h, icc.MaxBytes)
	if err != nil {
		return nil, err
	}
	t, err := icc.New(data)
	if err != nil {
		return nil, err
	}
	grey := t.Space() == icc.Grey
	if h.Space == codec.SpaceCMYK || h.Space != codec.SpaceUnknown && grey != (h.Space == codec.SpaceGrey) {
		return nil, fmt.Errorf("its ICC profile is one of %v, and its pixels are %v", t.Space(), h.Space)
	}
	return t, nil
}

// turns says whether the image is turned by what Exif says. TIFF always is, as in Pillow.
func (o *decode) turns(h codec.Header) bool {
	return h.Orientation > 1 && (o.orient || h.Format == codec.TIFF)
}

// bound takes what the orientation makes of the header's size: Cost has turned it.
func (o *decode) bound(e extent) (extent, program.Cost) {
	takes := e.each(e.channels * fileSteps)
	if o.profile == "srgb" {
		takes = with(takes, e.each(profileSteps))
		takes.Working = program.Count(profileBytes)
		takes.Steps = takes.Steps.Plus(program.Count(baseSteps))
	}
	return e, takes
}

// orient undoes what Exif says of how the camera was held.
func (c *canvas) orient(orientation int) {
	c.flipX = orientation == 2 || orientation == 3
	c.flipY = orientation == 3 || orientation == 4
	if orientation < 5 {
		return
	}
	pix := c.raster()
	if c.err != nil {
		return
	}
	w, h, n := c.width, c.height, c.channels
	to := c.s.buffer(len(pix))
	for y := range h {
		c.spend(w * turnSteps)
		for x := range w {
			copy(to[(x*h+y)*n:(x*h+y)*n+n], pix[(y*w+x)*n:])
		}
	}
	c.replace(to, h, w, n)
	// Mirrored along the diagonal, 5 is upright; 6 and 8 are turned by a quarter, 7 is both.
	c.flipX = orientation == 6 || orientation == 7
	c.flipY = orientation == 8 || orientation == 7
}

// interpolation reads the filter. Masks take the nearest pixel, whatever their image does.
func (p *params) interpolation(b *builder, otherwise string) resample.Filter {
	names := []string{"nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"}
	v := p.word("interpolation", otherwise, names...)
	if b.mask {
		return resample.Nearest
	}
	return filters[v]
}

// filters has no nearest, which is what a map gives for it.
var filters = map[string]resample.Filter{
	"bilinear": resample.Bilinear, "bicubic": resample.Bicubic, "box": resample.Box, "hamming": resample.Hamming,
	"lanczos": resample.Lanczos,
}

func (p *params) antialias() {
	if !p.boolean("antialias", true) {
		p.fail("antialias", "got false, takes true: images are always resized with antialiasing")
	}
}

// resize changes the size: to height and width, or the shorter side to short.
type resize struct {
	h, w, short, most int
	filter            resample.Filter
}

func newResize(b *builder, p *params) *program.StepError {
	o := &resize{}
	takes := "the shorter side in pixels, or [height, width], or null with max_size"
	list := p.integers("size", takes, 1, maxSide, 1, 2)
	o.filter = p.interpolation(b, "bilinear")
	if m := p.integers("max_size", "the longer side in pixels, or null", 1, maxSide, 1); m != nil {
		o.most = m[0]
	}
	p.antialias()
	switch {
	case len(list) == 2:
		o.h, o.w = list[0], list[1]
		if o.most > 0 {
			p.fail("max_size", "it goes with the shorter side alone, and size has two")
		}
		p.put("size", list)
		b.height, b.width = o.h, o.w
		return b.pixels(o, false)
	case len(list) == 1:
		o.short = list[0]
		if o.most > 0 && o.most <= o.short {
			p.fail("max_size", "got %d, takes more than size, %d", o.most, o.short)
		}
		p.put("size", o.short)
	case o.most == 0:
		p.fail("size", "it has to be given: %s", takes)
	default:
		p.put("size", nil)
	}
	if o.most > 0 {
		p.put("max_size", o.most)
	}
	if b.shapeless {
		p.fail("size", "after a rotation with expand it takes [height, width]")
	}
	if b.width != program.Unknown && b.height != program.Unknown {
		b.width, b.height = o.target(b.width, b.height)
	}
	return b.pixels(o, false)
}

// target is torchvision's _compute_resized_output_size.
func (o *resize) target(w, h int) (int, int) {
	if o.h > 0 {
		return o.w, o.h
	}
	short, long := min(w, h), max(w, h)
	newShort, newLong := o.short, int(float64(o.short)*float64(long)/float64(short))
	if o.short == 0 {
		newShort, newLong = int(float64(o.most)*float64(short)/float64(long)), o.most
	} else if o.most > 0 && newLong > o.most {
		newShort, newLong = int(float64(o.most)*float64(newShort)/float64(newLong)), o.most
	}
	newShort = max(newShort, 1)
	if w <= h {
		return newShort, newLong
	}
	return newLong, newShort
}

func (o *resize) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	w, h := o.target(c.size())
	if max(w, h) > maxSide {
		return nil, fmt.Errorf("it would become %d x %d pixels, and a side may have %d", w, h, maxSide)
	}
	c.resize(w, h, o.filter)
	return nil, nil
}

func (o *resize) bound(e extent) (extent, program.Cost) {
	w, h := o.target(e.w, e.h)
	return e.of(w, h), passes(e, w, h, o.filter)
}

// flip mirrors with a probability.
type flip struct {
	p        float64
	vertical bool
}

func newHorizontalFlip(b *builder, p *params) *program.StepError {
	return b.late(&flip{p: p.number("p", 0.5, 0, 1)})
}

func newVerticalFlip(b *builder, p *params) *program.StepError {
	return b.late(&flip{p: p.number("p", 0.5, 0, 1), vertical: true})
}

func (o *flip) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	v := 0.0
	if numbers.Chance(o.p) {
		v = 1
		if o.vertical {
			c.flipY = !c.flipY
		} else {
			c.flipX = !c.flipX
		}
	}
	return []program.Value{{Name: "flip", Number: v}}, nil
}

func (o *flip) bound(e extent) (extent, program.Cost) { return e, program.Cost{} }

// round is Python's.
func round(v float64) int { return int(math.RoundToEven(v)) }

func boxValues(r image.Rectangle) []program.Value {
	return []program.Value{
		{Name: "top", Number: float64(r.Min.Y)}, {Name: "left", Number: float64(r.Min.X)},
		{Name: "height", Number: float64(r.Dy())}, {Name: "width", Number: float64(r.Dx())},
	}
}

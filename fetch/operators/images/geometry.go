package images

import (
	"errors"
	"fmt"
	"image"
	"math"
	"slices"
	"strconv"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/icc"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// decode is Decode: it reads the file's header. Pixels are decoded later, when they are
// needed.
type decode struct {
	mode    codec.Mode
	orient  bool   // apply_exif_orientation
	profile string // icc_profile: "ignore", "fail" or "srgb"
	mask    bool
}

// newDecode reads mode, apply_exif_orientation and icc_profile. A mask always keeps its
// own pixels.
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

// apply implements operator. A file with an unsupported or invalid profile fails, unless
// profiles are ignored.
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
	// For Unchanged the number of channels is known after decoding.
	c.channels = map[codec.Mode]int{codec.RGB: 3, codec.L: 1, codec.Grey16: 2, codec.RGB16: 6, codec.Float: 4}[o.mode]
	if o.mask {
		// A mask must have one channel, which is known after decoding.
		if c.raster(); c.err == nil && c.channels != 1 {
			return nil, fmt.Errorf("a mask has to be grey or paletted, and this one has %d channels", c.channels)
		}
	}
	if o.turns(h) && c.err == nil {
		c.orient(h.Orientation)
	}
	return nil, nil
}

// coloursOf returns the conversion of the file's RGB pixels to sRGB. It fails if the
// profile is invalid or is for another colour space than the pixels. A profile that is
// ignored is never parsed, so a damaged one fails only if it is needed.
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

// turns reports whether the orientation of Exif is applied. For TIFF it always is, as in
// Pillow.
func (o *decode) turns(h codec.Header) bool {
	return h.Orientation > 1 && (o.orient || h.Format == codec.TIFF)
}

// bound takes an extent that is already rotated: Cost applies the orientation to the
// header's size.
func (o *decode) bound(e extent) (extent, program.Cost) {
	takes := e.each(e.channels * fileSteps)
	if o.profile == "srgb" {
		takes = with(takes, e.each(profileSteps))
		takes.Working = program.Count(profileBytes)
		takes.Steps = takes.Steps.Plus(program.Count(baseSteps))
	}
	return e, takes
}

// orient applies an Exif orientation, 1 to 8, so that the image is upright. Mirroring costs
// nothing now; a transposition needs the pixels.
func (c *canvas) orient(orientation int) {
	c.flipX = orientation == 2 || orientation == 3
	c.flipY = orientation == 3 || orientation == 4
	if orientation < 5 {
		// 5 to 8 transpose the image.
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
	// After the transposition 5 is upright; 6 and 8 are rotations by 90°, 7 is mirrored
	// both ways.
	c.flipX = orientation == 6 || orientation == 7
	c.flipY = orientation == 8 || orientation == 7
}

// interpolation reads the filter. Masks always use the nearest pixel. A mask has numbers of
// classes, and the mean of two classes is a third one.
func (p *params) interpolation(b *builder, otherwise string) resample.Filter {
	names := []string{"nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"}
	v := p.word("interpolation", otherwise, names...)
	if b.mask {
		return resample.Nearest
	}
	return filters[v]
}

// filters does not contain the nearest filters: missing keys give resample.Nearest, the
// zero value.
var filters = map[string]resample.Filter{
	"bilinear": resample.Bilinear, "bicubic": resample.Bicubic, "box": resample.Box, "hamming": resample.Hamming,
	"lanczos": resample.Lanczos,
}

// antialias accepts only true.
func (p *params) antialias() {
	if !p.boolean("antialias", true) {
		p.fail("antialias", "got false, takes true: images are always resized with antialiasing")
	}
}

// resize is Resize: to w by h pixels, or the shorter side to short, or the longer one to
// most. Exactly one form is set: both sides, the shorter side with an optional limit, or
// the longer side.
type resize struct {
	h, w, short, most int // pixels; 0: not given
	filter            resample.Filter
}

// newResize reads size, max_size, interpolation and antialias, as in torchvision: size is
// the shorter side or [height, width].
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

// target is torchvision's _compute_resized_output_size: the size for an image of w by h.
// Sides are truncated, as there. Both results are at least 1.
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

// apply implements operator. The size is also limited for extreme aspect ratios, which
// make the longer side large.
func (o *resize) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	w, h := o.target(c.size())
	if max(w, h) > maxSide {
		return nil, fmt.Errorf("it would become %d x %d pixels, and a side may have %d", w, h, maxSide)
	}
	c.resize(w, h, o.filter)
	return nil, nil
}

// bound implements operator.
func (o *resize) bound(e extent) (extent, program.Cost) {
	w, h := o.target(e.w, e.h)
	return e.resized(w, h), passes(e, w, h, o.filter)
}

// flip is RandomHorizontalFlip or RandomVerticalFlip. It is immutable. The draw decides,
// and the canvas keeps the result.
type flip struct {
	p        float64 // probability
	vertical bool
}

// newHorizontalFlip reads p, the probability.
func newHorizontalFlip(b *builder, p *params) *program.StepError {
	return b.late(&flip{p: p.number("p", 0.5, 0, 1)})
}

// newVerticalFlip reads p, the probability.
func newVerticalFlip(b *builder, p *params) *program.StepError {
	return b.late(&flip{p: p.number("p", 0.5, 0, 1), vertical: true})
}

// apply implements operator. It costs nothing: rows and columns are mirrored when they
// are written.
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

// bound implements operator.
func (o *flip) bound(e extent) (extent, program.Cost) { return e, program.Cost{} }

// round rounds half to even, as Python's round.
func round(v float64) int { return int(math.RoundToEven(v)) }

// boxValues are the drawn values of a crop or of an erased box, in pixels.
func boxValues(r image.Rectangle) []program.Value {
	return []program.Value{
		{Name: "top", Number: float64(r.Min.Y)}, {Name: "left", Number: float64(r.Min.X)},
		{Name: "height", Number: float64(r.Dy())}, {Name: "width", Number: float64(r.Dx())},
	}
}

// affine maps a pixel (x, y) of the result to the source: (a*x + b*y + c, d*x + e*y + f).
// It is the inverse of the motion that a user describes: each pixel of the result looks up
// its source.
type affine [6]float64

// at maps a point. The conversions to float64 prevent the compiler from fusing products
// with sums.
func (m *affine) at(x, y float64) (float64, float64) {
	return float64(float64(m[0]*x)+float64(m[1]*y)) + m[2], float64(float64(m[3]*x)+float64(m[4]*y)) + m[5]
}

// transform replaces the image by one of w by h pixels, with the algorithms of
// libImaging's Geometry.c: which one depends on the matrix, and each rounds differently.
// Pixels outside of the source have the colour fill, one value or one for each channel.
func (c *canvas) transform(m affine, w, h int, bilinear bool, fill []byte) {
	pix := c.raster()
	n := c.channels
	to := c.s.buffer(w * h * n)
	colour := [4]byte{}
	for i := range colour {
		if len(fill) > 0 {
			colour[i] = fill[min(i, len(fill)-1)]
		}
	}
	for y := range h {
		c.spend(w * fillSteps)
		fillRow(to[y*w*n:][:w*n], colour[:n])
	}
	t := warp{s: c.s, m: m, in: pix, width: c.width, height: c.height, channels: n, out: to, w: w, h: h}
	switch {
	case bilinear:
		// ImagingTransformAffine with a bilinear filter.
		t.bilinear()
	case m[1] == 0 && m[3] == 0:
		// ImagingScaleAffine: there is no rotation or shear.
		t.scale()
	case t.small():
		// affine_fixed: coordinates with 16 bits of fraction.
		t.fixed()
	default:
		// ImagingTransformAffine with the nearest filter.
		t.nearest()
	}
	c.replace(to, w, h, n)
}

// warp is the state of one transform. It lives for one call of transform. in and out are
// different buffers.
type warp struct {
	s                       *scratch
	m                       affine
	in, out                 []byte // interleaved pixels
	width, height, channels int    // of in
	w, h                    int    // of out
}

// put copies one pixel if it is inside of the source. Otherwise the pixel keeps the fill
// colour.
func (t *warp) put(x, y, fromX, fromY int) {
	if fromX >= 0 && fromX < t.width && fromY >= 0 && fromY < t.height {
		n := t.channels
		copy(t.out[(y*t.w+x)*n:][:n], t.in[(fromY*t.width+fromX)*n:])
	}
}

// coordinate is the pixel at position v, or -1: COORD of Geometry.c. The bound keeps the
// conversion to int defined.
func coordinate(v float64) int {
	if v < 0 {
		return -1
	}
	return int(min(v, 1<<30))
}

// scale adds up coordinates, as ImagingScaleAffine: their rounding depends on it. A product
// for each pixel would round differently from Pillow's sum.
func (t *warp) scale() {
	y := t.m[5] + float64(t.m[4]*0.5)
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x := t.m[2] + float64(t.m[0]*0.5)
		for j := range t.w {
			t.put(j, i, coordinate(x), coordinate(y))
			x += t.m[0]
		}
		y += t.m[4]
	}
}

// small reports whether all corners fit into fixed-point coordinates.
func (t *warp) small() bool {
	for _, p := range [4][2]int{{0, 0}, {t.w, t.h}, {0, t.h}, {t.w, 0}} {
		x, y := t.m.at(float64(p[0]), float64(p[1]))
		if math.Abs(x) >= 32768 || math.Abs(y) >= 32768 {
			return false
		}
	}
	return true
}

// fixed samples the nearest pixel with coordinates of 16 bits of fraction, as affine_fixed
// of Geometry.c. small has excluded an overflow of int32.
func (t *warp) fixed() {
	fix := func(v float64) int32 { return int32(math.Floor(float64(v*65536) + 0.5)) }
	m := &t.m
	a, b, d, e := fix(m[0]), fix(m[1]), fix(m[3]), fix(m[4])
	x0 := fix(float64(m[2]+float64(m[0]*0.5)) + float64(m[1]*0.5))
	y0 := fix(float64(m[5]+float64(m[3]*0.5)) + float64(m[4]*0.5))
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x, y := x0, y0
		for j := range t.w {
			t.put(j, i, int(x>>16), int(y>>16))
			x += a
			y += d
		}
		x0 += b
		y0 += e
	}
}

// nearest samples the nearest pixel in double precision. Coordinates are sums along the
// row, as in Geometry.c. It is for matrices whose coordinates exceed fixed point.
func (t *warp) nearest() {
	m := &t.m
	x0 := float64(m[2]+float64(m[1]*0.5)) + float64(m[0]*0.5)
	y0 := float64(m[5]+float64(m[4]*0.5)) + float64(m[3]*0.5)
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x, y := x0, y0
		for j := range t.w {
			t.put(j, i, coordinate(x), coordinate(y))
			x += m[0]
			y += m[3]
		}
		x0 += m[1]
		y0 += m[4]
	}
}

// bilinear samples with weights of the four nearest pixels, as BILINEAR_BODY of
// Geometry.c. At borders the outermost pixel is repeated; the result is truncated.
func (t *warp) bilinear() {
	n := t.channels
	for i := range t.h {
		t.s.spend(t.w * mixedSteps)
		for j := range t.w {
			x, y := t.m.at(float64(j)+0.5, float64(i)+0.5)
			if !(x >= 0 && x < float64(t.width) && y >= 0 && y < float64(t.height)) {
				continue
			}
			x -= 0.5
			y -= 0.5
			fx, fy := math.Floor(x), math.Floor(y)
			dx, dy := x-fx, y-fy
			x0, x1 := max(int(fx), 0)*n, min(int(fx)+1, t.width-1)*n
			row := t.in[max(int(fy), 0)*t.width*n:]
			below := row
			if int(fy)+1 < t.height {
				below = t.in[(int(fy)+1)*t.width*n:]
			}
			out := t.out[(i*t.w+j)*n:][:n]
			for k := range out {
				v := mix(float64(row[x0+k]), float64(row[x1+k]), dx)
				out[k] = uint8(mix(v, mix(float64(below[x0+k]), float64(below[x1+k]), dx), dy))
			}
		}
	}
}

// mix interpolates linearly from a to b.
func mix(a, b, part float64) float64 { return a + float64(float64(b-a)*part) }

// decimals rounds to 15 decimal places, as Image.rotate does, so that the sine and cosine
// of multiples of 90° are exact.
func decimals(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', 15, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// rotate is Image.rotate: counter-clockwise by degrees around centre, [x, y] in pixels,
// or around the middle. Multiples of 90° around the middle are exact transpositions.
func (c *canvas) rotate(degrees float64, bilinear, expand bool, centre []float64, fill []byte) {
	w, h := c.size()
	turn := math.Mod(degrees, 360)
	if turn < 0 {
		turn += 360
	}
	if centre == nil {
		switch {
		case turn == 0:
			return
		case turn == 180:
			c.flipX, c.flipY = !c.flipX, !c.flipY
			return
		case (turn == 90 || turn == 270) && (expand || w == h):
			c.raster()
			c.orient(map[float64]int{90: 8, 270: 6}[turn])
			return
		}
		centre = []float64{float64(w) / 2, float64(h) / 2}
	}
	angle := -radians(turn)
	sin, cos := math.Sincos(angle)
	m := affine{decimals(cos), decimals(sin), 0, decimals(-sin), decimals(cos), 0}
	x, y := m.at(-centre[0], -centre[1])
	m[2], m[5] = x+centre[0], y+centre[1]
	if expand {
		w, h = m.expand(w, h)
	}
	c.transform(m, w, h, bilinear, fill)
}

// expand changes the matrix so that the result contains the whole image, and returns the
// size of the result. The size is rounded outwards on both ends, as in Image.rotate.
func (m *affine) expand(w, h int) (int, int) {
	var low, high [2]float64
	for i, p := range [4][2]int{{0, 0}, {w, 0}, {w, h}, {0, h}} {
		x, y := m.at(float64(p[0]), float64(p[1]))
		if i == 0 {
			low, high = [2]float64{x, y}, [2]float64{x, y}
		}
		low, high = [2]float64{min(low[0], x), min(low[1], y)}, [2]float64{max(high[0], x), max(high[1], y)}
	}
	nw, nh := int(math.Ceil(high[0])-math.Floor(low[0])), int(math.Ceil(high[1])-math.Floor(low[1]))
	m[2], m[5] = m.at(-float64(nw-w)/2, -float64(nh-h)/2)
	return nw, nh
}

// rotation is RandomRotation: by a random angle. fill is the colour outside of the source,
// by channel.
type rotation struct {
	low, high        float64 // degrees
	bilinear, expand bool
	centre           []float64 // [x, y] in pixels; nil: the middle
	fill             []byte
}

// newRandomRotation reads degrees, interpolation, expand, center and fill. One number of
// degrees means [-degrees, degrees].
func newRandomRotation(b *builder, p *params) *program.StepError {
	o := &rotation{}
	takes := "a number of degrees that is not negative, or [low, high]"
	switch list := p.numbers("degrees", takes, 1, 2); {
	case list == nil:
		p.fail("degrees", "it has to be given: %s", takes)
	case len(list) == 1 && list[0] < 0, len(list) == 2 && list[0] > list[1], math.Abs(list[0]) > 1e6,
		math.Abs(list[len(list)-1]) > 1e6:
		p.fail("degrees", "got %v, takes %s", list, takes)
	case len(list) == 1:
		o.low, o.high = -list[0], list[0]
	default:
		o.low, o.high = list[0], list[1]
	}
	p.put("degrees", []float64{o.low, o.high})
	o.bilinear = p.word("interpolation", "nearest", "nearest", "bilinear") == "bilinear" && !b.mask
	o.expand = p.boolean("expand", false)
	if o.centre = p.numbers("center", "[x, y] in pixels, or null", 2); o.centre != nil {
		if max(math.Abs(o.centre[0]), math.Abs(o.centre[1])) > maxSide {
			p.fail("center", "got %v, takes pixels up to %d", o.centre, maxSide)
		}
		if o.expand {
			p.fail("center", "with expand it takes null")
		}
		p.put("center", o.centre)
	}
	o.fill = p.fill(b, "fill")
	if o.expand {
		b.width, b.height, b.shapeless = program.Unknown, program.Unknown, true
	}
	return b.pixels(o, true)
}

// apply implements operator.
func (o *rotation) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	angle := numbers.Uniform(o.low, o.high)
	c.rotate(angle, o.bilinear, o.expand, o.centre, o.fill)
	return []program.Value{{Name: "angle", Number: angle}}, nil
}

// bound implements operator. With expand, the sides are at most the diagonal, and
// rounding.
func (o *rotation) bound(e extent) (extent, program.Cost) {
	if o.expand {
		side := int(math.Hypot(float64(e.w), float64(e.h))) + 3
		e = e.resized(side, side)
	}
	return e, e.each(warped(o.bilinear))
}

// warped is the cost in steps of a pixel of a transformed image. It is more than that of
// a rotation by 90°.
func warped(bilinear bool) int {
	if bilinear {
		return fillSteps + mixedSteps
	}
	return fillSteps + warpSteps
}

// randomResizedCrop is RandomResizedCrop: a random box, resized to h by w.
type randomResizedCrop struct {
	h, w                      int
	least, most, narrow, wide float64 // ranges of the area's share and of width / height
	filter                    resample.Filter
}

// newRandomResizedCrop reads size, scale, ratio, interpolation and antialias.
func newRandomResizedCrop(b *builder, p *params) *program.StepError {
	o := &randomResizedCrop{}
	o.h, o.w = p.size("size")
	o.least, o.most = p.interval("scale", 0.08, 1, 0, 1)
	o.narrow, o.wide = p.interval("ratio", 3.0/4, 4.0/3, 1e-3, 1e3)
	o.filter = p.interpolation(b, "bilinear")
	p.antialias()
	b.height, b.width = o.h, o.w
	return b.pixels(o, true)
}

// box is torchvision's get_params: up to ten random boxes, then the largest centred box
// with an allowed ratio. The number of draws depends on the attempts, as in torchvision.
func (o *randomResizedCrop) box(w, h int, numbers *draw.Source) image.Rectangle {
	area := float64(w) * float64(h)
	for range 10 {
		target := area * numbers.Uniform(o.least, o.most)
		ratio := numbers.LogUniform(o.narrow, o.wide)
		cw, ch := round(math.Sqrt(float64(target*ratio))), round(math.Sqrt(target/ratio))
		if cw > 0 && cw <= w && ch > 0 && ch <= h {
			top := numbers.IntN(h - ch + 1)
			left := numbers.IntN(w - cw + 1)
			return image.Rect(left, top, left+cw, top+ch)
		}
	}
	cw, ch := w, h
	switch in := float64(w) / float64(h); {
	case in < o.narrow:
		ch = min(max(round(float64(w)/o.narrow), 1), h)
	case in > o.wide:
		cw = min(max(round(float64(h)*o.wide), 1), w)
	}
	top, left := (h-ch)/2, (w-cw)/2
	return image.Rect(left, top, left+cw, top+ch)
}

// apply implements operator. Decoding is limited to the box, and resizing is one pass.
func (o *randomResizedCrop) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	w, h := c.size()
	box := o.box(w, h, numbers)
	// torchvision crops a resized image before it resizes it again, so the pixels outside
	// of the crop must not count. The window of a pending resize has that effect.
	c.crop(box)
	c.resize(o.w, o.h, o.filter)
	return boxValues(box), nil
}

// bound implements operator: the box may be the whole image.
func (o *randomResizedCrop) bound(e extent) (extent, program.Cost) {
	return e.resized(o.w, o.h), passes(e, o.w, o.h, o.filter)
}

// centerCrop is CenterCrop. An image that is too small is padded with zeros.
type centerCrop struct{ h, w int }

// newCenterCrop reads size.
func newCenterCrop(b *builder, p *params) *program.StepError {
	o := &centerCrop{}
	o.h, o.w = p.size("size")
	b.height, b.width = o.h, o.w
	return b.pixels(o, false)
}

// apply implements operator. Odd margins are rounded like torchvision's: padding has the
// larger part on the right and at the bottom, and the crop's offset is rounded half to
// even.
func (o *centerCrop) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	w, h := c.size()
	if o.w > w || o.h > h {
		dx, dy := max(o.w-w, 0), max(o.h-h, 0)
		c.pad(margins{left: dx / 2, top: dy / 2, right: (dx + 1) / 2, bottom: (dy + 1) / 2})
		w, h = c.size()
	}
	left, top := round(float64(w-o.w)/2), round(float64(h-o.h)/2)
	c.crop(image.Rect(left, top, left+o.w, top+o.h))
	return nil, nil
}

// bound implements operator.
func (o *centerCrop) bound(e extent) (extent, program.Cost) {
	return e.resized(o.w, o.h), e.resized(max(e.w, o.w), max(e.h, o.h)).padded()
}

// randomCrop is RandomCrop: a random box of h by w, after padding. padding is never nil; a
// mode other than constant repeats pixels.
type randomCrop struct {
	h, w    int
	padding *margins
	fit     bool // pad_if_needed
}

// newRandomCrop reads size, padding, pad_if_needed, fill and padding_mode.
func newRandomCrop(b *builder, p *params) *program.StepError {
	o := &randomCrop{}
	o.h, o.w = p.size("size")
	o.padding = p.margins("padding")
	o.fit = p.boolean("pad_if_needed", false)
	around := p.padding(b)
	if o.padding == nil {
		o.padding = &margins{}
	}
	o.padding.mode, o.padding.fill = around.mode, around.fill
	b.height, b.width = o.h, o.w
	return b.pixels(o, true)
}

// apply implements operator. With pad_if_needed both sides get the missing pixels, as in
// torchvision.
func (o *randomCrop) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	m := *o.padding
	w, h := c.size()
	if o.fit {
		dx, dy := max(o.w-(w+m.left+m.right), 0), max(o.h-(h+m.top+m.bottom), 0)
		m.left, m.right, m.top, m.bottom = m.left+dx, m.right+dx, m.top+dy, m.bottom+dy
	}
	if err := m.fits(w, h); err != nil {
		return nil, err
	}
	c.pad(m)
	w, h = c.size()
	if o.w > w || o.h > h {
		return nil, fmt.Errorf("a crop of %d x %d is larger than the image, %d x %d; pad_if_needed pads it", o.w, o.h,
			w, h)
	}
	top := numbers.IntN(h - o.h + 1)
	left := numbers.IntN(w - o.w + 1)
	box := image.Rect(left, top, left+o.w, top+o.h)
	c.crop(box)
	return boxValues(box), nil
}

// bound implements operator.
func (o *randomCrop) bound(e extent) (extent, program.Cost) {
	m := o.padding
	w, h := e.w+m.left+m.right, e.h+m.top+m.bottom
	if o.fit {
		w, h = w+2*o.w, h+2*o.h
	}
	return e.resized(o.w, o.h), e.resized(w, h).padded()
}

// padded is the cost of padding an image to this size before a crop.
func (e extent) padded() program.Cost {
	takes := e.each(padSteps)
	takes.Working = e.bytes().Times(2)
	takes.Steps = takes.Steps.Plus(e.bytes().Times(rowSteps))
	return takes
}

// pad is Pad.
type pad struct{ margins }

// newPad reads padding, fill and padding_mode.
func newPad(b *builder, p *params) *program.StepError {
	o := &pad{}
	m := p.margins("padding")
	if m == nil {
		p.fail("padding", "it has to be given: pixels, or [left and right, top and bottom], or [left, top, "+
			"right, bottom]")
		m = &margins{}
	}
	around := p.padding(b)
	m.mode, m.fill = around.mode, around.fill
	o.margins = *m
	if b.width != program.Unknown && b.height != program.Unknown {
		b.width, b.height = b.width+m.left+m.right, b.height+m.top+m.bottom
	}
	return b.pixels(o, false)
}

// apply implements operator.
func (o *pad) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	if err := o.fits(c.size()); err != nil {
		return nil, err
	}
	c.pad(o.margins)
	return nil, nil
}

// bound implements operator.
func (o *pad) bound(e extent) (extent, program.Cost) {
	next := e.resized(e.w+o.left+o.right, e.h+o.top+o.bottom)
	return next, next.each(padSteps)
}

// margins is the padding of an image, in pixels of each side.
type margins struct {
	left, top, right, bottom int
	mode                     string // of numpy.pad: constant, edge, reflect, symmetric
	fill                     []byte // one for all channels, or one for each
}

// maxMargin is the maximum padding of a side in pixels. It bounds the memory that a small
// image can demand.
const maxMargin = 1 << 12

// margins reads one number for all sides, two for the sides and for top and bottom, or
// four. Absent is nil.
func (p *params) margins(name string) *margins {
	takes := fmt.Sprintf("pixels, or [left and right, top and bottom], or [left, top, right, bottom], of 0 to %d",
		maxMargin)
	list := p.integers(name, takes, 0, maxMargin, 1, 2, 4)
	switch len(list) {
	case 0:
		p.put(name, nil)
		return nil
	case 1:
		list = []int{list[0], list[0], list[0], list[0]}
	case 2:
		list = []int{list[0], list[1], list[0], list[1]}
	}
	p.put(name, list)
	return &margins{left: list[0], top: list[1], right: list[2], bottom: list[3]}
}

// padding reads fill and padding_mode.
func (p *params) padding(b *builder) margins {
	m := margins{fill: p.fill(b, "fill")}
	m.mode = p.word("padding_mode", "constant", "constant", "edge", "reflect", "symmetric")
	return m
}

// fill reads a colour of bytes: one number, or one for each channel. Masks are filled
// with 0.
func (p *params) fill(b *builder, name string) []byte {
	takes := "a number from 0 to 255, or one for each channel"
	list := p.integers(name, takes, 0, 255, 1, 2, 3, 4)
	if list == nil {
		list = []int{0}
	}
	p.put(name, list)
	if b.mask {
		return []byte{0}
	}
	if len(list) > 1 && len(list) != b.channels {
		p.fail(name, "it has %d numbers, and the image has %s channels", len(list), known(b.channels))
	}
	colour := make([]byte, len(list))
	for i, v := range list {
		colour[i] = byte(v)
	}
	return colour
}

// empty reports whether only zeros or existing pixels are used for the padding.
func (m *margins) empty() bool {
	return m.mode != "constant" || !slices.ContainsFunc(m.fill, func(v byte) bool { return v != 0 })
}

// fits returns an error if the image is too small to be mirrored into its margin.
func (m *margins) fits(w, h int) error {
	across, down := max(m.left, m.right), max(m.top, m.bottom)
	if m.mode == "reflect" && (across >= w || down >= h) || m.mode == "symmetric" && (across > w || down > h) {
		return fmt.Errorf("an image of %d x %d is too small to be mirrored into a margin of %d, %d, %d, %d", w, h,
			m.left, m.top, m.right, m.bottom)
	}
	return nil
}

// pad replaces the image by a padded one. Rows are built one by one: the inner part is
// copied, and only the margins are computed.
func (c *canvas) pad(m margins) {
	if m.left|m.top|m.right|m.bottom == 0 {
		return
	}
	pix := c.raster()
	w, h, n := c.width, c.height, c.channels
	tw, th := w+m.left+m.right, h+m.top+m.bottom
	to := c.s.buffer(tw * th * n)
	fill := make([]byte, 8) // at least the bytes of a pixel
	for i := range fill {
		if len(m.fill) > 0 {
			fill[i] = m.fill[min(i, len(m.fill)-1)]
		}
	}
	for y := range th {
		c.spend(tw * padSteps)
		row := to[y*tw*n:][:tw*n]
		from := beyond(y-m.top, h, m.mode)
		if from < 0 {
			fillRow(row, fill[:n])
			continue
		}
		in := pix[from*w*n:][:w*n]
		copy(row[m.left*n:], in)
		for x := range tw {
			if x >= m.left && x < m.left+w {
				continue
			}
			px := row[x*n:][:n]
			if at := beyond(x-m.left, w, m.mode); at >= 0 {
				copy(px, in[at*n:])
			} else {
				copy(px, fill)
			}
		}
	}
	c.replace(to, tw, th, n)
}

// fillRow repeats a colour.
func fillRow(row, colour []byte) {
	for at := 0; at < len(row); at += len(colour) {
		copy(row[at:], colour)
	}
}

// beyond maps index i, which may be outside of [0, n), to the pixel to use, or to -1 for
// the fill colour. fits has excluded indices that one reflection does not bring back.
func beyond(i, n int, mode string) int {
	if i >= 0 && i < n {
		return i
	}
	switch mode {
	case "edge":
		return min(max(i, 0), n-1)
	case "reflect":
		if i < 0 {
			return -i
		}
		return 2*n - 2 - i
	case "symmetric":
		if i < 0 {
			return -i - 1
		}
		return 2*n - 1 - i
	}
	return -1
}

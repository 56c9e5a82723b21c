package images

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// output is a resample.Sink that writes the rows into the memory of the result. It lives as
// long as one run. dst belongs to the caller of the run, and must have room for the whole
// result.
type output struct {
	dst           []byte
	width, height int
	channels      int
	planar        bool // CHW instead of HWC
	dtype         program.DType
	table         *table // the element for each byte; nil: bytes are copied
	wide          int    // bytes of a channel if they are more than one; else 0
}

// table maps each byte to the bits of its element, in the type of the result: one table for
// all channels, or one for each. Looking up a byte replaces conversion, scaling and
// normalisation of each pixel: all of them depend on the byte alone. It is immutable and
// shared by all runs of a program.
type table struct {
	bits [][256]uint32
}

// sizeOf is the number of bytes of an element. All types have a fixed size, so the memory
// of a result is known before decoding.
func sizeOf(t program.DType) int {
	switch t {
	case program.Uint8:
		return 1
	case program.Uint16, program.Float16:
		return 2
	default:
		return 4
	}
}

// channel is the table of a channel.
func (t *table) channel(channel int) *[256]uint32 {
	if len(t.bits) == 1 {
		return &t.bits[0]
	}
	return &t.bits[channel]
}

// Row implements resample.Sink. pixels may be longer than the row, because buffers have
// room for vector loads. Row does not keep it.
func (o *output) Row(y int, pixels []byte) {
	n := o.width * o.channels
	if o.wide > 0 {
		o.deep(y, pixels[:o.wide*n])
		return
	}
	pixels = pixels[:n]
	if !o.planar || o.channels == 1 {
		o.interleaved(o.dst[y*n*sizeOf(o.dtype):], pixels)
		return
	}
	for c := range o.channels {
		at := (c*o.height + y) * o.width * sizeOf(o.dtype)
		o.plane(o.dst[at:at+o.width*sizeOf(o.dtype)], pixels, c)
	}
}

// deep writes one row of 16-bit channels, or of one channel of numbers. Its elements are in
// the order of the tensor already, so they are only moved.
func (o *output) deep(y int, pixels []byte) {
	if !o.planar || o.channels == 1 {
		copy(o.dst[y*len(pixels):], pixels)
		return
	}
	for c := range o.channels {
		to := o.dst[2*(c*o.height+y)*o.width:]
		for x := range o.width {
			at := 2 * (x*o.channels + c)
			to[2*x], to[2*x+1] = pixels[at], pixels[at+1]
		}
	}
}

// interleaved writes a row in HWC layout. The channel is the outer loop: each channel has
// its own table, and a table stays in the CPU cache for a row.
func (o *output) interleaved(to, pixels []byte) {
	if o.dtype == program.Uint8 {
		copy(to, pixels)
		return
	}
	for c := range o.channels {
		bits := o.table.channel(c)
		switch o.dtype {
		case program.Float32:
			for i := c; i < len(pixels); i += o.channels {
				binary.LittleEndian.PutUint32(to[4*i:], bits[pixels[i]])
			}
		default:
			for i := c; i < len(pixels); i += o.channels {
				binary.LittleEndian.PutUint16(to[2*i:], uint16(bits[pixels[i]]))
			}
		}
	}
}

// plane writes channel c of a row in CHW layout. The type is chosen once for the row and
// not for each pixel.
func (o *output) plane(to, pixels []byte, c int) {
	step := o.channels
	switch o.dtype {
	case program.Uint8:
		for i := range to {
			to[i] = pixels[c+i*step]
		}
	case program.Float32:
		bits := o.table.channel(c)
		for at := c; at < len(pixels); at += step {
			binary.LittleEndian.PutUint32(to, bits[pixels[at]])
			to = to[4:]
		}
	default:
		bits := o.table.channel(c)
		for at := c; at < len(pixels); at += step {
			binary.LittleEndian.PutUint16(to, uint16(bits[pixels[at]]))
			to = to[2:]
		}
	}
}

// half rounds to float16 (IEEE 754 binary16), to nearest with ties to even. Go has no such
// type. Values beyond the range become infinite, values below the smallest subnormal become
// zero, and NaN stays NaN.
func half(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	exponent := int(b>>23&0xFF) - 127
	fraction := b & 0x7FFFFF
	switch {
	case exponent == 128 && fraction != 0:
		return sign | 0x7E00
	case exponent > 15:
		return sign | 0x7C00
	case exponent < -25:
		return sign
	}
	shift := uint(13)
	if exponent < -14 { // subnormal: fewer bits of fraction
		fraction |= 1 << 23
		shift += uint(-14 - exponent)
		exponent = -15
	}
	kept := uint32(exponent+15)<<10 + fraction>>shift
	// A carry out of the fraction increments the exponent, which is what rounding up means.
	rest, middle := fraction&(1<<shift-1), uint32(1)<<(shift-1)
	if rest > middle || rest == middle && kept&1 == 1 {
		kept++
	}
	return sign | uint16(kept)
}

// single converts from float16, exactly. Every float16 is a float32, so nothing is rounded.
func single(h uint16) float32 {
	exponent, fraction := int(h>>10&31), float64(h&1023)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		v = math.Inf(1)
		if fraction != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

// grayscale is Grayscale: Pillow's L, in one or three equal channels. It is immutable, as
// all operators are: runs share it.
type grayscale struct{ channels int }

// newGrayscale reads num_output_channels, 1 or 3. A mask is not changed.
func newGrayscale(b *builder, p *params) *program.StepError {
	o := &grayscale{channels: p.integer("num_output_channels", 1, 1, 3)}
	if o.channels == 2 {
		p.fail("num_output_channels", "got 2, takes 1 or 3")
	}
	if err := b.colours(o, false, 1, 3); err != nil {
		return err
	}
	if !b.mask {
		b.channels = o.channels
	}
	return nil
}

// apply implements operator.
func (o *grayscale) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	// A grey image needs no pixels to be computed, so pending geometry stays pending.
	if c.file == nil && c.channels == o.channels && o.channels == 1 {
		return nil, nil
	}
	pix := c.raster()
	w, h := c.size()
	from := c.channels
	if from == o.channels && from == 1 {
		return nil, nil
	}
	to := c.s.buffer(w * h * o.channels)
	for i := range w * h {
		if i%w == 0 {
			c.spend(w * lumaSteps)
		}
		v := pix[i*from]
		if from == 3 {
			v = codec.Luma(v, pix[i*3+1], pix[i*3+2])
		}
		for k := range o.channels {
			to[i*o.channels+k] = v
		}
	}
	c.replace(to, w, h, o.channels)
	return nil, nil
}

// bound implements operator. Three channels are no larger than the bound of the decoded
// image.
func (o *grayscale) bound(e extent) (extent, program.Cost) { return e, e.each(lumaSteps) }

// newToImage is ToImage: it selects the layout of the result, CHW or HWC.
func newToImage(b *builder, p *params) *program.StepError {
	b.planar = p.word("layout", "CHW", "CHW", "HWC") == "CHW"
	return nil
}

// floats is the value of each byte after ToDtype and Normalize, for all channels or for
// each. Arithmetic is in the tensor's type, as in torch, so it is computed once for each
// byte and not for each pixel. It is built while a program is compiled. Each step of the
// tensor changes all values at once.
type floats struct {
	values [][256]float32
	dtype  program.DType
}

// identity is the table of uint8. It is the start of ToDtype: without that step there is no
// table.
func identity() *floats {
	f := &floats{values: make([][256]float32, 1), dtype: program.Uint8}
	for i := range f.values[0] {
		f.values[0][i] = float32(i)
	}
	return f
}

// rounded rounds v to the table's type.
func (f *floats) rounded(v float32) float32 {
	if f.dtype == program.Float16 {
		return single(half(v))
	}
	return v
}

// each changes all values. change gets the exact value of the step before, and its result
// is rounded as torch rounds after each operation.
func (f *floats) each(change func(channel int, v float32) float32) {
	for c := range f.values {
		for i, v := range f.values[c] {
			f.values[c][i] = f.rounded(change(c, v))
		}
	}
}

// element is the bits of v in type t. v must be in the range of uint8 for that type.
func element(v float32, t program.DType) uint32 {
	switch t {
	case program.Uint8:
		return uint32(uint8(v))
	case program.Float16:
		return uint32(half(v))
	default:
		return math.Float32bits(v)
	}
}

// bits converts the values to elements of the result.
func (f *floats) bits() *table {
	t := &table{bits: make([][256]uint32, len(f.values))}
	for c := range f.values {
		for i, v := range f.values[c] {
			t.bits[c][i] = element(v, f.dtype)
		}
	}
	return t
}

// dtypes are the types of elements by their names in torch.
var dtypes = map[string]program.DType{"uint8": program.Uint8, "uint16": program.Uint16, "float16": program.Float16, "float32": program.Float32}

// newToDtype is ToDtype. Names may have the prefix "torch.". Scaling is by 1/255, or to
// uint8 by 255.999, as in torchvision.
func newToDtype(b *builder, p *params) *program.StepError {
	if p.get("dtype") == nil {
		p.fail("dtype", `it has to be given: "uint8", "float16" or "float32"`)
	} else if s := string(p.raw["dtype"]); strings.HasPrefix(s, `"torch.`) {
		p.raw["dtype"] = []byte(`"` + s[len(`"torch.`):])
	}
	names := []string{"uint8", "float16", "float32"}
	if b.wide > 0 {
		names = []string{b.wideType()}
	}
	to := dtypes[p.word("dtype", names[0], names...)]
	scale := p.boolean("scale", false)
	if p.err != nil {
		return p.err
	}
	if b.mask {
		scale = false
	}
	if err := b.unerased(); err != nil {
		return err
	}
	if b.table == nil {
		if to == program.Uint8 || b.wide > 0 {
			return nil
		}
		b.table = identity()
	}
	f := b.table
	from := f.dtype
	// A scaled value is brought back to bytes. The intermediate type is float32, so that
	// the product is not rounded to float16 first.
	if to == program.Uint8 && from != to {
		if !scale {
			return b.fail("from a type of floating point to uint8 it takes scale=true")
		}
		f.dtype = program.Float32
		// torchvision multiplies by 255 + 1 - 1e-3 and truncates.
		f.each(func(_ int, v float32) float32 {
			return float32(math.Trunc(float64(min(max(v*float32(256-1e-3), 0), 255))))
		})
		f.dtype = to
	} else {
		f.dtype = to
		f.each(func(_ int, v float32) float32 {
			if from == program.Uint8 && scale {
				return v * float32(1.0/255)
			}
			return v
		})
	}
	b.dtype = to
	return nil
}

// newNormalize is Normalize: (v - mean) / std in the tensor's type, where mean and std are
// rounded to that type first. The values become part of the table, so normalisation costs
// nothing for each pixel.
func newNormalize(b *builder, p *params) *program.StepError {
	read := func(name string) []float64 {
		list := p.numbers(name, "a number for each channel", 1, 2, 3, 4)
		if list == nil {
			p.fail(name, "it has to be given: a number for each channel")
			list = []float64{1}
		}
		p.put(name, list)
		return list
	}
	mean, std := read("mean"), read("std")
	p.get("inplace") // it has no effect here, so it is not in the canonical list
	if p.err != nil {
		return p.err
	}
	if b.mask {
		return nil
	}
	for _, v := range std {
		if float32(v) == 0 {
			p.fail("std", "got 0, takes what can be divided by")
		}
	}
	for name, list := range map[string][]float64{"mean": mean, "std": std} {
		if len(list) != 1 && len(list) != b.channels {
			p.fail(name, "it has %d numbers, and the image has %s channels", len(list), known(b.channels))
		}
	}
	if err := b.unerased(); err != nil {
		return err
	}
	if b.table == nil || b.dtype == program.Uint8 {
		p.fail("", "it takes floating point; put ToDtype before it")
	}
	if p.err != nil {
		return p.err
	}
	f := b.table
	// One table for all channels becomes one table for each, with equal values at first.
	if n := max(len(mean), len(std)); len(f.values) == 1 && n > 1 {
		for range n - 1 {
			f.values = append(f.values, f.values[0])
		}
	}
	at := func(list []float64, c int) float32 { return f.rounded(float32(list[min(c, len(list)-1)])) }
	// Two passes, because torch rounds the difference before it divides.
	f.each(func(c int, v float32) float32 { return v - at(mean, c) })
	f.each(func(c int, v float32) float32 { return v / at(std, c) })
	return nil
}

// encodeJPEG is EncodeJPEG, the last step: baseline JPEG, equal to that of Pillow's save.
// Its result is a file and not a tensor, so no step can follow it.
type encodeJPEG struct{ quality int }

// newEncodeJPEG reads quality, 1 to 100.
func newEncodeJPEG(b *builder, p *params) *program.StepError {
	o := &encodeJPEG{quality: p.integer("quality", 75, 1, 100)}
	if b.mask {
		return b.fail("a mask is not encoded: its classes would be others")
	}
	if b.table != nil {
		return b.fail("it takes uint8; leave ToDtype out")
	}
	if err := b.bytes(); err != nil {
		return err
	}
	if b.channels != 1 && b.channels != 3 {
		return b.fail("it takes images of 1 or 3 channels, and gets %s; Decode can make RGB", known(b.channels))
	}
	b.encoder, b.ended = o, true
	return nil
}

// bound is the maximum cost of encoding an image, and the maximum size of the result in
// bytes. The working memory is as large: planes, and the encoded bytes before they are
// copied.
func (o *encodeJPEG) bound(e extent) (takes program.Cost, result program.Amount) {
	result = program.Count(jpeg.MaxEncoded(e.w, e.h))
	side := e.resized(e.w+15, e.h+15) // rounded up to whole MCUs
	takes = side.each(encodeSteps)
	takes.Working = result
	return takes, result
}

// encode encodes the image into memory from alloc. The size of the file is known only
// afterwards, so it is encoded into working memory and copied. alloc may return less memory
// than requested; that is program.ErrTooLarge.
func (p *compiled) encode(c *canvas, alloc func(n int) []byte) error {
	step := len(p.steps) - 1
	pix := c.raster()
	if c.err != nil {
		return about(0, p.steps[0].Name, program.ErrDamaged, c.err)
	}
	if max(c.width, c.height) > 0xFFFF {
		return about(step, "EncodeJPEG", program.ErrDamaged,
			fmt.Errorf("an image of %d x %d is larger than a JPEG may be", c.width, c.height))
	}
	c.s.step, c.s.name = step, "EncodeJPEG"
	c.s.hold(jpeg.MaxEncoded(c.width, c.height))
	out, err := c.s.encoder.Encode(pix, c.width, c.height, c.channels, p.encoder.quality, func(rows int) error {
		return c.s.meter.Spend(int64(rows) * int64(c.width+15) * encodeSteps)
	})
	if err != nil {
		return err
	}
	to := alloc(len(out))
	if len(to) < len(out) {
		return about(step, "EncodeJPEG", program.ErrTooLarge, fmt.Errorf("there is no memory for %d bytes", len(out)))
	}
	copy(to, out)
	return nil
}

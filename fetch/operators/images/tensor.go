package images

import (
	"math"
	"strings"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/program"
)

// grayscale is Pillow's L, once or three times.
type grayscale struct{ channels int }

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

func (o *grayscale) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
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

func (o *grayscale) bound(e extent) (extent, program.Cost) { return e, e.each(lumaSteps) }

// newToImage lays the result out with its channels first, as tensors have them, or last.
func newToImage(b *builder, p *params) *program.StepError {
	b.planar = p.word("layout", "CHW", "CHW", "HWC") == "CHW"
	return nil
}

// floats is what becomes of each byte, by channel or for all of them, as arithmetic of
// the type that it has by then.
type floats struct {
	values [][256]float32
	dtype  program.DType
}

func identity() *floats {
	f := &floats{values: make([][256]float32, 1), dtype: program.Uint8}
	for i := range f.values[0] {
		f.values[0][i] = float32(i)
	}
	return f
}

// rounded is a value in the table's type.
func (f *floats) rounded(v float32) float32 {
	if f.dtype == program.Float16 {
		return single(half(v))
	}
	return v
}

func (f *floats) each(change func(channel int, v float32) float32) {
	for c := range f.values {
		for i, v := range f.values[c] {
			f.values[c][i] = f.rounded(change(c, v))
		}
	}
}

// element is the bits of a value.
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

func (f *floats) bits() *table {
	t := &table{bits: make([][256]uint32, len(f.values))}
	for c := range f.values {
		for i, v := range f.values[c] {
			t.bits[c][i] = element(v, f.dtype)
		}
	}
	return t
}

var dtypes = map[string]program.DType{"uint8": program.Uint8, "uint16": program.Uint16, "float16": program.Float16, "float32": program.Float32}

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
	if to == program.Uint8 && from != to {
		if !scale {
			return b.fail("from a type of floating point to uint8 it takes scale=true")
		}
		f.dtype = program.Float32
		// torchvision's factor, in its arithmetic.
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
	p.get("inplace") // changes nothing here, and is no part of the canonical list
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
	if n := max(len(mean), len(std)); len(f.values) == 1 && n > 1 {
		for range n - 1 {
			f.values = append(f.values, f.values[0])
		}
	}
	at := func(list []float64, c int) float32 { return f.rounded(float32(list[min(c, len(list)-1)])) }
	f.each(func(c int, v float32) float32 { return v - at(mean, c) })
	f.each(func(c int, v float32) float32 { return v / at(std, c) })
	return nil
}

package images

import (
	"encoding/binary"
	"image"
	"math"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// erasing fills a box: Zhong et al., "Random Erasing Data Augmentation", 2017. Before
// ToDtype it is a step on pixels, after it one on the result.
type erasing struct {
	p                         float64
	least, most, narrow, wide float64
	values                    []float64
}

func newRandomErasing(b *builder, p *params) *program.StepError {
	o := &erasing{p: p.number("p", 0.5, 0, 1)}
	o.least, o.most = p.interval("scale", 0.02, 0.33, 0, 1)
	o.narrow, o.wide = p.interval("ratio", 0.3, 3.3, 1e-3, 1e3)
	o.values = p.numbers("value", `a number, or one for each channel; "random" is not done here`, 1, 2, 3, 4)
	if o.values == nil {
		o.values = []float64{0}
	}
	p.put("value", o.values)
	p.get("inplace")
	b.random = true
	if b.mask || p.err != nil {
		return p.err
	}
	if len(o.values) > 1 && len(o.values) != b.channels {
		p.fail("value", "it has %d numbers, and the image has %s channels", len(o.values), known(b.channels))
	}
	if b.table == nil {
		if err := b.bytes(); err != nil {
			return err
		}
		for _, v := range o.values {
			if v != math.Trunc(v) || v < 0 || v > 255 {
				p.fail("value", "got %s, takes whole numbers from 0 to 255 for uint8", text(v))
			}
		}
		b.put(o, true)
		return p.err
	}
	b.erasures = append(b.erasures, stage{operator: o, step: b.at, name: b.name, random: true})
	return p.err
}

// box is torchvision's make_params. It is empty where nothing is erased.
func (o *erasing) box(w, h int, numbers *draw.Source) image.Rectangle {
	if !numbers.Chance(o.p) {
		return image.Rectangle{}
	}
	area := float64(w) * float64(h)
	for range 10 {
		target := area * numbers.Uniform(o.least, o.most)
		ratio := numbers.LogUniform(o.narrow, o.wide)
		bh, bw := round(math.Sqrt(float64(target*ratio))), round(math.Sqrt(target/ratio))
		if bh < h && bw < w {
			top := numbers.IntN(h - bh + 1)
			left := numbers.IntN(w - bw + 1)
			return image.Rect(left, top, left+bw, top+bh)
		}
	}
	return image.Rectangle{}
}

func (o *erasing) value(channel int) float64 { return o.values[min(channel, len(o.values)-1)] }

func (o *erasing) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	w, h := c.size()
	box := o.box(w, h, numbers)
	if !box.Empty() {
		pix := c.own()
		for y := box.Min.Y; y < box.Max.Y; y++ {
			c.spend(box.Dx() * c.channels * eraseSteps)
			for x := box.Min.X; x < box.Max.X; x++ {
				for k := range c.channels {
					pix[(y*w+x)*c.channels+k] = uint8(o.value(k))
				}
			}
		}
	}
	return boxValues(box), nil
}

func (o *erasing) bound(e extent) (extent, program.Cost) {
	return e, e.each(e.channels * (eraseSteps + 1))
}

// lay erases in the result.
func (o *erasing) lay(c *canvas, out *output, numbers *draw.Source) []program.Value {
	box := o.box(out.width, out.height, numbers)
	size := sizeOf(out.dtype)
	for k := range out.channels {
		bits := element(float32(o.value(k)), out.dtype)
		for y := box.Min.Y; y < box.Max.Y; y++ {
			c.spend(box.Dx() * eraseSteps)
			for x := box.Min.X; x < box.Max.X; x++ {
				at := (y*out.width+x)*out.channels + k
				if out.planar {
					at = (k*out.height+y)*out.width + x
				}
				if size == 4 {
					binary.LittleEndian.PutUint32(out.dst[4*at:], bits)
				} else {
					binary.LittleEndian.PutUint16(out.dst[2*at:], uint16(bits))
				}
			}
		}
	}
	return boxValues(box)
}

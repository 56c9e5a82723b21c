package images

import (
	"fmt"
	"math"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// jitter changes brightness, contrast, saturation and hue, in an order that is drawn.
type jitter struct {
	ranges [4][2]float64
	unset  [4]bool
}

var jitters = [4]string{"brightness", "contrast", "saturation", "hue"}

func newColorJitter(b *builder, p *params) *program.StepError {
	o := &jitter{}
	for i, name := range jitters {
		o.ranges[i], o.unset[i] = p.around(name, i == 3)
	}
	return b.colours(o, true, 1, 3)
}

// around reads a range, or a distance from what changes nothing.
func (p *params) around(name string, hue bool) (r [2]float64, unset bool) {
	centre, least, most := 1.0, 0.0, 1e3
	takes := "a number that is not negative, or [low, high] with low >= 0"
	if hue {
		centre, least, most = 0, -0.5, 0.5
		takes = "a number from 0 to 0.5, or [low, high] from -0.5 to 0.5"
	}
	list := p.numbers(name, takes, 1, 2)
	switch len(list) {
	case 0:
		r = [2]float64{centre, centre}
	case 1:
		r = [2]float64{centre - list[0], centre + list[0]}
		if !hue {
			r[0] = max(r[0], 0)
		}
		if list[0] < 0 {
			p.fail(name, "got %s, takes %s", text(list[0]), takes)
		}
	default:
		r = [2]float64{list[0], list[1]}
	}
	if r[0] > r[1] || r[0] < least || r[1] > most {
		p.fail(name, "got %s to %s, takes %s", text(r[0]), text(r[1]), takes)
	}
	p.put(name, r)
	return r, r[0] == centre && r[1] == centre
}

func (o *jitter) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	order := [4]int{0, 1, 2, 3}
	for i := 3; i > 0; i-- {
		j := numbers.IntN(i + 1)
		order[i], order[j] = order[j], order[i]
	}
	var factors [4]float64
	for i, r := range o.ranges {
		factors[i] = numbers.Uniform(r[0], r[1])
	}
	values := make([]program.Value, 0, 8)
	for i, k := range order {
		if o.unset[k] {
			continue
		}
		values = append(values, program.Value{Name: jitters[k], Number: factors[k]},
			program.Value{Name: jitters[k] + "_order", Number: float64(i)})
		switch k {
		case 0:
			c.brightness(factors[k])
		case 1:
			c.contrast(factors[k])
		case 2:
			c.saturation(factors[k])
		default:
			c.hue(factors[k])
		}
	}
	return values, nil
}

func (o *jitter) bound(e extent) (extent, program.Cost) {
	each := e.channels
	for i, steps := range [4]int{mapSteps * e.channels, lumaSteps + mapSteps*e.channels, saturateSteps, hueSteps} {
		if !o.unset[i] {
			each += steps
		}
	}
	return e, e.each(each)
}

// blur is Gaussian.
type blur struct {
	kx, ky    int
	low, high float64
}

func newGaussianBlur(b *builder, p *params) *program.StepError {
	o := &blur{}
	takes := "an odd number of pixels, or [x, y]"
	list := p.integers("kernel_size", takes, 1, 255, 1, 2)
	if list == nil {
		p.fail("kernel_size", "it has to be given: %s", takes)
		list = []int{1}
	}
	o.kx, o.ky = list[0], list[len(list)-1]
	if o.kx%2 == 0 || o.ky%2 == 0 {
		p.fail("kernel_size", "got [%d, %d], takes %s", o.kx, o.ky, takes)
	}
	p.put("kernel_size", []int{o.kx, o.ky})
	if raw := p.raw["sigma"]; len(raw) > 0 && raw[0] != '[' && string(raw) != "null" {
		o.low = p.number("sigma", 1, 1e-3, 1e3)
		o.high = o.low
	} else {
		o.low, o.high = p.interval("sigma", 0.1, 2, 1e-3, 1e3)
	}
	return b.colours(o, true, 1, 3)
}

// kernel gives weights in parts of 65536. Whole numbers are the same everywhere, where
// exponentials may differ in their last bit.
func kernel(n int, sigma float64) []uint32 {
	weights, sum := make([]float64, n), 0.0
	for i := range weights {
		x := float64(i-n/2) / sigma
		weights[i] = math.Exp(-0.5 * x * x)
		sum += weights[i]
	}
	parts, left := make([]uint32, n), uint32(1<<16)
	for i, w := range weights {
		parts[i] = uint32(math.Round(w / sum * (1 << 16)))
		if i != n/2 {
			left -= parts[i]
		}
	}
	parts[n/2] = left
	return parts
}

func (o *blur) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	sigma := numbers.Uniform(o.low, o.high)
	pix := c.raster()
	w, h, n := c.width, c.height, c.channels
	if o.kx/2 >= w || o.ky/2 >= h {
		return nil, fmt.Errorf("an image of %d x %d is too small for a kernel of %d x %d", w, h, o.kx, o.ky)
	}
	to := c.s.buffer(len(pix))
	c.s.hold(2 * int64(len(pix)))
	if cap(c.s.middle) < len(pix) {
		c.s.middle = make([]uint16, len(pix))
	}
	middle := c.s.middle[:len(pix)]
	across, down := kernel(o.kx, sigma), kernel(o.ky, sigma)
	for y := range h {
		c.spend(w * n * o.kx * tapSteps)
		row, out := pix[y*w*n:][:w*n], middle[y*w*n:][:w*n]
		for x := range w {
			for k := range n {
				sum := uint32(128)
				for i, weight := range across {
					sum += weight * uint32(row[mirrored(x+i-o.kx/2, w)*n+k])
				}
				out[x*n+k] = uint16(sum >> 8) // eight bits of fraction
			}
		}
	}
	for y := range h {
		c.spend(w * n * o.ky * tapSteps)
		out := to[y*w*n:][:w*n]
		for x := range out {
			sum := uint64(1 << 23)
			for i, weight := range down {
				sum += uint64(weight) * uint64(middle[mirrored(y+i-o.ky/2, h)*w*n+x])
			}
			out[x] = uint8(min(sum>>24, 255))
		}
	}
	c.replace(to, w, h, n)
	c.s.meter.Free(2 * int64(len(pix)))
	return []program.Value{{Name: "sigma", Number: sigma}}, nil
}

func mirrored(i, n int) int {
	if i < 0 {
		return -i
	}
	if i >= n {
		return 2*n - 2 - i
	}
	return i
}

func (o *blur) bound(e extent) (extent, program.Cost) {
	return e, program.Cost{Working: e.bytes().Times(2), Steps: e.bytes().Times(int64(o.kx+o.ky) * tapSteps)}
}

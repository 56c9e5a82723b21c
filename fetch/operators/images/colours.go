package images

import (
	"encoding/binary"
	"fmt"
	"image"
	"iter"
	"math"
	"slices"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/program"
)

// The arithmetic is Pillow's: ImageEnhance, ImageOps, and Blend.c, Convert.c and Filter.c
// of libImaging. Conversions of products to their own type prevent the compiler from
// fusing them with sums, which would round differently.

// blend is degenerate + factor * (pixel - degenerate) in single precision, clipped and
// truncated (Blend.c). Factor 0 gives degenerate, 1 gives pixel.
func blend(degenerate, pixel uint8, factor float32) uint8 {
	v := float32(degenerate) + float32(factor*float32(int(pixel)-int(degenerate)))
	if v <= 0 {
		return 0
	}
	if v >= 255 {
		return 255
	}
	return uint8(v)
}

// parts returns the image's pixels for writing, in parts of at most partPixels. Each pixel
// takes that number of steps, and perChannel more for each channel. The caller must use all
// parts: the steps of a part are counted when it is yielded.
func (c *canvas) parts(steps, perChannel int) iter.Seq[[]byte] {
	pix := c.own()
	steps += perChannel * c.channels
	return func(yield func([]byte) bool) {
		for part := range slices.Chunk(pix, partPixels*c.channels) {
			c.spend(len(part) / c.channels * steps)
			if !yield(part) {
				return
			}
		}
	}
}

// partPixels is the number of pixels between two checks of the context. It bounds how late
// a run notices that it was cancelled.
const partPixels = 1 << 16

// through maps each byte by the table.
func (c *canvas) through(t *[256]uint8) {
	for pix := range c.parts(0, mapSteps) {
		for i, v := range pix {
			pix[i] = t[v]
		}
	}
}

// toward blends all pixels with a constant, by a table. A table is exact here: the blend of
// a byte with a constant depends only on the byte.
func (c *canvas) toward(value uint8, factor float64) {
	var t [256]uint8
	for i := range t {
		t[i] = blend(value, uint8(i), float32(factor))
	}
	c.through(&t)
}

// brightness blends with black, as ImageEnhance.Brightness.
func (c *canvas) brightness(factor float64) {
	if float32(factor) != 1 {
		c.toward(0, factor)
	}
}

// contrast blends with the rounded mean luma of the image, as ImageEnhance.Contrast. It
// needs a pass over the image before the table is known.
func (c *canvas) contrast(factor float64) {
	if float32(factor) == 1 {
		return
	}
	sum, n := uint64(0), 0
	for pix := range c.parts(lumaSteps, 0) {
		n += len(pix) / c.channels
		for i := range len(pix) / c.channels {
			if c.channels == 3 {
				sum += uint64(codec.Luma(pix[3*i], pix[3*i+1], pix[3*i+2]))
			} else {
				sum += uint64(pix[i])
			}
		}
	}
	c.toward(uint8(float64(sum)/float64(n)+0.5), factor)
}

// saturation blends each pixel with its luma, as ImageEnhance.Color. Grey images stay as
// they are.
func (c *canvas) saturation(factor float64) {
	if c.channels != 3 || float32(factor) == 1 {
		return
	}
	f := float32(factor)
	for pix := range c.parts(saturateSteps, 0) {
		for i := 0; i+2 < len(pix); i += 3 {
			l := codec.Luma(pix[i], pix[i+1], pix[i+2])
			pix[i], pix[i+1], pix[i+2] = blend(l, pix[i], f), blend(l, pix[i+1], f), blend(l, pix[i+2], f)
		}
	}
}

// hue rotates the hue by factor, a part of the circle in [-0.5, 0.5]. The hue is one byte,
// and addition wraps, as in torchvision's adjust_hue of PIL images. The addition of bytes
// is the wrap around the circle.
func (c *canvas) hue(factor float64) {
	if c.channels != 3 {
		return
	}
	shift := uint8(int32(float64(factor * 255)))
	for pix := range c.parts(hueSteps, 0) {
		for i := 0; i+2 < len(pix); i += 3 {
			h, s, v := toHSV(pix[i], pix[i+1], pix[i+2])
			pix[i], pix[i+1], pix[i+2] = fromHSV(h+shift, s, v)
		}
	}
}

// toHSV is rgb2hsv of Convert.c: hue, saturation and value in 0 to 255. Some sums are in
// double precision there, so they are here. Any other precision would move some hues by
// one.
func toHSV(r, g, b uint8) (h, s, v uint8) {
	high, low := max(r, g, b), min(r, g, b)
	if high == low {
		return 0, 0, high
	}
	span := float32(high - low)
	rc, gc, bc := float32(high-r)/span, float32(high-g)/span, float32(high-b)/span
	var turn float32
	switch high {
	case r:
		turn = bc - gc
	case g:
		turn = float32(2 + float64(rc) - float64(bc))
	default:
		turn = float32(4 + float64(gc) - float64(rc))
	}
	turn = float32(math.Mod(float64(turn)/6+1, 1))
	return uint8(int(float64(turn) * 255)), uint8(int(float64(span/float32(high)) * 255)), high
}

// fromHSV is hsv2rgb of Convert.c. The conversions to float64 and float32 stand where C
// converts.
func fromHSV(h, s, v uint8) (r, g, b uint8) {
	if s == 0 {
		return v, v, v
	}
	sector := math.Floor(float64(h) * 6 / 255)
	f := float32(float64(h)*6/255 - float64(float32(sector)))
	fs := float32(float64(s) / 255)
	part := func(x float64) uint8 { return uint8(min(max(math.Round(float64(v)*(1-x)), 0), 255)) }
	p, q := part(float64(fs)), part(float64(fs*f))
	t := part(float64(float64(fs) * (1 - float64(f))))
	switch int(sector) % 6 {
	case 0:
		return v, t, p
	case 1:
		return q, v, p
	case 2:
		return p, v, t
	case 3:
		return p, q, v
	case 4:
		return t, p, v
	default:
		return v, p, q
	}
}

// sharpness blends with the smoothed image, ImageFilter.SMOOTH: weights 5 for the pixel and
// 1 for each of its eight neighbours, divided by 13. The border pixels stay unchanged, as
// in ImageEnhance.Sharpness. It writes to a second buffer: every pixel needs its old
// neighbours. An image without inner pixels is unchanged.
func (c *canvas) sharpness(factor float64) {
	if float32(factor) == 1 {
		return
	}
	pix := c.own()
	w, h, n := c.width, c.height, c.channels
	if w < 3 || h < 3 {
		return
	}
	to := c.s.buffer(len(pix))
	copy(to, pix)
	for y := 1; y < h-1; y++ {
		c.spend(w * n * sharpenSteps)
		row := y * w * n
		for at := row + n; at < row+(w-1)*n; at++ {
			sum := 4 * int(pix[at])
			for _, line := range [3]int{at - w*n, at, at + w*n} {
				sum += int(pix[line-n]) + int(pix[line]) + int(pix[line+n])
			}
			// A multiple of 1/13 is never halfway between two integers, so integer
			// rounding equals Pillow's.
			to[at] = blend(uint8((2*sum+13)/26), pix[at], float32(factor))
		}
	}
	c.replace(to, w, h, n)
}

// posterize keeps the upper bits of each byte, as ImageOps.posterize.
func (c *canvas) posterize(bits int) {
	mask := byte(0xFF) << (8 - bits)
	for pix := range c.parts(0, mapSteps) {
		for i := range pix {
			pix[i] &= mask
		}
	}
}

// solarize inverts all bytes that are at least threshold, as ImageOps.solarize.
func (c *canvas) solarize(threshold float64) {
	var t [256]uint8
	for i := range t {
		if t[i] = uint8(i); float64(i) >= threshold {
			t[i] = 255 - uint8(i)
		}
	}
	c.through(&t)
}

// perChannel maps each channel by a table that make computes from the channel's histogram.
// It makes two passes, because a table is known only after the whole histogram.
func (c *canvas) perChannel(make func(bins *[256]int) [256]uint8) {
	var bins [4][256]int
	for pix := range c.parts(0, binSteps/2) {
		for k := range c.channels {
			for i := k; i < len(pix); i += c.channels {
				bins[k][pix[i]]++
			}
		}
	}
	var tables [4][256]uint8
	for k := range c.channels {
		tables[k] = make(&bins[k])
	}
	for pix := range c.parts(0, binSteps/2) {
		for k := range c.channels {
			t := &tables[k]
			for i := k; i < len(pix); i += c.channels {
				pix[i] = t[pix[i]]
			}
		}
	}
}

// same is the identity table.
func same() (t [256]uint8) {
	for i := range t {
		t[i] = uint8(i)
	}
	return t
}

// autoContrast stretches the used range of values to 0 to 255, as ImageOps.autocontrast
// with cutoff 0.
func autoContrast(bins *[256]int) [256]uint8 {
	t := same()
	low, high := 0, 255
	for low < 255 && bins[low] == 0 {
		low++
	}
	for high > 0 && bins[high] == 0 {
		high--
	}
	if high <= low {
		return t
	}
	// Truncated, as in ImageOps.
	scale := 255.0 / float64(high-low)
	offset := float64(-float64(low) * scale)
	for i := range t {
		t[i] = uint8(min(max(int(float64(float64(i)*scale)+offset), 0), 255))
	}
	return t
}

// equalize makes the histogram uniform, as ImageOps.equalize. The last used value does not
// count in the step, as there. A channel with one value, or with too few pixels for a step,
// stays unchanged.
func equalize(bins *[256]int) [256]uint8 {
	t := same()
	sum, last, kinds := 0, 0, 0
	for _, n := range bins {
		if n > 0 {
			sum, last, kinds = sum+n, n, kinds+1
		}
	}
	// Pillow's integer step of the cumulative histogram.
	step := (sum - last) / 255
	if kinds <= 1 || step == 0 {
		return t
	}
	n := step / 2
	for i := range t {
		t[i] = uint8(min(n/step, 255))
		n += bins[i]
	}
	return t
}

// jitter is ColorJitter: it changes brightness, contrast, saturation and hue in a random
// order. It is immutable. A factor that is always neutral is skipped, but its draw is not.
type jitter struct {
	ranges [4][2]float64 // [low, high] of each factor, in the order of jitters
	unset  [4]bool       // factors that never change anything
}

// jitters has the names of the factors. Their indices are those of the drawn order.
var jitters = [4]string{"brightness", "contrast", "saturation", "hue"}

// newColorJitter reads the four ranges, each [low, high] or one number.
func newColorJitter(b *builder, p *params) *program.StepError {
	o := &jitter{}
	for i, name := range jitters {
		o.ranges[i], o.unset[i] = p.around(name, i == 3)
	}
	return b.colours(o, true, 1, 3)
}

// around reads [low, high], or one number as the distance from the neutral factor: 1, or
// 0 for hue. unset is true if the factor is always neutral.
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

// apply implements operator. It draws three numbers for the order (Fisher-Yates), and then
// one for each factor, also for unused ones. Draws of later steps therefore do not depend
// on the parameters.
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

// bound implements operator: the factors that are not neutral, for each pixel.
func (o *jitter) bound(e extent) (extent, program.Cost) {
	each := e.channels
	for i, steps := range [4]int{mapSteps * e.channels, lumaSteps + mapSteps*e.channels, saturateSteps, hueSteps} {
		if !o.unset[i] {
			each += steps
		}
	}
	return e, e.each(each)
}

// blur is GaussianBlur: a separable kernel with a random sigma, and reflected borders.
type blur struct {
	kx, ky    int     // sizes of the kernel in pixels, odd
	low, high float64 // range of sigma in pixels
}

// newGaussianBlur reads kernel_size, [x, y] or one odd number, and sigma in pixels.
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

// kernel returns n weights, which sum to 65536. Integer arithmetic gives the same result on
// all CPUs, although exponentials may differ in the last bit. The rounding error goes to
// the middle weight. n is odd, so that there is a middle.
func kernel(n int, sigma float64) []uint32 {
	weights, sum := make([]float64, n), 0.0
	for i := range weights {
		x := float64(i-n/2) / sigma
		weights[i] = math.Exp(-0.5 * x * x)
		sum += weights[i]
	}
	// left is what the other weights leave for the middle one.
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

// apply implements operator. An image that is not larger than half the kernel is an error,
// like in torch: its reflection is undefined. The passes are separate: a kernel of k x k
// costs 2k steps for each value instead of k * k.
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
				// Horizontal pass.
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
			// Vertical pass: 16 bits of the weight and 8 bits of the intermediate value
			// are fraction.
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

// mirrored reflects index i into [0, n) without repeating the border: torch's padding
// mode "reflect".
func mirrored(i, n int) int {
	if i < 0 {
		return -i
	}
	if i >= n {
		return 2*n - 2 - i
	}
	return i
}

// bound implements operator: two bytes for each value between the passes.
func (o *blur) bound(e extent) (extent, program.Cost) {
	return e, program.Cost{Working: e.bytes().Times(2), Steps: e.bytes().Times(int64(o.kx+o.ky) * tapSteps)}
}

// randAugment is RandAugment (Cubuk et al.: "RandAugment: Practical automated data
// augmentation with a reduced search space", 2019) with the operations of torchvision.
type randAugment struct {
	ops, magnitude, bins int
	bilinear, mask       bool
	fill                 []byte
}

// The operations, in the order of torchvision's _AUGMENTATION_SPACE. Draws depend on it.
const (
	augIdentity = iota
	augShearX
	augShearY
	augTranslateX
	augTranslateY
	augRotate
	augBrightness
	augColor
	augContrast
	augSharpness
	augPosterize
	augSolarize
	augAutoContrast
	augEqualize
	augments
)

// newRandAugment reads the parameters of torchvision, with its defaults. A mask gets the
// geometric operations only.
func newRandAugment(b *builder, p *params) *program.StepError {
	o := &randAugment{mask: b.mask}
	o.ops = p.integer("num_ops", 2, 0, 16)
	o.magnitude = p.integer("magnitude", 9, 0, 1000)
	o.bins = p.integer("num_magnitude_bins", 31, 2, 1001)
	if o.magnitude >= o.bins {
		p.fail("magnitude", "got %d, takes less than num_magnitude_bins, %d", o.magnitude, o.bins)
	}
	o.bilinear = p.word("interpolation", "nearest", "nearest", "bilinear") == "bilinear" && !b.mask
	o.fill = p.fill(b, "fill")
	if b.mask {
		return b.pixels(o, true)
	}
	return b.colours(o, true, 1, 3)
}

// linear is torch.linspace(from, to, bins)[magnitude] in single precision. Like torch, it
// computes the upper half from the end. The order of operations decides the last bit, which
// decides rounding later.
func (o *randAugment) linear(from, to float64) float64 {
	step := float32(to-from) / float32(o.bins-1)
	if o.magnitude < o.bins/2 {
		return float64(float32(from) + float32(step*float32(o.magnitude)))
	}
	return float64(float32(to) - float32(step*float32(o.bins-1-o.magnitude)))
}

// apply implements operator. It returns the kind and the signed magnitude of each
// operation. Both draws are made for each operation, so that the number of draws does not
// depend on the kind.
func (o *randAugment) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	var values []program.Value
	// Draws per operation: kind, then sign.
	for range o.ops {
		kind, negative := numbers.IntN(augments), numbers.Chance(0.5)
		m := o.strength(c, kind)
		if negative && kind >= augShearX && kind <= augSharpness {
			m = -m
		}
		values = append(values, program.Value{Name: "op", Number: float64(kind)},
			program.Value{Name: "magnitude", Number: m})
		if kind <= augRotate {
			o.geometry(c, kind, m)
		} else if !o.mask {
			colour(c, kind, m)
		}
	}
	return values, nil
}

// strength is the magnitude of an operation before its sign: torchvision's
// _AUGMENTATION_SPACE for an image of this size. Solarize's is a share of 255.
func (o *randAugment) strength(c *canvas, kind int) float64 {
	w, h := c.size()
	switch kind {
	case augShearX, augShearY:
		return o.linear(0, 0.3)
	case augTranslateX:
		return o.linear(0, 150.0/331.0*float64(w))
	case augTranslateY:
		return o.linear(0, 150.0/331.0*float64(h))
	case augRotate:
		return o.linear(0, 30)
	case augBrightness, augColor, augContrast, augSharpness:
		return o.linear(0, 0.9)
	case augPosterize:
		return math.RoundToEven(float64(8 - float32(o.magnitude)/(float32(o.bins-1)/4)))
	case augSolarize:
		return o.linear(1, 0)
	}
	return 0
}

// geometry applies a shear, translation or rotation. The matrices map the result to the
// source; shears are around the upper left corner, as in torchvision.
func (o *randAugment) geometry(c *canvas, kind int, m float64) {
	w, h := c.size()
	inverse := affine{1, 0, 0, 0, 1, 0}
	switch kind {
	case augShearX:
		inverse[1] = math.Tan(radians(degrees(m)))
	case augShearY:
		// torchvision's matrix of a shear along y without rotation, with the terms that
		// are not zero.
		shear := radians(degrees(m))
		a, b := math.Cos(-shear)/math.Cos(shear), math.Sin(-shear)/math.Cos(shear)
		inverse[3], inverse[4] = -b, a
	case augTranslateX:
		inverse[2] = -math.Trunc(m)
	case augTranslateY:
		inverse[5] = -math.Trunc(m)
	case augRotate:
		c.rotate(m, o.bilinear, false, nil, o.fill)
		return
	default:
		return
	}
	c.transform(inverse, w, h, o.bilinear, o.fill)
}

// degrees and radians round as math.degrees and math.radians of Python. degrees returns
// the angle of a shear.
func degrees(shear float64) float64 { return math.Atan(shear) * (180 / math.Pi) }

func radians(angle float64) float64 { return angle * (math.Pi / 180) }

// colour applies an operation on colours. Factors are 1 + m. kind must be one of the
// operations after augRotate; others change nothing.
func colour(c *canvas, kind int, m float64) {
	switch kind {
	case augBrightness:
		c.brightness(1 + m)
	case augColor:
		c.saturation(1 + m)
	case augContrast:
		c.contrast(1 + m)
	case augSharpness:
		c.sharpness(1 + m)
	case augPosterize:
		c.posterize(int(m))
	case augSolarize:
		c.solarize(255 * m)
	case augAutoContrast:
		c.perChannel(autoContrast)
	case augEqualize:
		c.perChannel(equalize)
	}
}

// bound implements operator: every operation may be the most expensive one.
func (o *randAugment) bound(e extent) (extent, program.Cost) {
	// The most expensive operation, and the layout of pixels before it.
	most := max(warped(o.bilinear), saturateSteps, (sharpenSteps+1)*e.channels, binSteps*e.channels,
		lumaSteps+mapSteps*e.channels)
	return e, e.each(o.ops * (most + (2*rowSteps+1)*e.channels))
}

// erasing is RandomErasing (Zhong et al.: "Random Erasing Data Augmentation", 2017): it
// fills a random box. Before ToDtype it is a step on pixels, after it a step on the result.
// Its place in the list of steps decides which of apply and lay runs.
type erasing struct {
	p                         float64   // probability
	least, most, narrow, wide float64   // ranges of the area's share and of height / width
	values                    []float64 // one for all channels, or one for each
}

// newRandomErasing reads the parameters. "inplace" has no meaning here and is ignored;
// values are in the tensor's units.
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

// box is torchvision's make_params: up to ten attempts. The empty box means that nothing is
// erased. Ten attempts bound the work: a share and a ratio may fit no box of the image.
func (o *erasing) box(w, h int, numbers *draw.Source) image.Rectangle {
	if !numbers.Chance(o.p) {
		return image.Rectangle{}
	}
	area := float64(w) * float64(h)
	for range 10 {
		// Draws: area, ratio, then the position if the box fits.
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

// value is the fill value of a channel.
func (o *erasing) value(channel int) float64 { return o.values[min(channel, len(o.values)-1)] }

// apply implements operator, for pixels of bytes.
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

// bound implements operator: the box may be the whole image.
func (o *erasing) bound(e extent) (extent, program.Cost) {
	return e, e.each(e.channels * (eraseSteps + 1))
}

// lay erases in the result, in its type and layout. out has been written completely by
// then.
func (o *erasing) lay(c *canvas, out *output, numbers *draw.Source) []program.Value {
	box := o.box(out.width, out.height, numbers)
	size := sizeOf(out.dtype)
	for k := range out.channels {
		// The value is not normalised: torchvision's RandomErasing after Normalize writes
		// it as it is.
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

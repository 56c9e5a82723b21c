package images

import (
	"iter"
	"math"
	"slices"

	"bowstring/fetch/operators/images/codec"
)

// The arithmetic here is Pillow's: ImageEnhance, libImaging's Blend.c, Convert.c and
// Filter.c, ImageOps.

// blend is degenerate + factor * (pixel - degenerate), in single precision.
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

// parts gives an image's pixels for writing, some at a time. A pixel of them takes so many steps, and as many for each of
// its channels as perChannel says.
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

// partPixels are those that are worked on between two looks at the context.
const partPixels = 1 << 16

// through replaces each byte by a table's.
func (c *canvas) through(t *[256]uint8) {
	for pix := range c.parts(0, mapSteps) {
		for i, v := range pix {
			pix[i] = t[v]
		}
	}
}

// toward blends all pixels with one value.
func (c *canvas) toward(value uint8, factor float64) {
	var t [256]uint8
	for i := range t {
		t[i] = blend(value, uint8(i), float32(factor))
	}
	c.through(&t)
}

func (c *canvas) brightness(factor float64) {
	if float32(factor) != 1 {
		c.toward(0, factor)
	}
}

// contrast blends with the mean luma.
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

// saturation blends with the luma of each pixel.
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

// hue turns colours by a part of the circle, in bytes.
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

// sharpness blends with the image smoothed: the pixel five times, and its eight
// neighbours, by 13. The outermost pixels stay.
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
			// Thirteenths are never halfway, so single precision rounds as whole numbers do.
			to[at] = blend(uint8((2*sum+13)/26), pix[at], float32(factor))
		}
	}
	c.replace(to, w, h, n)
}

func (c *canvas) posterize(bits int) {
	mask := byte(0xFF) << (8 - bits)
	for pix := range c.parts(0, mapSteps) {
		for i := range pix {
			pix[i] &= mask
		}
	}
}

func (c *canvas) solarize(threshold float64) {
	var t [256]uint8
	for i := range t {
		if t[i] = uint8(i); float64(i) >= threshold {
			t[i] = 255 - uint8(i)
		}
	}
	c.through(&t)
}

// perChannel maps each channel by a table that is made of its histogram.
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

func same() (t [256]uint8) {
	for i := range t {
		t[i] = uint8(i)
	}
	return t
}

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
	scale := 255.0 / float64(high-low)
	offset := float64(-float64(low) * scale)
	for i := range t {
		t[i] = uint8(min(max(int(float64(float64(i)*scale)+offset), 0), 255))
	}
	return t
}

func equalize(bins *[256]int) [256]uint8 {
	t := same()
	sum, last, kinds := 0, 0, 0
	for _, n := range bins {
		if n > 0 {
			sum, last, kinds = sum+n, n, kinds+1
		}
	}
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

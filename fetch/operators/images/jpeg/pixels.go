package jpeg

import "encoding/binary"

// The accurate integer inverse DCT of libjpeg's jidctint.c: constants with 13 bits of
// fraction, and 2 bits of fraction between the passes. fix0298 is 0.298631336 * 2^13, and
// so on.
const (
	constBits = 13
	passBits  = 2

	fix0298 = 2446
	fix0390 = 3196
	fix0541 = 4433
	fix0765 = 6270
	fix0899 = 7373
	fix1175 = 9633
	fix1501 = 12299
	fix1847 = 15137
	fix1961 = 16069
	fix2053 = 16819
	fix2562 = 20995
	fix3072 = 25172
)

// clamp clips to a byte. The comparison is unsigned, so one branch detects both sides.
func clamp(v int32) uint8 {
	if uint32(v) > 255 {
		v = ^v >> 31
	}
	return uint8(v)
}

// flat writes a block with only a DC coefficient. All samples are equal, so a row is one
// store of eight bytes.
func flat(dc int32, out []byte, stride int) {
	v := uint64(clamp((dc<<passBits+1<<(passBits+2))>>(passBits+3)+128)) * 0x0101010101010101
	for y := range 8 {
		binary.LittleEndian.PutUint64(out[y*stride:], v)
	}
}

// inverseGo writes the 8x8 samples of a block and clears the block. columns has a bit for
// each column with a coefficient other than its first. out must have room for eight rows of
// that stride. It is the reference for the assembly, which has to return the same bytes.
func inverseGo(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	// Columns first, without the final shift: two bits of fraction remain for the rows.
	for i := range 8 {
		if columns&(1<<i) == 0 {
			// Equal to the full transform, also for values that overflow.
			v := (b[i]<<constBits + 1<<(constBits-passBits-1)) >> (constBits - passBits)
			for y := 0; y < blockSize; y += 8 {
				b[i+y] = v
			}
			continue
		}
		c := b[i:]
		_ = c[56]
		z2, z3 := c[16], c[48]
		z1 := (z2 + z3) * fix0541
		t2, t3 := z1-z3*fix1847, z1+z2*fix0765
		t0, t1 := (c[0]+c[32])<<constBits, (c[0]-c[32])<<constBits
		a0, a3, a1, a2 := t0+t3, t0-t3, t1+t2, t1-t2
		o0, o1, o2, o3 := odd(c[56], c[40], c[24], c[8])
		const down, half = constBits - passBits, 1 << (constBits - passBits - 1)
		c[0], c[56] = (a0+o3+half)>>down, (a0-o3+half)>>down
		c[8], c[48] = (a1+o2+half)>>down, (a1-o2+half)>>down
		c[16], c[40] = (a2+o1+half)>>down, (a2-o1+half)>>down
		c[24], c[32] = (a3+o0+half)>>down, (a3-o0+half)>>down
	}
	// Rows, with the level shift of 128 in the rounding constant.
	for y := range 8 {
		c := (*[8]int32)(b[y*8:])
		row := (*[8]byte)(out[y*stride:])
		const down = constBits + passBits + 3
		const half = 1<<(down-1) + 128<<down
		z2, z3 := c[2], c[6]
		z1 := (z2 + z3) * fix0541
		t2, t3 := z1-z3*fix1847, z1+z2*fix0765
		t0, t1 := (c[0]+c[4])<<constBits+half, (c[0]-c[4])<<constBits+half
		a0, a3, a1, a2 := t0+t3, t0-t3, t1+t2, t1-t2
		o0, o1, o2, o3 := odd(c[7], c[5], c[3], c[1])
		row[0], row[7] = clamp((a0+o3)>>down), clamp((a0-o3)>>down)
		row[1], row[6] = clamp((a1+o2)>>down), clamp((a1-o2)>>down)
		row[2], row[5] = clamp((a2+o1)>>down), clamp((a2-o1)>>down)
		row[3], row[4] = clamp((a3+o0)>>down), clamp((a3-o0)>>down)
	}
	*b = [blockSize]int32{}
}

// odd is the odd part of the 8-point transform, figure 8 of the paper. The forward and the
// inverse transform share it.
func odd(t0, t1, t2, t3 int32) (int32, int32, int32, int32) {
	z1, z2, z3, z4 := t0+t3, t1+t2, t0+t2, t1+t3
	z5 := (z3 + z4) * fix1175
	t0, t1, t2, t3 = t0*fix0298, t1*fix2053, t2*fix3072, t3*fix1501
	z1, z2, z3, z4 = -z1*fix0899, -z2*fix2562, z5-z3*fix1961, z5-z4*fix0390
	return t0 + z1 + z3, t1 + z2 + z4, t2 + z2 + z3, t3 + z1 + z4
}

// filter is the upsampling method of a component. The names of the constants have those of
// libjpeg's functions.
type filter uint8

const (
	repeat  filter = iota // replicate samples
	wider2                // h2v1_fancy_upsample: triangle filter along rows
	higher2               // h1v2_fancy_upsample: triangle filter along columns
	both2                 // h2v2_fancy_upsample: both
)

// filterOf selects the method like jinit_upsampler of jdsample.c: narrow components are
// replicated. A component of full size is replicated once, which copies it.
func filterOf(wider, higher, width int) filter {
	switch {
	case wider == 2 && higher == 1 && width > 2:
		return wider2
	case wider == 1 && higher == 2:
		return higher2
	case wider == 2 && higher == 2 && width > 2:
		return both2
	}
	return repeat
}

// line returns row y of the samples, from column c.left*8 on. Rows outside of the image
// are the nearest one.
func (c *component) line(y int) []byte {
	y = min(max(y, 0), c.height-1) - c.top*8
	return c.samples[y*c.stride : (y+1)*c.stride]
}

// row returns the samples of row y for the pixels [x0, x1): in spare, or a part of the
// samples.
func (c *component) row(y, x0, x1 int, spare []byte) []byte {
	origin := c.left * 8
	if c.wider == 1 && c.higher == 1 {
		return c.line(y)[x0-origin : x1-origin]
	}
	at := y / c.higher
	other := at + 1
	if y&1 == 0 {
		other = at - 1
	}
	out := spare[:x1-x0]
	switch c.filter {
	case wider2:
		triangle(c.line(at), origin, c.width, x0, x1, out)
	case higher2:
		near, far := c.line(at)[x0-origin:x1-origin], c.line(other)[x0-origin:x1-origin]
		bias := uint(1 + y&1)
		for i := range out {
			out[i] = byte((uint(near[i])*3 + uint(far[i]) + bias) >> 2)
		}
	case both2:
		triangle2(c.line(at), c.line(other), origin, c.width, x0, x1, out)
	default:
		line := c.line(at)
		for i := range out {
			out[i] = line[(x0+i)/c.wider-origin]
		}
	}
	return out
}

// triangle doubles the number of samples with weights 3/4 of the nearer and 1/4 of the
// farther one. The first and the last sample of the image's row have only one neighbour.
// The rounding alternates between 1 and 2. Only the borders need the checks of one; the
// loop between them has none.
func triangle(in []byte, origin, width, x0, x1 int, out []byte) {
	one := func(x int) byte {
		i := x / 2
		v := uint(in[i-origin])
		switch {
		case x == 0 || x == 2*width-1:
			return byte(v)
		case x&1 == 0:
			return byte((v*3 + uint(in[i-1-origin]) + 1) >> 2)
		default:
			return byte((v*3 + uint(in[i+1-origin]) + 2) >> 2)
		}
	}
	// First the sample at the border and an odd start, one by one.
	x := x0
	for x < x1 && (x == 0 || x&1 == 1) {
		out[x-x0] = one(x)
		x++
	}
	// Then pairs: both samples between two neighbours come from the same three inputs.
	end := min(x1, 2*width-1)
	if n := (end - x) / 2; n > 0 {
		i := x/2 - origin
		src, dst := in[i-1:i+n+1], out[x-x0:x-x0+2*n]
		last, this := uint(src[0]), uint(src[1])
		for _, b := range src[2:] {
			next := uint(b)
			dst[0], dst[1] = byte((this*3+last+1)>>2), byte((this*3+next+2)>>2)
			dst = dst[2:]
			last, this = this, next
		}
		x += 2 * n
	}
	for ; x < x1; x++ {
		out[x-x0] = one(x)
	}
}

// triangle2 is triangle for the sums 3 * near + far of two rows, with a single rounding.
// Two roundings, one for each direction, would differ from libjpeg.
func triangle2(near, far []byte, origin, width, x0, x1 int, out []byte) {
	sum := func(i int) uint { return uint(near[i-origin])*3 + uint(far[i-origin]) }
	one := func(x int) byte {
		i := x / 2
		switch v := sum(i); {
		case x == 0:
			return byte((v*4 + 8) >> 4)
		case x == 2*width-1:
			return byte((v*4 + 7) >> 4)
		case x&1 == 0:
			return byte((v*3 + sum(i-1) + 8) >> 4)
		default:
			return byte((v*3 + sum(i+1) + 7) >> 4)
		}
	}
	// As in triangle: the border, then pairs, then the rest.
	x := x0
	for x < x1 && (x == 0 || x&1 == 1) {
		out[x-x0] = one(x)
		x++
	}
	end := min(x1, 2*width-1)
	if n := (end - x) / 2; n > 0 {
		i := x/2 - origin
		a, b, dst := near[i-1:i+n+1], far[i-1:i+n+1], out[x-x0:x-x0+2*n]
		b = b[:len(a)]
		last, this := uint(a[0])*3+uint(b[0]), uint(a[1])*3+uint(b[1])
		for j := 2; j < len(a); j++ {
			next := uint(a[j])*3 + uint(b[j])
			dst[0], dst[1] = byte((this*3+last+8)>>4), byte((this*3+next+7)>>4)
			dst = dst[2:]
			last, this = this, next
		}
		x += 2 * n
	}
	for ; x < x1; x++ {
		out[x-x0] = one(x)
	}
}

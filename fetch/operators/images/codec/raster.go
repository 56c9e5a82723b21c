package codec

import (
	"encoding/binary"
	"image"
	"image/color"
	"math"

	"bowstring/fetch/operators/images/codec/tiff"
)

// channelsIn is how many channels an image has: one of grey or indices, three, or four with alpha.
func channelsIn(m image.Image, f Format) int {
	switch m := m.(type) {
	case *image.Gray, *image.Gray16, *image.Paletted, *tiff.Numbers:
		return 1
	case *image.YCbCr:
		return 3
	case *image.RGBA:
		if m.Opaque() {
			return 3
		}
	case *image.RGBA64:
		if m.Opaque() {
			return 3
		}
	case *image.NRGBA: // what WebP without losses always is
		if f == WebP && m.Opaque() {
			return 3
		}
	}
	return 4
}

// rowOther gives a row of an image of the libraries: alpha is left out where three
// channels or one are wanted, and sixteen bits become their higher eight.
func (d *Decoder) rowOther(y int, out []byte) {
	if d.mode.Deep() {
		d.rowDeep(y, out)
		return
	}
	n := d.region.Dx()
	x, y := d.other.Bounds().Min.X+d.region.Min.X, d.other.Bounds().Min.Y+y
	switch m := d.other.(type) {
	case *tiff.Numbers:
		d.numbers(m.Pix[y*m.Rect.Dx()+x:][:n], out)
	case *image.Gray:
		recode(m.Pix[m.PixOffset(x, y):][:n], 1, out, d.channels)
	case *image.Gray16:
		in := m.Pix[m.PixOffset(x, y):][:2*n]
		row := d.spareRow(n)
		for i := range row {
			row[i] = in[2*i]
		}
		recode(row, 1, out, d.channels)
	case *image.Paletted:
		d.paletted(m.Pix[m.PixOffset(x, y):][:n], m.Palette, out)
	case *image.NRGBA:
		fromAlpha(m.Pix[m.PixOffset(x, y):][:4*n], 1, out, d.channels)
	case *image.RGBA:
		fromAlpha(m.Pix[m.PixOffset(x, y):][:4*n], 1, out, d.channels)
	case *image.NRGBA64:
		fromAlpha(m.Pix[m.PixOffset(x, y):][:8*n], 2, out, d.channels)
	case *image.RGBA64:
		fromAlpha(m.Pix[m.PixOffset(x, y):][:8*n], 2, out, d.channels)
	case *image.CMYK:
		recode(m.Pix[m.PixOffset(x, y):][:4*n], 4, out, d.channels)
	case *image.YCbCr:
		row := d.spareRow(3 * n)
		webpRow(m, x, y, row)
		recode(row, 3, out, d.channels)
	case *image.NYCbCrA:
		row := d.spareRow(3 * n)
		webpRow(&m.YCbCr, x, y, row)
		if d.channels < 4 {
			recode(row, 3, out, d.channels)
			return
		}
		for i := range n {
			copy(out[4*i:4*i+3], row[3*i:])
			out[4*i+3] = m.A[m.AOffset(x+i, y)]
		}
	default:
		for i := range n {
			c := color.NRGBAModel.Convert(m.At(x+i, y)).(color.NRGBA)
			fromAlpha([]byte{c.R, c.G, c.B, c.A}, 1, out[i*d.channels:], d.channels)
		}
	}
}

// numbers gives a row of numbers: as they are, or as Pillow makes bytes of them. What is below 0 is 0, what is above 255
// is 255, and fractions are left out.
func (d *Decoder) numbers(in []float32, out []byte) {
	if d.mode == Float {
		for i, v := range in {
			binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(v))
		}
		return
	}
	row := d.spareRow(len(in))
	for i, v := range in {
		row[i] = 0
		if v > 0 { // NaN is not
			row[i] = byte(min(v, 255))
		}
	}
	recode(row, 1, out, d.channels)
}

func (d *Decoder) spareRow(n int) []byte {
	if cap(d.row) < n {
		d.row = make([]byte, n)
	}
	return d.row[:n]
}

// paletted gives colours, or indices where the mode is Unchanged.
func (d *Decoder) paletted(in []byte, p color.Palette, out []byte) {
	if d.mode == Unchanged {
		copy(out, in)
		return
	}
	for i, v := range in {
		var c color.NRGBA
		if int(v) < len(p) {
			c = colourOf(p[v])
		}
		if d.channels == 1 {
			out[i] = Luma(c.R, c.G, c.B)
			continue
		}
		out[3*i], out[3*i+1], out[3*i+2] = c.R, c.G, c.B
	}
}

// colourOf is a colour without its alpha. A transparent one keeps what it says, as in Pillow.
func colourOf(c color.Color) color.NRGBA {
	switch c := c.(type) {
	case color.NRGBA:
		return c
	case color.RGBA:
		return color.NRGBA(c)
	}
	return color.NRGBAModel.Convert(c).(color.NRGBA)
}

// fromAlpha takes pixels of four channels of wide bytes.
func fromAlpha(in []byte, wide int, out []byte, channels int) {
	for at, to := 0, 0; at < len(in); at, to = at+4*wide, to+channels {
		r, g, b := in[at], in[at+wide], in[at+2*wide]
		switch channels {
		case 1:
			out[to] = Luma(r, g, b)
		case 3:
			out[to], out[to+1], out[to+2] = r, g, b
		default:
			out[to], out[to+1], out[to+2], out[to+3] = r, g, b, in[at+3*wide]
		}
	}
}

// webpRow gives the colours of WebP's lossy images, as libwebp has them: fractions of
// 14 bits, and chroma mixed of the nearest four, nine to three to three to one.
//
// The standard library would take them for JPEG's, whose range is another.
func webpRow(m *image.YCbCr, x, y int, out []byte) {
	width, height := m.Rect.Dx(), m.Rect.Dy()
	cw, ch := (width+1)/2, (height+1)/2
	near := y / 2
	far := near + 1
	if y&1 == 0 {
		far = near - 1
	}
	far = min(max(far, 0), ch-1)
	mix := func(plane []byte, x int) int {
		cx := x / 2
		beside := cx + 1
		if x&1 == 0 {
			beside = cx - 1
		}
		a, c := int(plane[near*m.CStride+cx]), int(plane[far*m.CStride+cx])
		if beside < 0 || beside >= cw {
			return (3*a + c + 2) >> 2
		}
		b, d := int(plane[near*m.CStride+beside]), int(plane[far*m.CStride+beside])
		// The order of roundings is libwebp's: the mean of the diagonal, then the nearest.
		return ((a+b+c+d+8+2*(b+c))>>3 + a) >> 1
	}
	for i := range len(out) / 3 {
		l, u, v := int(m.Y[y*m.YStride+x+i]), mix(m.Cb, x+i), mix(m.Cr, x+i)
		l = l * 19077 >> 8
		out[3*i] = clip6(l + v*26149>>8 - 14234)
		out[3*i+1] = clip6(l - u*6419>>8 - v*13320>>8 + 8708)
		out[3*i+2] = clip6(l + u*33050>>8 - 17685)
	}
}

func clip6(v int) uint8 { return uint8(min(max(v>>6, 0), 255)) }

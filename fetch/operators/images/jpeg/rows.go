package jpeg

// Channels is how many bytes a pixel has: 1, 3 (RGB), or 4 (CMYK as it is stored, YCCK
// made CMYK; Adobe's programs store complements).
func (d *Decoder) Channels() int { return d.header.Components }

// Row writes the pixels of row y of the image, of the region's columns.
func (d *Decoder) Row(y int, out []byte) {
	x0, x1 := d.region.Min.X, d.region.Max.X
	n := x1 - x0
	var in [4][]byte
	for i := range d.frame {
		if cap(d.spare[i]) < n {
			d.spare[i] = make([]byte, n)
		}
		in[i] = d.frame[i].row(y, x0, x1, d.spare[i][:n])
	}
	switch d.header.Space {
	case Grey:
		copy(out[:n], in[0])
	case YCbCr:
		toRGB(in[0], in[1], in[2], out[:3*n])
	case RGB:
		for i := range n {
			out[3*i], out[3*i+1], out[3*i+2] = in[0][i], in[1][i], in[2][i]
		}
	case CMYK:
		for i := range n {
			out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = in[0][i], in[1][i], in[2][i], in[3][i]
		}
	case YCCK:
		for i := range n {
			r, g, b := convert(in[0][i], in[1][i], in[2][i])
			out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = 255-r, 255-g, 255-b, in[3][i]
		}
	}
}

// chroma is what a colour difference adds, as libjpeg's jdcolor.c has it: to red and
// blue rounded, to green in fractions of 16 bits, with the half in that of Cr.
var chroma = func() (t [256]struct{ red, blue, greenCr, greenCb int32 }) {
	const half = 1 << 15
	fix := func(x float64) int32 { return int32(x*65536 + 0.5) }
	for i := range t {
		x := int32(i) - 128
		t[i].red, t[i].blue = (fix(1.40200)*x+half)>>16, (fix(1.77200)*x+half)>>16
		t[i].greenCr, t[i].greenCb = -fix(0.71414)*x, -fix(0.34414)*x+half
	}
	return t
}()

func convert(y, cb, cr uint8) (r, g, b uint8) {
	v, u, w := int32(y), &chroma[cr], &chroma[cb]
	return clamp(v + u.red), clamp(v + (u.greenCr+w.greenCb)>>16), clamp(v + w.blue)
}

func toRGB(y, cb, cr, out []byte) {
	cb, cr = cb[:len(y)], cr[:len(y)]
	for i, v := range y {
		r, g, b := convert(v, cb[i], cr[i])
		o := (*[3]byte)(out)
		o[0], o[1], o[2] = r, g, b
		out = out[3:]
	}
}

package tiff

import (
	"encoding/binary"
	"image"
	"image/color"
	"math"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// predicted undoes the prediction of a row of a block: each sample is the difference to
// that of the pixel before. The addition wraps, as the writer's subtraction has. Padding of
// the block is included.
func (d *decoder) predicted(row []byte, across int) {
	per := d.samples
	if d.planar {
		per = 1
	}
	switch wide := d.bits / 8; {
	case d.predictor == 3:
		d.floats(row[:across*wide], per)
	case d.predictor != 2:
	case wide == 1:
		for i := per; i < across*per; i++ {
			row[i] += row[i-per]
		}
	case wide == 2:
		for i := 2 * per; i < 2*across*per; i += 2 {
			d.order.PutUint16(row[i:], d.order.Uint16(row[i:])+d.order.Uint16(row[i-2*per:]))
		}
	case wide == 4:
		for i := 4 * per; i < 4*across*per; i += 4 {
			d.order.PutUint32(row[i:], d.order.Uint32(row[i:])+d.order.Uint32(row[i-4*per:]))
		}
	case wide == 8:
		for i := 8 * per; i < 8*across*per; i += 8 {
			d.order.PutUint64(row[i:], d.order.Uint64(row[i:])+d.order.Uint64(row[i-8*per:]))
		}
	}
}

// target is the decoded image; one of the fields is set. The types are those of the
// standard library, so that package codec treats all formats alike.
type target struct {
	grey   *image.Gray
	grey16 *image.Gray16
	index  *image.Paletted
	rgb    *image.RGBA
	rgba   *image.NRGBA
	rgb16  *image.RGBA64
	rgba16 *image.NRGBA64
	cmyk   *image.CMYK

	numbers *Numbers
}

// begin allocates the image for the layout. It fails only for a damaged palette.
func (t *target) begin(h *Header) error {
	r := image.Rect(0, 0, h.Width, h.Height)
	switch {
	case h.Layout == Grey && h.Deep:
		t.grey16 = image.NewGray16(r)
	// Numbers are converted to float32 whatever their type.
	case h.Layout == Number:
		t.numbers = &Numbers{make([]float32, h.Width*h.Height), r}
	case h.Layout == Grey:
		t.grey = image.NewGray(r)
	case h.Layout == Palette:
		// A palette has all red values first, then green, then blue, of 16 bits each.
		colours, n := h.dir.tag(tagColours), int64(1)<<h.bits
		if colours.n < 3*n || colours.kind != 3 {
			return damaged("its palette has %d numbers of %d", colours.n, 3*n)
		}
		p := make(color.Palette, n)
		for i := range p {
			at := func(c int64) uint8 { return uint8(colours.at(c*n+int64(i), 0) >> 8) }
			p[i] = color.NRGBA{R: at(0), G: at(1), B: at(2), A: 255}
		}
		t.index = image.NewPaletted(r, p)
	case h.Layout == Colours && h.Deep:
		t.rgb16 = image.NewRGBA64(r)
	case h.Layout == Colours:
		t.rgb = image.NewRGBA(r)
	case h.Layout == ColoursAlpha && h.Deep:
		t.rgba16 = image.NewNRGBA64(r)
	case h.Layout == ColoursAlpha:
		t.rgba = image.NewNRGBA(r)
	default:
		t.cmyk = image.NewCMYK(r)
	}
	return nil
}

// image returns the decoded image.
func (t *target) image() image.Image {
	switch {
	case t.grey != nil:
		return t.grey
	case t.grey16 != nil:
		return t.grey16
	case t.numbers != nil:
		return t.numbers
	case t.index != nil:
		return t.index
	case t.rgb != nil:
		return t.rgb
	case t.rgba != nil:
		return t.rgba
	case t.rgb16 != nil:
		return t.rgb16
	case t.rgba16 != nil:
		return t.rgba16
	}
	return t.cmyk
}

// row writes n pixels from (x, y) on. in has the samples of one row of a block, without
// prediction. Inverted grey is turned here, so that black is 0 in every result.
func (t *target) row(h *Header, in []byte, x, y, n int) {
	invert := byte(0)
	if h.photometric == photoWhiteIsZero {
		invert = 0xff
	}
	switch {
	case h.Layout == Number:
		numbers(h, in, t.numbers.Pix[y*h.Width+x:][:n])
	case t.grey != nil:
		out := t.grey.Pix[t.grey.PixOffset(x, y):][:n]
		// The largest sample becomes 255.
		small(in, h.bits, h.samples, out, 255/(1<<h.bits-1))
		for i := range out {
			out[i] ^= invert
		}
	case t.index != nil:
		small(in, h.bits, h.samples, t.index.Pix[t.index.PixOffset(x, y):][:n], 1)
	case t.grey16 != nil:
		out := t.grey16.Pix[t.grey16.PixOffset(x, y):]
		for i := range n {
			v := h.order.Uint16(in[2*i*h.samples:])
			out[2*i], out[2*i+1] = byte(v>>8)^invert, byte(v)^invert
		}
	case t.cmyk != nil:
		// CMYK has 8 or 16 bits; the upper byte is used.
		wide := h.bits / 8
		high := h.high()
		out := t.cmyk.Pix[t.cmyk.PixOffset(x, y):]
		for i := range n {
			for c := range 4 {
				out[4*i+c] = in[(i*h.samples+c)*wide+high]
			}
		}
	case h.Deep:
		t.deep(h, in, x, y, n, invert)
	default:
		var out []byte
		if t.rgb != nil {
			out = t.rgb.Pix[t.rgb.PixOffset(x, y):][:4*n]
		} else {
			out = t.rgba.Pix[t.rgba.PixOffset(x, y):][:4*n]
		}
		for i := range n {
			px, to := in[i*h.samples:][:h.samples], out[4*i:][:4]
			if h.photometric <= photoBlackIsZero {
				v := px[0] ^ invert
				to[0], to[1], to[2], to[3] = v, v, v, px[1]
			} else {
				to[0], to[1], to[2], to[3] = px[0], px[1], px[2], 255
				if t.rgba != nil {
					to[3] = px[3]
				}
			}
			if h.associated {
				divided(to)
			}
		}
	}
}

// high is the index of the upper byte of a sample. CMYK of 16 bits is reduced to it.
func (h *Header) high() int {
	if h.bits == 16 && h.order == binary.LittleEndian {
		return 1
	}
	return 0
}

// deep writes pixels of 16 bits per channel, big-endian like Go's image types. The byte
// order of the file decides which byte of a sample comes first.
func (t *target) deep(h *Header, in []byte, x, y, n int, invert byte) {
	var out []byte
	if t.rgb16 != nil {
		out = t.rgb16.Pix[t.rgb16.PixOffset(x, y):][:8*n]
	} else {
		out = t.rgba16.Pix[t.rgba16.PixOffset(x, y):][:8*n]
	}
	high := h.high()
	for i := range n {
		px, to := in[2*i*h.samples:][:2*h.samples], out[8*i:][:8]
		for c := range 4 {
			from, mask := c, byte(0)
			switch {
			case t.rgb16 != nil && c == 3:
				to[6], to[7] = 255, 255
				continue
			// Grey with alpha becomes three equal channels and alpha.
			case h.photometric <= photoBlackIsZero:
				from, mask = c/3, invert
				if c == 3 {
					mask = 0
				}
			}
			to[2*c], to[2*c+1] = px[2*from+high]^mask, px[2*from+1-high]^mask
		}
		if h.associated {
			divided16(to)
		}
	}
}

// divided undoes premultiplication by alpha in 8 bits, like Pillow. Colours of transparent
// pixels are lost; they become black.
func divided(px []byte) {
	a := int(px[3])
	if a == 255 {
		return
	}
	for c := range 3 {
		if a == 0 {
			px[c] = 0
			continue
		}
		px[c] = byte(min(int(px[c])*255/a, 255))
	}
}

// divided16 undoes premultiplication in 16 bits. The bytes are big-endian.
func divided16(px []byte) {
	a := int(binary.BigEndian.Uint16(px[6:]))
	for c := range 3 {
		v := 0
		if a > 0 {
			v = min(int(binary.BigEndian.Uint16(px[2*c:]))*65535/a, 65535)
		}
		binary.BigEndian.PutUint16(px[2*c:], uint16(v))
	}
}

// small unpacks samples of 1 to 8 bits and multiplies them by scale. If a pixel has several
// samples of 8 bits, it takes the first. Rows begin at a byte, so at is relative to the
// row.
func small(in []byte, bits, samples int, out []byte, scale int) {
	if bits == 8 {
		for i := range out {
			out[i] = in[i*samples]
		}
		return
	}
	mask := byte(1<<bits - 1)
	for i := range out {
		at := i * bits
		out[i] = in[at/8] >> (8 - bits - at%8) & mask * byte(scale)
	}
}

// Numbers is an image of one channel of numbers of any meaning. No type of the standard
// library has negative values or fractions.
type Numbers struct {
	Pix  []float32
	Rect image.Rectangle
}

// Bounds implements image.Image.
func (m *Numbers) Bounds() image.Rectangle { return m.Rect }

// ColorModel implements image.Image.
func (m *Numbers) ColorModel() color.Model { return color.GrayModel }

// At implements image.Image. It is for the interface only; codec reads Pix.
func (m *Numbers) At(x, y int) color.Color {
	v := m.Pix[y*m.Rect.Dx()+x]
	if v > 0 {
		return color.Gray{Y: byte(min(v, 255))}
	}
	return color.Gray{}
}

// numbers converts integers and floating-point numbers to float32. Values beyond the
// precision of float32 are rounded.
func numbers(h *Header, in []byte, out []float32) {
	for i := range out {
		switch {
		case h.bits == 16:
			out[i] = float32(int16(h.order.Uint16(in[2*i:])))
		case h.bits == 64:
			out[i] = float32(math.Float64frombits(h.order.Uint64(in[8*i:])))
		case h.format == 3:
			out[i] = math.Float32frombits(h.order.Uint32(in[4*i:]))
		case h.format == 2:
			out[i] = float32(int32(h.order.Uint32(in[4*i:])))
		default:
			out[i] = float32(h.order.Uint32(in[4*i:]))
		}
	}
}

// floats undoes the floating-point predictor (technical note 3): the bytes of a row are in
// planes, the most significant first, and each byte is the difference to the one before.
// Its result has the byte order of the file, as samples without a predictor.
func (d *decoder) floats(row []byte, per int) {
	for i := per; i < len(row); i++ {
		row[i] += row[i-per]
	}
	wide := d.bits / 8
	n := len(row) / wide
	copy(d.scratch(len(row)), row)
	planes := d.data[:len(row)]
	for i := range n {
		for k := range wide {
			at := k
			if d.order == binary.LittleEndian {
				at = wide - 1 - k
			}
			row[i*wide+at] = planes[k*n+i]
		}
	}
}

// scratch returns n bytes that are not part of the block. It is valid until the next call.
func (d *decoder) scratch(n int) []byte {
	if cap(d.data) < n {
		d.data = make([]byte, n)
	}
	d.data = d.data[:cap(d.data)]
	return d.data[:n]
}

// lzw decompresses LZW (TIFF 6.0, section 13): codes of 9 to 12 bits, most significant bit
// first, whose width grows one code early. The string of a code is in the output already: a
// table entry is its position and length. It needs no memory for strings: a code refers to
// bytes that have been written.
type lzw struct {
	at, n [4096]int32
}

// ClearCode and EndOfInformation.
const (
	lzwClear = 256
	lzwEnd   = 257
)

// expand decompresses into dst, and returns the number of bytes.
func (t *lzw) expand(dst, src []byte) int {
	// acc has bits unread bits at its low end.
	var acc, bits uint
	width, next, made := uint(9), int32(258), 0
	last, lastLen := -1, int32(0)
	for made < len(dst) {
		for bits < width {
			if len(src) == 0 {
				return made
			}
			acc, bits, src = acc<<8|uint(src[0]), bits+8, src[1:]
		}
		bits -= width
		code := int32(acc >> bits & (1<<width - 1))
		if code == lzwEnd {
			return made
		}
		if code == lzwClear {
			width, next, last = 9, 258, -1
			continue
		}
		if last >= 0 && next < 4096 {
			t.at[next], t.n[next] = int32(last), lastLen+1
			next++
			if next == 1<<width-1 && width < 12 {
				width++
			}
		}
		n := int32(1)
		// A literal is its own string. The new entry of the table is the last string with
		// the first byte of this one. It is the bytes from the last string on, so it exists
		// already.
		if code < 256 {
			dst[made] = byte(code)
		} else {
			// An invalid code ends the data.
			if code >= next || last < 0 {
				return made
			}
			from := int(t.at[code])
			n = t.n[code]
			for i := range min(int(n), len(dst)-made) { // bytewise, because a string may overlap itself
				dst[made+i] = dst[from+i]
			}
		}
		last, lastLen = made, n
		made += int(n)
	}
	return len(dst)
}

// unpack undoes PackBits (TIFF 6.0, section 9), and returns the number of bytes. Data that
// ends early gives fewer bytes, and no error: place checks the number.
func unpack(dst, src []byte) int {
	made := 0
	for len(src) > 1 && made < len(dst) {
		n := int(int8(src[0]))
		switch {
		case n >= 0:
			k := min(n+1, len(src)-1, len(dst)-made)
			copy(dst[made:], src[1:][:k])
			made += k
			src = src[min(n+2, len(src)):]
		// -128 is no operation; n >= 0 is n+1 literal bytes, other n repeat the next byte
		// 1-n times.
		case n == -128:
			src = src[1:]
		default:
			k := min(1-n, len(dst)-made)
			for i := range k {
				dst[made+i] = src[1]
			}
			made += k
			src = src[2:]
		}
	}
	return made
}

// frameBytes is the memory for the JPEG headers of a block.
const frameBytes = 2 << 10

// jpegBound is the maximum cost of decoding JPEG blocks: the total memory, which is reused,
// and the steps of one block. The header of a block may differ from the file's, so the
// maximum of the grid is used.
func (h *Header) jpegBound() (bytes program.Amount, steps int64) {
	components := h.samples
	if h.planar {
		components = 1
	}
	g := &h.grid
	held, steps := jpeg.Bound(g.across, g.down, components, h.tables)
	most := int64(0)
	for i := range min(g.n(h), g.counts.n) {
		most = max(most, g.counts.at(i, 0))
	}
	data := min(most, int64(len(h.dir.cell))) + int64(len(h.tables))
	return program.Count(held).Plus(program.Count(2 * data)).Plus(program.Count(g.n(h)).Times(frameBytes)), steps
}

// placeJPEG decodes a block that is a JPEG (technical note 2). Its tables may be in the
// tag JPEGTables.
func (d *decoder) placeJPEG(src []byte, plane, x, y int) error {
	header, err := jpeg.ReadHeader(src)
	if err != nil {
		return err
	}
	g, down, across := &d.grid, min(d.grid.down, d.Height-y), min(d.grid.across, d.Width-x)
	components, space := d.samples, jpeg.RGB
	switch {
	case d.planar:
		components, space = 1, jpeg.Grey
	case d.Layout == Grey:
		space = jpeg.Grey
	case d.Layout == CMYK:
		space = jpeg.CMYK
	case d.photometric == photoYCbCr:
		space = jpeg.YCbCr
	}
	switch {
	case header.Progressive:
		return unsupported("progressive JPEG compression")
	case header.Components != components:
		return damaged("its JPEG has %d components of %d", header.Components, components)
	case header.Width < across || header.Width > g.across || header.Height < down || header.Height > g.down:
		return damaged("its JPEG is %d x %d pixels of %d x %d", header.Width, header.Height, g.across, g.down)
	}
	// The decoder reads one stream, so tables and block are joined.
	data := src
	if len(d.tables) > 4 {
		// Both begin with SOI, and the tables end with EOI.
		data = append(append(d.data[:0], d.tables[:len(d.tables)-2]...), src[2:]...)
		d.data = data
	}
	if err := d.jpeg.DecodeAs(space, data, image.Rect(0, 0, across, down), d.meter); err != nil {
		return err
	}
	row := d.block[:across*components]
	for k := range down {
		d.jpeg.Row(k, row)
		d.put(row, plane, x, y+k, across)
	}
	return nil
}

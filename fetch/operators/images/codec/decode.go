package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"math"

	"bowstring/fetch/operators/images/codec/bmp"
	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/images/codec/webp"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// Decoder decodes files and reuses its memory. It is not safe for concurrent use. Results
// of Row are written to memory of the caller. The decoder refers to the file until Release.
type Decoder struct {
	header   Header
	mode     Mode
	region   image.Rectangle
	channels int
	jpeg     jpeg.Decoder
	other    image.Image // the decoded image of any format except JPEG
	row      []byte
}

// Decode decodes the region of a file's image. Row returns the pixels afterwards; the
// cell must not change until then. The cost on the meter is at most Bytes and Steps of
// the header. Errors are ErrFormat, program.ErrNotSupported or those of the meter.
func (d *Decoder) Decode(cell []byte, h Header, mode Mode, region image.Rectangle, meter *program.Meter) error {
	d.header, d.mode, d.region, d.other = h, mode, region, nil
	if err := h.gives(mode); err != nil {
		return wrong(h.Format, err)
	}
	if h.Format == JPEG {
		if err := meter.Hold(h.Bytes); err != nil {
			return err
		}
		if err := d.jpeg.Decode(cell, region, meter); err != nil {
			return wrong(JPEG, err)
		}
		d.channels = channelsOf(mode, h.jpeg.Components)
		return nil
	}
	m, err := d.decodeOther(cell, &h, meter)
	if err != nil {
		return wrong(h.Format, err)
	}
	if !region.Add(m.Bounds().Min).In(m.Bounds()) {
		return wrong(h.Format, errSize)
	}
	d.other = m
	d.channels = channelsOf(mode, channelsIn(m, h.Format))
	return nil
}

// decodeOther decodes any format except JPEG. The standard library does not know the meter,
// so its cost is counted in advance, and its reader checks the context. The decoded image
// is whole: only JPEG can decode a region.
func (d *Decoder) decodeOther(cell []byte, h *Header, meter *program.Meter) (image.Image, error) {
	switch h.Format {
	case WebP:
		return d.decodeWebP(&h.webp, meter)
	case TIFF:
		return tiff.Decode(&h.tiff, meter)
	case BMP:
		return bmp.Decode(&h.bmp, meter)
	}
	if err := meter.Hold(h.Bytes); err != nil {
		return nil, err
	}
	if err := meter.Spend(h.Steps); err != nil {
		return nil, err
	}
	if h.Format == PNG {
		return png.Decode(meter.Reader(bytes.NewReader(cell)))
	}
	return firstFrame(cell, meter)
}

// channelsOf is the number of bytes of a pixel. natural is the number that the file's own
// pixels have.
func channelsOf(mode Mode, natural int) int {
	switch mode {
	case RGB:
		return 3
	case L:
		return 1
	case Grey16:
		return 2
	case RGB16:
		return 6
	case Float:
		return 4
	default:
		return natural
	}
}

// gives fails for a mode that the file's pixels cannot have. It runs before decoding, so
// that a wrong mode costs nothing.
func (h *Header) gives(mode Mode) error {
	switch {
	case mode == Float && !h.Number:
		return errors.New("its pixels have 8 or 16 bits a channel, and the mode takes grey of floating-point numbers, or " +
			"of signed or 32-bit whole ones")
	case !mode.Deep():
		return nil
	case !h.Deep:
		return errors.New("it has 8 bits a channel, and a mode of 16 takes files that have 16")
	case mode == Grey16 && h.Space != SpaceGrey:
		return errors.New("its pixels are colours, and the mode takes grey")
	}
	return nil
}

// Channels is the number of bytes of a pixel.
func (d *Decoder) Channels() int { return d.channels }

// Row writes the pixels of the region in row y of the image to out. y is a row of the image
// and not of the region. out must have room for a row of the region.
func (d *Decoder) Row(y int, out []byte) {
	n := d.region.Dx()
	if d.other != nil {
		d.rowOther(y, out[:n*d.channels])
		return
	}
	natural := d.header.jpeg.Components
	if natural == d.channels && natural != 4 {
		d.jpeg.Row(y, out)
		return
	}
	if cap(d.row) < 4*n {
		d.row = make([]byte, 4*n)
	}
	row := d.row[:natural*n]
	d.jpeg.Row(y, row)
	if natural == 4 {
		for i, v := range row { // Pillow treats all CMYK as Adobe's, which is stored inverted
			row[i] = 255 - v
		}
	}
	recode(row, natural, out, d.channels)
}

// recode converts between numbers of channels, like Pillow. 4 channels are CMYK. The caller
// has chosen to among the numbers that the mode allows, so no other case occurs.
func recode(in []byte, from int, out []byte, to int) {
	switch {
	case from == to:
		copy(out, in)
	case from == 1 && to == 3:
		for i, v := range in {
			out[3*i], out[3*i+1], out[3*i+2] = v, v, v
		}
	case from == 3 && to == 1:
		for i := range len(in) / 3 {
			out[i] = Luma(in[3*i], in[3*i+1], in[3*i+2])
		}
	case from == 4:
		for i := range len(in) / 4 {
			r, g, b := fromCMYK(in[4*i], in[4*i+1], in[4*i+2], in[4*i+3])
			if to == 3 {
				out[3*i], out[3*i+1], out[3*i+2] = r, g, b
			} else {
				out[i] = Luma(r, g, b)
			}
		}
	}
}

// Luma is Pillow's conversion to L: 0.299 R + 0.587 G + 0.114 B in 16 bits of fraction,
// rounded.
func Luma(r, g, b uint8) uint8 {
	return uint8((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 0x8000) >> 16)
}

// fromCMYK is cmyk2rgb of libImaging's Convert.c. It uses no profile: colours are
// approximate, as in Pillow.
func fromCMYK(c, m, y, k uint8) (r, g, b uint8) {
	white := int(255 - k)
	one := func(ink uint8) uint8 {
		t := int(ink)*white + 128
		return uint8(max(white-(t>>8+t)>>8, 0))
	}
	return one(c), one(m), one(y)
}

// Region is the region that was decoded last.
func (d *Decoder) Region() image.Rectangle { return d.region }

// Held is the number of bytes that the decoder keeps for its next use.
func (d *Decoder) Held() int { return cap(d.row) + d.jpeg.Held() }

// Release drops the references to the last file.
func (d *Decoder) Release() {
	d.other = nil
	d.jpeg.Release()
}

// rowDeep converts a row of an image of 16 bits per channel to little-endian. The
// libraries' images are big-endian. gives has checked that an image is grey if one
// channel is wanted.
func (d *Decoder) rowDeep(y int, out []byte) {
	n := d.region.Dx()
	x, y := d.other.Bounds().Min.X+d.region.Min.X, d.other.Bounds().Min.Y+y
	var in []byte
	from := 8 // bytes per pixel
	switch m := d.other.(type) {
	case *image.Gray16:
		in, from = m.Pix[m.PixOffset(x, y):], 2
	case *image.RGBA64:
		in = m.Pix[m.PixOffset(x, y):]
	case *image.NRGBA64:
		in = m.Pix[m.PixOffset(x, y):]
	default: // cannot happen: the header reported 16 bits
		clear(out[:n*d.channels])
		return
	}
	step := 2 // from one channel to the next
	if from == 2 {
		step = 0
	}
	for i := range n {
		px, to := in[i*from:], out[i*d.channels:][:d.channels]
		for c := 0; c < len(to); c += 2 {
			at := c / 2 * step
			to[c], to[c+1] = px[at+1], px[at]
		}
	}
}

// channelsIn is the number of channels of an image in mode Unchanged. An image with alpha
// that is opaque everywhere counts as three channels, because the library's types do not
// distinguish it from one without alpha.
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
	case *image.NRGBA: // lossless WebP is always NRGBA
		if f == WebP && m.Opaque() {
			return 3
		}
	}
	return 4
}

// rowOther converts a row of a library's image. Alpha is dropped for three channels or one,
// and 16 bits become their upper eight. The common types have their own cases, because At
// allocates for each pixel.
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

// numbers converts a row of numbers: to float32, or to bytes like Pillow, which clips to 0
// to 255 and truncates. Values are clipped and not scaled: their range has no meaning of
// its own.
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
		if v > 0 { // false for NaN
			row[i] = byte(min(v, 255))
		}
	}
	recode(row, 1, out, d.channels)
}

// spareRow returns a buffer of n bytes. It is valid until the next call, and its contents
// are undefined.
func (d *Decoder) spareRow(n int) []byte {
	if cap(d.row) < n {
		d.row = make([]byte, n)
	}
	return d.row[:n]
}

// paletted converts palette indices to colours, or keeps them in mode Unchanged. Unchanged
// keeps indices, because a mask's indices are its classes.
func (d *Decoder) paletted(in []byte, p color.Palette, out []byte) {
	if d.mode == Unchanged {
		copy(out, in)
		return
	}
	for i, v := range in {
		var c color.NRGBA
		// An index beyond the palette is black.
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

// colourOf returns a colour and ignores its alpha. A transparent colour keeps its red,
// green and blue, like in Pillow.
func colourOf(c color.Color) color.NRGBA {
	switch c := c.(type) {
	case color.NRGBA:
		return c
	case color.RGBA:
		return color.NRGBA(c)
	}
	return color.NRGBAModel.Convert(c).(color.NRGBA)
}

// fromAlpha converts pixels of RGBA, each channel of wide bytes, big-endian. It uses the
// upper byte of 16 bits.
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

// webpRow converts a row of a lossy WebP to RGB, like libwebp: constants with 14 bits of
// fraction, and "fancy" upsampling of chroma with weights 9, 3, 3 and 1 of the nearest
// four samples, divided by 16.
//
// The standard library would convert it like JPEG, which has another range.
func webpRow(m *image.YCbCr, x, y int, out []byte) {
	width, height := m.Rect.Dx(), m.Rect.Dy()
	cw, ch := (width+1)/2, (height+1)/2
	// The nearest row of chroma, and the second nearest. The second one is above for even
	// rows and below for odd ones.
	near := y / 2
	far := near + 1
	if y&1 == 0 {
		far = near - 1
	}
	far = min(max(far, 0), ch-1)
	mix := func(plane []byte, x int) int {
		cx := x / 2
		other := cx + 1
		if x&1 == 0 {
			other = cx - 1
		}
		a, c := int(plane[near*m.CStride+cx]), int(plane[far*m.CStride+cx])
		if other < 0 || other >= cw {
			return (3*a + c + 2) >> 2
		}
		b, d := int(plane[near*m.CStride+other]), int(plane[far*m.CStride+other])
		// libwebp's order of roundings: the mean of the diagonals, then the nearest
		// sample.
		return ((a+b+c+d+8+2*(b+c))>>3 + a) >> 1
	}
	for i := range len(out) / 3 {
		l, u, v := int(m.Y[y*m.YStride+x+i]), mix(m.Cb, x+i), mix(m.Cr, x+i)
		// BT.601 limited range: luma from 16 to 235.
		l = l * 19077 >> 8
		out[3*i] = clip6(l + v*26149>>8 - 14234)
		out[3*i+1] = clip6(l - u*6419>>8 - v*13320>>8 + 8708)
		out[3*i+2] = clip6(l + u*33050>>8 - 17685)
	}
}

// clip6 drops 6 bits of fraction and clips to a byte. libwebp's constants leave these bits.
func clip6(v int) uint8 { return uint8(min(max(v>>6, 0), 255)) }

// decodeWebP decodes a WebP. The first frame of an animation is drawn on its canvas, like
// in Pillow. The rest of the canvas is transparent, or black if there is no alpha.
func (d *Decoder) decodeWebP(h *webp.Header, meter *program.Meter) (image.Image, error) {
	m, err := webp.Decode(h, meter)
	if err != nil || !h.Composed() {
		return m, err
	}
	pixels := int64(h.Canvas.X) * int64(h.Canvas.Y)
	if err := meter.Hold(4 * pixels); err != nil {
		return nil, err
	}
	if err := meter.Spend(10 * pixels); err != nil {
		return nil, err
	}
	canvas := image.NewNRGBA(image.Rectangle{Max: h.Canvas})
	if !h.Clear {
		for i := 3; i < len(canvas.Pix); i += 4 {
			canvas.Pix[i] = 255
		}
	}
	// Rows of the frame, as if it were a file. A second decoder converts the rows, because
	// d is in the middle of its own call.
	frame := Decoder{header: Header{Format: WebP}, mode: Unchanged, region: image.Rect(0, 0, h.Width, h.Height), other: m,
		channels: channelsIn(m, WebP)}
	row := make([]byte, h.Width*frame.channels)
	for y := range h.Height {
		frame.Row(y, row)
		to := canvas.Pix[canvas.PixOffset(h.At.X, h.At.Y+y):]
		for x := range h.Width {
			copy(to[4*x:4*x+frame.channels], row[x*frame.channels:])
			if frame.channels == 3 || !h.Clear {
				to[4*x+3] = 255
			}
		}
	}
	return canvas, nil
}

// firstFrame draws the first frame of a GIF on its canvas. The canvas has the transparent
// colour, or the first one. Later frames are not decoded.
func firstFrame(cell []byte, meter *program.Meter) (image.Image, error) {
	config, err := gif.DecodeConfig(bytes.NewReader(cell))
	if err != nil {
		return nil, err
	}
	m, err := gif.Decode(meter.Reader(bytes.NewReader(cell)))
	if err != nil {
		return nil, err
	}
	// The logical screen of the GIF.
	screen := image.Rect(0, 0, config.Width, config.Height)
	frame, ok := m.(*image.Paletted)
	if !ok {
		return m, nil
	}
	// The library marks the transparent colour by alpha 0.
	ground, colours := uint8(0), firstColours(cell)
	for i, c := range frame.Palette {
		if _, _, _, a := c.RGBA(); a == 0 {
			ground = uint8(i)
			if 3*i+2 < len(colours) { // the library replaces the transparent colour
				frame.Palette[i] = color.NRGBA{R: colours[3*i], G: colours[3*i+1], B: colours[3*i+2]}
			}
		}
	}
	if frame.Rect == screen {
		return frame, nil
	}
	whole := image.NewPaletted(screen, frame.Palette)
	for i := range whole.Pix {
		whole.Pix[i] = ground
	}
	for y := frame.Rect.Min.Y; y < frame.Rect.Max.Y; y++ {
		copy(whole.Pix[whole.PixOffset(frame.Rect.Min.X, y):],
			frame.Pix[frame.PixOffset(frame.Rect.Min.X, y):][:frame.Rect.Dx()])
	}
	return whole, nil
}

// firstColours returns the colour table of the first frame, or nil: the local one, or the
// global one. The standard library does not return the table, and it makes one colour
// transparent.
func firstColours(cell []byte) []byte {
	// Header and logical screen descriptor have 13 bytes.
	if len(cell) < 13 {
		return nil
	}
	var table []byte
	rest := cell[13:]
	// take skips a table and remembers it. A local table follows the global one, so the
	// last one counts.
	take := func(flags byte) bool {
		if flags&0x80 == 0 {
			return true
		}
		// Bit 7: there is a table; bits 0 to 2: its size.
		n := 3 << (flags&7 + 1)
		if n > len(rest) {
			return false
		}
		table, rest = rest[:n], rest[n:]
		return true
	}
	if !take(cell[10]) {
		return nil
	}
	for len(rest) > 0 {
		switch rest[0] {
		case 0x2C: // image descriptor
			if len(rest) < 10 {
				return nil
			}
			flags := rest[9]
			rest = rest[10:]
			if !take(flags) {
				return nil
			}
			return table
		case 0x21: // extension: a label and blocks
			rest = rest[min(2, len(rest)):]
			for len(rest) > 0 && rest[0] != 0 {
				rest = rest[min(1+int(rest[0]), len(rest)):]
			}
			rest = rest[min(1, len(rest)):]
		default:
			return nil
		}
	}
	return nil
}

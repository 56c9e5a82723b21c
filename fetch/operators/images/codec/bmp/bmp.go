// Package bmp decodes Windows and OS/2 bitmaps within memory that the header bounds:
// palettes of 1, 2, 4 and 8 bits, also run-length encoded, and colours of 16, 24 and 32
// bits, with or without masks. Pixels are equal to Pillow's.
package bmp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
	"math/bits"

	"bowstring/fetch/operators/program"
)

// ErrFormat means that bytes are not a BMP that the package decodes.
var ErrFormat = errors.New("bmp")

// damaged is an ErrFormat with its reason.
func damaged(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// unsupported is program.ErrNotSupported with the unsupported feature.
func unsupported(format string, values ...any) error {
	return fmt.Errorf("%w: BMP with %s", program.ErrNotSupported, fmt.Sprintf(format, values...))
}

// Compression methods: BI_RGB and so on, in the order of their numbers.
const (
	plain = iota
	rle8
	rle4
	masked
	// These two methods embed another file; printers use them.
	jpegInside
	pngInside
	maskedAlpha
)

// Sizes of headers in bytes identify the versions of the format.
const (
	// roomBytes is an allowance for small allocations. The steps are about one nanosecond
	// each.
	fileHeader  = 14
	coreHeader  = 12
	infoHeader  = 40
	os2Header   = 64
	maxSide     = 1 << 24
	roomBytes   = 16 << 10
	readSteps   = 10 // per byte of the file
	pixelSteps  = 8  // per pixel
	leastHeader = fileHeader + coreHeader
)

// Header is what the file's headers say. It refers to the file.
type Header struct {
	Width, Height int
	// Alpha is set if pixels have an alpha channel.
	Alpha bool
	// Bytes is the maximum memory of decoding, and Steps the maximum work.
	Bytes, Steps int64

	bits        int // per pixel
	compression uint32
	downwards   bool      // the first row is the top one: the height is negative
	colours     []byte    // palette: blue, green, red, and a reserved byte if colourBytes is 4
	colourBytes int       // bytes per colour of the palette
	masks       [4]uint32 // of red, green, blue and alpha in a pixel
	data        []byte    // pixels, to the end of the file
}

// Recognised reports whether a file begins like a BMP. Two letters are too little, so the
// size of the second header is checked, too.
func Recognised(cell []byte) bool {
	if len(cell) < leastHeader || string(cell[:2]) != "BM" {
		return false
	}
	switch n := binary.LittleEndian.Uint32(cell[fileHeader:]); n {
	case coreHeader, 16, infoHeader, 52, 56, os2Header, 108, 124:
		return true
	}
	return false
}

// Read reads the headers. Its allocations do not depend on them. Offsets and sizes of the
// file are checked here, so that Decode can index without checks.
func Read(cell []byte) (Header, error) {
	h := Header{colourBytes: 4}
	if !Recognised(cell) {
		return h, damaged("it does not begin as a BMP")
	}
	at, size := binary.LittleEndian.Uint32(cell[10:]), int(binary.LittleEndian.Uint32(cell[fileHeader:]))
	if len(cell) < fileHeader+size {
		return h, fmt.Errorf("%w: %w", ErrFormat, io.ErrUnexpectedEOF)
	}
	b, entries := cell[fileHeader:][:size], uint32(0)
	// OS/2 1.x has sizes of 16 bits, and colours of three bytes.
	if size == coreHeader {
		h.Width, h.Height = int(binary.LittleEndian.Uint16(b[4:])), int(binary.LittleEndian.Uint16(b[6:]))
		h.bits, h.colourBytes = int(binary.LittleEndian.Uint16(b[10:])), 3
	} else {
		h.Width, h.Height = int(int32(binary.LittleEndian.Uint32(b[4:]))), int(int32(binary.LittleEndian.Uint32(b[8:])))
		h.bits = int(binary.LittleEndian.Uint16(b[14:]))
		if h.downwards = h.Height < 0; h.downwards {
			h.Height = -h.Height
		}
	}
	if size >= infoHeader {
		h.compression, entries = binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[32:])
	}
	if h.Width < 1 || h.Height < 1 || h.Width > maxSide || h.Height > maxSide {
		return h, damaged("it is %d x %d pixels", h.Width, h.Height)
	}
	if err := h.checked(size); err != nil {
		return h, err
	}
	if err := h.palette(cell, size, entries, &at); err != nil {
		return h, err
	}
	if int64(at) > int64(len(cell)) {
		return h, damaged("its pixels begin after its end")
	}
	h.data = cell[at:]
	// The size of run-length data is not known before decoding.
	runs := h.compression == rle8 || h.compression == rle4
	// The last row need not be padded.
	if need := (h.Height-1)*h.stride() + h.used(); need > len(h.data) && !runs {
		return h, damaged("its pixels take %d bytes, and there are %d", need, len(h.data))
	}
	pixels, each := program.Count(int64(h.Width)).Times(int64(h.Height)), int64(4)
	if h.bits <= 8 {
		each = 1
	}
	h.Bytes = pixels.Times(each).Plus(program.Count(roomBytes)).Int64()
	h.Steps = pixels.Times(pixelSteps).Plus(program.Count(int64(len(h.data))).Times(readSteps)).
		Plus(program.Count(1 << 16)).Int64()
	return h, nil
}

// checked refuses compression methods and depths that are not decoded. The numbers of OS/2
// methods have other meanings than those of Windows.
func (h *Header) checked(size int) error {
	os2 := size == 16 || size == os2Header
	switch c := h.compression; {
	case c == jpegInside && !os2:
		return unsupported("JPEG in it")
	case c == pngInside && !os2:
		return unsupported("PNG in it")
	case os2 && c > rle4:
		return unsupported("compression %d of OS/2", c)
	case c > maskedAlpha:
		return unsupported("compression %d", c)
	case c == rle8 && h.bits != 8, c == rle4 && h.bits != 4:
		return damaged("run lengths of %d bits", h.bits)
	case c >= masked && h.bits != 16 && h.bits != 24 && h.bits != 32:
		return damaged("masks of %d bits", h.bits)
	}
	switch h.bits {
	case 1, 2, 4, 8, 16, 24, 32:
		return nil
	}
	return unsupported("%d bits a pixel", h.bits)
}

// palette finds the palette, or the masks of the channels. at is the offset of the pixels.
// The palette may be shorter than the depth allows: later indices are black.
func (h *Header) palette(cell []byte, size int, entries uint32, at *uint32) error {
	rest := cell[fileHeader+size:]
	if h.bits <= 8 {
		n := int64(entries)
		if n == 0 {
			n = 1 << h.bits
		}
		if n > 1<<16 {
			return damaged("it has %d colours", n)
		}
		if *at == uint32(fileHeader+size) {
			*at += uint32(n) * uint32(h.colourBytes) // some programs do not count the palette in the offset
		}
		n = min(n, 1<<h.bits)
		if int64(len(rest)) < n*int64(h.colourBytes) {
			return damaged("it ends in its palette")
		}
		h.colours = rest[:int(n)*h.colourBytes]
		return nil
	}
	if h.bits == 16 {
		// The default of 16 bits is 5 bits per channel.
		h.masks = [4]uint32{0x7c00, 0x3e0, 0x1f, 0}
	} else {
		h.masks = [4]uint32{0xff0000, 0xff00, 0xff, 0}
	}
	if h.compression < masked {
		return nil
	}
	from, n := rest, 3
	if size >= 52 {
		from = cell[fileHeader+infoHeader:]
		if size >= 56 {
			n = 4
		}
	} else if h.compression == maskedAlpha {
		// Masks are in the header since version 2, and after it in version 1.
		n = 4
	}
	if len(from) < 4*n {
		return damaged("it ends in its masks")
	}
	all := uint32(0)
	for i := range n {
		m := binary.LittleEndian.Uint32(from[4*i:])
		// Masks must not overlap, must fit the pixel, and must have consecutive bits.
		if all&m != 0 || h.bits < 32 && m>>h.bits != 0 || m>>bits.TrailingZeros32(m)&(m>>bits.TrailingZeros32(m)+1) != 0 {
			return unsupported("the masks %x", from[:4*n])
		}
		all |= m
		h.masks[i] = m
	}
	if all == 0 && h.bits == 32 { // like Pillow
		h.masks = [4]uint32{0xff0000, 0xff00, 0xff, 0xff000000}
	}
	h.Alpha = h.masks[3] != 0
	return nil
}

// stride is the number of bytes of a row in the file: a multiple of 4.
func (h *Header) stride() int { return (h.Width*h.bits + 31) / 32 * 4 }

// used is the number of bytes of a row that contain pixels. The rest of stride is padding.
func (h *Header) used() int { return (h.Width*h.bits + 7) / 8 }

// Decode decodes the pixels of a file with this header. Its cost on the meter is at most
// that of the header. The size of the result is that of the header, and rows come in the
// order of the file.
func Decode(h *Header, meter *program.Meter) (image.Image, error) {
	if err := meter.Hold(h.Bytes); err != nil {
		return nil, err
	}
	if err := meter.Spend(int64(len(h.data)) * readSteps / 2); err != nil {
		return nil, err
	}
	r := image.Rect(0, 0, h.Width, h.Height)
	if h.bits > 8 {
		return h.direct(r, meter)
	}
	m := image.NewPaletted(r, h.table())
	if h.compression != plain {
		return m, h.runs(m, meter)
	}
	mask := byte(1<<h.bits - 1)
	for y := range h.Height {
		row, err := h.row(y, meter)
		if err != nil {
			return nil, err
		}
		out := m.Pix[h.at(y)*m.Stride:][:h.Width]
		if h.bits == 8 {
			copy(out, row)
			continue
		}
		for x := range out {
			at := x * h.bits
			out[x] = row[at/8] >> (8 - h.bits - at%8) & mask
		}
	}
	return m, nil
}

// at is the row in the image of row y of the file. Most files begin with the lowest row.
func (h *Header) at(y int) int {
	if h.downwards {
		return y
	}
	return h.Height - 1 - y
}

// row returns the used bytes of row y of the file. The last row's padding may be missing.
// Read has checked that the bytes exist.
func (h *Header) row(y int, meter *program.Meter) ([]byte, error) {
	if err := meter.Spend(int64(h.Width) * pixelSteps); err != nil {
		return nil, err
	}
	return h.data[y*h.stride():][:h.used()], nil
}

// table is the palette. Its number of colours may be smaller than the indices allow.
func (h *Header) table() color.Palette {
	p := make(color.Palette, len(h.colours)/h.colourBytes)
	for i := range p {
		c := h.colours[i*h.colourBytes:]
		p[i] = color.NRGBA{R: c[2], G: c[1], B: c[0], A: 255}
	}
	return p
}

// direct decodes pixels without a palette. A pixel is at most 32 bits, so it is read as one
// number and taken apart by masks.
func (h *Header) direct(r image.Rectangle, meter *program.Meter) (image.Image, error) {
	pix := make([]byte, 4*h.Width*h.Height)
	wide := h.bits / 8
	var channels [4]channel
	for i, m := range h.masks {
		channels[i] = channelOf(m)
	}
	usual := h.bits >= 24 && h.masks == [4]uint32{0xff0000, 0xff00, 0xff, 0} // byte-aligned BGR, the common case
	for y := range h.Height {
		row, err := h.row(y, meter)
		if err != nil {
			return nil, err
		}
		out := pix[4*h.at(y)*h.Width:][:4*h.Width]
		for x := range h.Width {
			px, to := row[x*wide:][:wide], out[4*x:][:4]
			if usual {
				to[0], to[1], to[2], to[3] = px[2], px[1], px[0], 255
				continue
			}
			v := uint32(px[0]) | uint32(px[1])<<8
			for k := 2; k < wide; k++ {
				v |= uint32(px[k]) << (8 * k)
			}
			for c := range channels {
				to[c] = channels[c].value(v)
			}
			if !h.Alpha {
				to[3] = 255
			}
		}
	}
	if h.Alpha {
		return &image.NRGBA{Pix: pix, Stride: 4 * h.Width, Rect: r}, nil
	}
	return &image.RGBA{Pix: pix, Stride: 4 * h.Width, Rect: r}, nil
}

// channel is the position of a channel in a pixel.
type channel struct {
	mask       uint32
	down, wide int // number of bits below it, and its own bits
}

// channelOf is the channel of a mask, whose bits are consecutive. An absent channel has the
// mask 0.
func channelOf(mask uint32) channel {
	return channel{mask, bits.TrailingZeros32(mask) & 31, bits.OnesCount32(mask)}
}

// value returns the channel's value in 8 bits. Narrower channels are scaled to 0 to 255.
// The largest value of a channel becomes 255.
func (c *channel) value(v uint32) byte {
	v = v & c.mask >> c.down
	switch {
	case c.wide == 0:
		return 0
	case c.wide > 8:
		return byte(v >> (c.wide - 8))
	}
	return byte(v * 255 / (1<<c.wide - 1))
}

// runs decodes run-length encoding. Pixels that the file skips have index 0. A run may
// leave its row; its further pixels are dropped and are no error.
func (h *Header) runs(m *image.Paletted, meter *program.Meter) error {
	if err := meter.Spend(int64(h.Width) * int64(h.Height) * pixelSteps); err != nil {
		return err
	}
	// After a zero byte: end of line, end of bitmap, delta, or the number of literal
	// pixels.
	const end, delta = 1, 2
	x, y, rest := 0, 0, h.data
	for y < h.Height {
		if len(rest) < 2 {
			return damaged("its run lengths end in row %d of %d", y, h.Height)
		}
		n, v := int(rest[0]), rest[1]
		rest = rest[2:]
		switch {
		case n > 0:
			out := h.line(m, x, y, n)
			for i := range out {
				out[i] = h.nibble(v, i)
			}
			x += n
		case v == 0:
			x, y = 0, y+1
		case v == end:
			return nil
		case v == delta:
			if len(rest) < 2 {
				return damaged("its run lengths end in row %d of %d", y, h.Height)
			}
			x, y, rest = x+int(rest[0]), y+int(rest[1]), rest[2:]
		default:
			n = int(v)
			size := n
			if h.compression == rle4 {
				size = (n + 1) / 2
			}
			if len(rest) < size {
				return damaged("its run lengths end in row %d of %d", y, h.Height)
			}
			out := h.line(m, x, y, n)
			for i := range out {
				if h.compression == rle4 {
					out[i] = h.nibble(rest[i/2], i)
				} else {
					out[i] = rest[i]
				}
			}
			x += n
			// Literals are padded to an even length.
			rest = rest[min(size+size&1, len(rest)):]
		}
	}
	return nil
}

// line is the n pixels from x on, cut off at the end of the row. It is empty if x is
// outside of the row.
func (h *Header) line(m *image.Paletted, x, y, n int) []byte {
	x = min(x, h.Width)
	return m.Pix[h.at(y)*m.Stride+x:][:min(n, h.Width-x)]
}

// nibble returns pixel i of a byte: the byte itself for RLE8, or one of two alternating
// nibbles for RLE4. i counts from the beginning of the run.
func (h *Header) nibble(v byte, i int) byte {
	switch {
	case h.compression == rle8:
		return v
	case i&1 == 0:
		return v >> 4
	}
	return v & 15
}

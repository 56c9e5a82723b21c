// Package webp reads WebP: the container (RFC 9649), and lossless images with its own
// decoder, which is derived from golang.org/x/image/vp8l and gives the same pixels. Lossy
// images are decoded by golang.org/x/image/vp8.
//
// Data is untrusted. A file of few bytes may contain thousands of Huffman trees, and
// chunk sizes beyond its end. So [Read] computes the maximum cost of decoding from the
// header, and [Decode] enforces it with a meter: what exceeds it is refused before it is
// allocated.
//
// The files with a copyright notice of the Go authors are under the license in the file
// LICENSE of this directory.
package webp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"

	"golang.org/x/image/vp8"

	"bowstring/fetch/operators/program"
)

// ErrFormat means that bytes are not a WebP that the package decodes.
var ErrFormat = errors.New("webp")

// wrong is an ErrFormat with its reason.
func wrong(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// Header is what the chunks before the pixels say. For an animation it describes the
// first frame.
type Header struct {
	// Width and Height are those of the decoded pixels.
	Width, Height int
	// Canvas is the size of the image, and At the position of the pixels on it.
	Canvas, At image.Point
	// Clear is set if the rest of the canvas is transparent; otherwise it is black.
	Clear bool
	// Bytes is the maximum memory of decoding, and Steps the maximum work.
	Bytes, Steps int64

	lossless bool
	alpha    []byte // data of the ALPH chunk, or nil
	data     []byte // data of the VP8 or VP8L chunk
}

const (
	headerBytes = 12     // "RIFF", a size, "WEBP"
	extended    = 10     // bytes of a VP8X chunk
	alphaFlag   = 1 << 4 // flags of VP8X
	movesFlag   = 1 << 1
	frameHeader = 16 // bytes of ANMF before the chunks of its frame
)

// chunks iterates over the chunks of a file.
type chunks struct{ rest []byte }

// next returns the next chunk. whole is false if its data is cut off by the end of the
// file.
func (c *chunks) next() (name string, data []byte, whole bool, err error) {
	if len(c.rest) < 8 {
		return "", nil, false, fmt.Errorf("%w: it has no pixels: %w", ErrFormat, io.ErrUnexpectedEOF)
	}
	name = string(c.rest[:4])
	n := int64(binary.LittleEndian.Uint32(c.rest[4:]))
	c.rest = c.rest[8:]
	have := min(n, int64(len(c.rest)))
	data = c.rest[:have:have]
	c.rest = c.rest[min(n+n&1, int64(len(c.rest))):]
	return name, data, have == n, nil
}

// Read reads the chunks up to that of the pixels. Its allocations do not depend on the
// data.
func Read(cell []byte) (Header, error) {
	if len(cell) < headerBytes || string(cell[:4]) != "RIFF" || string(cell[8:12]) != "WEBP" {
		return Header{}, wrong("it does not begin as a WebP")
	}
	size := int64(binary.LittleEndian.Uint32(cell[4:]))
	c := chunks{cell[headerBytes:max(min(size+8, int64(len(cell))), headerBytes)]}
	h, canvas, wantAlpha, moves := Header{}, false, false, false
	for {
		name, data, whole, err := c.next()
		if err != nil {
			return Header{}, err
		}
		switch name {
		case "VP8X":
			if canvas || len(data) != extended {
				return Header{}, wrong("its VP8X chunk makes no sense")
			}
			canvas, wantAlpha, moves = true, data[0]&alphaFlag != 0, data[0]&movesFlag != 0
			h.Width, h.Height = 1+int(uint24(data[4:])), 1+int(uint24(data[7:]))
		case "ANMF":
			if moves {
				return h.frame(data, wantAlpha)
			}
		case "ALPH":
			if !wantAlpha || h.alpha != nil || len(data) < 1 || !whole {
				return Header{}, wrong("its ALPH chunk makes no sense")
			}
			h.alpha = data
		case "VP8 ", "VP8L":
			h.data, h.lossless = data, name == "VP8L"
			if !h.lossless && (!whole || wantAlpha && h.alpha == nil) || h.lossless && h.alpha != nil {
				return Header{}, wrong("its %s chunk makes no sense", name)
			}
			return h.sized(canvas)
		}
	}
}

// frame reads the first frame of an animation, whose canvas size is in h. Its chunks are
// those of a still image. Later frames are ignored.
func (h *Header) frame(b []byte, clear bool) (Header, error) {
	if len(b) < frameHeader {
		return Header{}, wrong("its ANMF chunk makes no sense")
	}
	// Offsets are in units of 2 pixels, sizes are stored less 1.
	f := Header{Canvas: image.Pt(h.Width, h.Height), Clear: clear,
		At:    image.Pt(2*int(uint24(b)), 2*int(uint24(b[3:]))),
		Width: 1 + int(uint24(b[6:])), Height: 1 + int(uint24(b[9:]))}
	if f.At.X+f.Width > h.Width || f.At.Y+f.Height > h.Height {
		return Header{}, wrong("its first frame of %d x %d at %v exceeds %d x %d", f.Width, f.Height, f.At, h.Width,
			h.Height)
	}
	c := chunks{b[frameHeader:]}
	for {
		name, data, whole, err := c.next()
		if err != nil {
			return Header{}, err
		}
		switch name {
		case "ALPH":
			if f.alpha != nil || len(data) < 1 || !whole {
				return Header{}, wrong("its ALPH chunk makes no sense")
			}
			f.alpha = data
		case "VP8 ", "VP8L":
			f.data, f.lossless = data, name == "VP8L"
			if !f.lossless && !whole || f.lossless && f.alpha != nil {
				return Header{}, wrong("its %s chunk makes no sense", name)
			}
			return f.sized(true)
		}
	}
}

// uint24 reads three bytes, little-endian.
func uint24(b []byte) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 }

// sized reads the size from the chunk of the pixels. If canvas is set, it must be equal to
// the one in h. The size in the chunk of the pixels is the one that the decoder uses.
func (h *Header) sized(canvas bool) (Header, error) {
	var w, height int
	if h.lossless {
		if len(h.data) < losslessHeader || h.data[0] != losslessMagic || h.data[4]>>5 != 0 {
			return Header{}, wrong("its VP8L chunk does not begin as one")
		}
		// 14 bits each of width - 1 and height - 1, an alpha flag, and a version of 3
		// bits.
		bits := binary.LittleEndian.Uint32(h.data[1:])
		w, height = 1+int(bits&0x3fff), 1+int(bits>>14&0x3fff)
	} else {
		// Frame tag, start code, width and height of 14 bits each (RFC 6386, section
		// 9.1).
		if len(h.data) < 10 || h.data[0]&1 != 0 || string(h.data[3:6]) != "\x9d\x01\x2a" {
			return Header{}, wrong("its VP8 chunk does not begin with a key frame")
		}
		if first := int(uint24(h.data) >> 5); first > len(h.data)-10 { // the library allocates it before it reads it
			return Header{}, wrong("its first partition has %d bytes, in %d", first, len(h.data))
		}
		w, height = int(binary.LittleEndian.Uint16(h.data[6:])&0x3fff), int(binary.LittleEndian.Uint16(h.data[8:])&0x3fff)
	}
	if canvas && (w != h.Width || height != h.Height) {
		return Header{}, wrong("it is %d x %d, and its pixels are %d x %d", h.Width, h.Height, w, height)
	}
	if h.Width, h.Height = w, height; w == 0 || height == 0 {
		return Header{}, wrong("it is %d x %d pixels", w, height)
	}
	h.bound()
	if h.Canvas == (image.Point{}) {
		h.Canvas = image.Pt(w, height)
	}
	if h.Composed() {
		pixels := int64(h.Canvas.X) * int64(h.Canvas.Y) // less than 2^48
		h.Bytes += 4 * pixels
		h.Steps += pixels * composeSteps
	}
	return *h, nil
}

const (
	losslessHeader = 5
	losslessMagic  = 0x2f
	roomBytes      = 64 << 10 // small things: the state of decoders
	lossySteps     = 60       // per pixel
	composeSteps   = 10       // per pixel of a canvas
	filterSteps    = 4        // per pixel with alpha
)

// Composed reports whether the canvas is larger than the pixels. Then the caller draws the
// pixels on the canvas at At.
func (h *Header) Composed() bool { return h.Canvas != image.Pt(h.Width, h.Height) }

// bound computes Bytes and Steps. The library for lossy images allocates by the header
// alone.
func (h *Header) bound() {
	h.Bytes, h.Steps = roomBytes, 1<<16
	if h.lossless {
		h.losslessBound(len(h.data))
		return
	}
	// Macroblocks have 16x16 samples of luma and 8x8 of each chroma.
	blocks := int64(over(h.Width, 4)) * int64(over(h.Height, 4))
	pixels := int64(h.Width) * int64(h.Height)
	// Luma and chroma of whole macroblocks, filter parameters, and a copy of the data.
	h.Bytes += blocks*(16*16*3/2+4) + int64(over(h.Width, 4))*8 + int64(len(h.data))
	h.Steps += blocks*16*16*lossySteps + int64(len(h.data))
	if h.alpha != nil {
		h.Bytes += pixels
		h.Steps += pixels * filterSteps
		if h.alpha[0]&3 == 1 { // the alpha is a lossless image
			h.losslessBound(len(h.alpha))
		}
	}
}

// losslessBound adds the maximum cost of decoding a lossless image of n bytes. Trees may
// cost more than is counted here, because a few bytes can describe a large one. Encoders
// do not write that many; a file that has more is refused when its trees have consumed the
// counted cost.
func (h *Header) losslessBound(n int) {
	w, pixels := int64(h.Width), int64(h.Width)*int64(h.Height)
	tiles := int64(over(h.Width, 2)) * int64(over(h.Height, 2))
	const (
		side        = 4 // transforms with their own image, and the image of tree groups
		cacheBytes  = 4 << maxCache
		paletteSize = 4 * 256
		treesByte   = 24 // bytes of trees, and steps to build them, per byte of the file
		treesSteps  = 150
		firstTrees  = 512 << 10 // bytes of the trees of a small file
	)
	h.Bytes += 4*pixels + 4*((w+1)/2)*int64(h.Height) + 3*4*tiles + paletteSize + (1+side)*cacheBytes +
		firstTrees + int64(n)*treesByte
	h.Steps += (pixels+3*tiles)*pixelSteps + 4*pixels*undoSteps + int64(n)*treesSteps + 1<<20
}

// Decode decodes the pixels of a file with this header. The cost on the meter is at most
// that of the header. h must come from Read. The result does not refer to the file.
func Decode(h *Header, meter *program.Meter) (image.Image, error) {
	if h.lossless {
		d := decoder{data: h.data[losslessHeader:], meter: meter}
		m, err := d.lossless(h.Width, h.Height)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		return m, nil
	}
	alpha, err := h.plane(meter)
	if err != nil {
		return nil, fmt.Errorf("%w: its alpha: %w", ErrFormat, err)
	}
	// The alpha was counted while it was decoded.
	lossy := *h
	lossy.alpha = nil
	lossy.bound()
	if err := meter.Hold(lossy.Bytes - roomBytes); err != nil {
		return nil, err
	}
	if err := meter.Spend(lossy.Steps - 1<<16); err != nil {
		return nil, err
	}
	d := vp8.NewDecoder()
	d.Init(meter.Reader(bytes.NewReader(h.data)), len(h.data))
	if _, err = d.DecodeFrameHeader(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	m, err := d.DecodeFrame()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if alpha != nil {
		return &image.NYCbCrA{YCbCr: *m, A: alpha, AStride: h.Width}, nil
	}
	return m, nil
}

// plane decodes the alpha of a lossy image, one byte per pixel; nil if there is none. The
// alpha may be wrong only by its own data: the size is that of the pixels.
func (h *Header) plane(meter *program.Meter) ([]byte, error) {
	if h.alpha == nil {
		return nil, nil
	}
	n, flags, data := h.Width*h.Height, h.alpha[0], h.alpha[1:]
	if err := meter.Hold(int64(n)); err != nil {
		return nil, err
	}
	if err := meter.Spend(int64(n) * filterSteps); err != nil {
		return nil, err
	}
	// Compression method: 0 is raw, 1 is lossless WebP.
	switch flags & 3 {
	case 0:
		if len(data) < n {
			return nil, io.ErrUnexpectedEOF
		}
		alpha := bytes.Clone(data[:n])
		unfilter(alpha, h.Width, flags>>2&3)
		return alpha, nil
	case 1:
		d := decoder{data: data, meter: meter}
		m, err := d.lossless(h.Width, h.Height)
		if err != nil {
			return nil, err
		}
		alpha := make([]byte, n)
		for i := range alpha {
			alpha[i] = m.Pix[4*i+1] // green
		}
		unfilter(alpha, h.Width, flags>>2&3)
		return alpha, nil
	}
	return nil, fmt.Errorf("it is compressed by method %d", flags&3)
}

// unfilter undoes the alpha's prediction: filter 1 is horizontal, 2 vertical, 3 gradient
// (left + top - top left). Sums are modulo 256.
func unfilter(alpha []byte, w int, filter byte) {
	if filter == 0 {
		return
	}
	for i := 1; i < len(alpha); i++ {
		x, row := i%w, i-i%w
		switch {
		case row == 0, x > 0 && filter == 1: // from the left pixel
			alpha[i] += alpha[i-1]
		case x == 0, filter == 2: // from the pixel above
			alpha[i] += alpha[i-w]
		default:
			v := int(alpha[i-1]) + int(alpha[i-w]) - int(alpha[i-w-1])
			alpha[i] += uint8(min(max(v, 0), 255))
		}
	}
}

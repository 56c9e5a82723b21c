// Package codec reads files of images: JPEG and WebP without losses by Bowstring's own decoders; PNG and GIF by
// the standard library; lossy WebP and TIFF by golang.org/x/image. Pixels are those that
// Pillow 12.1 gives, but for grey of 16 bits: Pillow makes all that is above 255 white,
// and the higher eight bits are taken here.
//
// Files are hostile: [Read] says how large an image becomes before anything is
// allocated for it. The package knows no operators.
package codec

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"math"

	"golang.org/x/image/tiff"

	"bowstring/fetch/operators/images/codec/webp"
	"bowstring/fetch/operators/images/jpeg"
)

// ErrFormat says that bytes are no image that the package decodes.
var ErrFormat = errors.New("image")

// Mode says what pixels are wanted.
type Mode uint8

const (
	// RGB is three channels.
	RGB Mode = iota
	// L is one, the luma of ITU-R 601.
	L
	// Unchanged is what the file has: one channel of grey or of indices into a palette, three of RGB, four with
	// alpha or of CMYK.
	Unchanged
	// Grey16 is one channel of 16 bits, in the order of bytes of tensors: little-endian. Files of 16 bits have them.
	Grey16
	// RGB16 is three of these.
	RGB16
)

// Deep reports whether a mode gives 16 bits a channel.
func (m Mode) Deep() bool { return m == Grey16 || m == RGB16 }

// Format is a kind of file.
type Format uint8

// The formats that are read.
const (
	JPEG Format = iota + 1
	PNG
	GIF
	WebP
	TIFF
)

// Space is what pixels are.
type Space uint8

// What pixels are. Those of a palette are colours.
const (
	SpaceUnknown Space = iota
	SpaceGrey
	SpaceColour
	SpaceCMYK
)

func (s Space) String() string { return [...]string{"unknown", "grey", "RGB", "CMYK"}[s] }

var names = [...]string{JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WebP: "WebP", TIFF: "TIFF"}

func (f Format) String() string { return names[f] }

// Header is what is known of an image before its pixels.
type Header struct {
	Format        Format
	Width, Height int
	// Orientation is Exif's, 1 to 8.
	Orientation int
	// Profile says that there is an ICC profile.
	Profile bool
	// Space is what the pixels are, as far as it is known.
	Space Space
	// Deep says that there are 16 bits a channel.
	Deep bool
	// Bytes bounds what decoding holds at once, and Steps its work without the rows that are asked for afterwards.
	Bytes, Steps int64

	jpeg jpeg.Header
	webp webp.Header
}

var errSize = errors.New("its pixels are not as many as its header says")

func wrong(format Format, err error) error { return fmt.Errorf("%w: %v: %w", ErrFormat, format, err) }

// Read says what a file is. It allocates no more than a palette.
func Read(cell []byte) (Header, error) {
	switch {
	case bytes.HasPrefix(cell, []byte("\xff\xd8")):
		return readJPEG(cell)
	case bytes.HasPrefix(cell, []byte("\x89PNG\r\n\x1a\n")):
		c, err := png.DecodeConfig(bytes.NewReader(cell))
		h := headerOf(PNG, c)
		if err == nil {
			h.Bytes = pngBytes(c.Width, c.Height, cell[24], cell[28] != 0)
			h.Steps = pngSteps(cell, c)
		}
		h.Orientation, h.Profile = chunksOf(cell)
		if err == nil && cell[25]&3 == 0 { // with alpha or without
			h.Space = SpaceGrey
		}
		return checked(h, err)
	case bytes.HasPrefix(cell, []byte("GIF8")):
		c, err := gif.DecodeConfig(bytes.NewReader(cell))
		h := headerOf(GIF, c)
		// The first frame, and the screen that it is laid on.
		h.Bytes = 2*int64(c.Width)*int64(c.Height) + roomBytes
		h.Steps = int64(c.Width)*int64(c.Height)*gifSteps + int64(len(cell))*2*byteSteps + roomSteps
		return checked(h, err)
	case len(cell) >= 12 && string(cell[:4]) == "RIFF" && string(cell[8:12]) == "WEBP":
		w, err := webp.Read(cell)
		h := Header{Format: WebP, Width: w.Width, Height: w.Height, Bytes: w.Bytes, Steps: w.Steps, Space: SpaceColour,
			webp: w}
		h.Orientation, h.Profile = riffOf(cell)
		return checked(h, err)
	case bytes.HasPrefix(cell, []byte("II*\x00")), bytes.HasPrefix(cell, []byte("MM\x00*")):
		if n := tiffEntries(cell); 12*n > int64(len(cell)) { // the library makes room for them before it reads them
			return Header{}, wrong(TIFF, fmt.Errorf("it has no room for %d tags", n))
		}
		c, err := tiff.DecodeConfig(bytes.NewReader(cell))
		h := headerOf(TIFF, c)
		if err == nil {
			if int64(c.Width)*int64(c.Height) > tiffPixels {
				h.Bytes, h.Steps = math.MaxInt64, math.MaxInt64
			} else {
				h.Bytes, h.Steps = tiffBytes(cell, c), tiffSteps(cell, c)
			}
		}
		if o := jpeg.Orientation(cell); o != 0 {
			h.Orientation = o
		}
		_, h.Profile = tiffEntry(cell, tiffProfile)
		return checked(h, err)
	}
	return Header{}, fmt.Errorf("%w: the first bytes are %q, and neither JPEG, PNG, GIF, WebP nor TIFF", ErrFormat,
		cell[:min(len(cell), 8)])
}

func readJPEG(cell []byte) (Header, error) {
	j, err := jpeg.ReadHeader(cell)
	if err != nil {
		return Header{}, wrong(JPEG, err)
	}
	return Header{
		Format: JPEG, Width: j.Width, Height: j.Height, Orientation: j.Orientation, Profile: j.Profile,
		Space: map[int]Space{1: SpaceGrey, 3: SpaceColour, 4: SpaceCMYK}[j.Components],
		Bytes: j.Bytes(), Steps: j.Steps(cell), jpeg: j,
	}, nil
}

func headerOf(f Format, c image.Config) Header {
	h := Header{Format: f, Width: c.Width, Height: c.Height, Orientation: 1, Space: SpaceColour}
	switch c.ColorModel {
	case color.GrayModel, color.Gray16Model:
		h.Space = SpaceGrey
	case color.CMYKModel:
		h.Space = SpaceCMYK
	}
	switch c.ColorModel {
	case color.Gray16Model, color.RGBA64Model, color.NRGBA64Model:
		h.Deep = true
	}
	return h
}

func checked(h Header, err error) (Header, error) {
	if err != nil {
		return Header{}, wrong(h.Format, err)
	}
	if h.Width < 1 || h.Height < 1 {
		return Header{}, wrong(h.Format, fmt.Errorf("it is %d x %d pixels", h.Width, h.Height))
	}
	return h, nil
}

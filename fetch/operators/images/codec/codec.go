// Package codec reads files of images: JPEG, BMP, TIFF and WebP without losses by Bowstring's own decoders; PNG and
// GIF by the standard library; lossy WebP by golang.org/x/image. Pixels are those that
// Pillow 12 gives, but for grey of 16 bits: Pillow makes all that is above 255 white,
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

	"bowstring/fetch/operators/images/codec/bmp"
	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/images/codec/webp"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// ErrFormat says that bytes are no image that the package decodes.
var ErrFormat = errors.New("image")

// ErrUnknown is an ErrFormat of bytes that begin as no format that is known, be it read or not.
var ErrUnknown = fmt.Errorf("%w: no format that is known", ErrFormat)

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
	// Float is one channel of single precision, little-endian. Files of grey have it whose numbers are no pixels of 8 or
	// 16 bits.
	Float
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
	BMP
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

var names = [...]string{JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WebP: "WebP", TIFF: "TIFF", BMP: "BMP"}

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
	// Number says that its pixels are floating-point numbers, or whole ones that are signed or of 32 bits.
	Number bool
	// Bytes bounds what decoding holds at once, and Steps its work without the rows that are asked for afterwards.
	Bytes, Steps int64

	jpeg jpeg.Header
	webp webp.Header
	tiff tiff.Header
	bmp  bmp.Header
}

var errSize = errors.New("its pixels are not as many as its header says")

// wrong says what is wrong with a file. What is not supported says so itself, and names the format.
func wrong(format Format, err error) error {
	if errors.Is(err, program.ErrNotSupported) {
		return err
	}
	return fmt.Errorf("%w: %v: %w", ErrFormat, format, err)
}

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
		h := Header{Format: WebP, Width: w.Canvas.X, Height: w.Canvas.Y, Bytes: w.Bytes, Steps: w.Steps, Space: SpaceColour,
			webp: w}
		h.Orientation, h.Profile = riffOf(cell)
		return checked(h, err)
	case tiff.Recognised(cell):
		t, err := tiff.Read(cell)
		h := Header{Format: TIFF, Width: t.Width, Height: t.Height, Orientation: t.Orientation, Profile: t.Profile != nil,
			Space: SpaceColour, Deep: t.Deep && t.Layout != tiff.CMYK, Number: t.Layout == tiff.Number,
			Bytes: t.Bytes, Steps: t.Steps, tiff: t}
		switch t.Layout {
		case tiff.Grey, tiff.Number:
			h.Space = SpaceGrey
		case tiff.CMYK:
			h.Space = SpaceCMYK
		}
		return checked(h, err)
	case bmp.Recognised(cell):
		b, err := bmp.Read(cell)
		return checked(Header{Format: BMP, Width: b.Width, Height: b.Height, Orientation: 1, Space: SpaceColour,
			Bytes: b.Bytes, Steps: b.Steps, bmp: b}, err)
	}
	if name := otherFormat(cell); name != "" {
		return Header{}, fmt.Errorf("%w: %s; %s can be read", program.ErrNotSupported, name, formats)
	}
	return Header{}, fmt.Errorf("%w: the first bytes are %q, and %s can be read", ErrUnknown, cell[:min(len(cell), 8)],
		formats)
}

const formats = "JPEG, PNG, GIF, WebP, TIFF and BMP"

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

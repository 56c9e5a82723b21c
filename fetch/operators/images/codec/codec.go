// Package codec reads image files: JPEG, BMP, TIFF and lossless WebP with the decoders of
// this project, PNG and GIF with the standard library, and lossy WebP with
// golang.org/x/image. Pixels are equal to those of Pillow 12, except for 16-bit grey as
// bytes: Pillow clips values above 255, and this package takes the upper eight bits.
//
// Files are untrusted: [Read] returns the size of the image before anything is allocated
// for it. The package does not know operators.
package codec

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/png"
	"io"

	"bowstring/fetch/operators/images/codec/bmp"
	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/images/codec/webp"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// ErrFormat means that bytes are not an image that the package decodes.
var ErrFormat = errors.New("image")

// ErrUnknown is an ErrFormat of bytes that do not begin like any known format, supported
// or not.
var ErrUnknown = fmt.Errorf("%w: no format that is known", ErrFormat)

// Mode is the kind of pixels that a decoder returns.
type Mode uint8

const (
	// RGB is three channels of bytes.
	RGB Mode = iota
	// L is one byte: the luma of ITU-R BT.601.
	L
	// Unchanged is the file's own pixels: one channel of grey or of palette indices,
	// three of RGB, four of RGB with alpha or of CMYK.
	Unchanged
	// Grey16 is one channel of 16 bits, little-endian like tensors. Only files of 16 bits
	// have it.
	Grey16
	// RGB16 is three channels of 16 bits, little-endian.
	RGB16
	// Float is one channel of float32, little-endian, for files of grey whose numbers are
	// neither of 8 nor of 16 unsigned bits.
	Float
)

// Deep reports whether a mode has 16 bits per channel.
func (m Mode) Deep() bool { return m == Grey16 || m == RGB16 }

// Format is a file format.
type Format uint8

// The supported formats.
const (
	JPEG Format = iota + 1
	PNG
	GIF
	WebP
	TIFF
	BMP
)

// Space is the colour space of the pixels.
type Space uint8

// The colour spaces. A palette counts as colours.
const (
	SpaceUnknown Space = iota
	SpaceGrey
	SpaceColour
	SpaceCMYK
)

// String returns the name of the colour space for error messages.
func (s Space) String() string { return [...]string{"unknown", "grey", "RGB", "CMYK"}[s] }

// names are the names of formats.
var names = [...]string{JPEG: "JPEG", PNG: "PNG", GIF: "GIF", WebP: "WebP", TIFF: "TIFF", BMP: "BMP"}

// String returns the name of the format, such as "JPEG".
func (f Format) String() string { return names[f] }

// Header is what is known about an image before its pixels are decoded.
type Header struct {
	Format Format
	// Pixels, before the orientation is applied.
	Width, Height int
	// Orientation is Exif's tag 0x0112, from 1 to 8. 1 is upright.
	Orientation int
	// Profile is set if the file has an ICC profile.
	Profile bool
	// Space is the colour space, or SpaceUnknown.
	Space Space
	// Deep is set for 16 bits per channel.
	Deep bool
	// Number is set if the pixels are floating-point numbers, or integers that are signed
	// or have 32 bits.
	Number bool
	// Bytes is the maximum memory of decoding, and Steps the maximum work without the
	// rows that are requested afterwards.
	Bytes, Steps int64

	jpeg jpeg.Header
	webp webp.Header
	tiff tiff.Header
	bmp  bmp.Header
}

// errSize: the libraries disagree with the header.
var errSize = errors.New("its pixels are not as many as its header says")

// wrong adds ErrFormat and the format to an error. ErrNotSupported stays as it is: its
// message names the format.
func wrong(format Format, err error) error {
	if errors.Is(err, program.ErrNotSupported) {
		return err
	}
	return fmt.Errorf("%w: %v: %w", ErrFormat, format, err)
}

// Read reads the header of a file. It allocates at most a palette.
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
		if err == nil && cell[25]&3 == 0 { // colour types 0 and 4: grey, without or with alpha
			h.Space = SpaceGrey
		}
		return checked(h, err)
	case bytes.HasPrefix(cell, []byte("GIF8")):
		c, err := gif.DecodeConfig(bytes.NewReader(cell))
		h := headerOf(GIF, c)
		// The first frame, and the canvas on which it is drawn.
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

// formats lists the supported formats for messages.
const formats = "JPEG, PNG, GIF, WebP, TIFF and BMP"

// readJPEG reads the header of a JPEG, up to its first scan.
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

// headerOf is the header of a file that the standard library decodes, by its colour
// model.
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

// checked refuses empty images.
func checked(h Header, err error) (Header, error) {
	if err != nil {
		return Header{}, wrong(h.Format, err)
	}
	if h.Width < 1 || h.Height < 1 {
		return Header{}, wrong(h.Format, fmt.Errorf("it is %d x %d pixels", h.Width, h.Height))
	}
	return h, nil
}

// otherFormats are image formats that are recognised but not decoded, by the bytes begin
// at offset at.
var otherFormats = []struct {
	at    int
	begin string
	name  string
}{
	{4, "ftypavif", "AVIF"},
	{4, "ftypavis", "AVIF"},
	{4, "ftyphei", "HEIF"},
	{4, "ftyphev", "HEIF"},
	{4, "ftypmif1", "HEIF or AVIF"},
	{4, "ftypcrx ", "CR3"},
	{4, "jP  \r\n\x87\n", "JPEG 2000"},
	{0, "\xff\x4f\xff\x51", "JPEG 2000"},
	{4, "JXL \r\n\x87\n", "JPEG XL"},
	{0, "\xff\x0a", "JPEG XL"},
	{0, "8BPS", "PSD"},
	{0, "\x76\x2f\x31\x01", "OpenEXR"},
	{0, "#?RADIANCE", "Radiance HDR"},
	{0, "SIMPLE  =", "FITS"},
	{128, "DICM", "DICOM"},
	{0, "\x00\x00\x01\x00", "ICO"},
	{0, "\x00\x00\x02\x00", "CUR"},
	{0, "icns", "ICNS"},
	{0, "DDS ", "DDS"},
	{0, "qoif", "QOI"},
	{0, "%PDF", "PDF"},
	{0, "%!PS", "PostScript"},
	{0, "<svg", "SVG"},
	{0, "\x0a\x05\x01\x08", "PCX"},
	{0, "\x01\xda", "SGI"},
	{0, "\x59\xa6\x6a\x95", "Sun raster"},
	{0, "II\xbc", "JPEG XR"},
	{0, "IIRO", "ORF"},
	{0, "IIU\x00", "RW2"},
	{0, "AT&TFORM", "DjVu"},
	{0, "P1", "PBM"},
	{0, "P2", "PGM"},
	{0, "P3", "PPM"},
	{0, "P4", "PBM"},
	{0, "P5", "PGM"},
	{0, "P6", "PPM"},
	{0, "P7\n", "PAM"},
	{0, "Pf\n", "PFM"},
	{0, "PF\n", "PFM"},
}

// otherFormat names the format of a file that is not decoded, or returns "".
func otherFormat(cell []byte) string {
	for _, f := range otherFormats {
		rest := cell[min(f.at, len(cell)):]
		if !bytes.HasPrefix(rest, []byte(f.begin)) {
			continue
		}
		// "P1" to "P7" need a space after them; otherwise the file may be a text.
		if len(f.begin) == 2 && f.begin[0] == 'P' && (len(rest) < 3 || !bytes.ContainsAny(rest[2:3], " \t\r\n#")) {
			continue
		}
		return f.name
	}
	return ""
}

// Additional cost of the libraries: tables, palettes and windows of decompressors.
const (
	roomBytes = 256 << 10
	roomSteps = 1 << 20
)

// Work in steps of about one nanosecond.
const (
	byteSteps      = 10 // per compressed byte
	inflatedSteps  = 5  // per decompressed byte, with its PNG filter
	interlaceSteps = 6  // per pixel of an interlaced PNG, for its placement
	gifSteps       = 10 // per pixel
	stripSteps     = 20_000
	pixelSteps     = 5 // per pixel of a TIFF
)

// pngBytes is what the standard library allocates for a PNG of that many bits per
// channel: the pixels and two rows. For an interlaced one, each of the seven passes has
// its own image. Together these have all pixels once more, and their rows are fewer than
// three.
func pngBytes(width, height int, bits byte, interlaced bool) int64 {
	pixels, row := 4*int64(width)*int64(height), 4*int64(width)
	if bits == 16 {
		pixels, row = 2*pixels, 2*row
	}
	if interlaced {
		return 2*pixels + 6*row + roomBytes
	}
	return pixels + 2*row + roomBytes
}

// pngSteps bounds the work of decoding a PNG. The library decompresses as many bytes as
// the header requires, even if the data has fewer.
func pngSteps(cell []byte, c image.Config) int64 {
	size := int64(1) // bytes of a pixel, in the file or in the image
	switch c.ColorModel {
	case color.Gray16Model:
		size = 2
	case color.RGBAModel, color.NRGBAModel:
		size = 4
	case color.RGBA64Model, color.NRGBA64Model:
		size = 8
	}
	pixels := int64(c.Width) * int64(c.Height)
	steps := pixels*size*inflatedSteps + int64(len(cell))*byteSteps + roomSteps
	if cell[28] != 0 {
		steps += pixels * interlaceSteps
	}
	return steps
}

// chunksOf searches the chunks of a PNG for Exif data (eXIf) and a profile (iCCP).
func chunksOf(cell []byte) (orientation int, profile bool) {
	orientation = 1
	rest := cell[8:]
	for len(rest) >= 12 {
		n := uint64(binary.BigEndian.Uint32(rest))
		// Length, type, data, CRC.
		if n+12 > uint64(len(rest)) {
			return orientation, profile
		}
		switch string(rest[4:8]) {
		case "eXIf":
			if o := jpeg.Orientation(rest[8 : 8+n]); o != 0 {
				orientation = o
			}
		case "iCCP":
			profile = true
		case "IEND":
			return orientation, profile
		}
		rest = rest[12+n:]
	}
	return orientation, profile
}

// riffOf searches the chunks of a WebP for Exif data (EXIF) and a profile (ICCP).
func riffOf(cell []byte) (orientation int, profile bool) {
	orientation = 1
	rest := cell[12:]
	for len(rest) >= 8 {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		// Type, length, data; data is padded to an even length.
		if n+8 > uint64(len(rest)) {
			return orientation, profile
		}
		switch data := rest[8 : 8+n]; string(rest[:4]) {
		case "EXIF":
			if len(data) > 6 && string(data[:6]) == "Exif\x00\x00" {
				data = data[6:]
			}
			if o := jpeg.Orientation(data); o != 0 {
				orientation = o
			}
		case "ICCP":
			profile = true
		}
		rest = rest[min(8+n+n&1, uint64(len(rest))):]
	}
	return orientation, profile
}

// Profile returns at most most bytes of the ICC profile of a file whose header reports
// one. The result may be a part of the cell.
func Profile(cell []byte, h Header, most int) (profile []byte, err error) {
	switch h.Format {
	case JPEG:
		profile, err = jpegProfile(cell, most)
	case PNG:
		profile, err = pngProfile(cell, most)
	case WebP:
		profile = riffChunk(cell, "ICCP")
	case TIFF:
		profile = h.tiff.Profile
	}
	if err == nil && len(profile) == 0 {
		err = errors.New("it cannot be found")
	}
	if err != nil {
		return nil, wrong(h.Format, fmt.Errorf("its ICC profile: %w", err))
	}
	return profile[:min(len(profile), most)], nil
}

// jpegProfile joins the parts of a profile from the APP2 segments before the first scan,
// as specified in ICC.1 annex B.4. Each has its number, from 1, and the number of parts.
func jpegProfile(cell []byte, most int) ([]byte, error) {
	const name = "ICC_PROFILE\x00"
	var parts [256][]byte
	found, want, bytes := 0, 0, 0
	for rest := cell[2:]; len(rest) >= 4; {
		if rest[0] != 0xFF || rest[1] == 0xFF { // bytes between segments, and fill bytes
			rest = rest[1:]
			continue
		}
		mark := rest[1]
		if mark == 0 || mark == 1 || mark >= 0xD0 && mark <= 0xD8 {
			// Markers without a segment: TEM, RSTn, SOI.
			rest = rest[2:]
			continue
		}
		// EOI or SOS.
		if mark == 0xD9 || mark == 0xDA {
			break
		}
		n := int(binary.BigEndian.Uint16(rest[2:])) + 2
		if n < 4 || n > len(rest) {
			break
		}
		if s := rest[4:n]; mark == 0xE2 && len(s) > 14 && string(s[:12]) == name {
			at, all := int(s[12]), int(s[13])
			if at == 0 || at > all || want > 0 && all != want || parts[at] != nil {
				return nil, fmt.Errorf("part %d of %d makes no sense", at, all)
			}
			want, parts[at] = all, s[14:]
			found, bytes = found+1, bytes+len(s)-14
		}
		rest = rest[n:]
	}
	if found != want {
		return nil, fmt.Errorf("of %d parts there are %d", want, found)
	}
	if found == 1 {
		return parts[1], nil
	}
	whole := make([]byte, 0, min(bytes, most))
	for _, part := range parts[1:] {
		whole = append(whole, part[:min(len(part), cap(whole)-len(whole))]...)
	}
	return whole, nil
}

// pngProfile decompresses an iCCP chunk: a name, a zero byte, the method 0, and zlib
// data.
func pngProfile(cell []byte, most int) ([]byte, error) {
	for rest := cell[8:]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n+12 > uint64(len(rest)) {
			break
		}
		if chunk := rest[8 : 8+n]; string(rest[4:8]) == "iCCP" {
			_, data, ok := bytes.Cut(chunk, []byte{0})
			if !ok || len(data) == 0 || data[0] != 0 {
				return nil, errors.New("its chunk makes no sense")
			}
			in, err := zlib.NewReader(bytes.NewReader(data[1:]))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(io.LimitReader(in, int64(most)))
		}
		rest = rest[12+n:]
	}
	return nil, nil
}

// riffChunk returns the data of a WebP chunk, or nil.
func riffChunk(cell []byte, name string) []byte {
	for rest := cell[12:]; len(rest) >= 8; {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if n+8 > uint64(len(rest)) {
			return nil
		}
		if string(rest[:4]) == name {
			return rest[8 : 8+n]
		}
		rest = rest[min(8+n+n&1, uint64(len(rest))):]
	}
	return nil
}

package source

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	_ "image/gif"  // decoder
	_ "image/jpeg" // decoder
	_ "image/png"  // decoder
	"io"
	"math"
	"slices"

	_ "golang.org/x/image/bmp"  // decoder
	_ "golang.org/x/image/tiff" // decoder
	_ "golang.org/x/image/webp" // decoder
)

// Verify says how closely images are looked at.
type Verify string

const (
	// VerifyNone takes any bytes; width, height and format are null where the header makes no sense.
	VerifyNone Verify = "none"
	// VerifyHeader wants a header that decodes, and the mark at which the format
	// ends: EOI of JPEG, IEND of PNG, the trailer of GIF, the length of WebP and
	// BMP. A file cut short lacks it. TIFF has none, so of it the header is all
	// that is checked. What lies between is not.
	VerifyHeader Verify = "header"
	// VerifyDecode decodes every pixel as well, of images whose header does not claim
	// more of them than fit in a gigabyte.
	VerifyDecode Verify = "decode"
)

var imageExtensions = []string{"jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff"}

func isImageName(name string) bool { return slices.Contains(imageExtensions, extension(name)) }

var audioExtensions = []string{"wav", "flac", "mp3", "ogg", "opus", "m4a", "w64"}

func isAudioName(name string) bool { return slices.Contains(audioExtensions, extension(name)) }

// imageInfo is what an image's header says.
type imageInfo struct {
	Width, Height int32
	Format        string // jpeg, png, gif, webp, bmp, tiff
}

// errCut is what a file lacks that was cut short.
var errCut = errors.New("cut short")

// inspect reads an image's header and checks it as far as v says.
func inspect(b []byte, v Verify) (imageInfo, error) {
	if len(b) == 0 {
		return imageInfo{}, errors.New("empty")
	}
	cfg, format, err := decodeConfig(b)
	if err != nil {
		if errors.Is(err, image.ErrFormat) {
			return imageInfo{}, errors.New("not an image: neither JPEG, PNG, GIF, WebP, BMP nor TIFF")
		}
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return imageInfo{}, fmt.Errorf("%w: it ends within the image header", errCut)
		}
		return imageInfo{}, fmt.Errorf("image header: %w", err)
	}
	info := imageInfo{int32(min(max(cfg.Width, 0), math.MaxInt32)), int32(min(max(cfg.Height, 0), math.MaxInt32)),
		format}
	if v == VerifyNone {
		return info, nil
	}
	if cfg.Width <= 0 || cfg.Height <= 0 || cfg.Width > math.MaxInt32 || cfg.Height > math.MaxInt32 {
		return info, fmt.Errorf("%s header: the image is %d × %d pixels", format, cfg.Width, cfg.Height)
	}
	if err := checkEnd(b, format); err != nil {
		return info, err
	}
	if v == VerifyDecode {
		if err := decodeAll(b, format, cfg); err != nil {
			return info, err
		}
	}
	return info, nil
}

// decodeConfig reads an image's header.
func decodeConfig(b []byte) (cfg image.Config, format string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the decoder failed: %v", r)
		}
	}()
	return image.DecodeConfig(bytes.NewReader(b))
}

// checkEnd looks for the mark at which a whole image ends.
func checkEnd(b []byte, format string) error {
	switch format {
	case "jpeg":
		if !bytes.HasSuffix(b, []byte{0xff, 0xd9}) && !jpegEnds(b) {
			return fmt.Errorf("%w: no end-of-image marker (EOI) in the JPEG", errCut)
		}
	case "png":
		if !pngEnds(b) {
			return fmt.Errorf("%w: no IEND chunk in the PNG", errCut)
		}
	case "gif":
		if !gifEnds(b) {
			return fmt.Errorf("%w: no trailer in the GIF", errCut)
		}
	case "webp":
		if want := 8 + int64(binary.LittleEndian.Uint32(b[4:])); int64(len(b)) < want {
			return fmt.Errorf("%w: %d bytes of a WebP of %d", errCut, len(b), want)
		}
	case "bmp":
		if want := int64(binary.LittleEndian.Uint32(b[2:])); int64(len(b)) < want {
			return fmt.Errorf("%w: %d bytes of a BMP of %d", errCut, len(b), want)
		}
	}
	return nil
}

// jpegEnds walks the segments of a JPEG to its end-of-image marker (ITU-T T.81,
// annex B): bytes may follow it, and the thumbnail in a segment has one of its own.
func jpegEnds(b []byte) bool { return jpegSegments(b, func(byte) {}) }

// jpegSegments tells each of the markers of a JPEG that have a length, and says whether an end marker comes.
func jpegSegments(b []byte, segment func(marker byte)) (ends bool) {
	for i := 2; ; {
		// To the next marker: within entropy-coded data FF is followed by 00 or
		// a restart marker, and any number of FF may fill up before a marker.
		n := bytes.IndexByte(b[min(i, len(b)):], 0xff)
		if n < 0 || i+n+1 >= len(b) {
			return false
		}
		i += n + 1
		switch m := b[i]; {
		case m == 0xff:
		case m == 0x00 || m == 0x01 || m >= 0xd0 && m <= 0xd8:
			i++
		case m == 0xd9:
			return true
		default: // a segment with a length
			if i+3 > len(b) {
				return false
			}
			segment(m)
			i += 1 + int(binary.BigEndian.Uint16(b[i+1:]))
		}
	}
}

// pngEnds walks the chunks of a PNG to IEND.
func pngEnds(b []byte) bool {
	const head, tail = 8, 4 // length and name before, CRC behind the data
	for i := 8; i+head+tail <= len(b); {
		n := int(binary.BigEndian.Uint32(b[i:]))
		name := string(b[i+4 : i+8])
		i += head + n + tail
		if name == "IEND" {
			return i <= len(b)
		}
	}
	return false
}

// gifEnds walks the blocks of a GIF to its trailer.
func gifEnds(b []byte) bool {
	colours := func(flags byte) int {
		if flags&0x80 == 0 {
			return 0
		}
		return 3 << (flags&7 + 1)
	}
	if len(b) < 13 {
		return false
	}
	i := 13 + colours(b[10])
	for i < len(b) {
		switch b[i] {
		case 0x3b:
			return true
		case 0x21: // extension: label, then sub-blocks
			i += 2
		case 0x2c: // image: descriptor, colours, code size, then sub-blocks
			if i+10 > len(b) {
				return false
			}
			i += 10 + colours(b[i+9]) + 1
		default:
			return false
		}
		for i < len(b) && b[i] != 0 {
			i += 1 + int(b[i])
		}
		i++ // the empty sub-block
	}
	return false
}

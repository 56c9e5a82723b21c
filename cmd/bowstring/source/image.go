package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/semaphore"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/program"
)

// Verify says how closely images are looked at.
type Verify string

const (
	// VerifyNone takes any bytes; width, height and format are null where the header makes no sense.
	VerifyNone Verify = "none"
	// VerifyHeader wants a header that the operators' decoders read, and the mark at
	// which the format ends: EOI of JPEG, IEND of PNG, the trailer of GIF or the end of a
	// frame, the length of WebP and BMP. A file cut short lacks it. TIFF has none, so of
	// it the header is all that is checked. The bytes between are not.
	VerifyHeader Verify = "header"
	// VerifyDecode decodes every pixel as well, as the operators do, of images whose header does not claim
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
	Orientation   int32  // Exif's, 1 to 8: how the pixels are to be turned
}

// errCut is what a file lacks that was cut short.
var errCut = errors.New("cut short")

// inspect reads an image's header and checks it as far as v says.
func inspect(b []byte, v Verify) (imageInfo, error) {
	if len(b) == 0 {
		return imageInfo{}, errors.New("empty")
	}
	var h codec.Header
	err := guarded(func() (err error) {
		h, err = codec.Read(b)
		return err
	})
	switch {
	case errors.Is(err, codec.ErrUnknown):
		return imageInfo{}, errors.New("not an image: neither JPEG, PNG, GIF, WebP, BMP nor TIFF")
	case errors.Is(err, program.ErrNotSupported):
		return imageInfo{}, err
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return imageInfo{}, fmt.Errorf("%w: it ends within the image header", errCut)
	case err != nil:
		return imageInfo{}, fmt.Errorf("image header: %w", err)
	}
	info := imageInfo{int32(h.Width), int32(h.Height), strings.ToLower(h.Format.String()), int32(h.Orientation)}
	if v == VerifyNone {
		return info, nil
	}
	if err := checkEnd(b, info.Format); err != nil {
		return info, err
	}
	if v == VerifyDecode {
		if err := decodeAll(b, h); err != nil {
			return info, err
		}
	}
	return info, nil
}

// guarded calls f, and makes an error of a panic: the libraries that decode are not ours.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the decoder failed: %v", r)
		}
	}()
	return f()
}

// maxDecoded bounds the memory that decoding takes, of one image and of all images that
// are being decoded. The memory for an image is known from its header.
const maxDecoded = 1 << 30

// decoding is what is left of maxDecoded.
var decoding = semaphore.NewWeighted(maxDecoded)

// decodeAll decodes every pixel of an image whose header this is, by the decoder that serves. It waits for
// memory that other decoders have.
func decodeAll(b []byte, h codec.Header) error {
	name := strings.ToLower(h.Format.String())
	if h.Bytes > maxDecoded {
		return fmt.Errorf("the %s claims %s × %s pixels, which take %s to decode; the limit is %s (--verify header "+
			"takes it without decoding)", name, humanize.Comma(int64(h.Width)), humanize.Comma(int64(h.Height)),
			humanize.IBytes(uint64(h.Bytes)), humanize.IBytes(maxDecoded))
	}
	// Holders wait for nothing, so that this ends.
	if err := decoding.Acquire(context.Background(), h.Bytes); err != nil {
		return err
	}
	defer decoding.Release(h.Bytes)
	cost := program.Cost{Working: program.Count(h.Bytes), Steps: program.Count(h.Steps)}
	err := guarded(func() error {
		var d codec.Decoder
		return d.Decode(b, h, codec.Unchanged, image.Rect(0, 0, h.Width, h.Height),
			program.NewMeter(context.Background(), cost))
	})
	if err != nil && !errors.Is(err, program.ErrNotSupported) {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	return err
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
	case "bmp": // the size of pixels in run lengths is not in the header
		if want := int64(binary.LittleEndian.Uint32(b[2:])); int64(len(b)) < want && b[14] >= 40 && b[30]-1 < 2 {
			return fmt.Errorf("%w: %d bytes of a BMP of %d", errCut, len(b), want)
		}
	}
	return nil
}

// jpegEnds walks the segments of a JPEG to its end-of-image marker (ITU-T T.81,
// annex B): bytes may follow it, and the thumbnail in a segment has one of its own.
func jpegEnds(b []byte) bool {
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

// gifEnds walks the blocks of a GIF to its trailer, which some programs leave out: then a frame is the end.
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
	i, frames := 13+colours(b[10]), 0
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
			frames++
		default:
			return false
		}
		for i < len(b) && b[i] != 0 {
			i += 1 + int(b[i])
		}
		i++ // the empty sub-block
	}
	return i == len(b) && frames > 0
}

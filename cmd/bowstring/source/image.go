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

// Verify says how thoroughly images are checked.
type Verify string

const (
	// VerifyNone accepts any bytes. width, height and format are null if the header is
	// invalid.
	VerifyNone Verify = "none"
	// VerifyHeader requires a header that the operators' decoders accept, and the mark at
	// the end of the format. The marks are EOI of JPEG, IEND of PNG, and the trailer of
	// GIF or the end of a frame. WebP and BMP state their length. A truncated file lacks
	// the mark. TIFF has none, so that only its header is checked. The bytes between are
	// not checked.
	VerifyHeader Verify = "header"
	// VerifyDecode also decodes every pixel, with the decoders that serve. An image whose
	// header claims more than a gigabyte of pixels is rejected instead.
	VerifyDecode Verify = "decode"
)

// imageExtensions are the endings of names of images, in lower case.
var imageExtensions = []string{"jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff"}

// isImageName reports whether a name has the ending of an image.
func isImageName(name string) bool { return slices.Contains(imageExtensions, extension(name)) }

// audioExtensions are the endings of names of audio files, in lower case.
var audioExtensions = []string{"wav", "flac", "mp3", "ogg", "opus", "m4a", "w64"}

// isAudioName reports whether a name has the ending of an audio file.
func isAudioName(name string) bool { return slices.Contains(audioExtensions, extension(name)) }

// imageInfo is the content of an image's header.
type imageInfo struct {
	Width, Height int32
	Format        string // jpeg, png, gif, webp, bmp, tiff
	// Orientation is Exif's, 1 to 8: how a viewer turns the pixels.
	Orientation int32
}

// errCut marks errors of truncated files.
var errCut = errors.New("cut short")

// inspect reads the header of an image and checks the image as far as v asks. Its error
// is the reason of a bad sample.
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
	// The end is checked before pixels are decoded: it finds most damage, and costs
	// nothing.
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

// guarded calls f and turns a panic into an error. Some decoders are third-party and
// panic on malformed input.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the decoder failed: %v", r)
		}
	}()
	return f()
}

// maxDecoded bounds the memory of decoding in bytes: of one image, and of all that are
// decoded at once. The header states how much an image needs.
const maxDecoded = 1 << 30

// decoding holds what is free of maxDecoded, for all goroutines.
var decoding = semaphore.NewWeighted(maxDecoded)

// decodeAll decodes every pixel of an image with the decoder that serves, so that what
// passes can be served. It waits until there is memory.
func decodeAll(b []byte, h codec.Header) error {
	name := strings.ToLower(h.Format.String())
	if h.Bytes > maxDecoded {
		return fmt.Errorf("the %s claims %s × %s pixels, which take %s to decode; the limit is %s (--verify header "+
			"takes it without decoding)", name, humanize.Comma(int64(h.Width)), humanize.Comma(int64(h.Height)),
			humanize.IBytes(uint64(h.Bytes)), humanize.IBytes(maxDecoded))
	}
	// A goroutine that holds memory waits for nothing else, so that this wait ends.
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

// checkEnd checks the mark at the end of an image. Only the end of a whole file has it.
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
	case "bmp": // the header does not state the size of run-length encoded pixels
		if want := int64(binary.LittleEndian.Uint32(b[2:])); int64(len(b)) < want && b[14] >= 40 && b[30]-1 < 2 {
			return fmt.Errorf("%w: %d bytes of a BMP of %d", errCut, len(b), want)
		}
	}
	return nil
}

// jpegEnds walks the segments of a JPEG to the end-of-image marker (ITU-T T.81, annex B).
// A search for the marker does not suffice: bytes may follow it, and a thumbnail within a
// segment has one of its own.
func jpegEnds(b []byte) bool {
	for i := 2; ; {
		// Find the next marker. In entropy-coded data FF is followed by 00 or by a
		// restart marker. Before a marker any number of FF may be fill bytes.
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

// pngEnds walks the chunks of a PNG to IEND. The bytes IEND alone may also be compressed
// data.
func pngEnds(b []byte) bool {
	const head, tail = 8, 4 // length and name before the data, CRC after it
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

// gifEnds walks the blocks of a GIF to its trailer. Some programs leave out the trailer;
// then the end of a frame is accepted.
func gifEnds(b []byte) bool {
	// A colour table has 3 bytes for each of 2^(n+1) colours.
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

package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"iter"
	"math"
	"math/bits"

	"github.com/dustin/go-humanize"
	"golang.org/x/sync/semaphore"
)

// maxDecoded bounds the memory that decoding takes, of one image and of all
// images that are being decoded. What an image takes is known from its header.
const maxDecoded = 1 << 30

// maxScans bounds the passes over the pixels of a progressive JPEG: some bytes
// of a scan without content cost a pass over all of them.
const maxScans = 500

// decoding is what is left of maxDecoded.
var decoding = semaphore.NewWeighted(maxDecoded)

// decodeAll decodes every pixel of an image, whose header says format. It waits for
// memory that other decoders have.
func decodeAll(b []byte, format string, cfg image.Config) (err error) {
	need, width, height := decodedBytes(b, format, cfg)
	if need > maxDecoded {
		return fmt.Errorf("the %s claims %s × %s pixels, which take %s to decode; the limit is %s (--verify header "+
			"takes it without decoding)",
			format, humanize.Comma(width), humanize.Comma(height), humanize.IBytes(need), humanize.IBytes(maxDecoded))
	}
	if format == "jpeg" {
		if n := jpegScans(b); n > maxScans {
			return fmt.Errorf("the jpeg has %d scans; the limit is %d (--verify header takes it without decoding)", n,
				maxScans)
		}
	}
	// Holders wait for nothing, so that this ends.
	if err := decoding.Acquire(context.Background(), int64(need)); err != nil {
		return err
	}
	defer decoding.Release(int64(need))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("decode %s: the decoder failed: %v", format, r)
		}
	}()
	if _, _, err := image.Decode(bytes.NewReader(b)); err != nil {
		return fmt.Errorf("decode %s: %w", format, err)
	}
	return nil
}

// decodedBytes bounds the memory that decoding an image takes, all buffers of the decoder
// together. Its size in pixels is the largest that any of its headers claims.
func decodedBytes(b []byte, format string, cfg image.Config) (need uint64, width, height int64) {
	width, height = int64(cfg.Width), int64(cfg.Height)
	pixel := pixelBytes(cfg.ColorModel)
	switch format {
	case "jpeg":
		if pixel == 4 {
			pixel = 12 // CMYK is put together from other copies
		}
		jpegSegments(b, func(marker byte) {
			if marker == 0xc2 {
				pixel += 16 // progressive: coefficients of 4 bytes in 4 components
			}
		})
	case "png":
		pixel *= 2 // as many for a pass of an interlaced one
	case "gif":
		pixel = 4 // indices, rows put in order, blocks
	case "tiff":
		pixel += 20 // a tile as large as the image at 8 bytes a pixel, and the buffer that grows to it
	case "webp":
		pixel = 16 // pixels, the alpha plane and its image, transforms
		for w, h := range webpFrames(b) {
			if w*h > width*height { // 2^28 at most, the canvas's 2^31
				width, height = w, h
			}
		}
	}
	over, pixels := bits.Mul64(uint64(width), uint64(height))
	over2, need := bits.Mul64(pixels, pixel)
	if more := need + webpTrees(b, format, pixels); over|over2 != 0 || more < need {
		need = math.MaxUint64
	} else {
		need = more
	}
	return need, width, height
}

// webpTrees bounds what the library takes for the trees of a WebP without losses: one group for 16 pixels, of up to 2,600
// groups. A file of a megabyte can have all of them.
func webpTrees(b []byte, format string, pixels uint64) uint64 {
	const groups, groupBytes = 2600, 96 << 10
	if format != "webp" || !bytes.Contains(b, []byte("VP8L")) && !bytes.Contains(b, []byte("ALPH")) {
		return 0
	}
	// Those of images that transforms have, and of tiles at an edge, come besides.
	return min(groups, pixels/4+8, 8*uint64(len(b))/20+8) * groupBytes
}

// pixelBytes bounds the bytes of a pixel in memory.
func pixelBytes(m color.Model) uint64 {
	if _, ok := m.(color.Palette); ok { // cannot be compared
		return 1
	}
	switch m {
	case color.GrayModel:
		return 1
	case color.Gray16Model:
		return 2
	case color.YCbCrModel:
		return 3
	case color.RGBAModel, color.NRGBAModel, color.CMYKModel, color.NYCbCrAModel:
		return 4
	}
	return 8
}

// webpFrames yields the sizes that the frames of a WebP claim: they need not be that of its canvas.
func webpFrames(b []byte) iter.Seq2[int64, int64] {
	return func(yield func(w, h int64) bool) {
		for i := 12; i+8 <= len(b); {
			name, data := string(b[i:i+4]), b[i+8:]
			n := uint64(binary.LittleEndian.Uint32(b[i+4:]))
			var w, h int64
			switch {
			case name == "VP8 " && len(data) >= 10:
				w, h = int64(binary.LittleEndian.Uint16(data[6:])&0x3fff),
					int64(binary.LittleEndian.Uint16(data[8:])&0x3fff)
			case name == "VP8L" && len(data) >= 5:
				v := int64(binary.LittleEndian.Uint32(data[1:]))
				w, h = v&0x3fff+1, v>>14&0x3fff+1
			}
			if w > 0 && !yield(w, h) {
				return
			}
			if n += n & 1; n > uint64(len(data)) {
				return
			}
			i += 8 + int(n)
		}
	}
}

// jpegScans counts the scans of a JPEG.
func jpegScans(b []byte) int {
	n := 0
	jpegSegments(b, func(marker byte) {
		if marker == 0xda {
			n++
		}
	})
	return n
}

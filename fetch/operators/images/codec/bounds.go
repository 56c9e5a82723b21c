package codec

import (
	"image"
	"image/color"
)

// What the libraries take besides pixels: tables, palettes, windows of decompressors.
const (
	roomBytes = 256 << 10
	roomSteps = 1 << 20
)

// Steps of work, each about a nanosecond.
const (
	byteSteps      = 10 // of a byte of a file that is inflated
	inflatedSteps  = 5  // of a byte that comes out, with the filter that it passes
	interlaceSteps = 6  // of a pixel of an interlaced PNG, which is put where it belongs
	gifSteps       = 10 // of a pixel
	stripSteps     = 20_000
	pixelSteps     = 5 // of a pixel of a TIFF
)

// pngBytes is what the library allocates for a PNG of so many bits a channel: its pixels, and two rows of the file. Of
// an interlaced one each of seven passes has an image of its own, which together have all pixels once more, and rows
// that together are less than three.
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

// pngSteps bounds the work: rows are inflated that have as many bytes as the header says, whatever the data has.
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

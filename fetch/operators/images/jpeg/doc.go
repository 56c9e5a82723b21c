// Package jpeg decodes JPEG to the bytes that libjpeg gives: baseline, extended and
// progressive Huffman streams of eight bits, the accurate integer transform (islow) and
// fancy upsampling. A [Decoder] transforms no more blocks than a region of the image
// needs.
//
// The standard library's decoder gives other bytes, and decodes whole images alone.
//
// Sources: ITU-T T.81; C. Loeffler, A. Ligtenberg, G. Moschytz: "Practical fast 1-D DCT
// algorithms with 11 multiplications", ICASSP 1989, as libjpeg's jidctint.c has it; the
// triangle filters of jdsample.c.
//
// The package knows no operators. Data is hostile: whatever it says, decoding ends,
// takes memory by the size of the frame alone, and does not panic.
package jpeg

import "errors"

// ErrFormat says that bytes are no JPEG that the package decodes. What it says about
// them is in the errors that wrap it.
var ErrFormat = errors.New("jpeg")

const (
	blockSize   = 64
	maxFactor   = 4
	maxBlocks   = 10  // of an interleaved unit, as T.81 says
	maxScans    = 128 // an encoder makes some ten; each costs a pass over all blocks
	maxMetadata = 4096
)

// Space says what the components of a stream are.
type Space uint8

// The spaces that are decoded.
const (
	Grey Space = iota + 1
	YCbCr
	RGB
	CMYK
	YCCK
)

// Header is what a stream says before its first scan.
type Header struct {
	Width, Height int
	// Components is 1, 3 or 4.
	Components  int
	Space       Space
	Progressive bool
	// Orientation is Exif's, 1 to 8; 1 where there is none.
	Orientation int
	// Profile says that there is an ICC profile.
	Profile bool

	frame [4]struct { // the components
		id     byte
		blocks int32 // with those that pad the frame
	}
}

// zigzag gives a coefficient's place in a block. As in libjpeg, there are 16 more, for runs that lead out of
// the block.
var zigzag = [blockSize + 16]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
}

// Package tiff decodes the first image of a TIFF or BigTIFF, within memory that its header bounds.
//
// It reads strips and tiles, of chunky and planar pixels, without compression and by PackBits, LZW, Deflate, CCITT
// groups 3 and 4, and JPEG. Pixels are grey of 1 to 16 bits, palettes, RGB and CMYK of 8 and 16 bits, with alpha or
// without, and grey of whole and floating-point numbers of 32 and 64 bits. What else a TIFF may have is refused by
// name.
//
// Sources: TIFF 6.0; Adobe's technical note 2 of 1995 (JPEG) and 3 of 2005 (floating-point predictor).
package tiff

import (
	"errors"
	"fmt"

	"bowstring/fetch/operators/program"
)

// ErrFormat says that bytes are no TIFF that the package decodes.
var ErrFormat = errors.New("tiff")

func damaged(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// unsupported names what a TIFF has that is not read.
func unsupported(format string, values ...any) error {
	return fmt.Errorf("%w: TIFF with %s", program.ErrNotSupported, fmt.Sprintf(format, values...))
}

// Tags.
const (
	tagWidth         = 256
	tagHeight        = 257
	tagBits          = 258
	tagCompression   = 259
	tagPhotometric   = 262
	tagFillOrder     = 266
	tagStripOffsets  = 273
	tagOrientation   = 274
	tagSamples       = 277
	tagRowsPerStrip  = 278
	tagStripCounts   = 279
	tagPlanar        = 284
	tagT4Options     = 292
	tagPredictor     = 317
	tagColours       = 320
	tagTileWidth     = 322
	tagTileLength    = 323
	tagTileOffsets   = 324
	tagTileCounts    = 325
	tagExtraSamples  = 338
	tagSampleFormat  = 339
	tagJPEGTables    = 347
	tagProfile       = 34675
	maxSide          = 1 << 24
	maxSamples       = 8
	photoWhiteIsZero = 0
	photoBlackIsZero = 1
	photoRGB         = 2
	photoPalette     = 3
	photoCMYK        = 5
	photoYCbCr       = 6
)

// Ways of compression.
const (
	none       = 1
	fax3       = 3
	fax4       = 4
	lzwCode    = 5
	jpegCode   = 7
	deflate    = 8
	deflateOld = 32946
	packBits   = 32773
)

// otherCompressions are not read.
var otherCompressions = map[int64]string{
	2: "CCITT RLE compression", 6: "old-style JPEG compression", 9: "JBIG compression", 10: "JBIG compression",
	32766: "NeXT compression", 32771: "CCITT RLE compression", 32809: "ThunderScan compression", 34661: "JBIG compression",
	33003: "JPEG 2000 compression", 33005: "JPEG 2000 compression", 34712: "JPEG 2000 compression",
	34676: "SGI Log compression", 34677: "SGI Log compression", 34887: "LERC compression",
	34892: "lossy JPEG compression of DNG",
	34925: "LZMA compression", 50000: "Zstandard compression", 50001: "WebP compression", 50002: "JPEG XL compression",
	52546: "JPEG XL compression",
}

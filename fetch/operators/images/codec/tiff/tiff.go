// Package tiff decodes the first image of a TIFF or BigTIFF, within memory that the
// header bounds.
//
// It reads strips and tiles, with chunky or planar pixels, uncompressed or compressed by
// PackBits, LZW, Deflate, CCITT group 3 or 4, or JPEG. Pixels are grey of 1 to 16 bits,
// palettes, RGB and CMYK of 8 and 16 bits, with or without alpha, and grey of integers
// and floating-point numbers of 32 and 64 bits. Other features of TIFF are refused by
// name.
//
// Sources: TIFF 6.0; Adobe's technical notes 2 of 1995 (JPEG) and 3 of 2005
// (floating-point predictor).
package tiff

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"math/bits"

	"golang.org/x/image/ccitt"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// ErrFormat means that bytes are not a TIFF that the package decodes.
var ErrFormat = errors.New("tiff")

// damaged is an ErrFormat with its reason.
func damaged(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// unsupported is program.ErrNotSupported with the unsupported feature.
func unsupported(format string, values ...any) error {
	return fmt.Errorf("%w: TIFF with %s", program.ErrNotSupported, fmt.Sprintf(format, values...))
}

// Tags and values of TIFF 6.0. maxSide is in pixels, maxSamples is per pixel.
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

// Compression methods.
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

// otherCompressions are the methods that are not decoded. An error can then name the method
// instead of a number.
var otherCompressions = map[int64]string{
	2: "CCITT RLE compression", 6: "old-style JPEG compression", 9: "JBIG compression", 10: "JBIG compression",
	32766: "NeXT compression", 32771: "CCITT RLE compression", 32809: "ThunderScan compression", 34661: "JBIG compression",
	33003: "JPEG 2000 compression", 33005: "JPEG 2000 compression", 34712: "JPEG 2000 compression",
	34676: "SGI Log compression", 34677: "SGI Log compression", 34887: "LERC compression",
	34892: "lossy JPEG compression of DNG",
	34925: "LZMA compression", 50000: "Zstandard compression", 50001: "WebP compression", 50002: "JPEG XL compression",
	52546: "JPEG XL compression",
}

// decoder decodes one image. A block is a strip or a tile. It lives for one call of Decode.
// Memory of a block is reused for the next one.
type decoder struct {
	*Header
	meter *program.Meter
	block []byte // a decompressed block
	whole []byte // all samples of a planar image, interleaved
	lzw   *lzw
	zlib  io.ReadCloser
	in    input
	jpeg  jpeg.Decoder
	data  []byte // JPEG tables and a block, or scratch memory
	to    target // the result
}

// input is the reader of zlib. It fails when the run's context ends. zlib reads single
// bytes from it if it implements io.ByteReader, and would otherwise read ahead.
type input struct {
	bytes.Reader
	meter *program.Meter
	bytes int
}

// ReadByte implements io.ByteReader, which zlib uses. It checks the context every 64 KiB.
func (r *input) ReadByte() (byte, error) {
	if r.bytes++; r.bytes&(1<<16-1) == 0 {
		if err := r.meter.Check(); err != nil {
			return 0, err
		}
	}
	return r.Reader.ReadByte()
}

// Decode decodes the pixels of a file with this header. The cost on the meter is at most
// that of the header. Blocks are decoded one after the other, in the order of their tags.
func Decode(h *Header, meter *program.Meter) (image.Image, error) {
	if err := meter.Hold(h.Bytes); err != nil {
		return nil, err
	}
	d := &decoder{Header: h, meter: meter}
	if err := d.to.begin(h); err != nil {
		return nil, err
	}
	// A planar image needs all planes before a pixel is complete.
	if h.planar {
		d.whole = make([]byte, h.Width*h.Height*h.samples*h.bits/8)
	}
	// Uncompressed blocks are used where they are in the file.
	if h.compression != none || h.reversed {
		d.block = make([]byte, h.grid.size)
	}
	if h.compression == lzwCode {
		d.lzw = new(lzw)
	}
	// Blocks are in the order of planes, rows and columns.
	g, i := &h.grid, int64(0)
	// Blocks of a planar image come plane by plane.
	planes := 1
	if h.planar {
		planes = h.samples
	}
	for plane := range planes {
		for row := range g.rows {
			for column := range g.columns {
				if err := d.place(i, plane, column*g.across, row*g.down); err != nil {
					return nil, fmt.Errorf("strip or tile %d: %w", i, err)
				}
				i++
			}
		}
	}
	if h.planar {
		if err := meter.Spend(int64(len(d.whole))); err != nil {
			return nil, err
		}
		n := h.Width * h.samples * h.bits / 8
		for y := range h.Height {
			d.to.row(h, d.whole[y*n:][:n], 0, y, h.Width)
		}
	}
	return d.to.image(), nil
}

// place decodes block i and writes its pixels to the image at (x, y). Blocks at the right
// and the lower border are padded: only across x down of their pixels are in the image.
func (d *decoder) place(i int64, plane, x, y int) error {
	g := &d.grid
	down, across := min(g.down, d.Height-y), min(g.across, d.Width-x)
	steps := blockSteps + g.row*int64(g.down)*madeSteps + int64(down)*int64(across)*pixelSteps
	if err := d.meter.Spend(steps); err != nil {
		return err
	}
	// Offsets and lengths come from the file. A length that is missing means the size of a
	// block.
	from, n := g.offsets.at(i, 0), g.counts.at(i, g.size)
	if from > int64(len(d.dir.cell)) {
		return damaged("it begins after the end of the file")
	}
	src := d.dir.cell[from:]
	if src = src[:min(n, int64(len(src)))]; n > int64(len(src)) && d.compression != none {
		return damaged("it has %d bytes, and the file has %d of them", n, len(src))
	}
	if err := d.meter.Spend(int64(len(src)) * readSteps); err != nil {
		return err
	}
	if d.compression == jpegCode {
		return d.placeJPEG(src, plane, x, y)
	}
	rows := g.down
	if !g.tiled {
		rows = down // the last strip may have fewer
	}
	block, err := d.expand(src, rows)
	if err != nil {
		return err
	}
	if len(block) < rows*int(g.row) {
		return damaged("it has %d bytes of pixels of %d", len(block), rows*int(g.row))
	}
	for k := range down {
		row := block[k*int(g.row):][:g.row]
		d.predicted(row, across)
		d.put(row, plane, x, y+k, across)
	}
	return nil
}

// put writes a row of a block to the image. For planar images it writes the samples between
// those of the other planes. x and y are inside of the image, and so is the whole row of n
// pixels.
func (d *decoder) put(row []byte, plane, x, y, n int) {
	if !d.planar {
		d.to.row(d.Header, row, x, y, n)
		return
	}
	wide := d.bits / 8
	to := d.whole[((y*d.Width+x)*d.samples+plane)*wide:]
	for i := range n {
		copy(to[i*d.samples*wide:][:wide], row[i*wide:])
	}
}

// expand decompresses a block of that many rows. The result is valid until the next block,
// and may be shorter than the rows: place checks that. It may be a part of the file.
func (d *decoder) expand(src []byte, rows int) ([]byte, error) {
	size := rows * int(d.grid.row)
	if d.compression == none {
		src = src[:min(len(src), size)]
		if d.reversed {
			for i, b := range src {
				d.block[i] = bits.Reverse8(b)
			}
			return d.block[:len(src)], nil
		}
		return src, nil
	}
	dst := d.block[:size]
	switch d.compression {
	case packBits:
		return dst[:unpack(dst, src)], nil
	case lzwCode:
		// Old files have the lowest bit first. Their first code, ClearCode, looks like
		// this.
		if len(src) > 1 && src[0] == 0 && src[1]&1 != 0 {
			return nil, unsupported("old-style LZW compression")
		}
		return dst[:d.lzw.expand(dst, src)], nil
	case fax3, fax4:
		order, kind := ccitt.MSB, ccitt.Group4
		if d.reversed {
			order = ccitt.LSB
		}
		if d.compression == fax3 {
			kind = ccitt.Group3
		}
		// In a TIFF, raw bits are 0 for white.
		r := ccitt.NewReader(d.meter.Reader(bytes.NewReader(src)), order, kind, d.grid.across, rows,
			&ccitt.Options{Invert: true})
		n, err := io.ReadFull(r, dst)
		return dst[:n], err
	}
	d.in.Reset(src)
	var err error
	if d.zlib == nil {
		d.in.meter = d.meter
		d.zlib, err = zlib.NewReader(&d.in)
	} else {
		err = d.zlib.(zlib.Resetter).Reset(&d.in, nil)
	}
	if err != nil {
		return nil, err
	}
	n, err := io.ReadFull(d.zlib, dst)
	return dst[:n], err
}

// Layout is the kind of pixels of a decoded image. It decides the type of the decoded
// image: see target.
type Layout uint8

// The layouts.
const (
	Grey Layout = iota + 1
	Palette
	Colours
	ColoursAlpha
	CMYK
	// Number is grey of floating-point numbers, or of integers that are signed or have 32
	// bits.
	Number
)

// Header is what the tags of the first image say. It refers to the file, which must not
// change until the image is decoded.
type Header struct {
	Width, Height int
	Layout        Layout
	// Deep is set for 16 bits per channel.
	Deep bool
	// Orientation is the tag Orientation, 1 to 8.
	Orientation int
	// Profile is the ICC profile, or nil.
	Profile []byte
	// Bytes is the maximum memory of decoding, and Steps the maximum work.
	Bytes, Steps int64

	dir         directory
	order       binary.ByteOrder
	bits        int   // per sample
	samples     int   // per pixel
	format      int64 // SampleFormat
	photometric int64
	compression int64
	predictor   int64 // 1: none, 2: horizontal differences, 3: floating-point
	planar      bool  // each block has samples of one channel
	reversed    bool  // FillOrder 2: the lowest bit of a byte is first
	associated  bool  // colours are premultiplied by alpha
	grid        grid
	tables      []byte // JPEG tables, without those of the blocks
}

// Read reads the tags of the first image. Its allocations do not depend on them.
func Read(cell []byte) (Header, error) {
	h := Header{Orientation: 1}
	if err := h.dir.open(cell); err != nil {
		return Header{}, err
	}
	d := &h.dir
	h.order = d.order
	// Both tags are required; their absence gives 0.
	width, height := d.number(tagWidth, 0), d.number(tagHeight, 0)
	if width < 1 || height < 1 || width > maxSide || height > maxSide {
		return Header{}, damaged("it is %d x %d pixels", width, height)
	}
	h.Width, h.Height = int(width), int(height)
	if o := int(d.number(tagOrientation, 1)); o >= 1 && o <= 8 {
		h.Orientation = o
	}
	if p := d.tag(tagProfile); p.n > 0 {
		h.Profile = p.data
	}
	h.compression = d.number(tagCompression, none)
	if name, ok := otherCompressions[h.compression]; ok {
		return h, unsupported("%s", name)
	}
	h.predictor = d.number(tagPredictor, 1)
	switch h.compression {
	case none, packBits, fax3, fax4, jpegCode:
		h.predictor = 1 // predictors are for LZW and Deflate only
	case lzwCode, deflate, deflateOld:
	default:
		return h, unsupported("compression %d", h.compression)
	}
	// Bit 0 of T4Options: two-dimensional coding.
	if h.compression == fax3 && d.number(tagT4Options, 0)&1 != 0 {
		return h, unsupported("CCITT group 3 compression of two dimensions")
	}
	if err := h.pixels(); err != nil {
		return h, err
	}
	if err := h.blocks(); err != nil {
		return h, err
	}
	h.bound()
	return h, nil
}

// pixels reads the tags of samples and pixels. It determines Layout, which numbers and
// alpha may then change.
func (h *Header) pixels() error {
	d := &h.dir
	bits := d.tag(tagBits)
	h.bits, h.samples = int(bits.at(0, 1)), int(d.number(tagSamples, max(bits.n, 1)))
	h.format = d.number(tagSampleFormat, 1)
	h.photometric = d.number(tagPhotometric, -1)
	h.planar = d.number(tagPlanar, 1) == 2 && h.samples > 1
	h.reversed = d.number(tagFillOrder, 1) == 2
	if h.samples < 1 || h.samples > 1<<16 {
		return damaged("it has %d samples a pixel", h.samples)
	}
	if h.samples > maxSamples {
		return unsupported("%d samples a pixel", h.samples)
	}
	// Each sample has its own number of bits; all must be equal.
	for i := range bits.n {
		if int(bits.at(i, 0)) != h.bits {
			return unsupported("samples of different bits")
		}
	}
	// base is the number of samples of a colour. base is the number of samples that make a
	// colour; further ones are alpha or unknown.
	base := 1
	switch h.photometric {
	case photoWhiteIsZero, photoBlackIsZero:
		h.Layout = Grey
	case photoPalette:
		h.Layout = Palette
	case photoRGB:
		h.Layout, base = Colours, 3
	case photoCMYK:
		h.Layout, base = CMYK, 4
	case photoYCbCr:
		h.Layout, base = Colours, 3
		if h.compression != jpegCode {
			return unsupported("YCbCr pixels that are not compressed as JPEG")
		}
	case -1:
		return damaged("it does not say what its pixels are")
	default:
		return unsupported("pixels of photometric interpretation %d", h.photometric)
	}
	if h.samples < base {
		return damaged("it has %d samples a pixel of photometric interpretation %d", h.samples, h.photometric)
	}
	if err := h.numbers(); err != nil {
		return err
	}
	return h.alpha(base)
}

// numbers checks the type of the samples. Each combination that is accepted has a case in
// target.row.
func (h *Header) numbers() error {
	const whole, signed, float = 1, 2, 3
	switch {
	// Format 4 is undefined data, which is read as unsigned integers.
	case (h.format == whole || h.format == 4) && (h.bits == 8 || h.bits == 16):
		h.Deep = h.bits == 16
		if h.Layout == Palette && h.Deep {
			return unsupported("a palette of 16 bits")
		}
	case h.format == whole && (h.bits == 1 || h.bits == 2 || h.bits == 4) && h.samples == 1 &&
		(h.Layout == Grey || h.Layout == Palette):
	case h.Layout == Grey && h.samples == 1 && (h.format == float && (h.bits == 32 || h.bits == 64) ||
		(h.format == signed || h.format == whole) && h.bits == 32 || h.format == signed && h.bits == 16):
		h.Layout = Number
	case h.format > 4:
		return unsupported("complex numbers")
	default:
		kind := map[int64]string{signed: "signed", float: "floating-point"}[h.format]
		if kind != "" {
			kind += " "
		}
		return unsupported("%d %ssamples of %d bits a pixel", h.samples, kind, h.bits)
	}
	switch {
	case h.compression == jpegCode && (h.bits != 8 || h.Layout == Palette):
		return unsupported("JPEG compression of samples of %d bits", h.bits)
	case (h.compression == fax3 || h.compression == fax4) && h.bits != 1:
		return damaged("fax compression of samples of %d bits", h.bits)
	case h.reversed && (h.compression == lzwCode || h.compression == packBits):
		return unsupported("compressed bits in reversed order")
	case h.predictor == 3 && h.format == float, h.predictor == 1, h.predictor == 2 && h.bits >= 8:
		return nil
	}
	return unsupported("predictor %d of samples of %d bits", h.predictor, h.bits)
}

// alpha determines the meaning of the samples after the colour. Samples after the colour
// are alpha only if a tag says so or there is no tag.
func (h *Header) alpha(base int) error {
	extra := h.samples - base
	if extra == 0 {
		return nil
	}
	if extra > 3 || h.compression == jpegCode {
		return unsupported("%d samples a pixel", h.samples)
	}
	kinds := h.dir.tag(tagExtraSamples)
	kind := kinds.at(0, 2) // default: alpha, like Pillow
	if h.Layout == Palette || h.Layout == CMYK || kind == 0 {
		return nil
	}
	h.Layout, h.associated = ColoursAlpha, kind == 1
	return nil
}

// grid is the division of an image into strips or tiles. Blocks are numbered by rows, and
// for planar images by planes first.
type grid struct {
	across, down    int // size of a block in pixels
	columns, rows   int // number of blocks
	offsets, counts values
	tiled           bool
	row             int64 // bytes of a row of a block
	size            int64 // bytes of a block
}

// n is the number of blocks, of all planes. It must not exceed the number of offsets: see
// blocks.
func (g *grid) n(h *Header) int64 {
	n := int64(g.columns) * int64(g.rows)
	if h.planar {
		n *= int64(h.samples)
	}
	return n
}

// ceil is a / b, rounded up.
func ceil(a, b int) int { return (a + b - 1) / b }

// blocks reads the tags of strips or tiles. A file has strips or tiles; tiles take
// precedence.
func (h *Header) blocks() error {
	g, d := &h.grid, &h.dir
	g.across, g.down = h.Width, h.Height
	offsets, counts := uint16(tagStripOffsets), uint16(tagStripCounts)
	if w := d.number(tagTileWidth, 0); w != 0 {
		l := d.number(tagTileLength, 0)
		// TIFF 6.0 requires multiples of 16; some writers use other sizes. The limit
		// bounds the memory of a block.
		if w < 8 || l < 8 || w > int64(max(h.Width+16, 1024)) || l > int64(max(h.Height+16, 1024)) {
			return damaged("its tiles are %d x %d pixels", w, l)
		}
		g.across, g.down, g.tiled = int(w), int(l), true
		offsets, counts = tagTileOffsets, tagTileCounts
	} else if n := d.number(tagRowsPerStrip, 0); n > 0 {
		g.down = int(min(int64(g.down), n))
	}
	g.columns, g.rows = ceil(h.Width, g.across), ceil(h.Height, g.down)
	g.offsets, g.counts = d.tag(offsets), d.tag(counts)
	per := h.samples
	if h.planar {
		per = 1
	}
	// Rows of a block begin at a byte.
	g.row = (int64(g.across)*int64(per)*int64(h.bits) + 7) / 8
	g.size = g.row * int64(g.down)
	if n := g.n(h); g.offsets.n < n || g.counts.n < n && (n > 1 || h.compression != none) {
		return damaged("it has %d strips or tiles, with %d offsets and %d lengths", n, g.offsets.n, g.counts.n)
	}
	h.tables = d.tag(tagJPEGTables).data
	return nil
}

// pixelBytes is the number of bytes of a pixel in the decoded image. It is that of the
// image types of the standard library, which have alpha for colours.
func (h *Header) pixelBytes() int64 {
	n := map[Layout]int64{Grey: 1, Palette: 1, Number: 4, Colours: 4, ColoursAlpha: 4, CMYK: 4}[h.Layout]
	if h.Deep && h.Layout != CMYK {
		n *= 2
	}
	return n
}

const (
	roomBytes    = 192 << 10 // small things: the state of decompressors
	faxBytes     = 4 << 10   // state of a fax decoder, allocated for each block
	blockSteps   = 2000      // per block
	readSteps    = 10        // per byte of the file
	madeSteps    = 5         // per decompressed byte
	pixelSteps   = 8         // per pixel
	paletteBytes = 256 * 24  // of a palette of 256 colours
)

// bound computes Bytes and Steps. Amounts do not overflow: they saturate, and a run with
// such a cost is refused.
func (h *Header) bound() {
	g := &h.grid
	pixels := program.Count(int64(h.Width)).Times(int64(h.Height))
	n := g.n(h)
	bytes := pixels.Times(h.pixelBytes()).Plus(program.Count(roomBytes + paletteBytes))
	steps := pixels.Times(pixelSteps).Plus(program.Count(n).Times(blockSteps)).Plus(program.Count(1 << 16))
	// Each block decompresses to at most its size.
	steps = steps.Plus(program.Count(n).Times(g.size).Times(madeSteps))
	read := program.Count(0)
	for i := range min(n, g.counts.n) {
		read = read.Plus(program.Count(min(g.counts.at(i, 0), int64(len(h.dir.cell)))))
	}
	each := int64(readSteps)
	if h.compression == jpegCode {
		each += jpeg.ByteSteps
	}
	steps = steps.Plus(read.Times(each))
	if h.planar {
		bytes = bytes.Plus(pixels.Times(int64(h.samples * h.bits / 8)))
		steps = steps.Plus(pixels.Times(int64(h.samples * h.bits / 8)))
	}
	if h.compression != none || h.reversed {
		bytes = bytes.Plus(program.Count(g.size))
	}
	if h.predictor == 3 {
		bytes = bytes.Plus(program.Count(g.row))
	}
	switch h.compression {
	case fax3, fax4: // two rows of one byte per pixel, allocated for each block
		bytes = bytes.Plus(program.Count(n).Times(2*int64(g.across) + faxBytes))
	case jpegCode:
		b, s := h.jpegBound()
		bytes, steps = bytes.Plus(b), steps.Plus(program.Count(n).Times(s))
	}
	h.Bytes, h.Steps = bytes.Int64(), steps.Int64()
}

// directory is the tags of an image. It refers to the file and copies nothing. Other
// directories of the file are further images, which are ignored.
type directory struct {
	cell    []byte
	order   binary.ByteOrder
	big     bool   // BigTIFF
	entries []byte // size bytes each: tag, type, count, value or offset
}

// Recognised reports whether a file begins like a TIFF or a BigTIFF.
func Recognised(cell []byte) bool {
	if len(cell) < 4 {
		return false
	}
	switch string(cell[:4]) {
	case "II*\x00", "MM\x00*", "II+\x00", "MM\x00+":
		return true
	}
	return false
}

// size is the number of bytes of an entry.
func (d *directory) size() int {
	if d.big {
		return 20
	}
	return 12
}

// open finds the first directory. All later accesses to entries are within the file.
func (d *directory) open(cell []byte) error {
	if !Recognised(cell) || len(cell) < 8 {
		return damaged("it does not begin as a TIFF")
	}
	d.cell, d.order = cell, binary.LittleEndian
	if cell[0] == 'M' {
		d.order = binary.BigEndian
	}
	at := uint64(d.order.Uint32(cell[4:]))
	var n uint64
	// BigTIFF: version 43, offsets of 8 bytes.
	if d.big = cell[2] == '+' || cell[3] == '+'; d.big {
		if len(cell) < 16 || d.order.Uint16(cell[4:]) != 8 {
			return damaged("it does not begin as a BigTIFF")
		}
		at = d.order.Uint64(cell[8:])
		if at >= uint64(len(cell)) || len(cell)-int(at) < 8 {
			return fmt.Errorf("%w: its first directory is not there: %w", ErrFormat, io.ErrUnexpectedEOF)
		}
		n = d.order.Uint64(cell[at:])
		at += 8
	} else {
		if at >= uint64(len(cell)) || len(cell)-int(at) < 2 {
			return fmt.Errorf("%w: its first directory is not there: %w", ErrFormat, io.ErrUnexpectedEOF)
		}
		n = uint64(d.order.Uint16(cell[at:]))
		at += 2
	}
	if n > uint64(len(cell)-int(at))/uint64(d.size()) {
		return damaged("it has no room for %d tags", n)
	}
	d.entries = cell[at:][:int(n)*d.size()]
	return nil
}

// values are the values of a tag. They are read on demand, because a file can announce
// billions of them.
type values struct {
	data  []byte
	order binary.ByteOrder
	kind  uint16 // TIFF type
	wide  int    // bytes of a value
	n     int64  // number of values
}

// widths is the number of bytes of a value of each type. Types without a size are unknown,
// and their tags count as absent.
var widths = [...]int{
	1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8,
}

// tag finds the values of a tag; there are none if it is absent. Values after the end of
// the file are dropped. The search is linear: entries are sorted by the specification, but
// not in all files.
func (d *directory) tag(tag uint16) (v values) {
	step := d.size()
	for rest := d.entries; len(rest) >= step; rest = rest[step:] {
		if d.order.Uint16(rest) != tag {
			continue
		}
		v.order, v.kind = d.order, d.order.Uint16(rest[2:])
		if int(v.kind) >= len(widths) || widths[v.kind] == 0 {
			return values{}
		}
		v.wide = widths[v.kind]
		n, at, inline := uint64(d.order.Uint32(rest[4:])), uint64(d.order.Uint32(rest[8:])), rest[8:12]
		if d.big {
			n, at, inline = d.order.Uint64(rest[4:]), d.order.Uint64(rest[12:]), rest[12:20]
		}
		v.data = inline
		// Values that do not fit into the entry are at an offset.
		if n > uint64(len(inline)/v.wide) {
			v.data = d.cell[min(at, uint64(len(d.cell))):]
		}
		v.n = int64(min(n, uint64(len(v.data)/v.wide)))
		v.data = v.data[:int(v.n)*v.wide]
		return v
	}
	return v
}

// at returns value i if it is an integer that is not negative; else otherwise. Fractions
// and floating-point numbers are not integers, even if their value is whole.
func (v *values) at(i, otherwise int64) int64 {
	if i >= v.n {
		return otherwise
	}
	b := v.data[int(i)*v.wide:]
	switch v.kind {
	case 1:
		return int64(b[0])
	case 3:
		return int64(v.order.Uint16(b))
	case 4, 13:
		return int64(v.order.Uint32(b))
	case 16, 18:
		if n := int64(v.order.Uint64(b)); n >= 0 {
			return n
		}
	}
	return otherwise
}

// number returns the first value of a tag, or otherwise.
func (d *directory) number(tag uint16, otherwise int64) int64 {
	v := d.tag(tag)
	return v.at(0, otherwise)
}

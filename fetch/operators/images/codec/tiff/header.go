package tiff

import (
	"encoding/binary"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// Layout is what the pixels of a decoded image are.
type Layout uint8

// The layouts.
const (
	Grey Layout = iota + 1
	Palette
	Colours
	ColoursAlpha
	CMYK
	// Number is grey of floating-point numbers, or of whole ones that are signed or of 32 bits.
	Number
)

// Header is what a file says before its pixels.
type Header struct {
	Width, Height int
	Layout        Layout
	// Deep says that there are 16 bits a channel.
	Deep bool
	// Orientation is that of Exif, 1 to 8.
	Orientation int
	// Profile is the ICC profile, or nil.
	Profile []byte
	// Bytes bounds what decoding holds at once, and Steps its work.
	Bytes, Steps int64

	dir         directory
	order       binary.ByteOrder
	bits        int // of a sample
	samples     int // of a pixel
	format      int64
	photometric int64
	compression int64
	predictor   int64
	planar      bool
	reversed    bool // bits of bytes
	associated  bool // colours were multiplied by alpha
	grid        grid
	tables      []byte // of JPEG
}

// Read reads the tags of the first image. It allocates nothing that depends on what they say.
func Read(cell []byte) (Header, error) {
	h := Header{Orientation: 1}
	if err := h.dir.open(cell); err != nil {
		return Header{}, err
	}
	d := &h.dir
	h.order = d.order
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
		h.predictor = 1 // which is for LZW and Deflate alone
	case lzwCode, deflate, deflateOld:
	default:
		return h, unsupported("compression %d", h.compression)
	}
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

// pixels reads what samples and pixels are.
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
	for i := range bits.n {
		if int(bits.at(i, 0)) != h.bits {
			return unsupported("samples of different bits")
		}
	}
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

// numbers checks what kind of number a sample is.
func (h *Header) numbers() error {
	const whole, signed, float = 1, 2, 3
	switch {
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

// alpha looks what the samples are that a pixel has besides its colour.
func (h *Header) alpha(base int) error {
	extra := h.samples - base
	if extra == 0 {
		return nil
	}
	if extra > 3 || h.compression == jpegCode {
		return unsupported("%d samples a pixel", h.samples)
	}
	kinds := h.dir.tag(tagExtraSamples)
	kind := kinds.at(0, 2) // where it is not said it is alpha, as Pillow has it
	if h.Layout == Palette || h.Layout == CMYK || kind == 0 {
		return nil
	}
	h.Layout, h.associated = ColoursAlpha, kind == 1
	return nil
}

// grid is how an image is cut into strips or tiles.
type grid struct {
	across, down    int // pixels of each
	columns, rows   int
	offsets, counts values
	tiled           bool
	row             int64 // bytes of a row of a block
	size            int64 // bytes of a block
}

// n is how many blocks there are.
func (g *grid) n(h *Header) int64 {
	n := int64(g.columns) * int64(g.rows)
	if h.planar {
		n *= int64(h.samples)
	}
	return n
}

func ceil(a, b int) int { return (a + b - 1) / b }

func (h *Header) blocks() error {
	g, d := &h.grid, &h.dir
	g.across, g.down = h.Width, h.Height
	offsets, counts := uint16(tagStripOffsets), uint16(tagStripCounts)
	if w := d.number(tagTileWidth, 0); w != 0 {
		l := d.number(tagTileLength, 0)
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
	g.row = (int64(g.across)*int64(per)*int64(h.bits) + 7) / 8
	g.size = g.row * int64(g.down)
	if n := g.n(h); g.offsets.n < n || g.counts.n < n && (n > 1 || h.compression != none) {
		return damaged("it has %d strips or tiles, and places of %d and lengths of %d of them", n, g.offsets.n, g.counts.n)
	}
	h.tables = d.tag(tagJPEGTables).data
	return nil
}

// pixelBytes is what a pixel has in the image that is made.
func (h *Header) pixelBytes() int64 {
	n := map[Layout]int64{Grey: 1, Palette: 1, Number: 4, Colours: 4, ColoursAlpha: 4, CMYK: 4}[h.Layout]
	if h.Deep && h.Layout != CMYK {
		n *= 2
	}
	return n
}

const (
	roomBytes    = 192 << 10 // for what is small: the state of decompressors
	faxBytes     = 4 << 10   // of the state of a fax decoder, which is made for each block
	blockSteps   = 2000
	readSteps    = 10 // of a byte that is read
	madeSteps    = 5  // of a byte that comes out
	pixelSteps   = 8
	paletteBytes = 256 * 24
)

// bound says what decoding takes.
func (h *Header) bound() {
	g := &h.grid
	pixels := program.Count(int64(h.Width)).Times(int64(h.Height))
	n := g.n(h)
	bytes := pixels.Times(h.pixelBytes()).Plus(program.Count(roomBytes + paletteBytes))
	steps := pixels.Times(pixelSteps).Plus(program.Count(n).Times(blockSteps)).Plus(program.Count(1 << 16))
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
	case fax3, fax4: // two rows with a byte for each pixel, made anew for each block
		bytes = bytes.Plus(program.Count(n).Times(2*int64(g.across) + faxBytes))
	case jpegCode:
		b, s := h.jpegBound()
		bytes, steps = bytes.Plus(b), steps.Plus(program.Count(n).Times(s))
	}
	h.Bytes, h.Steps = bytes.Int64(), steps.Int64()
}

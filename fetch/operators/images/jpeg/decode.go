// Package jpeg decodes JPEG to the same bytes as libjpeg: baseline, extended and
// progressive Huffman streams of eight bits, with the accurate integer inverse DCT
// (islow) and fancy upsampling. A [Decoder] transforms only the blocks that a region of
// the image needs.
//
// The standard library's decoder gives other bytes, and only decodes whole images.
//
// Sources: ITU-T T.81; C. Loeffler, A. Ligtenberg, G. Moschytz: "Practical fast 1-D DCT
// algorithms with 11 multiplications", ICASSP 1989, as implemented in libjpeg's
// jidctint.c; the triangle filters of jdsample.c.
//
// The package does not know operators. Data is untrusted: decoding always ends, the size
// of the frame bounds its memory, and it does not panic.
package jpeg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"

	"bowstring/fetch/operators/program"
)

// ErrFormat means that bytes are not a JPEG that the package decodes. Errors that wrap it
// have the reason.
var ErrFormat = errors.New("jpeg")

const (
	blockSize = 64 // coefficients of a block, 8x8
	// The limits are those of T.81, except for the last two, which bound the work of a
	// small file.
	maxFactor   = 4    // maximum sampling factor
	maxBlocks   = 10   // of an interleaved MCU, T.81 B.2.3
	maxScans    = 128  // encoders write about ten; each is a pass over all blocks
	maxMetadata = 4096 // segments before the first scan
)

// Space is the colour space of a stream's components. It decides the conversion in Row.
type Space uint8

// The supported colour spaces.
const (
	Grey Space = iota + 1
	YCbCr
	RGB
	CMYK
	YCCK
)

// Header is what a stream says before its first scan.
type Header struct {
	// Pixels.
	Width, Height int
	// Components is the number of components: 1, 3 or 4.
	Components  int
	Space       Space
	Progressive bool
	// Orientation is Exif's, 1 to 8; 1 if there is none.
	Orientation int
	// Profile is set if there is an ICC profile.
	Profile bool

	frame [4]struct { // one for each component
		id     byte
		blocks int32 // number of blocks, with the padding of the frame
	}
}

// zigzag maps the zigzag index of a coefficient to its natural index, T.81 figure A.6. As
// in libjpeg, 16 more entries catch runs that leave the block.
var zigzag = [blockSize + 16]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
	63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
}

// Decoder decodes JPEGs and reuses its memory. It is not safe for concurrent use.
type Decoder struct {
	parser
	tables
	meter   *program.Meter
	region  image.Rectangle
	planes  []byte      // samples of all components
	stored  []int16     // coefficients of all components, for streams of several scans
	spare   [4][]byte   // upsampled rows, one per component
	scans   int         // scans so far
	eobRun  int         // further blocks that are empty in this scan: T.81's EOBRUN
	unit    []unitBlock // the blocks of an MCU of the scan
	refined [4]uint64   // coefficients that have been in a scan: a bit per zigzag index, for each component
}

// Decode decodes a region, which must be inside of the image and not empty. Row returns
// its pixels afterwards; data must not change until then. The cost on the meter is at
// most Header.Bytes and Header.Steps. Errors are ErrFormat, program.ErrNotSupported, or
// those of the meter.
func (d *Decoder) Decode(data []byte, region image.Rectangle, meter *program.Meter) error {
	return d.DecodeAs(0, data, region, meter)
}

// DecodeAs is Decode with a known colour space, which overrides that of data. Its number of
// components must match. The tables of the last data are invalid, but their memory is used
// again.
func (d *Decoder) DecodeAs(given Space, data []byte, region image.Rectangle, meter *program.Meter) error {
	d.parser, d.meter, d.tables.meter = parser{data: data, given: given}, meter, meter
	d.restart = 0
	d.hasQuant = [4]bool{}
	for i := range d.dc {
		d.dc[i].defined, d.ac[i].defined = false, false
	}
	d.scans, d.refined = 0, [4]uint64{}
	if err := d.toScan(&d.tables); err != nil {
		return err
	}
	if region.Empty() || !region.In(image.Rect(0, 0, d.header.Width, d.header.Height)) {
		panic("jpeg: a region outside of the image")
	}
	d.region = region
	d.place()
	// One pass over the segments: scans are decoded where they come, because tables may
	// change between them.
	sequential := false
	for {
		m, s, err := d.marker()
		if err != nil {
			return err
		}
		switch m {
		case markEOI:
			if d.scans == 0 {
				return damaged("there is no scan")
			}
			return d.transformStored()
		case markSOS:
			sc, err := d.scanOf(s)
			if err != nil {
				return err
			}
			if d.scans == 1 && !d.header.Progressive && len(sc.components) == len(d.frame) {
				// The usual stream: blocks are transformed immediately, and nothing after
				// the region is read.
				return d.baseline(sc)
			}
			sequential = sequential || !d.header.Progressive
			if err := d.storedScan(sc); err != nil {
				return err
			}
			if sequential && d.complete() {
				return d.transformStored()
			}
		case markSOF0, markSOF1, markSOF2:
			return damaged("it has two frames")
		default:
			if err := d.define(m, s); err != nil {
				return err
			}
		}
	}
}

// complete reports whether each component of a sequential stream has had its scan. Anything
// after the last scan of a sequential stream is not needed.
func (d *Decoder) complete() bool {
	for i := range d.frame {
		if d.refined[i] == 0 {
			return false
		}
	}
	return true
}

// Header is that of the last decoded data.
func (d *Decoder) Header() Header { return d.header }

// place determines the blocks that the region needs, and allocates their samples. Only
// these samples are kept, so memory depends on the region for baseline streams.
func (d *Decoder) place() {
	total := 0
	for i := range d.frame {
		c := &d.frame[i]
		// Upsampling also reads one sample on each side.
		x0, y0 := max(d.region.Min.X/c.wider-1, 0), max(d.region.Min.Y/c.higher-1, 0)
		x1, y1 := min((d.region.Max.X-1)/c.wider+2, c.width), min((d.region.Max.Y-1)/c.higher+2, c.height)
		c.left, c.top, c.right, c.bottom = x0/8, y0/8, ceil(x1, 8), ceil(y1, 8)
		c.stride = (c.right - c.left) * 8
		total += c.stride * (c.bottom - c.top) * 8
	}
	if cap(d.planes) < total {
		d.planes = make([]byte, total)
	}
	rest := d.planes[:total]
	for i := range d.frame {
		c := &d.frame[i]
		n := c.stride * (c.bottom - c.top) * 8
		c.samples, rest = rest[:n:n], rest[n:]
	}
}

// scan is a scan header, T.81 B.2.3. It is valid until the next scan.
type scan struct {
	components    []*component
	first, last   int   // spectral selection: zigzag indices of the coefficients
	high, low     uint  // successive approximation: bit positions
	at            int   // offset of the entropy-coded data
	index         []int // indices of the components in the frame
	interleaved   bool
	stored        bool // coefficients are stored for later scans
	across, count int  // number of units in a row, and in total
}

// scanOf parses a scan header, and checks it. The components keep the tables that the scan
// selects.
func (d *Decoder) scanOf(s []byte) (*scan, error) {
	if d.scans++; d.scans > maxScans {
		return nil, damaged("it has more than %d scans", maxScans)
	}
	if len(s) < 1 || s[0] < 1 || s[0] > 4 || len(s) != 4+2*int(s[0]) {
		return nil, damaged("a scan's segment has a wrong length")
	}
	n := int(s[0])
	sc := &scan{at: d.at, interleaved: n > 1}
	blocks := 0
	for i := range n {
		id, selected := int(s[1+2*i]), s[2+2*i]
		at := -1
		for j := range d.frame {
			if d.frame[j].id == id {
				at = j
			}
		}
		if at < 0 || selected>>4 > 3 || selected&15 > 3 {
			return nil, damaged("a scan names component %d with tables %#x", id, selected)
		}
		for _, other := range sc.index {
			if other == at {
				return nil, damaged("a scan names component %d twice", id)
			}
		}
		c := &d.frame[at]
		c.dcTable, c.acTable = int(selected>>4), int(selected&15)
		sc.components, sc.index = append(sc.components, c), append(sc.index, at)
		blocks += c.h * c.v
	}
	if sc.interleaved && blocks > maxBlocks {
		return nil, damaged("a scan's unit has %d blocks, and may have %d", blocks, maxBlocks)
	}
	b := s[1+2*n:]
	sc.first, sc.last, sc.high, sc.low = int(b[0]), int(b[1]), uint(b[2]>>4), uint(b[2]&15)
	if !d.header.Progressive {
		sc.first, sc.last, sc.high, sc.low = 0, blockSize-1, 0, 0
	}
	if err := d.checkScan(sc); err != nil {
		return nil, err
	}
	// MCUs of an interleaved scan cover the padded frame; a scan of one component has
	// only the blocks with samples (T.81 A.2).
	if c := sc.components[0]; sc.interleaved {
		sc.across = c.padded / c.h
		sc.count = sc.across * (c.paddedDown / c.v)
	} else {
		sc.across, sc.count = c.across, c.across*c.down
	}
	return sc, nil
}

// checkScan checks the rules of T.81 G.1.1.1, and that the tables of the scan are
// defined.
func (d *Decoder) checkScan(sc *scan) error {
	if sc.first > sc.last || sc.last >= blockSize || sc.low > 13 || sc.high != 0 && sc.high != sc.low+1 ||
		d.header.Progressive && (sc.first == 0) != (sc.last == 0) || sc.first > 0 && sc.interleaved {
		return damaged("a scan has coefficients %d to %d, bits %d to %d", sc.first, sc.last, sc.high, sc.low)
	}
	// band has a bit for each coefficient of the scan. The order is checked by sets of
	// coefficients, so a stream cannot repeat scans for ever.
	band := (^uint64(0) >> (63 - sc.last)) &^ (1<<sc.first - 1)
	for i, c := range sc.components {
		at := sc.index[i]
		if !d.hasQuant[c.quant] {
			return damaged("there is no quantisation table %d", c.quant)
		}
		needDC, needAC := sc.first == 0 && sc.high == 0, sc.last > 0
		if needDC && !d.dc[c.dcTable].standard(0, c.dcTable) || needAC && !d.ac[c.acTable].standard(1, c.acTable) {
			return damaged("there is no table of codes %d or %d", c.dcTable, c.acTable)
		}
		// A coefficient comes once, is refined after that, and DC comes before AC.
		if sc.high == 0 && d.refined[at]&band != 0 || sc.high != 0 && d.refined[at]&band != band || sc.first > 0 &&
			d.refined[at]&1 == 0 {
			return damaged("scans come in an order that makes no sense")
		}
		d.refined[at] |= band
	}
	return nil
}

// standard defines a missing table as that of T.81 annex K, like libjpeg: Motion JPEG
// omits them.
func (h *huffman) standard(class, n int) bool {
	if !h.defined && n < 2 {
		s := standardTables[class][n]
		h.defined = h.build(s.counts[:], s.symbols, class == 0) == nil
	}
	return h.defined
}

// Held is the number of bytes that the decoder keeps for its next use.
func (d *Decoder) Held() int {
	n := cap(d.planes) + 2*cap(d.stored)
	for _, s := range d.spare {
		n += cap(s)
	}
	return n
}

// Release drops the references to the last data.
func (d *Decoder) Release() { d.parser, d.meter, d.tables.meter = parser{}, nil, nil }

// Markers, T.81 table B.1.
const (
	markSOF0, markSOF1, markSOF2 = 0xC0, 0xC1, 0xC2
	markDHT, markSOI, markEOI    = 0xC4, 0xD8, 0xD9
	markSOS, markDQT, markDRI    = 0xDA, 0xDB, 0xDD
	markRST0, markRST7           = 0xD0, 0xD7
	markAPP0, markAPP1           = 0xE0, 0xE1
	markAPP2, markAPP14          = 0xE2, 0xEE
	markTEM                      = 0x01
)

// cut is damaged for data that ends too early.
func cut(format string, values ...any) error {
	return fmt.Errorf("%w: %w", damaged(format, values...), io.ErrUnexpectedEOF)
}

// otherFrames are the SOF markers that are not decoded.
var otherFrames = map[byte]string{
	0xC3: "lossless compression", 0xC5: "hierarchical frames", 0xC6: "hierarchical frames", 0xC7: "hierarchical frames",
	0xC8: "an extension", 0xC9: "arithmetic coding", 0xCA: "arithmetic coding", 0xCB: "lossless compression",
	0xCD: "hierarchical frames", 0xCE: "hierarchical frames", 0xCF: "hierarchical frames",
}

// unsupported is program.ErrNotSupported with the unsupported feature.
func unsupported(format string, values ...any) error {
	return fmt.Errorf("%w: JPEG with %s", program.ErrNotSupported, fmt.Sprintf(format, values...))
}

// damaged is an ErrFormat with its reason.
func damaged(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// component is a component of the frame, with the tables of its current scan. The header
// sets the first fields, place those of the region.
type component struct {
	id, h, v, quant int // identifier, sampling factors, quantisation table
	// width and height are in samples, without padding; across and down are the number of
	// blocks for them.
	width, height int
	across, down  int
	// padded and paddedDown are the number of blocks with those that complete interleaved
	// MCUs.
	padded, paddedDown int
	dcTable, acTable   int

	// The range of blocks that the region needs, and their samples.
	left, top, right, bottom int
	stride                   int // bytes of a row of samples
	samples                  []byte
	coefficients             []int16
	filter                   filter
	wider, higher            int // pixels per sample
}

// tables is the state that markers define for later scans. They survive from one file to
// the next, so that equal tables need not be built again.
type tables struct {
	quant    [4][blockSize]int32 // in natural order
	hasQuant [4]bool
	dc, ac   [4]huffman
	restart  int // MCUs between restart markers; 0: none
	meter    *program.Meter
}

// parser reads the marker segments. It is created anew for each file.
type parser struct {
	data []byte
	at   int

	header    Header
	frame     []component
	hmax      int // maximum sampling factors
	vmax      int
	jfif      bool
	adobe     bool // there is an APP14 segment of Adobe, with that transform
	transform byte
	given     Space // colour space from the caller; 0: determined from the data
}

// ReadHeader reads up to the first scan. Its allocations do not depend on the data.
func ReadHeader(data []byte) (Header, error) {
	p := parser{data: data}
	if err := p.toScan(nil); err != nil {
		return Header{}, err
	}
	return p.header, nil
}

// marker returns the next marker and its segment; nil for markers without one. A segment
// refers to the data.
func (p *parser) marker() (byte, []byte, error) {
	m := byte(0)
	for m == 0 { // bytes between segments, and stuffed ones left over from a scan, are skipped, as libjpeg does
		for p.at < len(p.data) && p.data[p.at] != 0xFF {
			p.at++
		}
		for p.at < len(p.data) && p.data[p.at] == 0xFF {
			p.at++
		}
		if p.at >= len(p.data) {
			return 0, nil, cut("the data ends before its end marker")
		}
		m = p.data[p.at]
		p.at++
	}
	if m == markSOI || m == markEOI || m == markTEM || m >= markRST0 && m <= markRST7 {
		return m, nil, nil
	}
	if len(p.data)-p.at < 2 {
		return 0, nil, cut("marker %#x has no length", m)
	}
	n := int(binary.BigEndian.Uint16(p.data[p.at:]))
	if n < 2 || n > len(p.data)-p.at {
		err := damaged("marker %#x says that it has %d bytes, there are %d", m, n, len(p.data)-p.at)
		if n >= 2 {
			err = cut("marker %#x has %d bytes, there are %d", m, n, len(p.data)-p.at)
		}
		return 0, nil, err
	}
	segment := p.data[p.at+2 : p.at+n]
	p.at += n
	return m, segment, nil
}

// toScan reads up to the first SOS marker, which stays unread. It defines tables in t if t
// is not nil. All metadata must come before the first scan; later segments are not searched
// for it.
func (p *parser) toScan(t *tables) error {
	if len(p.data) < 4 || p.data[0] != 0xFF || p.data[1] != markSOI {
		return damaged("the data does not begin as a JPEG")
	}
	p.at = 2
	p.header.Orientation = 1
	for range maxMetadata {
		from := p.at
		m, segment, err := p.marker()
		if err != nil {
			return err
		}
		switch m {
		case markSOS:
			if p.frame == nil {
				return damaged("a scan comes before its frame")
			}
			p.at = from
			p.space()
			return nil
		case markEOI:
			return damaged("there is no scan")
		case markSOF0, markSOF1, markSOF2:
			err = p.sof(m, segment)
		case 0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF:
			err = unsupported("%s", otherFrames[m])
		case markAPP0:
			p.jfif = p.jfif || len(segment) >= 14 && string(segment[:5]) == "JFIF\x00"
		case markAPP1:
			if o := exifOrientation(segment); o != 0 {
				p.header.Orientation = o
			}
		case markAPP2:
			p.header.Profile = p.header.Profile || len(segment) > 14 && string(segment[:12]) == "ICC_PROFILE\x00"
		case markAPP14:
			if len(segment) >= 12 && string(segment[:5]) == "Adobe" {
				p.adobe, p.transform = true, segment[11]
			}
		default:
			if t != nil {
				err = t.define(m, segment)
			}
		}
		if err != nil {
			return err
		}
	}
	return damaged("it has more than %d segments before its first scan", maxMetadata)
}

// sof reads a frame header, T.81 B.2.2. The size of the image is known afterwards, and
// nothing was allocated for it.
func (p *parser) sof(m byte, s []byte) error {
	if p.frame != nil {
		return damaged("it has two frames")
	}
	if len(s) < 6 || len(s) != 6+3*int(s[5]) {
		return damaged("the frame's segment has a wrong length")
	}
	if s[0] != 8 {
		return unsupported("samples of %d bits", s[0])
	}
	h := &p.header
	h.Height, h.Width = int(binary.BigEndian.Uint16(s[1:])), int(binary.BigEndian.Uint16(s[3:]))
	h.Components, h.Progressive = int(s[5]), m == markSOF2
	if h.Width == 0 || h.Height == 0 {
		return damaged("the frame is %d x %d pixels", h.Width, h.Height)
	}
	if h.Components != 1 && h.Components != 3 && h.Components != 4 {
		return damaged("the frame has %d components, and takes 1, 3 or 4", h.Components)
	}
	frame := make([]component, h.Components)
	for i := range frame {
		c := &frame[i]
		b := s[6+3*i:]
		c.id, c.h, c.v, c.quant = int(b[0]), int(b[1]>>4), int(b[1]&15), int(b[2])
		if c.h < 1 || c.h > maxFactor || c.v < 1 || c.v > maxFactor || c.quant > 3 {
			return damaged("component %d samples %d x %d with table %d", i, c.h, c.v, c.quant)
		}
		for j := range i {
			if frame[j].id == c.id {
				return damaged("two components have the number %d", c.id)
			}
		}
		p.hmax, p.vmax = max(p.hmax, c.h), max(p.vmax, c.v)
	}
	for i := range frame {
		c := &frame[i]
		// Fractional factors are allowed by T.81, but libjpeg's upsampling does not
		// support them.
		if p.hmax%c.h != 0 || p.vmax%c.v != 0 {
			return damaged("component %d samples %d x %d of %d x %d, no whole part", i, c.h, c.v, p.hmax, p.vmax)
		}
		c.layout(h, p.hmax, p.vmax)
		h.frame[i].id, h.frame[i].blocks = byte(c.id), int32(c.padded*c.paddedDown)
	}
	p.frame = frame
	return nil
}

// ceil is a / b, rounded up.
func ceil(a, b int) int { return (a + b - 1) / b }

// layout computes the sizes of the component, T.81 A.1.1. Padding completes the last MCU at
// the right and the lower border.
func (c *component) layout(h *Header, hmax, vmax int) {
	c.width, c.height = ceil(h.Width*c.h, hmax), ceil(h.Height*c.v, vmax)
	c.across, c.down = ceil(c.width, 8), ceil(c.height, 8)
	c.padded, c.paddedDown = ceil(h.Width, 8*hmax)*c.h, ceil(h.Height, 8*vmax)*c.v
	c.wider, c.higher = hmax/c.h, vmax/c.v
	c.filter = filterOf(c.wider, c.higher, c.width)
}

// space determines the colour space, like default_decompress_parms of libjpeg. Three
// components are YCbCr unless a marker or the identifiers say otherwise.
func (p *parser) space() {
	h := &p.header
	if p.given != 0 {
		h.Space = p.given
		return
	}
	switch h.Components {
	case 1:
		h.Space = Grey
	case 3:
		ids := [3]int{p.frame[0].id, p.frame[1].id, p.frame[2].id}
		switch {
		case p.jfif:
			h.Space = YCbCr
		case p.adobe && p.transform == 0, !p.adobe && ids == [3]int{'R', 'G', 'B'}:
			h.Space = RGB
		default:
			h.Space = YCbCr
		}
	case 4:
		h.Space = CMYK
		if p.adobe && p.transform != 0 {
			h.Space = YCCK
		}
	}
}

// exifOrientation is the orientation of an APP1 segment, or 0.
func exifOrientation(s []byte) int {
	if len(s) < 6 || string(s[:6]) != "Exif\x00\x00" {
		return 0
	}
	return Orientation(s[6:])
}

// Orientation reads the tag Orientation of Exif data, which begins with a TIFF header. It
// is 0 if there is no valid one. A damaged directory gives 0 and no error: the image can be
// decoded without it.
func Orientation(tiff []byte) int {
	if len(tiff) < 8 {
		return 0
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch string(tiff[:4]) {
	case "II*\x00":
	case "MM\x00*":
		order = binary.BigEndian
	default:
		return 0
	}
	at := int64(order.Uint32(tiff[4:]))
	if at > int64(len(tiff))-2 {
		return 0
	}
	entries := tiff[at+2:]
	for range order.Uint16(tiff[at:]) {
		if len(entries) < 12 {
			return 0
		}
		// Tag Orientation, of type SHORT.
		if order.Uint16(entries) == 0x0112 {
			if v := int(order.Uint16(entries[8:])); order.Uint16(entries[2:]) == 3 && v >= 1 && v <= 8 {
				return v
			}
			return 0
		}
		entries = entries[12:]
	}
	return 0
}

// Bytes is the maximum memory of decoding the whole image. It does not depend on the
// region.
func (h *Header) Bytes() int64 {
	units := int64(ceil(h.Width, 8*maxFactor)) * int64(ceil(h.Height, 8*maxFactor))
	samples := units * blockSize * maxFactor * maxFactor * int64(h.Components)
	rows := int64(h.Width)*int64(h.Components+4) + 1<<12 // upsampled components, and pixels before conversion
	if h.Progressive || h.Components > 1 {
		// Coefficients of two bytes, also for sequential streams: their components may
		// have separate scans.
		return 3*samples + rows
	}
	return samples + rows
}

// reader reads the entropy-coded data of a scan. The next bits are the upper ones of acc; n
// of them are valid. After the end of the data, or a marker, zeros follow; padding counts
// them. It has no errors: over reports at the end of a row or a scan that data is missing.
// That keeps the loops short.
type reader struct {
	data    []byte
	at      int
	acc     uint64
	n       uint
	padding uint
}

// fill makes n at least 32. Four bytes at a time are possible if none of them is 0xFF,
// which begins a marker or a stuffed byte.
func (b *reader) fill() {
	if b.n >= 32 {
		return
	}
	if b.at+4 <= len(b.data) {
		v := binary.BigEndian.Uint32(b.data[b.at:])
		if x := ^v; (x-0x01010101)&^x&0x80808080 == 0 { // no byte is 0xFF
			b.acc |= uint64(v) << (32 - b.n)
			b.n += 32
			b.at += 4
			return
		}
	}
	b.fillSlowly()
}

// fillSlowly handles stuffed bytes (0xFF 0x00) and the end of the data.
func (b *reader) fillSlowly() {
	for b.n <= 56 {
		v := uint64(0)
		switch {
		case b.at >= len(b.data):
			b.padding += 8
		case b.data[b.at] != 0xFF:
			v = uint64(b.data[b.at])
			b.at++
		case b.at+1 < len(b.data) && b.data[b.at+1] == 0:
			v = 0xFF
			b.at += 2
		default: // a marker; marker skips fill bytes before it
			b.padding += 8
		}
		b.acc |= v << (56 - b.n)
		b.n += 8
	}
}

// over reports whether more bits were used than there are.
func (b *reader) over() bool { return b.padding > b.n }

// take returns the next k bits, at most 16; fill must have been called. k may be 0.
func (b *reader) take(k uint) int32 {
	v := int32(b.acc >> 32 >> ((32 - k) & 63))
	b.acc <<= k & 63
	b.n -= k
	return v
}

// extend converts size bits to a signed value: EXTEND of T.81 F.2.2.1.
func extend(v int32, size uint) int32 {
	if size > 0 && v < 1<<(size-1) {
		v -= 1<<size - 1
	}
	return v
}

// long decodes a code longer than fastBits. Length 0 means that there is none. Such codes
// are rare, so they are compared length by length.
func (h *huffman) long(acc uint64) (symbol byte, length uint) {
	for l := uint(fastBits + 1); l <= 16; l++ {
		code := int32(acc >> (64 - l))
		if code <= h.most[l] {
			return h.symbols[(code+h.offset[l])&255], l
		}
	}
	return 0, 0
}

// symbol decodes a code. ok is false for an invalid code. It is for scans whose values are
// read apart from their codes.
func (b *reader) symbol(h *huffman) (symbol byte, ok bool) {
	b.fill()
	e := h.fast[b.acc>>(64-fastBits)]
	if e == 0 {
		s, l := h.long(b.acc)
		b.acc <<= l
		b.n -= l
		return s, l > 0
	}
	symbol = byte(e >> 8)
	l := uint(e & 31)
	if e&whole != 0 {
		// The length of the entry includes the bits of the value, size of them.
		l -= uint(symbol & 15)
	}
	b.acc <<= l
	b.n -= l
	return symbol, true
}

// restart skips to restart marker want and resets the reader. The bits before the marker
// are padding and are dropped.
func (b *reader) restart(want byte) error {
	if b.over() {
		return damaged("a scan's data ends early")
	}
	at := b.at
	// Reading stops at a marker, so only padding bytes may remain before it.
	for at < len(b.data) && b.data[at] != 0xFF {
		at++
	}
	for at < len(b.data) && b.data[at] == 0xFF {
		at++
	}
	if at >= len(b.data) || b.data[at] != markRST0+want {
		return damaged("a restart marker is missing")
	}
	*b = reader{data: b.data, at: at + 1}
	return nil
}

// Channels is the number of bytes of a pixel: 1, 3 (RGB), or 4 (CMYK as stored; YCCK is
// converted to CMYK). Adobe's programs store CMYK inverted.
func (d *Decoder) Channels() int { return d.header.Components }

// Row writes the pixels of the region in row y of the image to out, after upsampling and
// conversion to RGB. Upsampled rows are not kept: a caller reads each row once.
func (d *Decoder) Row(y int, out []byte) {
	x0, x1 := d.region.Min.X, d.region.Max.X
	n := x1 - x0
	var in [4][]byte
	for i := range d.frame {
		if cap(d.spare[i]) < n {
			d.spare[i] = make([]byte, n)
		}
		in[i] = d.frame[i].row(y, x0, x1, d.spare[i][:n])
	}
	switch d.header.Space {
	case Grey:
		copy(out[:n], in[0])
	case YCbCr:
		toRGB(in[0], in[1], in[2], out[:3*n])
	case RGB:
		for i := range n {
			out[3*i], out[3*i+1], out[3*i+2] = in[0][i], in[1][i], in[2][i]
		}
	case CMYK:
		for i := range n {
			out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = in[0][i], in[1][i], in[2][i], in[3][i]
		}
	case YCCK:
		for i := range n {
			// ycck_cmyk_convert of jdcolor.c: the YCbCr part is inverted RGB.
			r, g, b := convert(in[0][i], in[1][i], in[2][i])
			out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = 255-r, 255-g, 255-b, in[3][i]
		}
	}
}

// chroma is the contribution of a chroma value to R, G and B, by libjpeg's jdcolor.c:
// rounded for red and blue, with 16 bits of fraction for green, where the rounding constant
// is part of Cb's. A table of 256 entries replaces four products for each pixel.
var chroma = func() (t [256]struct{ red, blue, greenCr, greenCb int32 }) {
	const half = 1 << 15
	fix := func(x float64) int32 { return int32(x*65536 + 0.5) }
	for i := range t {
		x := int32(i) - 128
		t[i].red, t[i].blue = (fix(1.40200)*x+half)>>16, (fix(1.77200)*x+half)>>16
		t[i].greenCr, t[i].greenCb = -fix(0.71414)*x, -fix(0.34414)*x+half
	}
	return t
}()

// convert is ycc_rgb_convert of jdcolor.c for one pixel.
func convert(y, cb, cr uint8) (r, g, b uint8) {
	v, u, w := int32(y), &chroma[cr], &chroma[cb]
	return clamp(v + u.red), clamp(v + (u.greenCr+w.greenCb)>>16), clamp(v + w.blue)
}

// toRGBGo converts a row of YCbCr to interleaved RGB.
func toRGBGo(y, cb, cr, out []byte) {
	cb, cr = cb[:len(y)], cr[:len(y)]
	for i, v := range y {
		r, g, b := convert(v, cb[i], cr[i])
		o := (*[3]byte)(out)
		o[0], o[1], o[2] = r, g, b
		out = out[3:]
	}
}

// Work in steps of about one nanosecond. The cost of a scan depends on its blocks, on the
// coefficients that it reads of each block, and on the bytes of its data.
const (
	blockSteps       = 20   // per block of a scan
	coefficientSteps = 2    // per coefficient that a scan of a progressive stream may read
	transformSteps   = 80   // per transformed block
	byteSteps        = 14   // per byte of a scan's data
	tableSteps       = 8000 // per Huffman table
	leastTable       = 17   // minimum bytes of a Huffman table in its segment
)

// Steps is the maximum work of decoding data with this header, without the rows that are
// requested afterwards. It searches data for SOS and DHT markers, and decodes nothing. A
// progressive stream may have many scans, so its work cannot be bounded by the size of the
// image.
func (h *Header) Steps(data []byte) int64 {
	scans, tables := int64(0), int64(4) // of Motion JPEG, which has none
	for at := 2; ; {
		next := bytes.IndexByte(data[min(at, len(data)):], 0xFF)
		if next < 0 {
			break
		}
		at += next + 1
		if at+3 > len(data) {
			break
		}
		m, n := data[at], int64(binary.BigEndian.Uint16(data[at+1:]))
		switch m {
		case markSOS:
			scans += h.scanSteps(data[at+3:])
		case markDHT:
			tables += n/leastTable + 1
		}
	}
	// Bytes that only look like scans, for example in a thumbnail, count at most as many
	// as the scans that are decoded.
	scans = min(scans, maxScans*h.scanSteps(nil))
	if !h.Progressive { // each block is in one scan
		scans = h.blocks() * blockSteps
	}
	return scans + h.blocks()*transformSteps + (int64(len(data))+64)*byteSteps + tables*tableSteps
}

// scanSteps is the maximum work of a scan, from its segment after the length. For nil it is
// that of the most expensive scan. A damaged segment counts as the most expensive one.
func (h *Header) scanSteps(s []byte) int64 {
	blocks, coefficients := h.blocks(), int64(blockSize)
	if len(s) > 0 {
		n := int(s[0])
		if end := 1 + 2*n; n >= 1 && n <= 4 && len(s) >= end+2 && s[end] <= s[end+1] {
			coefficients = min(int64(s[end+1]-s[end])+1, blockSize)
		}
		if n == 1 && len(s) > 1 {
			for i := range h.Components {
				if h.frame[i].id == s[1] {
					blocks = int64(h.frame[i].blocks)
				}
			}
		}
	}
	return blocks * (blockSteps + coefficients*coefficientSteps)
}

// blocks is the number of blocks of the whole frame, with padding.
func (h *Header) blocks() int64 {
	n := int64(0)
	for i := range h.Components {
		n += int64(h.frame[i].blocks)
	}
	return n
}

// steps is the cost of a row of MCUs of a scan, without its data. It is spent before the
// row is decoded.
func (sc *scan) steps(units, blocks int) int64 {
	each := int64(blockSteps)
	if sc.stored {
		each += int64(sc.last-sc.first+1) * coefficientSteps
	}
	return int64(units) * int64(blocks) * each
}

// Bound is the maximum cost of decoding any sequential stream of such a frame with the
// tables before. steps excludes ByteSteps for each byte, tables of its own beyond 16, and
// rows. TIFF needs it for its blocks before they are read.
func Bound(width, height, components int, before []byte) (held, steps int64) {
	const own = 16 // tables
	h := Header{Width: width, Height: height, Components: components}
	blocks := int64(ceil(width, 8*maxFactor)) * int64(ceil(height, 8*maxFactor)) * maxFactor * maxFactor
	blocks *= int64(components)
	tables := int64(own + len(before)/leastTable)
	return h.Bytes(), blocks*(blockSteps+blockSize*coefficientSteps+transformSteps) + tables*tableSteps +
		int64(len(before)+64)*byteSteps
}

// ByteSteps is the maximum work per byte of a stream.
const ByteSteps = byteSteps

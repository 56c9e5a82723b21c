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

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"

	"bowstring/fetch/operators/program"
)

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

// Decoder holds the memory that decoding needs, to be used again. It is not safe for
// concurrent use.
type Decoder struct {
	parser
	tables
	meter   *program.Meter
	region  image.Rectangle
	planes  []byte
	stored  []int16
	spare   [4][]byte // rows, upsampled
	scans   int
	eobRun  int
	unit    []unitBlock
	refined [4]uint64 // which coefficients of a component have begun to come, as bits by zigzag place
}

// Decode reads data for the pixels of a region, which must lie in the image. Row gives
// them afterwards. The data must not change until then. Decode spends no more on the meter than Header.Steps says, and
// fails where that does.
func (d *Decoder) Decode(data []byte, region image.Rectangle, meter *program.Meter) error {
	return d.DecodeAs(0, data, region, meter)
}

// DecodeAs does so where it is known what the components are, whatever the data says: they have to be as many.
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
				// The usual stream: blocks are transformed as they come, and what follows the region is not read.
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

// complete says that each component of a sequential stream has had its scan.
func (d *Decoder) complete() bool {
	for i := range d.frame {
		if d.refined[i] == 0 {
			return false
		}
	}
	return true
}

// Header is that of the data decoded last.
func (d *Decoder) Header() Header { return d.header }

// place finds the blocks that the region needs, and gives them memory.
func (d *Decoder) place() {
	total := 0
	for i := range d.frame {
		c := &d.frame[i]
		// Upsampling looks at one sample beside those that a pixel lies in.
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

// scan is a start of scan.
type scan struct {
	components    []*component
	first, last   int // of the coefficients, by zigzag
	high, low     uint
	at            int
	index         []int // of the components in the frame
	interleaved   bool
	stored        bool // its coefficients are kept
	across, count int  // units in a row, and in all
}

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
	if c := sc.components[0]; sc.interleaved {
		sc.across = c.padded / c.h
		sc.count = sc.across * (c.paddedDown / c.v)
	} else {
		sc.across, sc.count = c.across, c.across*c.down
	}
	return sc, nil
}

// checkScan holds the rules of T.81 G.1.1.1, and that what the scan uses is defined.
func (d *Decoder) checkScan(sc *scan) error {
	if sc.first > sc.last || sc.last >= blockSize || sc.low > 13 || sc.high != 0 && sc.high != sc.low+1 ||
		d.header.Progressive && (sc.first == 0) != (sc.last == 0) || sc.first > 0 && sc.interleaved {
		return damaged("a scan has coefficients %d to %d, bits %d to %d", sc.first, sc.last, sc.high, sc.low)
	}
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
		if sc.high == 0 && d.refined[at]&band != 0 || sc.high != 0 && d.refined[at]&band != band || sc.first > 0 &&
			d.refined[at]&1 == 0 {
			return damaged("scans come in an order that makes no sense")
		}
		d.refined[at] |= band
	}
	return nil
}

// standard gives a table that was not defined what Motion JPEG leaves out, as libjpeg does.
func (h *huffman) standard(class, n int) bool {
	if !h.defined && n < 2 {
		s := standardTables[class][n]
		h.defined = h.build(s.counts[:], s.symbols, class == 0) == nil
	}
	return h.defined
}

// Held is how many bytes it keeps for its next use.
func (d *Decoder) Held() int {
	n := cap(d.planes) + 2*cap(d.stored)
	for _, s := range d.spare {
		n += cap(s)
	}
	return n
}

// Release lets go of the data decoded last.
func (d *Decoder) Release() { d.parser, d.meter, d.tables.meter = parser{}, nil, nil }

const (
	markSOF0, markSOF1, markSOF2 = 0xC0, 0xC1, 0xC2
	markDHT, markSOI, markEOI    = 0xC4, 0xD8, 0xD9
	markSOS, markDQT, markDRI    = 0xDA, 0xDB, 0xDD
	markRST0, markRST7           = 0xD0, 0xD7
	markAPP0, markAPP1           = 0xE0, 0xE1
	markAPP2, markAPP14          = 0xE2, 0xEE
	markTEM                      = 0x01
)

// cut is damaged of data that ends too early.
func cut(format string, values ...any) error {
	return fmt.Errorf("%w: %w", damaged(format, values...), io.ErrUnexpectedEOF)
}

// otherFrames are those that are not decoded.
var otherFrames = map[byte]string{
	0xC3: "lossless compression", 0xC5: "hierarchical frames", 0xC6: "hierarchical frames", 0xC7: "hierarchical frames",
	0xC8: "an extension", 0xC9: "arithmetic coding", 0xCA: "arithmetic coding", 0xCB: "lossless compression",
	0xCD: "hierarchical frames", 0xCE: "hierarchical frames", 0xCF: "hierarchical frames",
}

// unsupported names what a JPEG has that is not decoded.
func unsupported(format string, values ...any) error {
	return fmt.Errorf("%w: JPEG with %s", program.ErrNotSupported, fmt.Sprintf(format, values...))
}

func damaged(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, values...))
}

// component is one of a frame's, with the tables of the scan that it is in.
type component struct {
	id, h, v, quant int
	// width and height are in samples, without padding; across and down are in blocks: those that have samples.
	width, height int
	across, down  int
	// padded and paddedDown are the blocks that interleaved units make.
	padded, paddedDown int
	dcTable, acTable   int

	// The blocks that the region needs, and where their samples go.
	left, top, right, bottom int
	stride                   int
	samples                  []byte
	coefficients             []int16
	filter                   filter
	wider, higher            int // how many pixels a sample is for
}

// tables is what markers define, and later scans use.
type tables struct {
	quant    [4][blockSize]int32 // in natural order
	hasQuant [4]bool
	dc, ac   [4]huffman
	restart  int
	meter    *program.Meter
}

// parser walks over markers.
type parser struct {
	data []byte
	at   int

	header    Header
	frame     []component
	hmax      int
	vmax      int
	jfif      bool
	adobe     bool
	transform byte
	given     Space // what the components are, where that is known otherwise
}

// ReadHeader reads up to the first scan. It allocates nothing that depends on what the
// data says.
func ReadHeader(data []byte) (Header, error) {
	p := parser{data: data}
	if err := p.toScan(nil); err != nil {
		return Header{}, err
	}
	return p.header, nil
}

// marker finds the next one, and its segment, which is nil for markers that have none.
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

// toScan walks to the first start of a scan, and leaves its segment unread.
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
		if p.hmax%c.h != 0 || p.vmax%c.v != 0 {
			return damaged("component %d samples %d x %d of %d x %d, no whole part", i, c.h, c.v, p.hmax, p.vmax)
		}
		c.layout(h, p.hmax, p.vmax)
		h.frame[i].id, h.frame[i].blocks = byte(c.id), int32(c.padded*c.paddedDown)
	}
	p.frame = frame
	return nil
}

func ceil(a, b int) int { return (a + b - 1) / b }

func (c *component) layout(h *Header, hmax, vmax int) {
	c.width, c.height = ceil(h.Width*c.h, hmax), ceil(h.Height*c.v, vmax)
	c.across, c.down = ceil(c.width, 8), ceil(c.height, 8)
	c.padded, c.paddedDown = ceil(h.Width, 8*hmax)*c.h, ceil(h.Height, 8*vmax)*c.v
	c.wider, c.higher = hmax/c.h, vmax/c.v
	c.filter = filterOf(c.wider, c.higher, c.width)
}

// space decides as libjpeg does what the components are.
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

// exifOrientation is the tag's value, or 0.
func exifOrientation(s []byte) int {
	if len(s) < 6 || string(s[:6]) != "Exif\x00\x00" {
		return 0
	}
	return Orientation(s[6:])
}

// Orientation reads the tag of Exif data, which begins with a TIFF header. It is 0
// where there is none that makes sense.
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

// Bytes bounds what decoding the whole image takes.
func (h *Header) Bytes() int64 {
	units := int64(ceil(h.Width, 8*maxFactor)) * int64(ceil(h.Height, 8*maxFactor))
	samples := units * blockSize * maxFactor * maxFactor * int64(h.Components)
	rows := int64(h.Width)*int64(h.Components+4) + 1<<12 // components that are upsampled, and pixels before they are converted
	if h.Progressive || h.Components > 1 {
		// Coefficients of two bytes: of sequential streams, too, where components have scans of their own.
		return 3*samples + rows
	}
	return samples + rows
}

// reader reads a scan's data. The next bit is the highest of acc, of which n bits are
// read. After the data's end, or a marker, come zeros; padding counts those read.
type reader struct {
	data    []byte
	at      int
	acc     uint64
	n       uint
	padding uint
}

// fill makes n at least 32.
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
		default: // a marker; fill bytes before it are skipped by who looks for it
			b.padding += 8
		}
		b.acc |= v << (56 - b.n)
		b.n += 8
	}
}

// over says that more bits were used than there were.
func (b *reader) over() bool { return b.padding > b.n }

// take is the next k bits, up to 16, of those that fill has read.
func (b *reader) take(k uint) int32 {
	v := int32(b.acc >> 32 >> ((32 - k) & 63))
	b.acc <<= k & 63
	b.n -= k
	return v
}

// extend makes a value of size bits signed.
func extend(v int32, size uint) int32 {
	if size > 0 && v < 1<<(size-1) {
		v -= 1<<size - 1
	}
	return v
}

// long finds a code longer than fastBits. Its length is 0 where there is none.
func (h *huffman) long(acc uint64) (symbol byte, length uint) {
	for l := uint(fastBits + 1); l <= 16; l++ {
		code := int32(acc >> (64 - l))
		if code <= h.most[l] {
			return h.symbols[(code+h.offset[l])&255], l
		}
	}
	return 0, 0
}

// symbol reads one code. ok is false where there is none such.
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
		// The entry's length has the value's bits, too, of as many as size says.
		l -= uint(symbol & 15)
	}
	b.acc <<= l
	b.n -= l
	return symbol, true
}

// restart skips to the marker of number want, and begins a new interval.
func (b *reader) restart(want byte) error {
	if b.over() {
		return damaged("a scan's data ends early")
	}
	at := b.at
	// Whole bytes that were read ahead are before at: a marker stops reading, so none may be left but for padding.
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

// Channels is how many bytes a pixel has: 1, 3 (RGB), or 4 (CMYK as it is stored, YCCK
// made CMYK; Adobe's programs store complements).
func (d *Decoder) Channels() int { return d.header.Components }

// Row writes the pixels of row y of the image, of the region's columns.
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
			r, g, b := convert(in[0][i], in[1][i], in[2][i])
			out[4*i], out[4*i+1], out[4*i+2], out[4*i+3] = 255-r, 255-g, 255-b, in[3][i]
		}
	}
}

// chroma is what a colour difference adds, as libjpeg's jdcolor.c has it: to red and
// blue rounded, to green in fractions of 16 bits, with the half in that of Cr.
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

func convert(y, cb, cr uint8) (r, g, b uint8) {
	v, u, w := int32(y), &chroma[cr], &chroma[cb]
	return clamp(v + u.red), clamp(v + (u.greenCr+w.greenCb)>>16), clamp(v + w.blue)
}

func toRGBGo(y, cb, cr, out []byte) {
	cb, cr = cb[:len(y)], cr[:len(y)]
	for i, v := range y {
		r, g, b := convert(v, cb[i], cr[i])
		o := (*[3]byte)(out)
		o[0], o[1], o[2] = r, g, b
		out = out[3:]
	}
}

// Steps of work, each about a nanosecond. A scan costs by its blocks, by the coefficients of a block that it looks at,
// and by the bytes of its data.
const (
	blockSteps       = 20 // of a block in a scan
	coefficientSteps = 2  // of a coefficient that a scan of a progressive stream may look at
	transformSteps   = 80 // of a block that is transformed
	byteSteps        = 14 // of a byte of a scan's data
	tableSteps       = 8000
	leastTable       = 17 // bytes of a table of codes in its segment
)

// Steps bounds the work of decoding data whose header this is, without the rows that are asked for afterwards. It looks
// through the data for starts of scans and for tables, and decodes nothing.
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
	// Bytes that merely look like scans, as those of a thumbnail, count no more than the scans that are decoded.
	scans = min(scans, maxScans*h.scanSteps(nil))
	if !h.Progressive { // each block is in one scan
		scans = h.blocks() * blockSteps
	}
	return scans + h.blocks()*transformSteps + (int64(len(data))+64)*byteSteps + tables*tableSteps
}

// scanSteps bounds the work of a scan by its segment, behind the length; nil stands for the most that a scan takes.
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

// blocks is how many a whole frame has, with those that pad it.
func (h *Header) blocks() int64 {
	n := int64(0)
	for i := range h.Components {
		n += int64(h.frame[i].blocks)
	}
	return n
}

// steps is what a row of a scan's units costs, without its data.
func (sc *scan) steps(units, blocks int) int64 {
	each := int64(blockSteps)
	if sc.stored {
		each += int64(sc.last-sc.first+1) * coefficientSteps
	}
	return int64(units) * int64(blocks) * each
}

// Bound bounds what decoding takes of any stream of such a frame that is not progressive, with tables that come before
// it: the memory, and the steps without those of its bytes, of tables of its own beyond some, and of rows.
func Bound(width, height, components int, before []byte) (held, steps int64) {
	const own = 16 // tables
	h := Header{Width: width, Height: height, Components: components}
	blocks := int64(ceil(width, 8*maxFactor)) * int64(ceil(height, 8*maxFactor)) * maxFactor * maxFactor
	blocks *= int64(components)
	tables := int64(own + len(before)/leastTable)
	return h.Bytes(), blocks*(blockSteps+blockSize*coefficientSteps+transformSteps) + tables*tableSteps +
		int64(len(before)+64)*byteSteps
}

// ByteSteps bounds the work of a byte of a stream.
const ByteSteps = byteSteps

package jpeg

import (
	"encoding/binary"
	"fmt"
	"io"

	"bowstring/fetch/operators/program"
)

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
	told      Space // what the components are, where that is known otherwise
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
	if p.told != 0 {
		h.Space = p.told
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

package jpeg

import (
	"image"

	"bowstring/fetch/operators/program"
)

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
func (d *Decoder) DecodeAs(told Space, data []byte, region image.Rectangle, meter *program.Meter) error {
	d.parser, d.meter, d.tables.meter = parser{data: data, told: told}, meter, meter
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

package jpeg

import "encoding/binary"

// unitBlock is a block of an interleaved unit.
type unitBlock struct {
	c      *component
	quant  *[blockSize]int32
	dc, ac *huffman
	x, y   int // in the unit
	index  int
}

func (d *Decoder) unitOf(sc *scan) []unitBlock {
	d.unit = d.unit[:0]
	for i, c := range sc.components {
		b := unitBlock{c: c, quant: &d.quant[c.quant], dc: &d.dc[c.dcTable], ac: &d.ac[c.acTable], index: i}
		w, h := c.h, c.v
		if !sc.interleaved {
			w, h = 1, 1
		}
		for b.y = 0; b.y < h; b.y++ {
			for b.x = 0; b.x < w; b.x++ {
				d.unit = append(d.unit, b)
			}
		}
	}
	return d.unit
}

// baseline decodes the only scan of a stream, down to the region's last block.
func (d *Decoder) baseline(sc *scan) error {
	unit := d.unitOf(sc)
	rows := 0 // of units
	for _, c := range sc.components {
		v := c.v
		if !sc.interleaved {
			v = 1
		}
		rows = max(rows, ceil(c.bottom, v))
	}
	in := reader{data: d.data, at: sc.at}
	var predicted [4]int32
	var block [blockSize]int32
	left, next := d.restart, byte(0)
	for y := range rows {
		from := in.at
		if err := d.meter.Spend(sc.steps(sc.across, len(unit)) + int64(sc.across*len(unit))*transformSteps); err != nil {
			return err
		}
		for x := range sc.across {
			if d.restart > 0 {
				if left == 0 {
					if err := in.restart(next); err != nil {
						return err
					}
					predicted, next, left = [4]int32{}, (next+1)&7, d.restart
				}
				left--
			}
			for i := range unit {
				b := &unit[i]
				c := b.c
				bx, by := x, y
				if sc.interleaved {
					bx, by = x*c.h+b.x, y*c.v+b.y
				}
				if bx < c.left || bx >= c.right || by < c.top || by >= c.bottom {
					if !in.skip(b.dc, b.ac, &predicted[b.index]) {
						return damaged("a block's codes make no sense")
					}
					continue
				}
				columns, most := in.block(b, &predicted[b.index], &block)
				if most < 0 {
					return damaged("a block's codes make no sense")
				}
				out := c.samples[(by-c.top)*8*c.stride+(bx-c.left)*8:]
				if most == 0 {
					flat(block[0], out, c.stride)
					block[0] = 0
					continue
				}
				inverse(&block, columns, out, c.stride)
			}
		}
		if in.over() {
			return damaged("a scan's data ends early")
		}
		if err := d.meter.Spend(int64(in.at-from) * byteSteps); err != nil {
			return err
		}
	}
	return nil
}

// difference reads the first coefficient of a block.
func (b *reader) difference(h *huffman) (int32, bool) {
	b.fill()
	e := h.fast[b.acc>>(64-fastBits)]
	if e&whole != 0 {
		b.acc <<= e & 31
		b.n -= uint(e & 31)
		return int32(e) >> 16, true
	}
	size := uint(e>>8) & 15
	l := uint(e & 31)
	if e == 0 {
		var s byte
		if s, l = h.long(b.acc); l == 0 {
			return 0, false
		}
		size = uint(s & 15)
	}
	b.acc <<= l & 31
	b.n -= l
	return extend(b.take(size), size), true
}

// block decodes one, and multiplies it by its quantisation table. columns has a bit
// for each column that has more than its first coefficient; most is the last
// coefficient's place, negative where codes make no sense. The block must be zero.
func (b *reader) block(u *unitBlock, predicted *int32, block *[blockSize]int32) (columns uint8, most int) {
	diff, ok := b.difference(u.dc)
	if !ok {
		return 0, -1
	}
	// As in libjpeg, coefficients are of 16 bits.
	*predicted = int32(int16(*predicted + diff))
	quant := u.quant
	block[0] = *predicted * quant[0]
	fast := &u.ac.fast
	data, at, acc, n := b.data, b.at, b.acc, b.n
	k := 1
	for k < blockSize {
		if n < 32 {
			v := uint32(0xFF)
			if at+4 <= len(data) {
				v = binary.BigEndian.Uint32(data[at:])
			}
			if x := ^v; (x-0x01010101)&^x&0x80808080 == 0 && at+4 <= len(data) {
				acc |= uint64(v) << ((32 - n) & 63)
				n += 32
				at += 4
			} else {
				b.at, b.acc, b.n = at, acc, n
				b.fillSlowly()
				at, acc, n = b.at, b.acc, b.n
			}
		}
		e := fast[acc>>(64-fastBits)]
		if e&whole != 0 {
			k += int(e>>12) & 15
			acc <<= e & 31
			n -= uint(e & 31)
			at := zigzag[k] & (blockSize - 1)
			block[at] = (int32(e) >> 16) * quant[at]
			columns |= below[at]
			most = k
			k++
			continue
		}
		symbol, l := byte(e>>8), uint(e&31)
		if e == 0 {
			if symbol, l = u.ac.long(acc); l == 0 {
				return 0, -1
			}
		}
		acc <<= l & 31
		n -= l
		size := uint(symbol & 15)
		if size == 0 {
			if symbol != 0xF0 {
				break
			}
			k += 16
			continue
		}
		k += int(symbol >> 4)
		v := int32(acc >> (64 - size))
		acc <<= size
		n -= size
		at := zigzag[k] & (blockSize - 1)
		block[at] = extend(v, size) * quant[at]
		columns |= below[at]
		most = k
		k++
	}
	b.at, b.acc, b.n = at, acc, n
	return columns, most
}

// below has, for a coefficient below a column's first, the column's bit.
var below = func() (bits [blockSize]uint8) {
	for i := 8; i < blockSize; i++ {
		bits[i] = 1 << (i % 8)
	}
	return bits
}()

// skip reads a block that no pixel of the region needs.
func (b *reader) skip(dc, ac *huffman, predicted *int32) bool {
	diff, ok := b.difference(dc)
	if !ok {
		return false
	}
	*predicted = int32(int16(*predicted + diff))
	data, at, acc, n := b.data, b.at, b.acc, b.n
	for k := 1; k < blockSize; {
		if n < 32 {
			v := uint32(0xFF)
			if at+4 <= len(data) {
				v = binary.BigEndian.Uint32(data[at:])
			}
			if x := ^v; (x-0x01010101)&^x&0x80808080 == 0 && at+4 <= len(data) {
				acc |= uint64(v) << ((32 - n) & 63)
				n += 32
				at += 4
			} else {
				b.at, b.acc, b.n = at, acc, n
				b.fillSlowly()
				at, acc, n = b.at, b.acc, b.n
			}
		}
		e := ac.two[acc>>(64-fastBits)]
		if k >= blockSize-16 { // the first of two may end the block
			e = ac.one[acc>>(64-fastBits)]
		}
		if e != 0 {
			acc <<= e & 63
			n -= uint(e & 63)
			k += int(e >> 8)
			continue
		}
		symbol, l := ac.long(acc)
		if l == 0 {
			return false
		}
		size := uint(symbol & 15)
		acc <<= (l + size) & 63
		n -= l + size
		k += int(symbol>>4) + 1
		if size == 0 && symbol != 0xF0 {
			break
		}
	}
	b.at, b.acc, b.n = at, acc, n
	return true
}

package jpeg

import (
	"bytes"
	"encoding/binary"
)

const (
	fastBits = 10   // bits that index the tables
	whole    = 0x80 // flag of a fast entry: it includes the bits of the value
)

// huffman is a Huffman table. fast is indexed by the next ten bits. The lowest byte of an
// entry is the number of bits to consume, the second is run and size. With the flag whole,
// the upper half is the decoded value. 0 means that the code is longer. A table belongs to
// one decoder. Longer codes take the slow path.
type huffman struct {
	defined bool
	kept    bool // the tables below belong to counts and symbols
	fast    [1 << fastBits]uint32
	// Tables for skipping coefficients, codes and values together: one symbol, or two if
	// the ten bits contain both codes. The lowest byte is the number of bits, the next
	// one the number of coefficients; 0 is a longer code. The end of a block counts as 64
	// coefficients.
	one, two [1 << fastBits]uint16
	// For longer codes, by length: the largest code, and the offset from a code to the
	// index of its symbol (T.81 F.2.2.3).
	most    [18]int32
	offset  [17]int32
	symbols [256]byte
	counts  [16]byte // number of codes of each length
}

// build computes the tables from the number of codes of each length and the symbols, T.81
// annex C. Every prefix of the input must be a valid code: a table with too many codes of a
// length is refused, because decoding would be ambiguous.
func (h *huffman) build(counts []byte, symbols []byte, dc bool) error {
	if h.kept && bytes.Equal(counts, h.counts[:]) && bytes.Equal(symbols, h.symbols[:len(symbols)]) {
		h.defined = true // consecutive files often have the same tables
		return nil
	}
	*h = huffman{}
	copy(h.symbols[:], symbols)
	copy(h.counts[:], counts)
	// fast is filled while codes are assigned; longer codes only need most and offset.
	code, index := int32(0), int32(0)
	// Codes of one length are consecutive; the first of a length is twice the one after
	// the last of the shorter length.
	for length := 1; length <= 16; length++ {
		n := int32(counts[length-1])
		h.offset[length] = index - code
		for range n {
			if code >= 1<<length {
				return damaged("a table of codes has too many of %d bits", length)
			}
			symbol := symbols[index]
			if dc && symbol > 15 {
				return damaged("a difference of %d bits", symbol)
			}
			if length <= fastBits {
				h.fill(code, length, symbol, dc)
			}
			code, index = code+1, index+1
		}
		h.most[length] = -1
		if n > 0 {
			h.most[length] = code - 1
		}
		code <<= 1
	}
	if !dc {
		h.passOver()
	}
	h.defined, h.kept = true, true
	return nil
}

// passOver computes the tables for skip. They combine two codes if both fit into the index.
func (h *huffman) passOver() {
	for i, e := range h.fast {
		if e == 0 {
			continue
		}
		// A fast entry has all bits of a short value. For skipping, only the length counts.
		symbol := byte(e >> 8)
		length, size := e&31, uint32(symbol&15)
		if e&whole != 0 {
			length -= size
		}
		// The coefficient and the zeros before it.
		steps := uint16(symbol>>4) + 1
		if size == 0 && symbol != 0xF0 {
			steps = blockSize
		}
		h.one[i] = uint16(length+size) | steps<<8
	}
	for i, first := range h.one {
		h.two[i] = first
		used := first & 0xFF
		if first == 0 || first>>8 >= blockSize || used >= fastBits {
			continue
		}
		next := h.fast[i<<used&(1<<fastBits-1)]
		if next == 0 {
			continue
		}
		second := h.one[i<<used&(1<<fastBits-1)]
		length := uint16(next & 31)
		if next&whole != 0 {
			length -= uint16(next>>8) & 15
		}
		if used+length <= fastBits {
			h.two[i] = first + second
		}
	}
}

// fill sets the fast entries that begin with a code, for all values of the bits after it. A
// DC symbol is the size alone; an AC symbol has the run in its upper half.
func (h *huffman) fill(code int32, length int, symbol byte, dc bool) {
	size := int(symbol & 15)
	if dc {
		size = int(symbol)
	}
	// Each code has an entry for all bits that may follow it.
	rest := fastBits - length
	for low := range int32(1) << rest {
		entry := uint32(symbol)<<8 | uint32(length)
		if size > 0 && size <= rest {
			// The bits after the code contain the whole value.
			value := low >> (rest - size)
			if value < 1<<(size-1) {
				value -= 1<<size - 1
			}
			entry = uint32(value)<<16 | uint32(symbol)<<8 | whole | uint32(length+size)
		}
		h.fast[code<<rest|low] = entry
	}
}

// define handles segments that define tables: DQT, DHT and DRI. It ignores others. Unknown
// segments are legal, so they are not errors.
func (t *tables) define(m byte, s []byte) error {
	switch m {
	case markDQT:
		return t.defineQuant(s)
	case markDHT:
		return t.defineHuffman(s)
	case markDRI:
		if len(s) != 2 {
			return damaged("the restart interval's segment has %d bytes", len(s))
		}
		t.restart = int(binary.BigEndian.Uint16(s))
	}
	return nil
}

// defineQuant reads quantisation tables of 8 or 16 bits, T.81 B.2.4.1. Several tables may
// be in one segment. They arrive in zigzag order and are stored in natural order, as
// coefficients are.
func (t *tables) defineQuant(s []byte) error {
	for len(s) > 0 {
		wide, n := int(s[0]>>4), int(s[0]&15)
		size := blockSize << min(wide, 1)
		if n > 3 || wide > 1 || len(s) < 1+size {
			return damaged("a quantisation table is cut off, or has the number %d", n)
		}
		// Tables are stored in natural order, in which coefficients are multiplied.
		for i := range blockSize {
			q := int32(s[1+i])
			if wide == 1 {
				q = int32(binary.BigEndian.Uint16(s[1+2*i:]))
			}
			t.quant[n][zigzag[i]] = q
		}
		t.hasQuant[n] = true
		s = s[1+size:]
	}
	return nil
}

// defineHuffman reads Huffman tables, T.81 B.2.4.2. A table may be defined again between
// scans; the later definition is for later scans.
func (t *tables) defineHuffman(s []byte) error {
	for len(s) > 0 {
		if len(s) < 17 {
			return damaged("a table of codes is cut off")
		}
		class, n := s[0]>>4, s[0]&15
		// The 16 counts say how many symbols follow.
		total := 0
		for _, c := range s[1:17] {
			total += int(c)
		}
		if class > 1 || n > 3 || total > 256 || len(s) < 17+total {
			return damaged("a table of codes is cut off, or has the number %d of class %d", n, class)
		}
		table := &t.dc[n]
		if class == 1 {
			table = &t.ac[n]
		}
		if err := t.meter.Spend(tableSteps); err != nil {
			return err
		}
		if err := table.build(s[1:17], s[17:17+total], class == 0); err != nil {
			return err
		}
		s = s[17+total:]
	}
	return nil
}

// standardTables are tables K.3 to K.6 of T.81: by class (DC, AC), of luminance and
// chrominance.
var standardTables = [2][2]struct {
	counts  [16]byte
	symbols []byte
}{
	{
		{[16]byte{0, 1, 5, 1, 1, 1, 1, 1, 1}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{[16]byte{0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
	},
	{
		{
			[16]byte{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 125},
			[]byte("\x01\x02\x03\x00\x04\x11\x05\x12\x21\x31\x41\x06\x13\x51\x61\x07\x22\x71\x14\x32\x81\x91\xa1\x08" +
				"\x23\x42\xb1\xc1\x15\x52\xd1\xf0\x24\x33\x62\x72\x82\x09\x0a\x16\x17\x18\x19\x1a\x25\x26\x27\x28" +
				"\x29\x2a\x34\x35\x36\x37\x38\x39\x3a\x43\x44\x45\x46\x47\x48\x49\x4a\x53\x54\x55\x56\x57\x58\x59" +
				"\x5a\x63\x64\x65\x66\x67\x68\x69\x6a\x73\x74\x75\x76\x77\x78\x79\x7a\x83\x84\x85\x86\x87\x88\x89" +
				"\x8a\x92\x93\x94\x95\x96\x97\x98\x99\x9a\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xb2\xb3\xb4\xb5\xb6" +
				"\xb7\xb8\xb9\xba\xc2\xc3\xc4\xc5\xc6\xc7\xc8\xc9\xca\xd2\xd3\xd4\xd5\xd6\xd7\xd8\xd9\xda\xe1\xe2" +
				"\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa"),
		},
		{
			[16]byte{0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 119},
			[]byte("\x00\x01\x02\x03\x11\x04\x05\x21\x31\x06\x12\x41\x51\x07\x61\x71\x13\x22\x32\x81\x08\x14\x42\x91" +
				"\xa1\xb1\xc1\x09\x23\x33\x52\xf0\x15\x62\x72\xd1\x0a\x16\x24\x34\xe1\x25\xf1\x17\x18\x19\x1a\x26" +
				"\x27\x28\x29\x2a\x35\x36\x37\x38\x39\x3a\x43\x44\x45\x46\x47\x48\x49\x4a\x53\x54\x55\x56\x57\x58" +
				"\x59\x5a\x63\x64\x65\x66\x67\x68\x69\x6a\x73\x74\x75\x76\x77\x78\x79\x7a\x82\x83\x84\x85\x86\x87" +
				"\x88\x89\x8a\x92\x93\x94\x95\x96\x97\x98\x99\x9a\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xb2\xb3\xb4" +
				"\xb5\xb6\xb7\xb8\xb9\xba\xc2\xc3\xc4\xc5\xc6\xc7\xc8\xc9\xca\xd2\xd3\xd4\xd5\xd6\xd7\xd8\xd9\xda" +
				"\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa"),
		},
	},
}

// unitBlock is a block of an MCU. The pointers are valid for one scan: a later segment may
// redefine the tables.
type unitBlock struct {
	c      *component
	quant  *[blockSize]int32
	dc, ac *huffman
	x, y   int // position in the MCU, in blocks
	index  int // of the component in the scan
}

// unitOf lists the blocks of an MCU in their order, T.81 A.2.3. A scan of one component has
// units of one block, whatever its sampling factors.
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

// baseline decodes the only scan of a stream, up to the last row of the region. Blocks
// outside of the region are parsed but not transformed, because the next block can only be
// found by decoding this one. Rows below the region are not even parsed.
func (d *Decoder) baseline(sc *scan) error {
	unit := d.unitOf(sc)
	// Decoding ends with the last row that a component of the region needs.
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
	// left counts the MCUs until the next restart marker, next is the number of that
	// marker.
	left, next := d.restart, byte(0)
	for y := range rows {
		from := in.at
		if err := d.meter.Spend(sc.steps(sc.across, len(unit)) + int64(sc.across*len(unit))*transformSteps); err != nil {
			return err
		}
		for x := range sc.across {
			// A restart marker resets the predictions.
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
				// A block of one colour is frequent in smooth areas and needs no transform.
				if most == 0 {
					flat(block[0], out, c.stride)
					block[0] = 0
					continue
				}
				inverse(&block, columns, out, c.stride)
			}
		}
		// The reader supplies bits after the end of the data. They are detected once for
		// each row, so that the inner loop has no check.
		if in.over() {
			return damaged("a scan's data ends early")
		}
		if err := d.meter.Spend(int64(in.at-from) * byteSteps); err != nil {
			return err
		}
	}
	return nil
}

// difference decodes the DC difference of a block. The fast table has the whole difference
// if code and bits fit into its index.
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

// block decodes and dequantises a block, which must be zero. columns has a bit for each
// column with a coefficient other than its first. most is the zigzag index of the last
// coefficient, or negative for invalid codes. The reader's fields are copied to local
// variables: the compiler keeps those in registers.
func (b *reader) block(u *unitBlock, predicted *int32, block *[blockSize]int32) (columns uint8, most int) {
	diff, ok := b.difference(u.dc)
	if !ok {
		return 0, -1
	}
	// Like libjpeg, which stores coefficients in 16 bits.
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
		// The common case: code and value are in the ten bits.
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

// below is the bit of a coefficient's column, or 0 for the first row of coefficients.
var below = func() (bits [blockSize]uint8) {
	for i := 8; i < blockSize; i++ {
		bits[i] = 1 << (i % 8)
	}
	return bits
}()

// skip decodes a block that the region does not need: only its DC coefficient matters, for
// the prediction. It returns false for invalid codes.
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
		if k >= blockSize-16 { // the first symbol may end the block
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

// storedScan decodes a scan into the coefficients of all blocks: a scan of a progressive
// stream, or of a sequential one with several scans. Coefficients cannot be transformed
// before the last scan, so this needs two bytes for each sample of the frame.
func (d *Decoder) storedScan(sc *scan) error {
	d.store()
	sc.stored = d.header.Progressive
	unit := d.unitOf(sc)
	// The entropy-coded data ends at the next marker, which the reader does not cross.
	in := reader{data: d.data, at: sc.at}
	var predicted [4]int32
	left, next := d.restart, byte(0)
	d.eobRun = 0
	from := in.at
	// Data after the image's last block is ignored.
	for n := range sc.count {
		if n%sc.across == 0 {
			if err := d.meter.Spend(sc.steps(sc.across, len(unit)) + int64(in.at-from)*byteSteps); err != nil {
				return err
			}
			from = in.at
		}
		if d.restart > 0 {
			if left == 0 {
				if err := in.restart(next); err != nil {
					return err
				}
				predicted, next, left, d.eobRun = [4]int32{}, (next+1)&7, d.restart, 0
			}
			left--
		}
		x, y := n%sc.across, n/sc.across
		for i := range unit {
			b := &unit[i]
			bx, by := x, y
			if sc.interleaved {
				bx, by = x*b.c.h+b.x, y*b.c.v+b.y
			}
			at := (by*b.c.padded + bx) * blockSize
			block := (*[blockSize]int16)(b.c.coefficients[at:])
			if !d.storedBlock(&in, sc, b, &predicted[b.index], block) {
				return damaged("a block's codes make no sense")
			}
		}
		// At the first unit of a row only: the check is too expensive for long runs of
		// empty blocks.
		if x == 0 && in.over() {
			return damaged("a scan's data ends early")
		}
	}
	if in.over() {
		return damaged("a scan's data ends early")
	}
	d.at = in.at
	return d.meter.Spend(int64(in.at-from) * byteSteps)
}

// store allocates the coefficients of all blocks, before the first scan. They are zero,
// because a progressive scan codes only those that are not.
func (d *Decoder) store() {
	if d.frame[0].coefficients != nil {
		return
	}
	total := 0
	for i := range d.frame {
		total += d.frame[i].padded * d.frame[i].paddedDown * blockSize
	}
	if cap(d.stored) < total {
		d.stored = make([]int16, total)
	}
	rest := d.stored[:total]
	clear(rest)
	for i := range d.frame {
		c := &d.frame[i]
		n := c.padded * c.paddedDown * blockSize
		c.coefficients, rest = rest[:n:n], rest[n:]
	}
}

// storedBlock decodes the coefficients of a block in a scan. The kind of scan decides: T.81
// G.1.2. It returns false for invalid codes.
func (d *Decoder) storedBlock(in *reader, sc *scan, u *unitBlock, predicted *int32, block *[blockSize]int16) bool {
	switch {
	// The first scan of DC coefficients.
	case sc.first == 0 && sc.high == 0:
		diff, ok := in.difference(u.dc)
		if !ok {
			return false
		}
		*predicted = int32(int16(*predicted + diff))
		block[0] = int16(*predicted << sc.low)
		if sc.last == 0 {
			return true
		}
		return d.firstBits(in, u.ac, 1, sc.last, 0, block)
	// A refinement of DC coefficients: one bit.
	case sc.first == 0:
		in.fill()
		if in.take(1) == 1 {
			block[0] |= 1 << sc.low
		}
		return true
	case sc.high == 0:
		return d.firstBits(in, u.ac, sc.first, sc.last, sc.low, block)
	default:
		return d.refine(in, u.ac, sc, block)
	}
}

// firstBits decodes AC coefficients for the first time, T.81 G.1.2.2. In sequential streams
// an end of block has no run. eobRun counts further blocks that end at once; it lasts over
// blocks of the scan.
func (d *Decoder) firstBits(in *reader, ac *huffman, first, last int, low uint, block *[blockSize]int16) bool {
	if d.eobRun > 0 {
		d.eobRun--
		return true
	}
	for k := first; k <= last; k++ {
		symbol, ok := in.symbol(ac)
		if !ok {
			return false
		}
		run, size := int(symbol>>4), uint(symbol&15)
		if size == 0 {
			if run == 15 {
				k += 15
				continue
			}
			if run > 0 && d.header.Progressive {
				in.fill()
				d.eobRun = 1<<run + int(in.take(uint(run))) - 1
			}
			return true
		}
		k += run
		in.fill()
		block[zigzag[k]] = int16(extend(in.take(size), size) << low)
	}
	return true
}

// refine adds one bit to existing AC coefficients and decodes new ones, T.81 G.1.2.3. The
// run counts zeros only. Coefficients that are not zero have a correction bit each and do
// not count.
func (d *Decoder) refine(in *reader, ac *huffman, sc *scan, block *[blockSize]int16) bool {
	k, plus := sc.first, int16(1)<<sc.low
	// New coefficients are placed among those that exist, each after a run of zeros.
	for d.eobRun == 0 && k <= sc.last {
		symbol, ok := in.symbol(ac)
		if !ok || symbol&15 > 1 {
			return false
		}
		in.fill()
		run, value := int(symbol>>4), int16(0)
		switch {
		case symbol&15 == 1:
			if value = plus; in.take(1) == 0 {
				value = -plus
			}
		case run != 15:
			d.eobRun = 1<<run + int(in.take(uint(run)))
		}
		if d.eobRun > 0 {
			break
		}
		k = in.correct(block, k, sc.last, run, plus)
		if value != 0 {
			block[zigzag[k]] = value
		}
		k++
	}
	// The rest of the band has no new coefficient, but existing ones are refined.
	if d.eobRun > 0 {
		in.correct(block, k, sc.last, blockSize, plus)
		d.eobRun--
	}
	return true
}

// correct reads a correction bit for each coefficient that is not zero. It skips run zeros,
// and stops at the next zero or after last; it returns its index. A coefficient grows away
// from zero. One that has the bit already is left alone, as in libjpeg.
func (b *reader) correct(block *[blockSize]int16, k, last, run int, plus int16) int {
	for ; k <= last; k++ {
		c := &block[zigzag[k]]
		if *c == 0 {
			if run--; run < 0 {
				break
			}
			continue
		}
		b.fill()
		if b.take(1) == 1 && *c&plus == 0 {
			if *c > 0 {
				*c += plus
			} else {
				*c -= plus
			}
		}
	}
	return k
}

// transformStored computes the samples of the blocks that the region needs. Blocks outside
// of the region are never transformed.
func (d *Decoder) transformStored() error {
	var block [blockSize]int32
	for i := range d.frame {
		c := &d.frame[i]
		quant := &d.quant[c.quant]
		for by := c.top; by < c.bottom; by++ {
			if err := d.meter.Spend(int64(c.right-c.left) * transformSteps); err != nil {
				return err
			}
			for bx := c.left; bx < c.right; bx++ {
				at := (by*c.padded + bx) * blockSize
				columns := uint8(0)
				for j, v := range (*[blockSize]int16)(c.coefficients[at:]) {
					block[j] = int32(v) * quant[j]
					if v != 0 {
						columns |= below[j]
					}
				}
				inverse(&block, columns, c.samples[(by-c.top)*8*c.stride+(bx-c.left)*8:], c.stride)
			}
		}
	}
	return nil
}

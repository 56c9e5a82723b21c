package jpeg

import "encoding/binary"

// bits reads a scan's data. The next bit is the highest of acc, of which n bits are
// read. After the data's end, or a marker, come zeros; padding counts those read.
type bits struct {
	data    []byte
	at      int
	acc     uint64
	n       uint
	padding uint
}

// fill makes n at least 32.
func (b *bits) fill() {
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

func (b *bits) fillSlowly() {
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
func (b *bits) over() bool { return b.padding > b.n }

// take is the next k bits, up to 16, of those that fill has read.
func (b *bits) take(k uint) int32 {
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
func (b *bits) symbol(h *huffman) (symbol byte, ok bool) {
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
func (b *bits) restart(want byte) error {
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
	*b = bits{data: b.data, at: at + 1}
	return nil
}

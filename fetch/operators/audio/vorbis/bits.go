package vorbis

import "encoding/binary"

// bitReader reads bits from the lowest of each byte on. Beyond the end it reads zeros, and over says so.
type bitReader struct {
	data []byte
	pos  int    // the next byte that acc lacks
	acc  uint64 // the next n bits, from the lowest on
	n    int    // below zero once more was taken than there is
}

// refill has at least 32 bits in acc, as far as there are as many.
func (r *bitReader) refill() {
	if r.n >= 32 || r.pos >= len(r.data) {
		return
	}
	if r.pos+4 <= len(r.data) {
		r.acc |= uint64(binary.LittleEndian.Uint32(r.data[r.pos:])) << max(r.n, 0)
		r.pos, r.n = r.pos+4, r.n+32
		return
	}
	for ; r.pos < len(r.data); r.pos++ {
		r.acc |= uint64(r.data[r.pos]) << max(r.n, 0)
		r.n += 8
	}
}

// skip takes bits that refill has brought, or that lie beyond the end.
func (r *bitReader) skip(bits int) {
	r.acc >>= uint(bits)
	r.n -= bits
}

// read is a number of up to 32 bits.
func (r *bitReader) read(bits int) uint32 {
	r.refill()
	v := uint32(r.acc & (1<<uint(bits) - 1))
	r.skip(bits)
	return v
}

func (r *bitReader) flag() bool { return r.read(1) != 0 }

// over says that more was taken than there is.
func (r *bitReader) over() bool { return r.n < 0 }

// left is how many bits there are still.
func (r *bitReader) left() int { return max(r.n, 0) + 8*(len(r.data)-r.pos) }

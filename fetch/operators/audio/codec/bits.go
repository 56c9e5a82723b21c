package codec

import (
	"encoding/binary"
	"math/bits"
)

// bitReader reads big-endian bits. Beyond the end it reads zeros, and over says so.
type bitReader struct {
	data []byte
	pos  int    // the next byte that acc does not count
	acc  uint64 // the next bits, at its upper end; below the n counted ones lie true bits or zeros
	n    uint
}

// refill has at least 56 bits in acc.
func (b *bitReader) refill() {
	if b.pos+8 <= len(b.data) {
		b.acc |= binary.BigEndian.Uint64(b.data[b.pos:]) >> (b.n & 63)
		b.pos += int((63 - b.n) >> 3)
		b.n |= 56
		return
	}
	for ; b.n < 56; b.n += 8 {
		if b.pos < len(b.data) {
			b.acc |= uint64(b.data[b.pos]) << (56 - b.n)
		}
		b.pos++
	}
}

// over says whether more bits were read than there are.
func (b *bitReader) over() bool { return b.pos-int(b.n>>3) > len(b.data) }

// at is the byte that the next bit is in.
func (b *bitReader) at() int { return b.pos - int(b.n>>3) }

// align leaves out what is left of a byte.
func (b *bitReader) align() {
	k := b.n & 7
	b.acc <<= k
	b.n -= k
}

// unsigned reads up to 56 bits.
func (b *bitReader) unsigned(k uint) uint64 {
	if b.n < k {
		b.refill()
	}
	v := b.acc >> (64 - k)
	b.acc <<= k
	b.n -= k
	return v
}

// signed reads a two's complement number of 1 to 56 bits.
func (b *bitReader) signed(k uint) int64 {
	if b.n < k {
		b.refill()
	}
	v := int64(b.acc) >> (64 - k)
	b.acc <<= k
	b.n -= k
	return v
}

// unary counts zeros before a one. It is over where there is no one.
func (b *bitReader) unary() uint64 {
	for total := uint64(0); ; {
		zeros := uint(bits.LeadingZeros64(b.acc))
		if zeros < b.n {
			b.acc <<= zeros + 1
			b.n -= zeros + 1
			return total + uint64(zeros)
		}
		total += uint64(b.n)
		b.acc <<= b.n
		b.n = 0
		if b.over() {
			return total
		}
		b.refill()
	}
}

// rice reads numbers of Rice's code with k low bits. It is false where one has more than 32 bits.
func (b *bitReader) rice(out []int64, k uint) bool {
	data, pos, acc, n := b.data, b.pos, b.acc, b.n
	k &= 31
	for i := range out {
		if pos+8 <= len(data) {
			acc |= binary.BigEndian.Uint64(data[pos:]) >> (n & 63)
			pos += int((63 - n) >> 3)
			n |= 56
		} else {
			b.pos, b.acc, b.n = pos, acc, n
			b.refill()
			pos, acc, n = b.pos, b.acc, b.n
		}
		zeros := uint(bits.LeadingZeros64(acc))
		if used := zeros + 1 + k; used <= n {
			acc <<= (zeros + 1) & 63
			u := uint64(zeros)<<k | acc>>1>>(63-k)
			acc <<= k
			n -= used
			out[i] = int64(u>>1) ^ -int64(u&1)
			continue
		}
		b.pos, b.acc, b.n = pos, acc, n
		q := b.unary()
		if b.over() || q>>(32-k) != 0 {
			return false
		}
		u := q<<k | b.unsigned(k)
		out[i] = int64(u>>1) ^ -int64(u&1)
		pos, acc, n = b.pos, b.acc, b.n
	}
	b.pos, b.acc, b.n = pos, acc, n
	return true
}

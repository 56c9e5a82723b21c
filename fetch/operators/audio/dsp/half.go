package dsp

import "math"

// Half is the nearest half-precision number of v, in its bits; of two, the even one.
func Half(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00
	case b >= 0x477ff000: // rounds beyond the largest, 65504
		return sign | 0x7c00
	case b < 0x33000001: // at most half of the smallest
		return sign
	case b < 0x38800000: // subnormal: a multiple of 2⁻²⁴
		shift := 126 - b>>23
		m := b&0x7fffff | 0x800000
		return sign | uint16((m+(1<<(shift-1)-1)+m>>shift&1)>>shift)
	default:
		return sign | uint16((b-0x38000000+0xfff+b>>13&1)>>13)
	}
}

// FromHalf is the number of bits that Half gave.
func FromHalf(h uint16) float32 {
	sign, e, m := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch e {
	case 0:
		v := float32(m) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	default:
		return math.Float32frombits(sign | (e+112)<<23 | m<<13)
	}
}

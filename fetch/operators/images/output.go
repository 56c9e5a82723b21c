package images

import (
	"encoding/binary"
	"math"

	"bowstring/fetch/operators/program"
)

// output lays pixels out in the result's memory.
type output struct {
	dst           []byte
	width, height int
	channels      int
	planar        bool
	dtype         program.DType
	table         *table
	wide          int // bytes of a channel of pixels that have more than one; else 0
}

// table has a value for each byte, for each channel or for all: its bits as they lie
// in the result.
type table struct {
	bits [][256]uint32
}

func sizeOf(t program.DType) int {
	switch t {
	case program.Uint8:
		return 1
	case program.Uint16, program.Float16:
		return 2
	default:
		return 4
	}
}

func (t *table) of(channel int) *[256]uint32 {
	if len(t.bits) == 1 {
		return &t.bits[0]
	}
	return &t.bits[channel]
}

// Row lays out one row.
func (o *output) Row(y int, pixels []byte) {
	n := o.width * o.channels
	if o.wide > 0 {
		o.deep(y, pixels[:o.wide*n])
		return
	}
	pixels = pixels[:n]
	if !o.planar || o.channels == 1 {
		o.interleaved(o.dst[y*n*sizeOf(o.dtype):], pixels)
		return
	}
	for c := range o.channels {
		at := (c*o.height + y) * o.width * sizeOf(o.dtype)
		o.plane(o.dst[at:at+o.width*sizeOf(o.dtype)], pixels, c)
	}
}

// deep lays out one row of 16 bits a channel, or of numbers of one channel.
func (o *output) deep(y int, pixels []byte) {
	if !o.planar || o.channels == 1 {
		copy(o.dst[y*len(pixels):], pixels)
		return
	}
	for c := range o.channels {
		to := o.dst[2*(c*o.height+y)*o.width:]
		for x := range o.width {
			at := 2 * (x*o.channels + c)
			to[2*x], to[2*x+1] = pixels[at], pixels[at+1]
		}
	}
}

func (o *output) interleaved(to, pixels []byte) {
	if o.dtype == program.Uint8 {
		copy(to, pixels)
		return
	}
	for c := range o.channels {
		bits := o.table.of(c)
		switch o.dtype {
		case program.Float32:
			for i := c; i < len(pixels); i += o.channels {
				binary.LittleEndian.PutUint32(to[4*i:], bits[pixels[i]])
			}
		default:
			for i := c; i < len(pixels); i += o.channels {
				binary.LittleEndian.PutUint16(to[2*i:], uint16(bits[pixels[i]]))
			}
		}
	}
}

func (o *output) plane(to, pixels []byte, c int) {
	step := o.channels
	switch o.dtype {
	case program.Uint8:
		for i := range to {
			to[i] = pixels[c+i*step]
		}
	case program.Float32:
		bits := o.table.of(c)
		for at := c; at < len(pixels); at += step {
			binary.LittleEndian.PutUint32(to, bits[pixels[at]])
			to = to[4:]
		}
	default:
		bits := o.table.of(c)
		for at := c; at < len(pixels); at += step {
			binary.LittleEndian.PutUint16(to, uint16(bits[pixels[at]]))
			to = to[2:]
		}
	}
}

// half rounds to float16, to the nearest and to even.
func half(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	exponent := int(b>>23&0xFF) - 127
	fraction := b & 0x7FFFFF
	switch {
	case exponent == 128 && fraction != 0:
		return sign | 0x7E00
	case exponent > 15:
		return sign | 0x7C00
	case exponent < -25:
		return sign
	}
	shift := uint(13)
	if exponent < -14 { // what is below the normal range keeps fewer bits
		fraction |= 1 << 23
		shift += uint(-14 - exponent)
		exponent = -15
	}
	kept := uint32(exponent+15)<<10 + fraction>>shift
	rest, middle := fraction&(1<<shift-1), uint32(1)<<(shift-1)
	if rest > middle || rest == middle && kept&1 == 1 {
		kept++
	}
	return sign | uint16(kept)
}

// single is the value of a float16.
func single(h uint16) float32 {
	exponent, fraction := int(h>>10&31), float64(h&1023)
	var v float64
	switch exponent {
	case 0:
		v = math.Ldexp(fraction, -24)
	case 31:
		v = math.Inf(1)
		if fraction != 0 {
			v = math.NaN()
		}
	default:
		v = math.Ldexp(1024+fraction, exponent-25)
	}
	if h&0x8000 != 0 {
		v = -v
	}
	return float32(v)
}

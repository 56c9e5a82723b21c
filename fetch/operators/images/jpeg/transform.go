package jpeg

import "encoding/binary"

// The accurate integer inverse transform: libjpeg's jidctint.c, with 13 bits of
// fraction in constants and 2 between the passes.
const (
	constBits = 13
	passBits  = 2

	fix0298 = 2446
	fix0390 = 3196
	fix0541 = 4433
	fix0765 = 6270
	fix0899 = 7373
	fix1175 = 9633
	fix1501 = 12299
	fix1847 = 15137
	fix1961 = 16069
	fix2053 = 16819
	fix2562 = 20995
	fix3072 = 25172
)

func clamp(v int32) uint8 {
	if uint32(v) > 255 {
		v = ^v >> 31
	}
	return uint8(v)
}

// flat writes a block of which there is the first coefficient alone.
func flat(dc int32, out []byte, stride int) {
	v := uint64(clamp((dc<<passBits+1<<(passBits+2))>>(passBits+3)+128)) * 0x0101010101010101
	for y := range 8 {
		binary.LittleEndian.PutUint64(out[y*stride:], v)
	}
}

// inverseGo writes the samples of a block, and leaves it zero. columns has the bits of columns that have
// more than their first coefficient.
func inverseGo(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	for i := range 8 {
		if columns&(1<<i) == 0 {
			// As the whole transform has it, also of what no encoder writes and wraps around.
			v := (b[i]<<constBits + 1<<(constBits-passBits-1)) >> (constBits - passBits)
			for y := 0; y < blockSize; y += 8 {
				b[i+y] = v
			}
			continue
		}
		c := b[i:]
		_ = c[56]
		z2, z3 := c[16], c[48]
		z1 := (z2 + z3) * fix0541
		t2, t3 := z1-z3*fix1847, z1+z2*fix0765
		t0, t1 := (c[0]+c[32])<<constBits, (c[0]-c[32])<<constBits
		a0, a3, a1, a2 := t0+t3, t0-t3, t1+t2, t1-t2
		o0, o1, o2, o3 := odd(c[56], c[40], c[24], c[8])
		const down, half = constBits - passBits, 1 << (constBits - passBits - 1)
		c[0], c[56] = (a0+o3+half)>>down, (a0-o3+half)>>down
		c[8], c[48] = (a1+o2+half)>>down, (a1-o2+half)>>down
		c[16], c[40] = (a2+o1+half)>>down, (a2-o1+half)>>down
		c[24], c[32] = (a3+o0+half)>>down, (a3-o0+half)>>down
	}
	for y := range 8 {
		c := (*[8]int32)(b[y*8:])
		row := (*[8]byte)(out[y*stride:])
		const down = constBits + passBits + 3
		const half = 1<<(down-1) + 128<<down
		z2, z3 := c[2], c[6]
		z1 := (z2 + z3) * fix0541
		t2, t3 := z1-z3*fix1847, z1+z2*fix0765
		t0, t1 := (c[0]+c[4])<<constBits+half, (c[0]-c[4])<<constBits+half
		a0, a3, a1, a2 := t0+t3, t0-t3, t1+t2, t1-t2
		o0, o1, o2, o3 := odd(c[7], c[5], c[3], c[1])
		row[0], row[7] = clamp((a0+o3)>>down), clamp((a0-o3)>>down)
		row[1], row[6] = clamp((a1+o2)>>down), clamp((a1-o2)>>down)
		row[2], row[5] = clamp((a2+o1)>>down), clamp((a2-o1)>>down)
		row[3], row[4] = clamp((a3+o0)>>down), clamp((a3-o0)>>down)
	}
	*b = [blockSize]int32{}
}

// odd is the odd part of a transform of eight values.
func odd(t0, t1, t2, t3 int32) (int32, int32, int32, int32) {
	z1, z2, z3, z4 := t0+t3, t1+t2, t0+t2, t1+t3
	z5 := (z3 + z4) * fix1175
	t0, t1, t2, t3 = t0*fix0298, t1*fix2053, t2*fix3072, t3*fix1501
	z1, z2, z3, z4 = -z1*fix0899, -z2*fix2562, z5-z3*fix1961, z5-z4*fix0390
	return t0 + z1 + z3, t1 + z2 + z4, t2 + z2 + z3, t3 + z1 + z4
}

package codec

// Law is a way of ITU-T G.711 to have 13 or 14 bits in 8.
type Law uint8

// The laws.
const (
	LawNone Law = iota
	MuLaw
	ALaw
)

// laws are what each byte stands for, as libsndfile has it.
var laws = func() (t [3][256]float32) {
	for i := range 256 {
		t[MuLaw][i] = float32(muLaw(byte(i))) * 0x1p-15
		t[ALaw][i] = float32(aLaw(byte(i))) * 0x1p-15
	}
	return t
}()

// muLaw is the value of 16 bits of a byte, all of whose bits are inverted: a sign, three bits of the segment and four
// of the step.
func muLaw(b byte) int {
	b = ^b
	v := (int(b&15)<<3+0x84)<<(b>>4&7) - 0x84
	if b&0x80 != 0 {
		return -v
	}
	return v
}

// aLaw is the value of 16 bits of a byte, every other of whose bits is inverted.
func aLaw(b byte) int {
	b ^= 0x55
	v, segment := int(b&15)<<4+8, b>>4&7
	if segment > 0 {
		v = (v + 0x100) << (segment - 1)
	}
	if b&0x80 != 0 {
		return v
	}
	return -v
}

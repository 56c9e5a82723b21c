package codec

import "encoding/binary"

// The checks of FLAC's frames: CRC-8 with polynomial 0x07 of a header, CRC-16 with 0x8005 of a frame.
var (
	table8  [256]uint8
	table16 [8][256]uint16
)

func init() {
	for i := range 256 {
		a, b := uint8(i), uint16(i)<<8
		for range 8 {
			a = a<<1 ^ 0x07*(a>>7)
			b = b<<1 ^ 0x8005*(b>>15)
		}
		table8[i], table16[0][i] = a, b
	}
	for k := 1; k < 8; k++ {
		for i := range 256 {
			b := table16[k-1][i]
			table16[k][i] = b<<8 ^ table16[0][b>>8]
		}
	}
}

func crc8(b []byte) uint8 {
	var c uint8
	for _, v := range b {
		c = table8[c^v]
	}
	return c
}

// crc16 takes eight bytes at a time.
func crc16(b []byte) uint16 {
	var c uint16
	for len(b) >= 8 {
		v := binary.BigEndian.Uint64(b) ^ uint64(c)<<48
		c = table16[7][v>>56] ^ table16[6][v>>48&255] ^ table16[5][v>>40&255] ^ table16[4][v>>32&255] ^
			table16[3][v>>24&255] ^ table16[2][v>>16&255] ^ table16[1][v>>8&255] ^ table16[0][v&255]
		b = b[8:]
	}
	for _, v := range b {
		c = c<<8 ^ table16[0][uint8(c>>8)^v]
	}
	return c
}

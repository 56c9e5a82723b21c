package codec

import (
	"encoding/binary"

	"bowstring/fetch/operators/images/jpeg"
)

// chunksOf looks through a PNG for Exif data and a profile.
func chunksOf(cell []byte) (orientation int, profile bool) {
	orientation = 1
	rest := cell[8:]
	for len(rest) >= 12 {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n+12 > uint64(len(rest)) {
			return orientation, profile
		}
		switch string(rest[4:8]) {
		case "eXIf":
			if o := jpeg.Orientation(rest[8 : 8+n]); o != 0 {
				orientation = o
			}
		case "iCCP":
			profile = true
		case "IEND":
			return orientation, profile
		}
		rest = rest[12+n:]
	}
	return orientation, profile
}

// riffOf looks through a WebP for Exif data and a profile.
func riffOf(cell []byte) (orientation int, profile bool) {
	orientation = 1
	rest := cell[12:]
	for len(rest) >= 8 {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if n+8 > uint64(len(rest)) {
			return orientation, profile
		}
		switch data := rest[8 : 8+n]; string(rest[:4]) {
		case "EXIF":
			if len(data) > 6 && string(data[:6]) == "Exif\x00\x00" {
				data = data[6:]
			}
			if o := jpeg.Orientation(data); o != 0 {
				orientation = o
			}
		case "ICCP":
			profile = true
		}
		rest = rest[min(8+n+n&1, uint64(len(rest))):]
	}
	return orientation, profile
}

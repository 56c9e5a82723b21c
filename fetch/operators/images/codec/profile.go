package codec

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Profile is the ICC profile of a file whose header says that it has one: no more than most bytes of it. The
// result may point into the cell.
func Profile(cell []byte, h Header, most int) (profile []byte, err error) {
	switch h.Format {
	case JPEG:
		profile, err = jpegProfile(cell, most)
	case PNG:
		profile, err = pngProfile(cell, most)
	case WebP:
		profile = riffChunk(cell, "ICCP")
	case TIFF:
		profile = h.tiff.Profile
	}
	if err == nil && len(profile) == 0 {
		err = errors.New("it cannot be found")
	}
	if err != nil {
		return nil, wrong(h.Format, fmt.Errorf("its ICC profile: %w", err))
	}
	return profile[:min(len(profile), most)], nil
}

// jpegProfile puts the parts together that the segments before the first scan have, each with its
// number and how many there are.
func jpegProfile(cell []byte, most int) ([]byte, error) {
	const name = "ICC_PROFILE\x00"
	var parts [256][]byte
	found, want, bytes := 0, 0, 0
	for rest := cell[2:]; len(rest) >= 4; {
		if rest[0] != 0xFF || rest[1] == 0xFF { // what lies between segments
			rest = rest[1:]
			continue
		}
		mark := rest[1]
		if mark == 0 || mark == 1 || mark >= 0xD0 && mark <= 0xD8 {
			rest = rest[2:]
			continue
		}
		if mark == 0xD9 || mark == 0xDA {
			break
		}
		n := int(binary.BigEndian.Uint16(rest[2:])) + 2
		if n < 4 || n > len(rest) {
			break
		}
		if s := rest[4:n]; mark == 0xE2 && len(s) > 14 && string(s[:12]) == name {
			at, all := int(s[12]), int(s[13])
			if at == 0 || at > all || want > 0 && all != want || parts[at] != nil {
				return nil, fmt.Errorf("part %d of %d makes no sense", at, all)
			}
			want, parts[at] = all, s[14:]
			found, bytes = found+1, bytes+len(s)-14
		}
		rest = rest[n:]
	}
	if found != want {
		return nil, fmt.Errorf("of %d parts there are %d", want, found)
	}
	if found == 1 {
		return parts[1], nil
	}
	whole := make([]byte, 0, min(bytes, most))
	for _, part := range parts[1:] {
		whole = append(whole, part[:min(len(part), cap(whole)-len(whole))]...)
	}
	return whole, nil
}

// pngProfile inflates a chunk: a name, a zero, the method, and the data.
func pngProfile(cell []byte, most int) ([]byte, error) {
	for rest := cell[8:]; len(rest) >= 12; {
		n := uint64(binary.BigEndian.Uint32(rest))
		if n+12 > uint64(len(rest)) {
			break
		}
		if chunk := rest[8 : 8+n]; string(rest[4:8]) == "iCCP" {
			_, data, ok := bytes.Cut(chunk, []byte{0})
			if !ok || len(data) == 0 || data[0] != 0 {
				return nil, errors.New("its chunk makes no sense")
			}
			in, err := zlib.NewReader(bytes.NewReader(data[1:]))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(io.LimitReader(in, int64(most)))
		}
		rest = rest[12+n:]
	}
	return nil, nil
}

// riffChunk is a chunk of a WebP.
func riffChunk(cell []byte, name string) []byte {
	for rest := cell[12:]; len(rest) >= 8; {
		n := uint64(binary.LittleEndian.Uint32(rest[4:]))
		if n+8 > uint64(len(rest)) {
			return nil
		}
		if string(rest[:4]) == name {
			return rest[8 : 8+n]
		}
		rest = rest[min(8+n+n&1, uint64(len(rest))):]
	}
	return nil
}

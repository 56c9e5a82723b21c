package codec

import (
	"encoding/binary"
	"math"

	"bowstring/fetch/operators/program"
)

const (
	wavInteger    = 1
	wavFloat      = 3
	wavExtensible = 0xfffe
)

// readWAV walks the chunks of a RIFF file. A size that goes beyond the file's end is
// that of a writer which could not go back: what is there counts.
func readWAV(file []byte) (Info, error) {
	info := Info{Format: WAV}
	kind := 0
	for b := file[12:]; len(b) >= 8; {
		name, size := string(b[:4]), int(binary.LittleEndian.Uint32(b[4:]))
		body := b[8:]
		short := size > len(body)
		if !short {
			body = body[:size]
		}
		switch name {
		case "fmt ":
			if short || size < 16 {
				return info, damaged("WAV: its format has %d bytes; it takes 16 at least", len(body))
			}
			kind = int(binary.LittleEndian.Uint16(body))
			info.Channels = int(binary.LittleEndian.Uint16(body[2:]))
			info.Rate = int(binary.LittleEndian.Uint32(body[4:]))
			info.Bits = int(binary.LittleEndian.Uint16(body[14:]))
			if kind == wavExtensible && size >= 26 {
				kind = int(binary.LittleEndian.Uint16(body[24:]))
			}
			info.Float = kind == wavFloat
			if !wavReadable(kind, info.Bits) {
				return info, damaged("WAV: samples of format %d and %d bits; "+
					"whole numbers of 8, 16, 24 and 32 bits and floating-point ones of 32 and 64 can be read", kind,
					info.Bits)
			}
		case "data":
			if kind == 0 {
				return info, damaged("WAV: samples come before their format")
			}
			if info.Channels == 0 {
				return info, damaged("WAV: it has no channel")
			}
			info.data = body
			info.Frames = len(body) / (info.Channels * info.Bits / 8)
			return info, nil
		}
		if short {
			break
		}
		b = b[8+min(size+size%2, len(b)-8):]
	}
	return info, damaged("WAV: it has no samples")
}

func wavReadable(kind, bits int) bool {
	switch kind {
	case wavInteger:
		return bits == 8 || bits == 16 || bits == 24 || bits == 32
	case wavFloat:
		return bits == 32 || bits == 64
	default:
		return false
	}
}

func decodeWAV(m *program.Meter, info Info, offset int, out [][]float32) error {
	const together = 1 << 16 // samples of each channel between two calls of the meter
	stride := info.Bits / 8 * len(out)
	part := make([][]float32, len(out))
	for at := 0; at < len(out[0]); at += together {
		n := min(together, len(out[0])-at)
		if err := m.Spend(int64(n) * int64(len(out)) * ofWAV); err != nil {
			return err
		}
		for c := range out {
			part[c] = out[c][at:][:n]
		}
		wavSamples(&info, info.data[(offset+at)*stride:][:n*stride], part)
	}
	return nil
}

// wavSamples converts all samples of some frames.
func wavSamples(info *Info, all []byte, out [][]float32) {
	width := info.Bits / 8
	stride := width * len(out)
	for c, dst := range out {
		b := all[c*width:]
		switch {
		case info.Float && info.Bits == 32:
			for i := range dst {
				dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[i*stride:]))
			}
		case info.Float:
			for i := range dst {
				dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(b[i*stride:])))
			}
		case info.Bits == 8:
			for i := range dst {
				dst[i] = float32(int(b[i*stride])-128) * 0x1p-7
			}
		case info.Bits == 16:
			for i := range dst {
				dst[i] = float32(int16(binary.LittleEndian.Uint16(b[i*stride:]))) * 0x1p-15
			}
		case info.Bits == 24:
			for i := range dst {
				s := b[i*stride:]
				v := int32(uint32(s[0])<<8|uint32(s[1])<<16|uint32(s[2])<<24) >> 8
				dst[i] = float32(v) * 0x1p-23
			}
		default:
			for i := range dst {
				dst[i] = float32(int32(binary.LittleEndian.Uint32(b[i*stride:]))) * 0x1p-31
			}
		}
	}
}

package codec

import (
	"encoding/binary"
	"fmt"
	"math"

	"bowstring/fetch/operators/program"
)

// Formats of samples, as the chunk "fmt " numbers them.
const (
	wavInteger    = 1
	wavFloat      = 3
	wavALaw       = 6
	wavMuLaw      = 7
	wavExtensible = 0xfffe
)

// wavOther are formats of samples that are not read.
var wavOther = map[int]string{
	0x02: "Microsoft ADPCM", 0x11: "IMA ADPCM", 0x16: "G.723 ADPCM", 0x31: "GSM 6.10", 0x38: "NMS ADPCM",
	0x40: "G.721 ADPCM", 0x42: "G.723.1", 0x45: "G.726 ADPCM", 0x50: "MPEG audio", 0x55: "MP3", 0x92: "AC-3",
	0xff: "AAC", 0x160: "Windows Media Audio", 0x161: "Windows Media Audio", 0x1600: "AAC", 0x2000: "AC-3",
}

// Ends of the GUIDs of WAVE_FORMAT_EXTENSIBLE that begin with the number of a format: of the usual ones, and of
// those that have the channels of ambisonics.
const (
	guidTail      = "\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
	ambisonicTail = "\x00\x00\x21\x07\xd3\x11\x86\x44\xc8\xc1\xca\x00\x00\x00"
)

// readWAV walks the chunks of a file. A size that goes beyond the file's end is that of a writer which could not go
// back: what is there counts.
func readWAV(file []byte) (Info, error) {
	info := Info{Format: WAV}
	formatted := false
	for chunks := wavChunksOf(file); ; {
		c, ok := chunks.next()
		if !ok {
			return info, damaged("WAV: it has no samples")
		}
		switch c.name {
		case "fmt ":
			if c.short() || len(c.body) < 16 {
				return info, damaged("WAV: its format has %d bytes; it takes 16 at least", len(c.body))
			}
			if err := info.wavFormat(c.body); err != nil {
				return info, err
			}
			formatted = true
			if chunks.long && chunks.ds64 == nil {
				return info, damaged("WAV: it begins as %s, and has no chunk ds64, which says how long it is", file[:4])
			}
		case "data":
			if !formatted {
				return info, damaged("WAV: samples come before their format")
			}
			if len(c.body) == 0 && !chunks.whole() {
				return info, damaged("WAV: its chunk of samples says that it is empty, and %d bytes follow", len(c.rest))
			}
			info.data = c.body
			info.Frames = len(c.body) / (info.Channels * info.width)
			return info, nil
		}
		if c.short() {
			return info, damaged("WAV: it has no samples")
		}
	}
}

// wavFormat reads the chunk that says what samples are.
func (i *Info) wavFormat(b []byte) error {
	kind := int(binary.LittleEndian.Uint16(b))
	i.Channels = int(binary.LittleEndian.Uint16(b[2:]))
	i.Rate = int(binary.LittleEndian.Uint32(b[4:]))
	align := int(binary.LittleEndian.Uint16(b[12:]))
	i.Bits = int(binary.LittleEndian.Uint16(b[14:]))
	if kind == wavExtensible {
		if len(b) < 40 {
			return damaged("WAV: its extensible format has %d bytes; it takes 40", len(b))
		}
		if tail := string(b[26:40]); tail != guidTail && tail != ambisonicTail {
			return unsupported("WAV with samples of the format of GUID %x", b[24:40])
		}
		kind = int(binary.LittleEndian.Uint16(b[24:]))
	}
	if i.Channels == 0 {
		return damaged("WAV: it has no channel")
	}
	i.Float, i.Law = kind == wavFloat, map[int]Law{wavALaw: ALaw, wavMuLaw: MuLaw}[kind]
	i.width = (i.Bits + 7) / 8
	switch {
	case kind == wavInteger && i.Bits >= 1 && i.Bits <= 32:
		if i.width == 3 && align == 4*i.Channels { // libraries disagree about what that is
			return unsupported("WAV with samples of %d bits in 4 bytes", i.Bits)
		}
		i.Bits = 8 * i.width // fewer bits than the bytes have are the higher ones
		return nil
	case i.Float && (i.Bits == 32 || i.Bits == 64), i.Law != LawNone && i.Bits == 8:
		return nil
	case kind == wavInteger || i.Float || i.Law != LawNone:
		return unsupported("WAV with samples of %d bits of format %d; whole numbers of 1 to 32 bits, floating-point "+
			"ones of 32 and 64, and companded ones of 8 can be read", i.Bits, kind)
	}
	name, ok := wavOther[kind]
	if !ok {
		name = fmt.Sprintf("format %#x", kind)
	}
	return unsupported("WAV with samples of %s; whole and floating-point numbers, µ-law and A-law can be read", name)
}

func decodeWAV(m *program.Meter, info Info, offset int, out [][]float32) error {
	const together = 1 << 16 // samples of each channel between two calls of the meter
	stride := info.width * len(out)
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
	width := info.width
	stride := width * len(out)
	for c, dst := range out {
		b := all[c*width:]
		switch {
		case info.Law != LawNone:
			law := &laws[info.Law]
			for i := range dst {
				dst[i] = law[b[i*stride]]
			}
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

package codec

import (
	"encoding/binary"
	"fmt"
	"math"

	"bowstring/fetch/operators/program"
)

// Sample formats, as numbered in the chunk "fmt ".
const (
	wavInteger    = 1
	wavFloat      = 3
	wavALaw       = 6
	wavMuLaw      = 7
	wavExtensible = 0xfffe
)

// wavOther are sample formats that are not read. An error can then name the format.
var wavOther = map[int]string{
	0x02: "Microsoft ADPCM", 0x11: "IMA ADPCM", 0x16: "G.723 ADPCM", 0x31: "GSM 6.10", 0x38: "NMS ADPCM",
	0x40: "G.721 ADPCM", 0x42: "G.723.1", 0x45: "G.726 ADPCM", 0x50: "MPEG audio", 0x55: "MP3", 0x92: "AC-3",
	0xff: "AAC", 0x160: "Windows Media Audio", 0x161: "Windows Media Audio", 0x1600: "AAC", 0x2000: "AC-3",
}

// Ends of the GUIDs in WAVE_FORMAT_EXTENSIBLE that begin with the number of a format: the
// usual ones, and those of files with ambisonic channels.
const (
	guidTail      = "\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
	ambisonicTail = "\x00\x00\x21\x07\xd3\x11\x86\x44\xc8\xc1\xca\x00\x00\x00"
)

// readWAV walks over the chunks of a file. A size beyond the end of the file comes from a
// writer that could not seek back; the existing bytes count. It reads until the chunk with
// the samples, and ignores all that follows.
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

// wavFormat parses the chunk that describes the samples. The extensible form has the format
// in a GUID. Its valid bits are ignored: samples fill their bytes from the top.
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
		if i.width == 3 && align == 4*i.Channels { // libraries disagree about its meaning
			return unsupported("WAV with samples of %d bits in 4 bytes", i.Bits)
		}
		i.Bits = 8 * i.width // if the sample has fewer bits than its bytes, they are the upper ones
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

// decodeWAV converts samples in pieces, so that the meter is called often enough. The part
// starts at any sample without a search.
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

// wavSamples converts the samples of all channels to floats in [-1, 1). The format is
// chosen once for a channel and not for each sample. Integers are divided by a power of
// two, which is exact for up to 24 bits.
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

// A WAV file is a sequence of chunks. There are four forms: RIFF has sizes of 32 bits;
// RF64 (EBU Tech 3306) and BW64 (ITU-R BS.2088) have a chunk ds64 with sizes of 64 bits;
// Sony's Wave64 has GUIDs as names and sizes of 64 bits.

// unsized is the size field of a chunk whose size is in ds64, or unknown. Streams that are
// written to a pipe have it, too.
const unsized = math.MaxUint32

const (
	// GUIDs of Wave64.
	w64Riff = "riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
	w64Wave = "wave\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
	// w64Tail ends the GUIDs of the chunks that Wave64 shares with WAV.
	w64Tail = "\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
	w64Head = 24 // bytes of a GUID and a size
)

// isWAV reports whether a file begins like RIFF, RF64, BW64 or Wave64.
func isWAV(b []byte) bool {
	return has(b, 8, "WAVE") && (has(b, 0, "RIFF") || has(b, 0, "RF64") || has(b, 0, "BW64")) || isW64(b)
}

// isW64 reports whether a file begins like Wave64.
func isW64(b []byte) bool { return has(b, 0, w64Riff) && has(b, w64Head, w64Wave) }

// wavChunks walks over the chunks of a file. rest begins at the next chunk. It is used by
// one call.
type wavChunks struct {
	rest []byte
	w64  bool
	long bool   // RF64 or BW64
	ds64 []byte // contents of the chunk ds64
}

// wavChunk is a chunk of a file. Slices refer to the file.
type wavChunk struct {
	name string
	size uint64 // as in the file
	body []byte // as much of it as exists
	rest []byte // bytes after the chunk's header
}

// short reports whether the file ends within the chunk.
func (c *wavChunk) short() bool { return uint64(len(c.body)) < c.size }

// wavChunksOf begins with the first chunk after the file's header.
func wavChunksOf(file []byte) wavChunks {
	if isW64(file) {
		return wavChunks{rest: file[w64Head+16:], w64: true}
	}
	return wavChunks{rest: file[12:], long: file[0] != 'R' || file[1] != 'I'}
}

// next returns the next chunk; false if there is none. A chunk of unknown size extends to
// the end of the file. Chunks are padded to 2 bytes, those of Wave64 to 8. The padding of
// the last chunk may be missing.
func (c *wavChunks) next() (chunk wavChunk, ok bool) {
	head, pad := 8, uint64(2)
	if c.w64 {
		head, pad = w64Head, 8
	}
	if len(c.rest) < head {
		return chunk, false
	}
	if c.w64 {
		if string(c.rest[4:16]) == w64Tail {
			chunk.name = string(c.rest[:4])
		}
		chunk.size = binary.LittleEndian.Uint64(c.rest[16:])
		if chunk.size < w64Head {
			return chunk, false
		}
		chunk.size -= w64Head
	} else {
		chunk.name, chunk.size = string(c.rest[:4]), uint64(binary.LittleEndian.Uint32(c.rest[4:]))
	}
	chunk.rest = c.rest[head:]
	if chunk.size == unsized && !c.w64 {
		if chunk.size = uint64(len(chunk.rest)); c.ds64 != nil {
			chunk.size = c.sizeOf(chunk.name, chunk.size)
		}
	}
	chunk.body = chunk.rest[:min(chunk.size, uint64(len(chunk.rest)))]
	c.rest = chunk.rest[len(chunk.body):]
	c.rest = c.rest[min((pad-chunk.size%pad)%pad, uint64(len(c.rest))):]
	if c.long && c.ds64 == nil && chunk.name == "ds64" && len(chunk.body) >= 24 {
		c.ds64 = chunk.body
	}
	return chunk, true
}

// sizeOf is the size of a chunk according to ds64, which has the sizes of the file and of
// the samples, the number of samples, and a table for other chunks. The chunk ds64 comes
// first in the file, so it is known by then.
func (c *wavChunks) sizeOf(name string, otherwise uint64) uint64 {
	if name == "data" {
		return binary.LittleEndian.Uint64(c.ds64[8:])
	}
	if len(c.ds64) < 28 {
		return otherwise
	}
	table := c.ds64[28:]
	for range binary.LittleEndian.Uint32(c.ds64[24:]) {
		if len(table) < 12 {
			break
		}
		if string(table[:4]) == name {
			return binary.LittleEndian.Uint64(table[4:])
		}
		table = table[12:]
	}
	return otherwise
}

// whole reports whether the rest of the file consists of complete chunks with names of
// printable characters. It distinguishes an empty file from one whose size was never
// written.
func (c *wavChunks) whole() bool {
	for len(c.rest) > 0 {
		chunk, ok := c.next()
		if !ok || chunk.short() {
			return false
		}
		for i := range len(chunk.name) {
			if chunk.name[i] < ' ' || chunk.name[i] > '~' {
				return false
			}
		}
	}
	return true
}

// Law is a companding law of ITU-T G.711, which stores 13 or 14 bits in 8.
type Law uint8

// The laws.
const (
	LawNone Law = iota
	MuLaw
	ALaw
)

// laws are the values of all bytes, as libsndfile decodes them. A table of 256 values is
// exact and faster than the formula.
var laws = func() (t [3][256]float32) {
	for i := range 256 {
		t[MuLaw][i] = float32(muLaw(byte(i))) * 0x1p-15
		t[ALaw][i] = float32(aLaw(byte(i))) * 0x1p-15
	}
	return t
}()

// muLaw is the 16-bit value of a µ-law byte. All of its bits are inverted: a sign, three
// bits of the segment and four of the step. The offset 0x84 makes the steps of neighbouring
// segments meet.
func muLaw(b byte) int {
	b = ^b
	v := (int(b&15)<<3+0x84)<<(b>>4&7) - 0x84
	if b&0x80 != 0 {
		return -v
	}
	return v
}

// aLaw is the 16-bit value of an A-law byte. In such a byte every other bit is inverted.
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

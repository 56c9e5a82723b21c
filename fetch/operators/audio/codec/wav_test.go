package codec

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"bowstring/fetch/operators/program"
)

// trailer is chunks that follow the samples, the first of an odd size.
const trailer = "LIST\x07\x00\x00\x00INFOabc\x00id3 \x02\x00\x00\x00xy"

// long is a WAV of one channel of 16 bits, with sizes of 64 bits.
func long(magic string, ds64, data []byte) []byte {
	b := []byte(magic + "\xff\xff\xff\xffWAVEds64")
	b = append(binary.LittleEndian.AppendUint32(b, uint32(len(ds64))), ds64...)
	short := wav(1, 1, 8000, 16, nil)
	b = append(b, short[strings.Index(string(short), "fmt "):len(short)-4]...)
	return append(append(b, "\xff\xff\xff\xff"...), data...)
}

// sizes is the content of a ds64: of the file, of the samples, of their number, and a table.
func sizes(data uint64, table ...any) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 8), data)
	b = binary.LittleEndian.AppendUint64(b, data/2)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(table)/2))
	for i := 0; i < len(table); i += 2 {
		b = binary.LittleEndian.AppendUint64(append(b, table[i].(string)...), uint64(table[i+1].(int)))
	}
	return b
}

// w64 is the same as Wave64, with chunks of other names around the samples.
func w64(data []byte) []byte {
	head := func(b []byte, name string, size int) []byte {
		return binary.LittleEndian.AppendUint64(append(b, name...), uint64(size))
	}
	short := wav(1, 1, 8000, 16, nil)
	format := short[strings.Index(string(short), "fmt ")+8:][:16]
	b := append(head(nil, w64Riff, 0), w64Wave...)
	b = append(head(b, "list"+w64Tail, 27), "abc\x00\x00\x00\x00\x00"...) // 27 bytes, and 5 up to the next eighth
	b = append(head(b, "fmt "+w64Tail, 40), format...)
	b = append(head(b, "data"+w64Tail, 24+len(data)), data...)
	b = append(b, make([]byte, (8-len(data)%8)%8)...)
	return head(b, "list"+w64Tail, 24)
}

type longWAV struct {
	file []byte
	want []float32
}

func longWAVs() map[string]longWAV {
	two := []byte{0, 64, 0, 192}
	samples := []float32{0.5, -0.5}
	tail := []byte(trailer)
	return map[string]longWAV{
		"RF64":                {long("RF64", sizes(4), slices.Concat(two, tail)), samples},
		"BW64":                {long("BW64", sizes(4), slices.Concat(two, tail)), samples},
		"RF64, no table":      {long("RF64", sizes(4)[:24], slices.Concat(two, tail)), samples},
		"RF64, empty":         {long("RF64", sizes(0), tail), nil},
		"RF64, cut":           {long("RF64", sizes(400), two), samples},
		"Wave64":              {w64(two), samples},
		"RIFF, streamed":      {append(wav(1, 1, 8000, 16, nil)[:52], "\xff\xff\xff\xff\x00\x40\x00\xc0"...), samples},
		"RIFF, and chunks":    {append(wav(1, 1, 8000, 16, two), tail...), samples},
		"RIFF, empty, chunks": {append(wav(1, 1, 8000, 16, nil), tail...), nil},
		"RIFF, empty":         {wav(1, 1, 8000, 16, nil), nil},
		"RF64, a long LIST by the table": {slices.Concat([]byte("RF64\xff\xff\xff\xffWAVEds64\x28\x00\x00\x00"),
			sizes(4, "LIST", 6), []byte("LIST\xff\xff\xff\xffINFOab"), long("RF64", nil, nil)[20:], two, tail), samples},
	}
}

// TestLongWAV checks that samples end at the size in the file, for each form of WAV.
func TestLongWAV(t *testing.T) {
	for name, c := range longWAVs() {
		t.Run(name, func(t *testing.T) {
			if _, out := whole(t, c.file); !slices.Equal(out[0], c.want) {
				t.Errorf("%v, want %v", out[0], c.want)
			}
		})
	}
}

// TestLaws checks some values of G.711's tables.
func TestLaws(t *testing.T) {
	for law, want := range map[int]map[int]int{
		7: {0: -32124, 0x7f: 0, 0x80: 32124, 0xff: 0},
		6: {0: -5504, 0x55: -8, 0xd5: 8, 0xaa: 32256},
	} {
		file := make([]byte, 256)
		for i := range file {
			file[i] = byte(i)
		}
		_, out := whole(t, wav(law, 1, 8000, 8, file))
		for i, v := range want {
			if out[0][i] != float32(v)/32768 {
				t.Errorf("law %d: %#x is %g, want %d", law, i, out[0][i]*32768, v)
			}
		}
	}
}

// TestNotSupported checks that unsupported variants are named and not reported as damaged.
func TestNotSupported(t *testing.T) {
	for want, file := range map[string][]byte{
		"WAV with samples of IMA ADPCM":          wav(0x11, 1, 8000, 4, []byte{1, 2}),
		"WAV with samples of format 0x1234":      wav(0x1234, 1, 8000, 4, []byte{1, 2}),
		"floating-point ones of 32 and 64":       wav(3, 1, 8000, 16, []byte{1, 2}),
		"AIFF-C":                                 []byte("FORM\x00\x00\x00\x10AIFCFVER"),
		"AU":                                     []byte(".snd\x00\x00\x00\x18"),
		"MPEG-4":                                 []byte("\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00"),
		"Ogg: a stream that begins with \"Speex": []byte("OggS\x00\x02" + strings.Repeat("\x00", 20) + "\x01\x50Speex   1.2"),
	} {
		if _, err := Read(file); !errors.Is(err, program.ErrNotSupported) || errors.Is(err, program.ErrDamaged) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

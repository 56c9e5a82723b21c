package images

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"image"
	"math"
	"testing"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

// tiffFile is a little-endian TIFF of one image. It has the tags that the decoder reads.
type tiffFile struct {
	width, height int
	bits, samples int
	compression   int
	predictor     int
	format        int // of samples; 0 for whole numbers
	tile          int // its side; 0 for strips
	rows          int // of a strip; 0 for all
	blocks        [][]byte
}

func (f tiffFile) bytes() []byte {
	type field struct {
		tag    uint16
		values []uint32
	}
	fields := []field{{256, []uint32{uint32(f.width)}}, {257, []uint32{uint32(f.height)}}, {258, nil}}
	for range f.samples {
		fields[2].values = append(fields[2].values, uint32(f.bits))
	}
	photometric := uint32(0) // white is zero
	if f.samples > 1 {
		photometric = 2 // RGB
	}
	at, length, rows := uint16(273), uint16(279), uint32(math.MaxUint32)
	if f.rows > 0 {
		rows = uint32(f.rows)
	}
	if f.tile > 0 {
		at, length = 324, 325
	}
	fields = append(fields, field{259, []uint32{uint32(max(f.compression, 1))}}, field{262, []uint32{photometric}})
	var offsets, counts []uint32
	from := uint32(8)
	for _, b := range f.blocks {
		offsets, counts = append(offsets, from), append(counts, uint32(len(b)))
		from += uint32(len(b))
	}
	if f.tile == 0 {
		fields = append(fields, field{at, offsets}, field{278, []uint32{rows}}, field{length, counts})
	}
	if f.predictor > 0 {
		fields = append(fields, field{317, []uint32{uint32(f.predictor)}})
	}
	if f.tile > 0 {
		side := []uint32{uint32(f.tile)}
		fields = append(fields, field{322, side}, field{323, side}, field{at, offsets}, field{length, counts})
	}
	if f.samples == 4 {
		fields = append(fields, field{338, []uint32{1}}) // alpha
	}
	if f.format > 0 {
		fields = append(fields, field{339, []uint32{uint32(f.format)}})
	}
	order := binary.LittleEndian
	file := order.AppendUint32([]byte("II*\x00"), from)
	file = append(file, bytes.Join(f.blocks, nil)...)
	file = order.AppendUint16(file, uint16(len(fields)))
	far := from + 2 + 12*uint32(len(fields))
	var rest []byte
	for _, e := range fields {
		file = order.AppendUint16(order.AppendUint16(file, e.tag), 4)
		file = order.AppendUint32(file, uint32(len(e.values)))
		if len(e.values) == 1 {
			file = order.AppendUint32(file, e.values[0])
			continue
		}
		file = order.AppendUint32(file, far+uint32(len(rest)))
		for _, v := range e.values {
			rest = order.AppendUint32(rest, v)
		}
	}
	return append(file, rest...)
}

// Ways in which n zeros are stored.
func plainZeros(_ testing.TB, n int) []byte { return make([]byte, n) }

func deflatedZeros(tb testing.TB, n int) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	if _, err := w.Write(make([]byte, n)); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func packedZeros(_ testing.TB, n int) []byte {
	out := bytes.Repeat([]byte{0x81, 0}, n/128) // a zero 128 times
	for range n % 128 {
		out = append(out, 0, 0)
	}
	return out
}

// lzwZeros has codes of nine bits alone: the table is cleared before they grow.
func lzwZeros(_ testing.TB, n int) []byte {
	var out []byte
	var pending, bits uint32
	code := func(c uint32) {
		pending, bits = pending<<9|c, bits+9
		for bits >= 8 {
			bits -= 8
			out = append(out, byte(pending>>bits))
		}
	}
	for i := range n {
		if i%200 == 0 {
			code(256)
		}
		code(0)
	}
	code(257)
	code(0)
	return out
}

// faxed is a page of white rows.
func faxed(_ testing.TB, rows int) []byte {
	out := bytes.Repeat([]byte{0xff}, rows/8) // a bit each: as the row before
	return append(out, 0x00, 0x10, 0x01)      // the end, twice
}

// TestBytesOfTIFF checks that decoding a TIFF takes no more memory than its header bounds,
// also if strips have more rows than the image.
func TestBytesOfTIFF(t *testing.T) {
	const none, fax, lzw, deflate, packBits = 1, 4, 5, 8, 32773
	zeros := map[int]func(testing.TB, int) []byte{
		none: plainZeros, lzw: lzwZeros, deflate: deflatedZeros, packBits: packedZeros,
	}
	for name, f := range map[string]struct {
		tiffFile
		stored int // bytes of a strip or tile before it is compressed; 0 for as many as its pixels have
		n      int // strips or tiles; 0 for one
	}{
		"plain":                      {tiffFile: tiffFile{bits: 8, samples: 3, compression: none}},
		"plain strips":               {tiffFile: tiffFile{bits: 8, samples: 3, compression: none, rows: 256}, n: 4},
		"plain of 16 bits":           {tiffFile: tiffFile{bits: 16, samples: 4, compression: none}},
		"deflate":                    {tiffFile: tiffFile{bits: 8, samples: 3, compression: deflate}},
		"deflate, predicted":         {tiffFile: tiffFile{bits: 8, samples: 3, compression: deflate, predictor: 2}},
		"deflate of 16 bits":         {tiffFile: tiffFile{bits: 16, samples: 4, compression: deflate}},
		"grey of 16 bits, predicted": {tiffFile: tiffFile{bits: 16, samples: 1, compression: lzw, predictor: 2}},
		"lzw":                        {tiffFile: tiffFile{bits: 8, samples: 3, compression: lzw}},
		"packed":                     {tiffFile: tiffFile{bits: 8, samples: 3, compression: packBits}},
		"tiles": {tiffFile: tiffFile{bits: 8, samples: 3, compression: deflate, tile: 512, predictor: 2},
			n: 4},
		"tiles of 16 bits": {tiffFile: tiffFile{bits: 16, samples: 4, compression: deflate, tile: 512}, n: 4},
		"numbers":          {tiffFile: tiffFile{bits: 32, samples: 1, compression: deflate, format: 3, predictor: 3}},
		"long numbers":     {tiffFile: tiffFile{bits: 64, samples: 1, compression: none, format: 3}},
		"fax":              {tiffFile: tiffFile{bits: 1, samples: 1, compression: fax}, n: 1},
		// Data of a strip after its pixels is read, too.
		"too much": {tiffFile: tiffFile{bits: 8, samples: 1, compression: deflate}, stored: 8 << 20},
		"too much in a tile": {tiffFile: tiffFile{bits: 8, samples: 1, compression: deflate, tile: 1024},
			stored: 8 << 20},
		"too much packed": {tiffFile: tiffFile{bits: 8, samples: 1, compression: packBits}, stored: 8 << 20},
		"too much plain":  {tiffFile: tiffFile{bits: 8, samples: 1, compression: none}, stored: 8 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			f.width, f.height = 1024, 1024
			n := max(f.n, 1)
			if f.stored == 0 {
				f.stored = f.width * f.height / n * f.samples * f.bits / 8
			}
			var block []byte
			if f.compression == fax {
				block = faxed(t, f.height)
			} else {
				block = zeros[f.compression](t, f.stored)
			}
			for range n {
				f.blocks = append(f.blocks, block)
			}
			holdsBound(t, f.bytes())
		})
	}
}

// TestBytesOfLargeTIFF: a strip of more than the library reads at once.
func TestBytesOfLargeTIFF(t *testing.T) {
	f := tiffFile{width: 4096, height: 4096, bits: 8, samples: 1, compression: 1, blocks: [][]byte{make([]byte, 1<<24)}}
	holdsBound(t, f.bytes())
}

// holdsBound decodes a file and compares the memory to the bound of its header.
func holdsBound(t *testing.T, file []byte) {
	t.Helper()
	h, err := codec.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	var d codec.Decoder
	meter := program.NewMeter(t.Context(), program.Cost{Working: program.Count(h.Bytes), Steps: program.Count(h.Steps)})
	programtest.Within(t, program.Count(h.Bytes), func() {
		err = d.Decode(file, h, codec.RGB, image.Rect(0, 0, h.Width, h.Height), meter)
	})
	if err != nil {
		t.Fatal(err)
	}
}

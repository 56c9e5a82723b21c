package hostile

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"strings"

	"google.golang.org/grpc/codes"
)

// samplesName is the prefix of the datasets that attackers upload, of one cell each.
const samplesName = "hostile-"

// reading returns a case that uploads a cell and reads it with operators. An attacker who
// may upload controls each byte that the decoders see.
func reading(name, media string, cell func() []byte, steps string) Case {
	dataset := samplesName + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return Case{Name: name, Heavy: true, Run: func(ctx context.Context, t Target) error {
		// The cell is made when the case runs: some take megabytes.
		b := cell()
		// A batch of one row: a key and the cell.
		head := schemaMessage(field{name: "key", kind: typeUtf8}, field{name: "cell", kind: typeBinary})
		rec := batch{rows: 1, nodes: [][2]int64{{1, 0}, {1, 0}}, codec: plain,
			buffers: [][]byte{nil, offsets32(0, 1), {'k'}, nil, offsets32(0, int32(len(b))), b}}
		command := fmt.Appendf(nil, `{"put": {"dataset": %q, "mode": "replace", "key": "key", "media": {"cell": %q}}}`,
			dataset, media)
		if err := t.Ask(ctx, "DoPut", data(command, head, nil), rec.record()); err != nil {
			return fmt.Errorf("uploading the cell: %w", err)
		}
		return t.Ask(ctx, "DoGet", textField(1, fmt.Sprintf(`{"dataset": %q, "columns": ["cell"], "epochs": 1000, `+
			`"shuffle": {"seed": 1}, "operators": {"cell": [%s]}}`, dataset, steps)))
	}}
}

// refused turns c into a case that the server has to reject, with words of the message.
func refused(c Case, want []codes.Code, text string) Case {
	c.Heavy, c.Codes, c.Text = false, want, text
	return c
}

// samplesAndExpressions are cells, operators and expressions that cost more than their
// size suggests.
func samplesAndExpressions() []Case {
	// Valid files, whose operators are the attack.
	square := func(side int) []byte {
		var b bytes.Buffer
		_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, side, side))) // into a buffer
		return b.Bytes()
	}
	picture := func() []byte { return square(64) }
	sound := func() []byte { return wave(16000 * 4) }
	// Each level evaluates the one below in a list.
	nested := "position"
	for range 16 {
		nested = "count([" + nested + " in 0..9], #)"
	}
	where := func(name, expression string) Case {
		c := asking(name, "GetFlightInfo", nil, "", descriptor(fmt.Sprintf(`{"dataset": %q, "where": %q}`, Dataset,
			expression)))
		c.Heavy = true
		return c
	}
	columns := make([]string, 64)
	for i := range columns {
		columns[i] = fmt.Sprintf(`"c%d": {"expression": "position %% %d in [1, 2, 3] ? position : 0"}`, i, i+2)
	}
	computed := asking("64 columns of expressions", "GetFlightInfo", nil, "",
		descriptor(fmt.Sprintf(`{"dataset": %q, "operators": {%s}}`, Dataset, strings.Join(columns, ", "))))
	computed.Heavy = true
	return []Case{
		where("ranges of ranges", nested+" == 1"),
		where("a list in a list in a list", "position in map(0..9999, map(0..99, # + 1)[0])"),
		where("conditions of conditions", strings.Repeat("(position > 1 ? ", 500)+"1"+strings.Repeat(" : 0)", 500)+" == 1"),
		computed,
		refused(reading("rotations of a known size, whose cost wraps", "image", picture,
			growing(`{"Resize": {"size": [256, 256]}}`)), invalid, "134217728"),
		refused(reading("rotations of a pixel, whose cost wraps", "image", func() []byte { return square(1) },
			growing(`{"RandomHorizontalFlip": {}}`)), exhausted, "sample too large"),
		refused(reading("rotations of some pixels, whose cost wraps", "image", func() []byte { return square(17) },
			growing(`{"RandomHorizontalFlip": {}}`)), exhausted, "sample too large"),
		reading("a resize to 32,768 pixels", "image", picture, `{"Decode": {}}, {"Resize": {"size": [32768, 32768]}}`),
		reading("a blur of a kernel of 255", "image", picture,
			`{"Decode": {}}, {"Resize": {"size": [1500, 1500]}}, {"GaussianBlur": {"kernel_size": 255, "sigma": [90, 90]}}`),
		reading("a spectrogram of a prime length", "audio", sound,
			`{"Decode": {}}, {"Spectrogram": {"n_fft": 32749, "hop_length": 128}}`),
		reading("a resampling to a prime rate", "audio", sound,
			`{"Decode": {}}, {"Resample": {"new_freq": 4001, "lowpass_filter_width": 256}}`),
		reading("a picture that claims 30,000 x 30,000 pixels", "image", func() []byte {
			return claimingPNG(30_000, 30_000)
		}, `{"Decode": {}}`),
		reading("a picture of many tables of WebP", "image", func() []byte { return trees }, `{"Decode": {}}`),
		reading("a picture of many scans", "image", func() []byte { return manyScans(4096) }, `{"Decode": {}}`),
		reading("a sound that claims 2^31 samples", "audio", func() []byte {
			b := wave(100)
			binary.LittleEndian.PutUint32(b[40:], 1<<31)
			return b
		}, `{"Decode": {}}`),
	}
}

// growing returns a list of steps whose images grow until their number of pixels exceeds
// int64. A server that computes the cost with wraparound would accept it.
func growing(first string) string {
	return `{"Decode": {}}, ` + first + strings.Repeat(`, {"RandomRotation": {"degrees": 45, "expand": true}}`, 37) +
		strings.Repeat(`, {"Pad": {"padding": 4096}}`, 4)
}

// trees is a WebP of a few kilobytes whose tables take hundreds of megabytes. A test of
// the decoder writes it.
//
//go:embed testdata/trees.webp
var trees []byte

// manyScans returns a progressive JPEG of zeros: one scan, and a refinement for each bit
// below it. Each scan makes the decoder pass over the whole image.
func manyScans(side int) []byte {
	file := append([]byte("\xff\xd8\xff\xdb\x00\x43\x00"), bytes.Repeat([]byte{1}, 64)...)
	file = append(file, "\xff\xc2\x00\x0b\x08"...)
	file = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(file, uint16(side)), uint16(side))
	file = append(file, "\x01\x01\x11\x00"...)
	// The Huffman table has one code of one bit, which means no difference.
	file = append(append(file, "\xff\xc4\x00\x14\x00\x01"...), make([]byte, 16)...)
	// One bit for each block of 8 by 8 pixels.
	scan := make([]byte, (side/8*side/8+7)/8)
	for low := 13; low >= 0; low-- {
		bits := byte(low+1)<<4 | byte(low)
		if low == 13 {
			bits = 13
		}
		file = append(file, "\xff\xda\x00\x08\x01\x01\x00\x00\x00"...)
		file = append(append(file, bits), scan...)
	}
	return append(file, 0xff, 0xd9)
}

// wave returns a WAV file of silence with that many samples, as 16-bit PCM of 16 kHz.
func wave(samples int) []byte {
	b := make([]byte, 44+2*samples)
	copy(b, "RIFF")
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	copy(b[8:], "WAVEfmt ")
	binary.LittleEndian.PutUint32(b[16:], 16)
	binary.LittleEndian.PutUint16(b[20:], 1) // PCM
	binary.LittleEndian.PutUint16(b[22:], 1) // channel
	binary.LittleEndian.PutUint32(b[24:], 16000)
	binary.LittleEndian.PutUint32(b[28:], 32000)
	binary.LittleEndian.PutUint16(b[32:], 2)
	binary.LittleEndian.PutUint16(b[34:], 16)
	copy(b[36:], "data")
	binary.LittleEndian.PutUint32(b[40:], uint32(2*samples))
	return b
}

// claimingPNG returns a PNG of a few bytes whose header claims a size. A decoder that
// allocates by the header alone would take the memory of the claim.
func claimingPNG(width, height uint32) []byte {
	b := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(kind string, data []byte) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
		from := len(b)
		b = append(append(b, kind...), data...)
		b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[from:]))
	}
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
	chunk("IHDR", append(head, 8, 2, 0, 0, 0))
	chunk("IDAT", []byte{0x78, 0x9c, 0x03, 0, 0, 0, 0, 1})
	chunk("IEND", nil)
	return b
}

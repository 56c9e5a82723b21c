package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"strings"
)

// The datasets that attackers upload, of one cell each.
const samplesName = "hostile-%s"

// reading uploads a cell, and reads it by what is said of operators. An attacker has the cell that he likes.
func reading(name, media string, cell func() []byte, steps, pending string) Case {
	dataset := fmt.Sprintf(samplesName, strings.ReplaceAll(name, " ", "-"))
	return Case{Name: name, Heavy: true, Pending: pending, Run: func(ctx context.Context, t Target) error {
		b := cell()
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

// samplesAndExpressions are cells, operators and expressions that cost more than they look like.
func samplesAndExpressions() []Case {
	picture := func() []byte {
		var b bytes.Buffer
		_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, 64, 64))) // into a buffer
		return b.Bytes()
	}
	sound := func() []byte { return wave(16000 * 20) }
	nested := "position"
	for range 16 {
		nested = "(" + nested + " in 0..9 ? 1 : 0)"
	}
	where := func(name, expression, pending string) Case {
		c := asking(name, "GetFlightInfo", nil, "", descriptor(fmt.Sprintf(`{"dataset": %q, "where": %q}`, Dataset,
			expression)))
		c.Heavy, c.Pending = true, pending
		return c
	}
	columns := make([]string, 200)
	for i := range columns {
		columns[i] = fmt.Sprintf(`"c%d": {"expression": "position %% %d in [1, 2, 3] ? position : 0"}`, i, i+2)
	}
	computed := asking("200 columns of expressions", "GetFlightInfo", nil, "",
		descriptor(fmt.Sprintf(`{"dataset": %q, "operators": {%s}}`, Dataset, strings.Join(columns, ", "))))
	computed.Heavy = true
	return []Case{
		where("ranges of ranges", nested+" == 1", "expressions with ranges in ranges are bounded"),
		where("a list in a list in a list", "position in map(0..9999, map(0..99, # + 1)[0])", ""),
		where("conditions of conditions", strings.Repeat("(position > 1 ? ", 500)+"1"+strings.Repeat(" : 0)", 500)+" == 1",
			""),
		computed,
		reading("image operators whose cost wraps", "image", picture, `{"Decode": {}}, {"Resize": {"size": [64, 64]}}, `+
			strings.Repeat(`{"RandomRotation": {"degrees": [45, 45], "expand": true}}, `, 37)+
			strings.TrimSuffix(strings.Repeat(`{"Pad": {"padding": 2000000000}}, `, 4), ", "),
			"costs of operators saturate"),
		reading("a resize to 65,535 pixels", "image", picture, `{"Decode": {}}, {"Resize": {"size": [65535, 65535]}}`, ""),
		reading("a blur of a kernel of 4,001", "image", picture,
			`{"Decode": {}}, {"Resize": {"size": [2000, 2000]}}, {"GaussianBlur": {"kernel_size": 4001, "sigma": [900, 900]}}`,
			"operators have a bound of steps"),
		reading("a spectrogram of a prime length", "audio", sound,
			`{"Decode": {}}, {"Spectrogram": {"n_fft": 32749, "hop_length": 1}}`, "operators have a bound of steps"),
		reading("a resampling to a prime rate", "audio", sound,
			`{"Decode": {}}, {"Resample": {"new_freq": 191999, "lowpass_filter_width": 512}}`,
			"operators have a bound of steps"),
		reading("a picture that claims 30,000 x 30,000 pixels", "image", func() []byte {
			return claimingPNG(30_000, 30_000)
		}, `{"Decode": {}}`, ""),
		reading("a picture that claims no end of WebP", "image", func() []byte { return claimingWebP(16_000, 16_000) },
			`{"Decode": {}}`, "decoders are counted for what they allocate"),
		reading("a sound that claims 2^31 samples", "audio", func() []byte {
			b := wave(100)
			binary.LittleEndian.PutUint32(b[40:], 1<<31)
			return b
		}, `{"Decode": {}}`, ""),
	}
}

// wave is a file of silence of that many samples.
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

// claimingPNG is a PNG of a few bytes that says how large it is.
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

// claimingWebP is a lossless WebP of a few bytes that says how large it is.
func claimingWebP(width, height uint32) []byte {
	bits := []byte{0x2f}
	bits = binary.LittleEndian.AppendUint32(bits, (width-1)|(height-1)<<14)
	bits = append(bits, make([]byte, 4096)...)
	b := []byte("RIFF\x00\x00\x00\x00WEBPVP8L")
	b = binary.LittleEndian.AppendUint32(b, uint32(len(bits)))
	b = append(b, bits...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)-8))
	return b
}

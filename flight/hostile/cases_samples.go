package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"image/png"
	"strings"
)

// samplesName begins the names of the datasets that attackers upload, of one cell each.
const samplesName = "hostile-"

// reading uploads a cell, and reads it by what is said of operators. An attacker has the cell that he likes.
func reading(name, media string, cell func() []byte, steps, pending string) Case {
	return readingEach(name, media, cell, []string{steps}, pending)
}

// readingEach reads the cell by several lists of steps, one after another.
func readingEach(name, media string, cell func() []byte, lists []string, pending string) Case {
	dataset := samplesName + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
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
		var err error
		for _, steps := range lists {
			if ctx.Err() != nil {
				break
			}
			err = t.Ask(ctx, "DoGet", textField(1, fmt.Sprintf(`{"dataset": %q, "columns": ["cell"], "epochs": %d, `+
				`"shuffle": {"seed": 1}, "operators": {"cell": [%s]}}`, dataset, 1000/len(lists), steps)))
			if errors.Is(err, errGone) {
				break
			}
		}
		return err
	}}
}

// samplesAndExpressions are cells, operators and expressions that cost more than they look like.
func samplesAndExpressions() []Case {
	picture := func() []byte {
		var b bytes.Buffer
		_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, 64, 64))) // into a buffer
		return b.Bytes()
	}
	sound := func() []byte { return wave(16000 * 4) }
	nested := "position"
	for range 16 {
		nested = "count([" + nested + " in 0..9], #)"
	}
	where := func(name, expression, pending string) Case {
		c := asking(name, "GetFlightInfo", nil, "", descriptor(fmt.Sprintf(`{"dataset": %q, "where": %q}`, Dataset,
			expression)))
		c.Heavy, c.Pending = true, pending
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
		where("ranges of ranges", nested+" == 1", "expressions with ranges in ranges are bounded"),
		where("a list in a list in a list", "position in map(0..9999, map(0..99, # + 1)[0])", ""),
		where("conditions of conditions", strings.Repeat("(position > 1 ? ", 500)+"1"+strings.Repeat(" : 0)", 500)+" == 1",
			""),
		computed,
		readingEach("image operators whose cost wraps", "image", picture, wrapping(), "costs of operators saturate"),
		reading("a resize to 32,768 pixels", "image", picture, `{"Decode": {}}, {"Resize": {"size": [32768, 32768]}}`, ""),
		reading("a blur of a kernel of 255", "image", picture,
			`{"Decode": {}}, {"Resize": {"size": [1500, 1500]}}, {"GaussianBlur": {"kernel_size": 255, "sigma": [90, 90]}}`,
			"operators have a bound of steps"),
		reading("a spectrogram of a prime length", "audio", sound,
			`{"Decode": {}}, {"Spectrogram": {"n_fft": 32749, "hop_length": 128}}`, "operators have a bound of steps"),
		reading("a resampling to a prime rate", "audio", sound,
			`{"Decode": {}}, {"Resample": {"new_freq": 4001, "lowpass_filter_width": 256}}`,
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

// wrapping is lists of steps each of which doubles what comes out, to some power of two around 2^63.
func wrapping() (lists []string) {
	for _, size := range []int{1, 64, 333, 1024, 30_000} {
		for rotations := 28; rotations <= 58; rotations += 3 {
			lists = append(lists, fmt.Sprintf(`{"Decode": {}}, {"Resize": {"size": [%d, %d]}}, `, size, size)+
				strings.Repeat(`{"RandomRotation": {"degrees": [45, 45], "expand": true}}, `, rotations)+
				strings.TrimSuffix(strings.Repeat(`{"Pad": {"padding": 4096}}, `, 4), ", "))
		}
	}
	return lists
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

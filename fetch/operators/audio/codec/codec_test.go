package codec

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/operators/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decoded is frames from offset on.
func decoded(file []byte, info Info, offset, frames int) ([][]float32, error) {
	out := make([][]float32, info.Channels)
	for c := range out {
		out[c] = make([]float32, frames)
	}
	_, err := Decode(context.Background(), nil, file, info, offset, out)
	return out, err
}

func whole(t testing.TB, file []byte) (Info, [][]float32) {
	t.Helper()
	info, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	out, err := decoded(file, info, 0, info.Frames)
	if err != nil {
		t.Fatal(err)
	}
	return info, out
}

// TestFLAC compares with the checksum of all samples that encoders put into the file.
func TestFLAC(t *testing.T) {
	for name, want := range map[string]Info{
		"mono16.flac":   {Rate: 16000, Channels: 1, Bits: 16, Frames: 9001},
		"stereo16.flac": {Rate: 44100, Channels: 2, Bits: 16, Frames: 5000},
		"stereo24.flac": {Rate: 48000, Channels: 2, Bits: 24, Frames: 2500},
		"five8.flac":    {Rate: 8000, Channels: 5, Bits: 8, Frames: 3000},
		"silence.flac":  {Rate: 22050, Channels: 1, Bits: 16, Frames: 6000},
		"noise.flac":    {Rate: 16000, Channels: 1, Bits: 16, Frames: 700},
	} {
		t.Run(name, func(t *testing.T) {
			file := load(t, name)
			info, out := whole(t, file)
			got := Info{Rate: info.Rate, Channels: info.Channels, Bits: info.Bits, Frames: info.Frames}
			if got.Rate != want.Rate || got.Channels != want.Channels || got.Bits != want.Bits ||
				got.Frames != want.Frames {
				t.Fatalf("%+v, want %+v", got, want)
			}
			if sum := md5.Sum(samples(out, info.Bits)); !slices.Equal(sum[:], file[8+18:8+34]) {
				t.Error("the samples are not those that were encoded")
			}
			// Without the length in the header, the last frame determines it.
			file[21] &= 0xf0
			clear(file[22:26])
			if info, err := Read(file); err != nil || info.Frames != want.Frames {
				t.Errorf("without a length in the header it has %d frames (%v), want %d", info.Frames, err, want.Frames)
			}
		})
	}
}

// samples are whole numbers as FLAC sums them up: little-endian, channels side by side.
func samples(out [][]float32, bits int) []byte {
	var b []byte
	for i := range out[0] {
		for _, x := range out {
			v := uint64(int64(math.Ldexp(float64(x[i]), bits-1)))
			b = append(b, binary.LittleEndian.AppendUint64(nil, v)[:bits/8]...)
		}
	}
	return b
}

// TestParts checks that a part equals that part of the whole, wherever it begins.
func TestParts(t *testing.T) {
	for _, name := range []string{"mono16.flac", "stereo16.flac", "mono16.wav", "mono.mp3", "stereo.mp3", "mono.ogg"} {
		file := load(t, name)
		info, all := whole(t, file)
		for _, at := range []int{0, 1, 599, 4095, 4096, 8192, 8193, info.Frames - 1, info.Frames} {
			for _, n := range []int{1, 500, 5000} {
				if at+n > info.Frames {
					continue
				}
				part, err := decoded(file, info, at, n)
				if err != nil {
					t.Fatalf("%s from %d: %v", name, at, err)
				}
				for c := range part {
					if !slices.Equal(part[c], all[c][at:at+n]) {
						t.Errorf("%s: %d frames from %d of channel %d differ from those of the whole", name, n, at, c)
					}
				}
			}
		}
	}
}

// TestSeekFLAC decodes parts of a long file by halving, and finds the frames that way.
func TestSeekFLAC(t *testing.T) {
	file := load(t, "mono16.flac")
	info, all := whole(t, file)
	// Frames of variable blocks could not be repeated; those of fixed ones are renumbered.
	frames := renumbered(t, info, 60)
	long := info
	long.data, long.Frames = frames, 60*2*info.block
	found := 0
	for k := range 60 {
		offset := k*2*info.block + 17
		if at, _ := seekFLAC(&long, offset); at > 0 {
			found++
		}
		out := [][]float32{make([]float32, 100)}
		if err := decodeFLAC(nil, long, offset, out); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out[0], all[0][17:117]) {
			t.Errorf("part %d differs", k)
		}
	}
	if found < 50 {
		t.Errorf("%d parts were sought", found)
	}
}

// renumbered repeats the first two frames.
func renumbered(t *testing.T, info Info, times int) []byte {
	t.Helper()
	var h frameHeader
	var parts [2][]byte
	rest := info.data
	for i := range parts {
		if !readFrameHeader(rest, &h) || rest[4] != byte(i) {
			t.Fatal("no frame")
		}
		room := make([]int64, h.block)
		n, err := h.samples(rest, &info, [][]int64{room}, 0)
		if err != nil {
			t.Fatal(err)
		}
		parts[i], rest = rest[:n], rest[n:]
	}
	var out []byte
	for k := range 2 * times {
		p := slices.Clone(parts[k%2])
		p[4] = byte(k) // below 128: one byte
		readFrameHeader(parts[k%2], &h)
		p[h.size-1] = crc8(p[:h.size-1])
		binary.BigEndian.PutUint16(p[len(p)-2:], crc16(p[:len(p)-2]))
		out = append(out, p...)
	}
	return out
}

// wav makes a file of whole or floating-point samples.
func wav(kind, channels, rate, bits int, data []byte) []byte {
	b := []byte("RIFF\x00\x00\x00\x00WAVELIST\x03\x00\x00\x00abc\x00fmt \x10\x00\x00\x00")
	b = binary.LittleEndian.AppendUint16(b, uint16(kind))
	b = binary.LittleEndian.AppendUint16(b, uint16(channels))
	b = binary.LittleEndian.AppendUint32(b, uint32(rate))
	b = binary.LittleEndian.AppendUint32(b, uint32(rate*channels*bits/8))
	b = binary.LittleEndian.AppendUint16(b, uint16(channels*bits/8))
	b = binary.LittleEndian.AppendUint16(b, uint16(bits))
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func TestWAV(t *testing.T) {
	f32, f64 := binary.LittleEndian.AppendUint32(nil, math.Float32bits(-0.3)),
		binary.LittleEndian.AppendUint64(nil, math.Float64bits(0.7))
	for name, c := range map[string]struct {
		file []byte
		want []float32
	}{
		"8 bits":   {wav(1, 1, 8000, 8, []byte{0, 128, 255}), []float32{-1, 0, 127.0 / 128}},
		"16 bits":  {wav(1, 1, 8000, 16, []byte{0, 128, 255, 127}), []float32{-1, 32767.0 / 32768}},
		"24 bits":  {wav(1, 1, 8000, 24, []byte{0, 0, 128, 1, 0, 0}), []float32{-1, 0x1p-23}},
		"32 bits":  {wav(1, 1, 8000, 32, []byte{0, 0, 0, 192}), []float32{-0.5}},
		"float":    {wav(3, 1, 8000, 32, f32), []float32{-0.3}},
		"double":   {wav(3, 1, 8000, 64, f64), []float32{0.7}},
		"half end": {wav(1, 1, 8000, 16, []byte{0, 64, 9}), []float32{0.5}},
		"no size":  {slices.Concat(wav(1, 1, 8000, 16, nil)[:56-4], []byte{255, 255, 255, 255, 0, 64}), []float32{0.5}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, out := whole(t, c.file); !slices.Equal(out[0], c.want) {
				t.Errorf("%v, want %v", out[0], c.want)
			}
		})
	}
	_, out := whole(t, wav(1, 2, 8000, 16, []byte{0, 64, 0, 32, 0, 192, 0, 224}))
	if !slices.Equal(out[0], []float32{0.5, -0.5}) || !slices.Equal(out[1], []float32{0.25, -0.25}) {
		t.Errorf("two channels: %v", out)
	}
}

// TestHeaders checks the facts of headers that need no decoder.
func TestHeaders(t *testing.T) {
	for name, want := range map[string]Info{
		"mono.mp3":   {Format: MP3, Rate: 16000, Channels: 1, Frames: 4000},
		"stereo.mp3": {Format: MP3, Rate: 44100, Channels: 2, Frames: 4000},
		"mono.ogg":   {Format: Vorbis, Rate: 16000, Channels: 1, Frames: 4000},
		"mono.opus":  {Format: Opus, Rate: 16000, Channels: 1, Frames: 4000},
	} {
		got, err := Read(load(t, name))
		if err != nil || got.Format != want.Format || got.Rate != want.Rate || got.Channels != want.Channels ||
			got.Frames != want.Frames {
			t.Errorf("%s: %v %d Hz, %d channels of %d samples (%v), want %+v", name, got.Format, got.Rate, got.Channels,
				got.Frames, err, want)
		}
	}
	if _, out := whole(t, load(t, "mono.mp3")); Engine() == "go" {
		// The tone is there from the first sample on: the decoder's delay is cut off.
		_, ref := whole(t, load(t, "mono16.flac"))
		noise, signal := 0.0, 0.0
		for i, v := range out[0] {
			d := float64(v - ref[0][i])
			noise, signal = noise+d*d, signal+float64(v)*float64(v)
		}
		if db := 10 * math.Log10(signal/noise); db < 25 {
			t.Errorf("MP3 is %.1f dB from what was encoded", db)
		}
	}
}

func TestDamaged(t *testing.T) {
	flac, mp3 := load(t, "mono16.flac"), load(t, "mono.mp3")
	flipped := slices.Clone(flac)
	flipped[len(flipped)/2] ^= 4
	for name, c := range map[string]struct {
		file []byte
		why  string
	}{
		"nothing":        {nil, "no WAV, FLAC"},
		"text":           {[]byte("hello, world"), "no WAV, FLAC"},
		"cut FLAC":       {flac[:len(flac)-700], "FLAC: the frame at sample 8192"},
		"no frames":      {flac[:200], "FLAC: "},
		"flipped bit":    {flipped, "checksum"},
		"WAV, no size":   {append(wav(1, 1, 8000, 16, nil), 1, 2, 3, 4), "says that it is empty, and 4 bytes follow"},
		"WAV, zeros":     {append(wav(1, 1, 8000, 16, nil), make([]byte, 32)...), "says that it is empty"},
		"RF64, no ds64":  {slices.Concat([]byte("RF64"), wav(1, 1, 8000, 16, nil)[4:]), "has no chunk ds64"},
		"no channel":     {wav(1, 0, 8000, 16, []byte{1, 2}), "no channel"},
		"fast WAV":       {wav(1, 1, 1<<30, 16, []byte{1, 2}), "samples a second"},
		"cut MP3":        {mp3[:len(mp3)/3], ""},
		"WAV, no data":   {wav(1, 1, 8000, 16, nil)[:48], "no samples"},
		"WAV, no format": {[]byte("RIFF\x00\x00\x00\x00WAVEdata\x02\x00\x00\x00\x01\x02"), "before their format"},
	} {
		t.Run(name, func(t *testing.T) {
			info, err := Read(c.file)
			if err == nil {
				_, err = decoded(c.file, info, 0, info.Frames)
			}
			if c.why == "" {
				return
			}
			if !errors.Is(err, program.ErrDamaged) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, want a damaged sample: %s", err, c.why)
			}
		})
	}
}

// FuzzDecode checks that no bytes do harm, and that parts equal the parts of the whole.
func FuzzDecode(f *testing.F) {
	names, err := filepath.Glob("testdata/*.*")
	if err != nil || len(names) < 8 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		f.Add(load(f, filepath.Base(name)), uint16(100))
	}
	f.Add(wav(1, 3, 8000, 24, make([]byte, 90)), uint16(3))
	for _, c := range longWAVs() {
		f.Add(c.file, uint16(1))
	}
	f.Fuzz(func(t *testing.T, file []byte, at uint16) {
		info, err := Read(file)
		if err != nil {
			if !errors.Is(err, program.ErrDamaged) && !errors.Is(err, program.ErrNotSupported) {
				t.Fatal(err)
			}
			return
		}
		if info.Frames*info.Channels > 1<<20 || info.Readable() != nil {
			return
		}
		all, err := decoded(file, info, 0, info.Frames)
		if err != nil {
			if !errors.Is(err, program.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		offset := min(int(at), info.Frames)
		n := min(1000, info.Frames-offset)
		part, err := decoded(file, info, offset, n)
		if err != nil {
			t.Fatalf("a part of what can be decoded: %v", err)
		}
		for c := range part {
			for i, v := range part[c] {
				if w := all[c][offset+i]; math.Float32bits(v) != math.Float32bits(w) {
					t.Fatalf("sample %d of channel %d is %g in a part and %g in the whole", offset+i, c, v, w)
				}
			}
		}
	})
}

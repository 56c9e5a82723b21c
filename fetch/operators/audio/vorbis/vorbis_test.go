package vorbis

import (
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

// files were encoded by libsndfile 1.2.2 (libvorbis 1.3.7). floor0.ogg is random bits after
// handmade headers: floors of kind 0, residues of all kinds, and codebooks with ordered
// lengths, unused entries and both lookups.
func files(t testing.TB) []string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.ogg")
	if err != nil || len(names) < 7 {
		t.Fatal(names, err)
	}
	return names
}

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// last is the position of the last page.
func last(file []byte) int64 {
	p, position, serial := page{}, int64(0), file[14:18]
	for more := true; more; {
		if more, _ = readPage(file, p.end, serial, &p); more && p.position >= 0 {
			position = p.position
		}
	}
	return position
}

func decoded(file []byte, offset, frames int) ([][]float32, error) {
	out := make([][]float32, file[39])
	for c := range out {
		out[c] = make([]float32, frames)
	}
	n, err := Decode(nil, file, offset, out)
	for c := range out {
		out[c] = out[c][:n]
	}
	return out, err
}

func whole(t testing.TB, file []byte) [][]float32 {
	t.Helper()
	frames, _, err := Length(file, last(file))
	if err != nil {
		t.Fatal(err)
	}
	out, err := decoded(file, 0, int(frames))
	if err != nil || len(out[0]) != int(frames) {
		t.Fatalf("%d of %d samples: %v", len(out[0]), frames, err)
	}
	return out
}

// TestReference compares with each seventh sample that libsndfile 1.2.2 decodes.
func TestReference(t *testing.T) {
	for _, name := range files(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			out := whole(t, load(t, name))
			want := load(t, strings.TrimSuffix(name, ".ogg")+".ref")
			if n := (len(out[0]) + 6) / 7 * len(out) * 4; n != len(want) {
				t.Fatalf("%d bytes of reference, want %d", len(want), n)
			}
			signal, noise := 0.0, 0.0
			for i := 0; i < len(out[0]); i += 7 {
				for _, x := range out {
					w := float64(math.Float32frombits(binary.LittleEndian.Uint32(want)))
					d := float64(x[i]) - w
					want, signal, noise = want[4:], signal+w*w, noise+d*d
				}
			}
			db := 10 * math.Log10(signal/noise)
			t.Logf("%d channels of %d samples: %.1f dB from libsndfile", len(out), len(out[0]), db)
			if db < 120 {
				t.Errorf("%.1f dB from libsndfile, want 120", db)
			}
		})
	}
}

// TestParts checks that a part equals that part of the whole.
func TestParts(t *testing.T) {
	for _, name := range files(t) {
		file := load(t, name)
		all := whole(t, file)
		n := len(all[0])
		for at := 0; at < n; at += 611 {
			part, err := decoded(file, at, min(700, n-at))
			if err != nil {
				t.Fatalf("%s from %d: %v", name, at, err)
			}
			for c := range part {
				if !slices.Equal(part[c], all[c][at:at+len(part[c])]) || len(part[c]) != min(700, n-at) {
					t.Fatalf("%s: what begins at %d of channel %d differs from the whole", name, at, c)
				}
			}
		}
	}
}

// TestSeek checks that damage before a part is not noticed, except on the first page of
// sound, and that damage in the part is.
func TestSeek(t *testing.T) {
	file := load(t, "testdata/stereo44best.ogg")
	all := whole(t, file)
	file[len(file)/3] ^= 1
	part, err := decoded(file, 20000, 400)
	if err != nil || !slices.Equal(part[1], all[1][20000:20400]) {
		t.Errorf("a part behind the damage: %v", err)
	}
	if _, err := decoded(file, 2000, 9000); !errors.Is(err, program.ErrDamaged) ||
		!strings.Contains(err.Error(), "checksum") {
		t.Errorf("a part of the damage: %v", err)
	}
}

// changed returns a file with changed pages of sound and new checksums.
func changed(t *testing.T, file []byte, change func(i int, head []byte, p *page)) []byte {
	t.Helper()
	file = slices.Clone(file)
	_, b, err := open(file, false)
	if err != nil {
		t.Fatal(err)
	}
	p := page{end: b.audio}
	for i := 0; ; i++ {
		more, err := readPage(file, p.end, file[14:18], &p)
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return file
		}
		head := file[p.at:p.end]
		change(i, head, &p)
		seal(head)
	}
}

// seal gives a page its checksum.
func seal(page []byte) {
	clear(page[22:26])
	crc := uint32(0)
	for _, v := range page {
		crc = crc<<8 ^ crcTable[byte(crc>>24)^v]
	}
	binary.LittleEndian.PutUint32(page[22:], crc)
}

// TestPositions checks where streams begin and end. libsndfile 1.2.2 has the same lengths
// and samples for each.
func TestPositions(t *testing.T) {
	file := load(t, "testdata/mono44.ogg")
	all := whole(t, file)[0]
	shifted := func(by int64) []byte {
		return changed(t, file, func(_ int, head []byte, p *page) {
			binary.LittleEndian.PutUint64(head[6:], uint64(p.position+by))
		})
	}
	for name, c := range map[string]struct {
		file []byte
		want []float32
	}{
		"it begins at 10000":        {shifted(10000), all},
		"500 samples are too many":  {shifted(-500), all[500:]},
		"it ends 300 samples early": {ended(t, file, 300), all[:len(all)-300]},
		"another stream follows":    {slices.Concat(file, load(t, "testdata/mono8.ogg")), all},
		"garbage follows":           {slices.Concat(file, make([]byte, 99)), all},
		"garbage in between":        {slices.Concat(file[:58], []byte("garbage, of 27 bytes and more"), file[58:]), all},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another stream follows" {
				copy(c.file[len(file)+14:], "othr") // of another number in its first page
			}
			frames, _, err := Length(c.file, last(c.file))
			if err != nil || int(frames) != len(c.want) {
				t.Fatalf("%d samples (%v), want %d", frames, err, len(c.want))
			}
			if got := whole(t, c.file); !slices.Equal(got[0], c.want) {
				t.Error("the samples are others")
			}
			part, err := decoded(c.file, 20000, 100)
			if err != nil || !slices.Equal(part[0], c.want[20000:20100]) {
				t.Errorf("a part has others: %v", err)
			}
		})
	}
}

// ended returns a file whose last page ends by samples earlier.
func ended(t *testing.T, file []byte, by int64) []byte {
	return changed(t, file, func(_ int, head []byte, p *page) {
		if p.last {
			binary.LittleEndian.PutUint64(head[6:], uint64(p.position-by))
		}
	})
}

func TestDamaged(t *testing.T) {
	file := load(t, "testdata/mono44.ogg")
	n := int(last(file))
	_, b, err := open(file, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file []byte
		why  string
	}{
		"nothing":         {file[:20], "first page"},
		"only headers":    {file[:b.audio], ""},
		"a cut page":      {file[:len(file)-9], "cut off"},
		"no third header": {file[:58], "ends in its headers"},
		"a missing page": {changed(t, file, func(i int, head []byte, p *page) {
			binary.LittleEndian.PutUint32(head[18:], p.number+uint32(i))
		}), "comes next"},
		"a wrong position": {changed(t, file, func(i int, head []byte, p *page) {
			if i == 1 {
				binary.LittleEndian.PutUint64(head[6:], uint64(p.position+1))
			}
		}), "says it is"},
		"no position": {changed(t, file, func(i int, head []byte, p *page) {
			binary.LittleEndian.PutUint64(head[6:], math.MaxUint64)
		}), "no position"},
	} {
		t.Run(name, func(t *testing.T) {
			out := [][]float32{make([]float32, 2*n)}
			got, err := Decode(nil, c.file, 0, out)
			if c.why == "" {
				if err != nil || got != 0 {
					t.Errorf("%d samples, %v; want none", got, err)
				}
				return
			}
			if !errors.Is(err, program.ErrDamaged) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%v, want a damaged sample: %s", err, c.why)
			}
		})
	}
}

// TestFlipped flips bytes, with correct checksums, and truncates files. The errors report a
// damaged sample.
func TestFlipped(t *testing.T) {
	for _, name := range files(t) {
		file := load(t, name)
		for at := 28; at < len(file); at += 1 + len(file)/300 {
			bad := resealed(slices.Clone(file), at)
			for _, b := range [][]byte{bad, file[:at]} {
				out := make([][]float32, file[39])
				for c := range out {
					out[c] = make([]float32, 9000)
				}
				if _, err := Decode(nil, b, 0, out); err != nil && !errors.Is(err, program.ErrDamaged) {
					t.Fatalf("%s, byte %d: %v", name, at, err)
				}
			}
		}
	}
}

// resealed flips bits of a byte in the body of a page.
func resealed(file []byte, at int) []byte {
	p := page{}
	for {
		if more, err := readPage(file, p.end, file[14:18], &p); !more || err != nil {
			return file
		}
		if at < p.end {
			if at > p.end-len(p.body) {
				file[at] ^= byte(at | 1)
			}
			seal(file[p.at:p.end])
			return file
		}
	}
}

// FuzzDecode checks that no bytes do harm, that samples are finite, and that parts equal
// the parts of the whole.
func FuzzDecode(f *testing.F) {
	for _, name := range files(f) {
		f.Add(load(f, name), uint16(5000))
	}
	f.Fuzz(func(t *testing.T, file []byte, at uint16) {
		file = slices.Clone(file)
		for p := (page{}); len(file) >= 27; {
			if more, err := readPage(file, p.end, file[14:18], &p); !more || err != nil {
				break
			}
			seal(file[p.at:p.end])
		}
		if len(file) < 40 || file[39] == 0 || file[39] > 8 {
			return
		}
		const most = 30000
		all, err := decoded(file, 0, most)
		if err != nil {
			if !errors.Is(err, program.ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		for c := range all {
			if !finite(all[c]) {
				t.Fatal("a sample is no finite number")
			}
		}
		offset := min(int(at), len(all[0]))
		part, err := decoded(file, offset, min(1000, len(all[0])-offset))
		if err != nil {
			t.Fatalf("a part of what can be decoded: %v", err)
		}
		for c := range part {
			if !slices.Equal(part[c], all[c][offset:offset+len(part[c])]) {
				t.Fatalf("what begins at %d differs from the whole", offset)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, name := range []string{"mono44", "stereo44worst", "six48"} {
		b.Run(name, func(b *testing.B) {
			file := load(b, "testdata/"+name+".ogg")
			out := make([][]float32, file[39])
			for c := range out {
				out[c] = make([]float32, last(file))
			}
			b.SetBytes(int64(len(out) * len(out[0]) * 4))
			for b.Loop() {
				if _, err := Decode(nil, file, 0, out); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

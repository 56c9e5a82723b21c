package images

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

// bombs are files of some bytes whose headers announce 40,000 x 40,000 pixels.
func bombs() map[string][]byte {
	const side = 40000
	png := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
	png = binary.BigEndian.AppendUint32(png, side)
	png = binary.BigEndian.AppendUint32(png, side)
	png = append(png, 8, 2, 0, 0, 0)
	png = binary.BigEndian.AppendUint32(png, crc32.ChecksumIEEE(png[12:]))
	png = append(png, "\x00\x00\x00\x00IDAT\x35\xaf\x06\x1e"...)
	jpeg := []byte("\xff\xd8\xff\xc2\x00\x0b\x08\x9c\x40\x9c\x40\x01\x01\x11\x00\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00")
	gif := []byte("GIF89a\x40\x9c\x40\x9c\x00\x00\x00,\x00\x00\x00\x00\x40\x9c\x40\x9c\x00")
	tif := tiffFile{width: side, height: side, bits: 8, samples: 3, blocks: [][]byte{{}}}.bytes()
	return map[string][]byte{"png": png, "jpeg": jpeg, "gif": gif, "tif": tif}
}

// TestBombs checks that the header alone is enough to refuse what is too large.
func TestBombs(t *testing.T) {
	p := compiledOf(t, `[{"name":"Decode"},{"name":"RandomResizedCrop","params":{"size":224}}]`)
	for name, cell := range bombs() {
		if n := testing.AllocsPerRun(1, func() {
			if _, err := p.Cost(cell, program.Limits{Pixels: 1 << 28}); !errors.Is(err, program.ErrTooLarge) {
				t.Errorf("%s: %v", name, err)
			}
		}); n > 100 {
			t.Errorf("%s: %g allocations", name, n)
		}
		if _, err := p.Cost(cell, program.Limits{Bytes: 1 << 28}); !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%s by bytes: %v", name, err)
		}
	}
}

// TestBombsAtOnce checks that Run refuses them even without a call of Cost before.
func TestBombsAtOnce(t *testing.T) {
	p := compiledOf(t, `[{"name":"Decode"}]`)
	for name, cell := range bombs() {
		_, err := p.Run(t.Context(), cell, program.Draws{}, func(int) []byte {
			t.Errorf("%s: memory was asked for", name)
			return nil
		})
		if !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestScans checks that a progressive file of many scans ends.
func TestScans(t *testing.T) {
	cell := []byte("\xff\xd8\xff\xdb\x00\x43\x00")
	for range 64 {
		cell = append(cell, 1)
	}
	cell = append(cell, "\xff\xc2\x00\x0b\x08\x10\x00\x10\x00\x01\x01\x11\x00"...)
	cell = append(cell, "\xff\xc4\x00\x14\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	for range 10000 {
		cell = append(cell, "\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00"...)
	}
	p := compiledOf(t, `[{"name":"Decode"}]`)
	began := time.Now()
	if _, _, err := result(p, cell, program.Draws{}); !errors.Is(err, program.ErrDamaged) {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func corpus(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, n := range names {
		if filepath.Ext(n) == ".json" {
			continue
		}
		cell, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(n)] = cell
	}
	return all
}

// hostile does what an engine would: Cost, and Run if Cost permits it.
func hostile(t testing.TB, p program.Program, cell []byte, position uint64) {
	var cost program.Cost
	var err error
	programtest.Within(t, program.Count(int64(len(cell))), func() {
		cost, err = p.Cost(cell, program.Limits{Pixels: 1 << 16, Bytes: 64 << 20})
	})
	if err != nil {
		if !errors.Is(err, program.ErrDamaged) && !errors.Is(err, program.ErrTooLarge) &&
			!errors.Is(err, program.ErrNotSupported) {
			t.Errorf("Cost: %v", err)
		}
		return
	}
	var out []byte
	// A buffer that was too small is garbage, and counts together with its replacement.
	counted := cost.Working.Times(2).Plus(cost.Result)
	programtest.Within(t, counted, func() {
		out, _, err = result(p, cell, program.Draws{Key: draw.Key{Position: position}})
	})
	if errors.Is(err, program.ErrTooLarge) && (bytes.HasPrefix(cell, []byte("RIFF")) || tiff.Recognised(cell)) {
		return // its trees, or tables of JPEG, take more work than is counted for a file that was made for its pixels
	}
	if err != nil && !errors.Is(err, program.ErrDamaged) && !errors.Is(err, program.ErrNotSupported) {
		t.Errorf("Run: %v", err)
	}
	if cost.Result.Int64() < int64(len(out)) {
		t.Errorf("%d bytes, bound by %d", len(out), cost.Result)
	}
}

// TestCut checks that a file that ends early is an error, or is decoded as far as the region
// needs.
func TestCut(t *testing.T) {
	p := compiledOf(t, `[{"name":"Decode"}]`)
	for name, cell := range corpus(t) {
		for n := 0; n < len(cell); n += 1 + len(cell)/60 {
			hostile(t, p, cell[:n:n], 0)
		}
		if filepath.Ext(name) != ".jpg" {
			continue
		}
		if _, _, err := result(p, cell[:len(cell)*3/4], program.Draws{}); !errors.Is(err, program.ErrDamaged) {
			t.Errorf("three quarters of %s: %v", name, err)
		}
	}
}

// TestFlipped changes bytes at random.
func TestFlipped(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	programs := []program.Program{
		compiledOf(t, everything),
		compiledOf(t, `[{"name":"Decode","params":{"mode":"UNCHANGED","apply_exif_orientation":true}}]`),
		compiledOf(t, converted), compiledOf(t, deep), compiledOf(t, numbers),
	}
	rounds := 60
	if testing.Short() {
		rounds = 5
	}
	flip := func(name string, cell []byte, rounds int) {
		for range rounds {
			b := append([]byte(nil), cell...)
			for range 1 + r.IntN(4) {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
			for _, p := range programs {
				hostile(t, p, b, r.Uint64())
			}
		}
		if t.Failed() {
			t.Fatalf("in %s", name)
		}
	}
	for name, cell := range corpus(t) {
		flip(name, cell, rounds)
	}
	for name, cell := range kinds(t) {
		flip(name, cell, 1+rounds/6)
	}
}

// FuzzRun has any bytes decoded, and drawn on.
func FuzzRun(f *testing.F) {
	for _, cell := range corpus(f) {
		f.Add(cell, uint64(1))
	}
	for _, cell := range bombs() {
		f.Add(cell, uint64(1))
	}
	for _, cell := range kinds(f) {
		f.Add(cell, uint64(1))
	}
	for _, cell := range hostileFiles(f) {
		f.Add(cell, uint64(1))
	}
	programs := []program.Program{compiledOf(f, everything), compiledOf(f, converted), compiledOf(f, deep),
		compiledOf(f, numbers),
		compiledOf(f, `[{"name":"Decode","params":{"mode":"UNCHANGED","apply_exif_orientation":true}}]`)}
	f.Fuzz(func(t *testing.T, cell []byte, position uint64) {
		for _, p := range programs {
			hostile(t, p, cell, position)
		}
	})
}

// FuzzCompile compiles any list and runs it if it compiles. It may be refused and may fail
// for a file, but only with the errors of the interface.
func FuzzCompile(f *testing.F) {
	for _, list := range []string{everything, converted, deep,
		`[{"name":"Decode"},{"name":"RandomRotation","params":{"degrees":[-40,90],"expand":true,"fill":[1,2,3]}}]`,
		`[{"name":"Decode"},{"name":"RandAugment","params":{"num_ops":3}},{"name":"EncodeJPEG","params":{"quality":9}}]`,
		`[{"name":"Decode","params":{"mode":"L"}},{"name":"Resize","params":{"size":[9,300],"interpolation":"lanczos"}}]`,
	} {
		f.Add([]byte(list), uint64(3))
	}
	files := corpus(f)
	f.Fuzz(func(t *testing.T, text []byte, position uint64) {
		var list []struct {
			Name   string          `json:"name"`
			Params json.RawMessage `json:"params"`
		}
		if len(text) > 4096 || json.Unmarshal(text, &list) != nil || len(list) > 8 {
			return
		}
		steps := make([]program.Step, len(list))
		for i, s := range list {
			steps[i] = program.Step(s)
		}
		p, err := Compile(steps)
		if err != nil {
			if _, ok := errors.AsType[*program.StepError](err); !ok {
				t.Fatalf("%v is no error of a step", err)
			}
			return
		}
		again, err := Compile(p.Steps())
		if err != nil || !reflect.DeepEqual(again.Steps(), p.Steps()) {
			t.Fatalf("the canonical list is %s, which becomes %v, %v", p.Steps(), again, err)
		}
		for _, name := range []string{"420-17x33.jpg", "rgba.png", "deep.png"} {
			hostile(t, p, files[name], position)
		}
	})
}

const (
	converted = `[{"name":"Decode","params":{"icc_profile":"srgb","apply_exif_orientation":true}}]`
	deep      = `[{"name":"Decode","params":{"mode":"RGB;16"}},{"name":"RandomCrop","params":{"size":9,"pad_if_needed":true}},
		{"name":"RandomHorizontalFlip"},{"name":"ToImage"}]`
	numbers = `[{"name":"Decode","params":{"mode":"F"}},{"name":"RandomHorizontalFlip"},{"name":"ToImage"}]`
)

package webp

import (
	"bytes"
	"errors"
	"image"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"go.uber.org/goleak"
	library "golang.org/x/image/webp"

	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func files(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, pattern := range []string{"../../testdata/*.webp", "../../testdata/hostile/*.webp"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if all[filepath.Base(n)], err = os.ReadFile(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(all) < 5 {
		t.Fatalf("there are %d files", len(all))
	}
	return all
}

// decoded decodes a file, and checks that it takes no more than its header bounds.
func decoded(t *testing.T, file []byte) (image.Image, error) {
	t.Helper()
	h, err := Read(file)
	if err != nil {
		return nil, err
	}
	var m image.Image
	programtest.Within(t, program.Count(h.Bytes), func() {
		m, err = Decode(&h, program.NewMeter(t.Context(), program.Cost{Working: program.Count(h.Bytes),
			Steps: program.Count(h.Steps)}))
	})
	if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, program.ErrTooLarge) {
		t.Errorf("%v is no error of the package", err)
	}
	return m, err
}

// same checks that a file gives the pixels of the library.
func same(t *testing.T, file []byte) {
	t.Helper()
	if h, err := Read(file); err == nil && h.Bytes > 64<<20 {
		return // allowed, but too slow for fuzzing
	}
	got, err := decoded(t, file)
	if errors.Is(err, program.ErrTooLarge) {
		return
	}
	c, wantErr := library.DecodeConfig(bytes.NewReader(file))
	if wantErr == nil && (c.Width*c.Height == 0 || c.Width*c.Height > 1<<20) {
		return // the library returns an image without pixels, which this package refuses
	}
	want, wantErr := library.Decode(bytes.NewReader(file))
	if wantErr == nil && err == nil && !reflect.DeepEqual(got, want) {
		t.Error("the pixels are others than the library's")
	}
	if wantErr == nil && err != nil {
		t.Errorf("%v, where the library decodes it", err)
	}
}

// TestSame checks that pixels equal those of golang.org/x/image/webp, also for damaged
// files that can be decoded.
func TestSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for name, file := range files(t) {
		// A file may have more trees than are counted as work.
		if _, err := decoded(t, file); err != nil && !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
		same(t, file)
		for range 200 {
			b := bytes.Clone(file)
			for range 1 + random.IntN(3) {
				b[random.IntN(len(b))] = byte(random.Uint32())
			}
			if same(t, b); t.Failed() {
				t.Fatalf("in %s", name)
			}
		}
	}
}

// FuzzSame is TestSame of any bytes.
func FuzzSame(f *testing.F) {
	for _, file := range files(f) {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) { same(t, file) })
}

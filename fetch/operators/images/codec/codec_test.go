package codec

import (
	"errors"
	"image"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files are the corpora of package images, by their names.
func files(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, folder := range []string{"*.*", "hostile/*", "kinds/*"} {
		names, err := filepath.Glob("../testdata/" + folder)
		if err != nil || len(names) == 0 {
			t.Fatal(folder, err)
		}
		for _, n := range names {
			if all[filepath.Base(n)], err = os.ReadFile(n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

// decode decodes a part in a mode, within the bounds of the header.
func decode(t testing.TB, cell []byte, h Header, mode Mode) {
	t.Helper()
	var d Decoder
	region := image.Rect(h.Width/3, h.Height/3, h.Width, h.Height)
	var err error
	meter := program.NewMeter(t.Context(), program.Cost{Working: program.Count(h.Bytes), Steps: program.Count(h.Steps)})
	programtest.Within(t, program.Count(h.Bytes).Times(2), func() { err = d.Decode(cell, h, mode, region, meter) })
	if err != nil {
		if !errors.Is(err, ErrFormat) && !errors.Is(err, program.ErrNotSupported) && !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%v: %v", h.Format, err)
		}
		if errors.Is(err, program.ErrTooLarge) && h.Format != WebP && !tiff.Recognised(cell) {
			t.Errorf("%v: %v", h.Format, err)
		}
		return
	}
	row := make([]byte, region.Dx()*d.Channels())
	for y := region.Min.Y; y < region.Max.Y; y++ {
		d.Row(y, row)
	}
}

// FuzzDecode checks that no bytes make a decoder panic, work without end, or allocate more
// than their header bounds.
func FuzzDecode(f *testing.F) {
	for _, cell := range files(f) {
		f.Add(cell, uint8(0))
		f.Add(cell, uint8(2))
	}
	f.Fuzz(func(t *testing.T, cell []byte, mode uint8) {
		var h Header
		var err error
		programtest.Within(t, program.Count(int64(len(cell))), func() { h, err = Read(cell) })
		if err != nil {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, program.ErrNotSupported) {
				t.Fatal(err)
			}
			return
		}
		if h.Width < 1 || h.Height < 1 || h.Bytes < 0 || h.Steps < 0 {
			t.Fatalf("%+v", h)
		}
		if int64(h.Width)*int64(h.Height) > 1<<16 || h.Bytes > 64<<20 || h.Steps > 1<<32 {
			return
		}
		decode(t, cell, h, Mode(mode%6))
	})
}

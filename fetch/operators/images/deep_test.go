package images

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math"
	"strings"
	"testing"

	"golang.org/x/image/tiff"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

const deepWidth, deepHeight = 13, 9

// deepAt is a value of 16 bits whose halves differ.
func deepAt(x, y, c int) uint16 { return uint16(y*7919 + x*331 + c*20011 + 129) }

// deepFiles are images of 16 bits per channel: their names and numbers of channels.
func deepFiles(t *testing.T) map[string]int {
	t.Helper()
	grey := image.NewGray16(image.Rect(0, 0, deepWidth, deepHeight))
	colours := image.NewRGBA64(grey.Rect)
	clear := image.NewNRGBA64(grey.Rect)
	for y := range deepHeight {
		for x := range deepWidth {
			grey.SetGray16(x, y, color.Gray16{Y: deepAt(x, y, 0)})
			r, g, b := deepAt(x, y, 0), deepAt(x, y, 1), deepAt(x, y, 2)
			colours.SetRGBA64(x, y, color.RGBA64{R: r, G: g, B: b, A: 0xFFFF})
			clear.SetNRGBA64(x, y, color.NRGBA64{R: r, G: g, B: b, A: uint16(x * 1000)})
		}
	}
	files := map[string]int{}
	for n, m := range map[int]image.Image{1: grey, 3: colours, 4: clear} {
		var one, two bytes.Buffer
		if err := errors.Join(png.Encode(&one, m), tiff.Encode(&two, m, nil)); err != nil {
			t.Fatal(err)
		}
		files[one.String()], files[two.String()] = n, n
	}
	return files
}

// TestDeep checks that steps move values of 16 bits without changing them.
func TestDeep(t *testing.T) {
	kinds := 0
	for file, channels := range deepFiles(t) {
		kinds++
		for mode, n := range map[string]int{"I;16": 1, "RGB;16": 3} {
			list := fmt.Sprintf(`{"name":"Decode","params":{"mode":%q}}`, mode)
			p := compiledOf(t, "["+list+"]")
			if f := p.Result(); f.Type != program.Uint16 || f.Dims[2] != n || f.Axes != "HWC" {
				t.Errorf("%s gives %+v", mode, f)
			}
			if n == 1 && channels > 1 {
				if _, _, err := result(p, []byte(file), program.Draws{}); !errors.Is(err, program.ErrDamaged) ||
					!strings.Contains(err.Error(), "its pixels are colours, and the mode takes grey") {
					t.Errorf("colours as grey: %v", err)
				}
				continue
			}
			check := func(list string, planar bool, w, h int, at func(x, y int) (int, int)) {
				t.Helper()
				p := compiledOf(t, "["+list+"]")
				out, o, err := result(p, []byte(file), program.Draws{Key: draw.Key{Seed: 1}, Column: "image"})
				if err != nil {
					t.Fatalf("%s: %v", list, err)
				}
				if len(out) != 2*w*h*n || len(o.Dims) != 3 {
					t.Fatalf("%s: %d bytes of %v", list, len(out), o.Dims)
				}
				if cost, err := p.Cost([]byte(file), program.Limits{}); err != nil || cost.Result.Int64() < int64(len(out)) {
					t.Errorf("%s: %d bytes, bound by %+v, %v", list, len(out), cost, err)
				}
				for y := range h {
					for x := range w {
						for c := range n {
							i := (y*w+x)*n + c
							if planar {
								i = (c*h+y)*w + x
							}
							want := uint16(0)
							if fx, fy := at(x, y); fx >= 0 {
								want = deepAt(fx, fy, c)
								if channels == 1 {
									want = deepAt(fx, fy, 0)
								}
							}
							if got := binary.LittleEndian.Uint16(out[2*i:]); got != want {
								t.Fatalf("%s: %d at %d, %d, %d; want %d", list, got, x, y, c, want)
							}
						}
					}
				}
			}
			check(list, false, deepWidth, deepHeight, func(x, y int) (int, int) { return x, y })
			check(list+`,{"name":"ToImage"},{"name":"ToDtype","params":{"dtype":"uint16"}}`, true, deepWidth, deepHeight,
				func(x, y int) (int, int) { return x, y })
			check(list+`,{"name":"RandomHorizontalFlip","params":{"p":1}},{"name":"RandomVerticalFlip","params":{"p":1}},
				{"name":"CenterCrop","params":{"size":[5,7]}},{"name":"ToImage"}`, true, 7, 5,
				func(x, y int) (int, int) { return deepWidth - 1 - (x + 3), deepHeight - 1 - (y + 2) })
			check(list+`,{"name":"Pad","params":{"padding":[2,1]}}`, false, deepWidth+4, deepHeight+2,
				func(x, y int) (int, int) {
					if x < 2 || y < 1 || x >= 2+deepWidth || y >= 1+deepHeight {
						return -1, -1
					}
					return x - 2, y - 1
				})
			check(list+`,{"name":"Resize","params":{"size":[18,26],"interpolation":"nearest"}}`, false, 26, 18,
				func(x, y int) (int, int) { return x / 2, y / 2 })
		}
	}
	if kinds != 6 {
		t.Errorf("%d kinds of files", kinds)
	}
	if s, ok := compiledOf(t, `[{"name":"Decode","params":{"mode":"I;16"}},{"name":"RandomHorizontalFlip"}]`).(program.Splitter); ok {
		if _, _, ok := s.Split(); ok {
			t.Error("pixels of 16 bits are split")
		}
	}
}

// TestNumbers checks that steps move floating-point numbers without changing them.
func TestNumbers(t *testing.T) {
	const width, height = 9, 4
	at := func(x, y int) float32 { return float32(x)*1.25 - float32(y*y)*300 }
	var block []byte
	for y := range height {
		for x := range width {
			block = binary.LittleEndian.AppendUint32(block, math.Float32bits(at(x, y)))
		}
	}
	file := tiffFile{width: width, height: height, bits: 32, samples: 1, format: 3, blocks: [][]byte{block}}.bytes()
	for list, where := range map[string]func(x, y int) (int, int){
		``:                    func(x, y int) (int, int) { return x, y },
		`,{"name":"ToImage"}`: func(x, y int) (int, int) { return x, y },
		`,{"name":"RandomHorizontalFlip","params":{"p":1}},
			{"name":"ToDtype","params":{"dtype":"float32"}}`: func(x, y int) (int, int) { return width - 1 - x, y },
		`,{"name":"CenterCrop","params":{"size":[2,5]}},
			{"name":"RandomVerticalFlip","params":{"p":1}}`: func(x, y int) (int, int) { return x + 2, 2 - y },
		`,{"name":"Resize","params":{"size":[8,18],
			"interpolation":"nearest"}}`: func(x, y int) (int, int) { return x / 2, y / 2 },
	} {
		p := compiledOf(t, `[{"name":"Decode","params":{"mode":"F"}}`+list+`]`)
		out, o, err := result(p, file, program.Draws{Key: draw.Key{Seed: 1}, Column: "image"})
		if f := p.Result(); err != nil || f.Type != program.Float32 {
			t.Fatalf("%s: %+v, %v", list, f, err)
		}
		if cost, err := p.Cost(file, program.Limits{}); err != nil || cost.Result.Int64() < int64(len(out)) {
			t.Errorf("%s: %d bytes, bound by %+v, %v", list, len(out), cost, err)
		}
		h, w := o.Dims[0], o.Dims[1]
		if strings.Contains(list, "ToImage") {
			h, w = o.Dims[1], o.Dims[2]
		}
		for y := range h {
			for x := range w {
				want := at(where(x, y))
				if got := math.Float32frombits(binary.LittleEndian.Uint32(out[4*(y*w+x):])); got != want {
					t.Fatalf("%s: %g at %d, %d; want %g", list, got, x, y, want)
				}
			}
		}
	}
	// Bytes are made of it as Pillow makes them. Pixels of 8 bits cannot be decoded as
	// numbers.
	out, _, err := result(compiledOf(t, `[{"name":"Decode","params":{"mode":"L"}}]`), file, program.Draws{})
	if want := []byte{0, 1, 2, 3, 5, 6, 7, 8, 10, 0}; err != nil || !bytes.Equal(out[:10], want) {
		t.Errorf("%v, %v; want %v", out[:10], err, want)
	}
	numbers := compiledOf(t, `[{"name":"Decode","params":{"mode":"F"}}]`)
	for _, name := range []string{"rgba.png", "420-17x33.jpg", "lzw.tif"} {
		if _, _, err := result(numbers, corpus(t)[name], program.Draws{}); !errors.Is(err, program.ErrDamaged) ||
			!strings.Contains(err.Error(), "the mode takes grey of floating-point numbers") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

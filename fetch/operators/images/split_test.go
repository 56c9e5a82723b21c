package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// randomList is a list that Compile takes, most of the time.
func randomList(rng *rand.Rand) string {
	size := func() int { return 1 + rng.IntN(70) }
	geometry := []func() string{
		func() string { return fmt.Sprintf(`{"name":"Resize","params":{"size":%d}}`, size()) },
		func() string {
			return fmt.Sprintf(`{"name":"Resize","params":{"size":[%d,%d],"interpolation":"bicubic"}}`, size(), size())
		},
		func() string { return fmt.Sprintf(`{"name":"CenterCrop","params":{"size":%d}}`, size()) },
		func() string { return fmt.Sprintf(`{"name":"Pad","params":{"padding":%d}}`, rng.IntN(5)) },
		func() string {
			return fmt.Sprintf(`{"name":"Grayscale","params":{"num_output_channels":%d}}`, 1+2*rng.IntN(2))
		},
		func() string {
			return fmt.Sprintf(`{"name":"RandomCrop","params":{"size":%d,"pad_if_needed":true}}`, size())
		},
		func() string { return fmt.Sprintf(`{"name":"RandomResizedCrop","params":{"size":%d}}`, size()) },
		func() string { return `{"name":"RandomHorizontalFlip"}` },
		func() string { return `{"name":"RandomVerticalFlip"}` },
		func() string { return `{"name":"RandomRotation","params":{"degrees":20}}` },
		func() string { return `{"name":"ColorJitter","params":{"brightness":0.4,"hue":0.1}}` },
		func() string { return `{"name":"GaussianBlur","params":{"kernel_size":3}}` },
		func() string { return `{"name":"RandAugment"}` },
	}
	mode := []string{"RGB", "RGB", "L", "UNCHANGED"}[rng.IntN(4)]
	list := []string{fmt.Sprintf(`{"name":"Decode","params":{"mode":%q,"apply_exif_orientation":%t}}`, mode,
		rng.IntN(2) == 0)}
	for range rng.IntN(5) {
		list = append(list, geometry[rng.IntN(len(geometry))]())
	}
	switch rng.IntN(4) {
	case 0:
		list = append(list, `{"name":"EncodeJPEG"}`)
	case 1:
		list = append(list, `{"name":"ToDtype","params":{"dtype":"float32","scale":true}}`,
			`{"name":"Normalize","params":{"mean":[0.4],"std":[0.2]}}`,
			`{"name":"RandomHorizontalFlip"}`, `{"name":"RandomErasing"}`, `{"name":"ToImage"}`)
	case 2:
		list = append(list, `{"name":"ToImage"}`, `{"name":"ToDtype","params":{"dtype":"float16"}}`)
	}
	return "[" + strings.Join(list, ",") + "]"
}

// made is all that a run says.
func madeBy(p program.Program, cell []byte, by program.Draws) (out []byte, o program.Outcome, err error) {
	cost, err := p.Cost(cell, program.Limits{Pixels: 1 << 24, Bytes: 1 << 28})
	if err != nil {
		return nil, o, err
	}
	o, err = p.Run(context.Background(), cell, by, func(n int) []byte {
		if cost.Result.Int64() < int64(n) {
			panic(fmt.Sprintf("%d bytes, and the cost said %v", n, cost.Result))
		}
		out = bytes.Repeat([]byte{0xa5}, n)
		return out
	})
	return out, o, err
}

// TestSplit checks that head and then tail make the bytes of the whole list, for whole and
// for damaged files, wherever the first random step is.
func TestSplit(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	split, cuts := 0, map[int]int{}
	for range 1500 {
		list := randomList(rng)
		compile := Compile
		if rng.IntN(8) == 0 {
			compile = CompileMask
		}
		p, err := compile(steps(t, list))
		if err != nil {
			continue
		}
		head, tail, ok := p.(program.Splitter).Split()
		if ok != (p.Deterministic() < len(p.Steps())) {
			t.Fatalf("%s: split %t, %d of %d steps draw nothing", list, ok, p.Deterministic(), len(p.Steps()))
		}
		if !ok {
			continue
		}
		name := files[rng.IntN(len(files))]
		cell, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if rng.IntN(4) == 0 {
			cell[rng.IntN(len(cell))] ^= byte(1 << rng.IntN(8))
		}
		by := program.Draws{Key: draw.Key{Seed: rng.Uint64(), Epoch: rng.Uint64N(9), Position: rng.Uint64N(1000)},
			Column: "image"}
		between, _, err := madeBy(head, cell, program.Draws{})
		if err != nil {
			continue // the whole list may read less of the file
		}
		got, o, err := madeBy(tail, between, by)
		want, wo, werr := madeBy(p, cell, by)
		if (err == nil) != (werr == nil) || err == nil && (!bytes.Equal(got, want) || !reflect.DeepEqual(o, wo)) {
			t.Fatalf("%s\n%s: %d bytes %+v, %v; want %d bytes %+v, %v", list, name, len(got), o, err, len(want), wo,
				werr)
		}
		if err == nil {
			split++
			cuts[len(head.Steps())]++
		}
		// Other sizes than those of the steps are refused or accepted, but do not panic.
		b := bytes.Clone(between)
		b[rng.IntN(program.BetweenHeader)] ^= byte(1 << rng.IntN(8))
		if _, _, err := madeBy(tail, b, by); err != nil && !errors.Is(err, program.ErrDamaged) &&
			!errors.Is(err, program.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	if split < 200 || len(cuts) < 3 {
		t.Errorf("%d lists were split, at %v", split, cuts)
	}
}

// FuzzTail checks that any bytes of a cache give a result or an error, within Cost and
// without a panic.
func FuzzTail(f *testing.F) {
	var tails []program.Program
	for _, list := range []string{
		`[{"name":"Decode"},{"name":"Resize","params":{"size":9}},{"name":"RandomCrop","params":{"size":8}},{"name":"EncodeJPEG"}]`,
		`[{"name":"Decode","params":{"mode":"UNCHANGED"}},{"name":"RandomResizedCrop","params":{"size":7}},{"name":"RandomRotation","params":{"degrees":20}}]`,
		`[{"name":"Decode"},{"name":"ColorJitter","params":{"hue":0.1}},{"name":"RandomErasing"},{"name":"ToImage"},{"name":"ToDtype","params":{"dtype":"float32"}}]`,
	} {
		_, tail, ok := compiledOf(f, list).(program.Splitter).Split()
		if !ok {
			f.Fatal(list)
		}
		tails = append(tails, tail)
	}
	for _, dims := range [][]int{{9, 12, 3}, {20, 9, 4}, {1, 1, 1}} {
		b := program.Between{Kind: program.Image, Type: program.Uint8, Dims: dims}
		cell := make([]byte, b.Size())
		b.PutHeader(cell)
		f.Add(cell)
	}
	f.Fuzz(func(t *testing.T, cell []byte) {
		for _, tail := range tails {
			if _, _, err := madeBy(tail, cell, program.Draws{Key: draw.Key{Seed: 1}}); err != nil &&
				!errors.Is(err, program.ErrDamaged) && !errors.Is(err, program.ErrTooLarge) {
				t.Fatal(err)
			}
		}
	})
}

package audio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// randomList is a list that Compile takes, most of the time.
func randomList(rng *rand.Rand) string {
	list := []string{`{"Decode": {}}`}
	wave := []string{`{"Resample": {"new_freq": 8000}}`, `{"Mono": {}}`, `{"RandomGain": {}}`, `{"Preemphasis": {}}`,
		`{"Trim": {}}`,
		`{"RandomCrop": {"length": 4000}}`, `{"Vol": {"gain": 0.5}}`, `{"Pad": {"length": 9000}}`,
		`{"Truncate": {"length": 5000}}`}
	bands := []string{`{"Log": {}}`, `{"AmplitudeToDB": {}}`, `{"TimeMasking": {"time_mask_param": 9}}`,
		`{"FrequencyMasking": {"freq_mask_param": 9}}`,
		`{"SpecAugment": {"n_time_masks": 1, "time_mask_param": 5, "n_freq_masks": 2, "freq_mask_param": 9}}`,
		`{"RandomCrop": {"length": 20}}`, `{"Standardize": {}}`}
	for range rng.IntN(4) {
		list = append(list, wave[rng.IntN(len(wave))])
	}
	if rng.IntN(2) == 0 {
		list = append(list, `{"Resample": {"new_freq": 8000}}`,
			`{"MelSpectrogram": {"sample_rate": 8000, "n_mels": 20, "n_fft": 200}}`)
		for range rng.IntN(4) {
			list = append(list, bands[rng.IntN(len(bands))])
		}
	}
	if rng.IntN(3) == 0 {
		list = append(list, `{"ToDtype": {"dtype": "float16"}}`)
	}
	return "[" + strings.Join(list, ",") + "]"
}

func madeBy(p program.Program, cell []byte, by program.Draws) (out []byte, o program.Outcome, err error) {
	cost, err := p.Cost(cell, wide)
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
	files := []string{"five8.flac", "mono16.flac", "mono16.wav", "noise.flac", "silence.flac", "stereo16.flac",
		"stereo24.flac", "mono.mp3"}
	split, cuts := 0, map[int]int{}
	for range 250 {
		list := randomList(rng)
		p, err := Compile(listed(t, list))
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
		cell := bytes.Clone(file(t, name))
		if rng.IntN(4) == 0 {
			cell[rng.IntN(len(cell))] ^= byte(1 << rng.IntN(8))
		}
		by := program.Draws{Key: draw.Key{Seed: rng.Uint64(), Epoch: rng.Uint64N(9), Position: rng.Uint64N(1000)},
			Column: "audio"}
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
		// Data of other sizes than these steps make is refused, or processed, and never a
		// panic.
		b := bytes.Clone(between)
		b[rng.IntN(program.BetweenHeader)] ^= byte(1 << rng.IntN(8))
		if _, _, err := madeBy(tail, b, by); err != nil && !errors.Is(err, program.ErrDamaged) &&
			!errors.Is(err, program.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	if split < 50 || len(cuts) < 3 {
		t.Errorf("%d lists were split, at %v", split, cuts)
	}
}

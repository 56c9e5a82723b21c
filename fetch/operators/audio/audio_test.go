package audio

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listed reads a list as requests have it: [{"Decode": {}}, …].
func listed(t testing.TB, text string) []program.Step {
	t.Helper()
	var given []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &given); err != nil {
		t.Fatal(err)
	}
	var steps []program.Step
	for _, s := range given {
		for name, params := range s {
			steps = append(steps, program.Step{Name: name, Params: params})
		}
	}
	return steps
}

func compiled(t testing.TB, text string) program.Program {
	t.Helper()
	p, err := Compile(listed(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("codec", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var wide = program.Limits{Samples: 1 << 24, Bytes: 1 << 30}

// run runs p, and checks what every run promises.
func run(t testing.TB, p program.Program, cell []byte, position uint64) ([]byte, program.Outcome) {
	t.Helper()
	cost, err := p.Cost(cell, wide)
	if err != nil {
		t.Fatal(err)
	}
	var result []byte
	asked := 0
	o, err := p.Run(t.Context(), cell, program.Draws{Key: draw.Key{Seed: 5, Position: position}, Column: "audio"},
		func(n int) []byte {
			asked++
			result = bytes.Repeat([]byte{0xa5}, n) // it need not be zeroed
			return result
		})
	if err != nil {
		t.Fatal(err)
	}
	form, n := p.Result(), widths[p.Result().Type]
	for i, d := range o.Dims {
		n *= d
		if form.Dims[i] != program.Unknown && form.Dims[i] != d {
			t.Errorf("dimensions %v, and the form says %v", o.Dims, form.Dims)
		}
	}
	if asked != 1 || len(o.Dims) != len(form.Dims) || n != len(result) || cost.Result.Int64() < int64(n) {
		t.Errorf("%d bytes asked for %d times, dimensions %v of %v, bound %d", len(result), asked, o.Dims, form.Dims,
			cost.Result)
	}
	return result, o
}

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

const logMel = `[{"Decode": {}}, {"Resample": {}}, {"Mono": {}}, {"RandomGain": {}}, {"RandomCrop": {"length": 3000}},
	{"MelSpectrogram": {"n_mels": 40, "hop_length": 160}}, {"Log": {}}, {"Normalize": {"mean": -4, "std": 4}},
	{"SpecAugment": {"n_time_masks": 1, "time_mask_param": 5, "n_freq_masks": 2, "freq_mask_param": 9}}, {"ToDtype": {"dtype": "float16"}}, {"Layout": {"axes": "TF"}}]`

func TestForms(t *testing.T) {
	const u = program.Unknown
	for steps, want := range map[string]program.Form{
		`[{"Decode": {}}]`: {Kind: program.Audio, Type: program.Float32, Dims: []int{u, u}, Axes: "CT"},
		`[{"Decode": {}}, {"Resample": {"new_freq": 8000}}, {"Mono": {}}, {"Layout": {"axes": "T"}}]`: {
			Kind: program.Audio, Type: program.Float32, Dims: []int{u}, Axes: "T", Rate: 8000},
		`[{"Decode": {}}, {"Mono": null}, {"Pad": {"length": 9, "truncate": true}}, {"ToDtype": {"dtype": "int16"}}]`: {
			Kind: program.Audio, Type: program.Int16, Dims: []int{1, 9}, Axes: "CT"},
		`[{"Decode": {}}, {"Mono": {}}, {"MelSpectrogram": {}}]`: {
			Kind: program.Spectrogram, Type: program.Float32, Dims: []int{1, 128, u}, Axes: "CFT", Rate: 16000},
		logMel: {Kind: program.Spectrogram, Type: program.Float16, Dims: []int{19, 40}, Axes: "TF", Rate: 16000},
	} {
		if got := compiled(t, steps).Result(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", steps, got, want)
		}
	}
}

func TestStepErrors(t *testing.T) {
	for text, want := range map[string]string{
		`[{"Decoed": {}}]`:                                                                     `step 0 (Decoed): no such operator of sound; there are AmplitudeToDB, Decode,`,
		`[{"Mono": {}}]`:                                                                       `step 0 (Mono): files are decoded first`,
		`[{"Decode": {}}, {"Decode": {}}]`:                                                     `step 1 (Decode): only files are decoded, once and first`,
		`[{"Decode": {"offset": 3}}]`:                                                          `step 0 (Decode): offset: no such parameter; it takes frame_offset, num_frames`,
		`[{"Decode": {"num_frames": "all"}}]`:                                                  `step 0 (Decode): num_frames: got a string; it takes a whole number`,
		`[{"Decode": {"num_frames": 1.5}}]`:                                                    `num_frames: got a number 1.5; it takes a whole number`,
		`[{"Decode": {}}, {"Mono": {"x": 1}}]`:                                                 `step 1 (Mono): x: it takes no parameters`,
		`[{"Decode": {}}, {"Mono": 3}]`:                                                        `step 1 (Mono): its parameters have to be a JSON object`,
		`[{"Decode": {}}, {"Resample": {"new_freq": 0}}]`:                                      `new_freq: got 0; it takes 1 to 768000`,
		`[{"Decode": {}}, {"Resample": {"resampling_method": "best"}}]`:                        `got "best"; it takes sinc_interp_hann, sinc_interp_kaiser`,
		`[{"Decode": {}}, {"Log": {}}]`:                                                        `step 1 (Log): got a waveform; it takes a spectrogram`,
		`[{"Decode": {}}, {"MelSpectrogram": {}}, {"Mono": {}}]`:                               `step 2 (Mono): got a spectrogram; it takes a waveform`,
		`[{"Decode": {}}, {"Resample": {"new_freq": 8000}}, {"MelSpectrogram": {}}]`:           `sample_rate: is 16000; the waveform has 8000 samples a second: put Resample before`,
		`[{"Decode": {}}, {"MelSpectrogram": {"n_fft": 300, "win_length": 400}}]`:              `win_length: got 400; it takes 1 to 300`,
		`[{"Decode": {}}, {"MelSpectrogram": {"f_min": 9000}}]`:                                `f_min: got 9000; it takes 0 and more, less than f_max, 8000`,
		`[{"Decode": {}}, {"MelSpectrogram": {"normalized": "yes"}}]`:                          `normalized: got yes; it takes true`,
		`[{"Decode": {}}, {"Layout": {"axes": "T"}}]`:                                          `C is left out only where there is one channel`,
		`[{"Decode": {}}, {"Layout": {"axes": "TT"}}]`:                                         `axes: got "TT"; it takes each letter of CT once`,
		`[{"Decode": {}}, {"ToDtype": {"dtype": "float16"}}, {"Vol": {"gain": 1}}]`:            `step 2 (Vol): nothing is computed after ToDtype`,
		`[{"Decode": {}}, {"ToDtype": {"dtype": "int16"}}, {"ToDtype": {"dtype": "float32"}}]`: `there is one ToDtype`,
		`[{"Decode": {}}, {"Normalize": {"mean": [1, 2], "std": 1}}]`:                          `mean: got 2 numbers; how many channels there are is not known`,
		`[{"Decode": {}}, {"Normalize": {"mean": "x", "std": 1}}]`:                             `a number or a list of numbers`,
		`[{"Decode": {}}, {"Normalize": {"mean": [null], "std": 1}}]`:                          `a number or a list of numbers`,
		`[{"Decode": {}}, {"RandomCrop": {}}]`:                                                 `length: got 0; it takes 1 to`,
		`[{"Decode": {}}, {"Vol": {}}]`:                                                        `gain: got -1`,
	} {
		_, err := Compile(listed(t, text))
		var at *program.StepError
		if !errors.As(err, &at) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Compile(nil); err == nil {
		t.Error("an empty list is let through")
	}
}

// TestCanonical checks that a canonical list is its own canonical form and complete.
func TestCanonical(t *testing.T) {
	p := compiled(t, logMel)
	again, err := Compile(p.Steps())
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range p.Steps() {
		if got := again.Steps()[i]; got.Name != s.Name || !bytes.Equal(got.Params, s.Params) {
			t.Errorf("%s %s became %s %s", s.Name, s.Params, got.Name, got.Params)
		}
	}
	if got, want := string(p.Steps()[5].Params),
		`{"sample_rate":16000,"f_min":0,"f_max":8000,"n_mels":40,"norm":null,"mel_scale":"htk",`+
			`"n_fft":400,"win_length":400,"hop_length":160,"pad":0,"window_fn":"hann_window","power":2,"normalized":false,"center":true,"pad_mode":"reflect"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if p.Deterministic() != 3 {
		t.Errorf("%d steps draw nothing; there are 3", p.Deterministic())
	}
}

// TestRepeats checks that equal runs give equal bytes and others do not.
func TestRepeats(t *testing.T) {
	p := compiled(t, logMel)
	for _, name := range []string{"stereo16.flac", "mono16.flac", "stereo24.flac", "mono16.wav"} {
		cell := file(t, name)
		a, first := run(t, p, cell, 7)
		b, second := run(t, p, cell, 7)
		c, _ := run(t, p, cell, 8)
		if !bytes.Equal(a, b) || !reflect.DeepEqual(first, second) {
			t.Errorf("%s: two runs differ", name)
		}
		if bytes.Equal(a, c) {
			t.Errorf("%s: two positions do not differ", name)
		}
		if len(first.Drawn) != 3 || first.Drawn[0].Step != 3 || len(first.Drawn[2].Values) != 6 {
			t.Errorf("%s: drawn are %+v", name, first.Drawn)
		}
	}
}

// TestCropBeforeDecoding checks that a crop of which only the part is decoded equals the
// crop of the whole.
func TestCropBeforeDecoding(t *testing.T) {
	for _, length := range []int{1000, 4500, 20000} {
		crop := `{"RandomCrop": {"length": ` + string(must(json.Marshal(length))) + `}}`
		early, late := compiled(t, `[{"Decode": {}}, `+crop+`]`),
			compiled(t, `[{"Decode": {}}, {"Vol": {"gain": 1}}]`)
		cell := file(t, "mono16.flac")
		got, o := run(t, early, cell, 3)
		all, whole := run(t, late, cell, 3)
		start, n := int(o.Drawn[0].Values[0].Number), int(o.Drawn[0].Values[1].Number)
		if n != min(length, whole.Dims[1]) || start < 0 || start+n > whole.Dims[1] || o.Dims[1] != length {
			t.Fatalf("drawn is %+v of %v", o.Drawn, whole.Dims)
		}
		if !bytes.Equal(got[:4*n], all[4*start:4*(start+n)]) || len(bytes.Trim(got[4*n:], "\x00")) > 0 {
			t.Errorf("a crop of %d is not a part of the whole and silence", length)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestWaves(t *testing.T) {
	cell := []byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x03\x00\x02\x00\x40\x1f\x00\x00\x00\xfa\x00\x00\x08\x00\x20\x00data\x18\x00\x00\x00")
	for _, v := range []float32{0.5, -0.5, 0.25, 0.25, 0, 0.5} { // left and right
		cell = binary.LittleEndian.AppendUint32(cell, math.Float32bits(v))
	}
	for steps, want := range map[string][]float32{
		`[{"Decode": {}}]`:                                                              {0.5, 0.25, 0, -0.5, 0.25, 0.5},
		`[{"Decode": {}}, {"Mono": {}}]`:                                                {0, 0.25, 0.25},
		`[{"Decode": {}}, {"Vol": {"gain": 3}}]`:                                        {1, 0.75, 0, -1, 0.75, 1},
		`[{"Decode": {}}, {"Vol": {"gain": 4, "gain_type": "power"}}]`:                  {1, 0.5, 0, -1, 0.5, 1},
		`[{"Decode": {}}, {"Pad": {"length": 5, "side": "both", "value": 2}}]`:          {2, 0.5, 0.25, 0, 2, 2, -0.5, 0.25, 0.5, 2},
		`[{"Decode": {}}, {"Pad": {"length": 4, "side": "start"}}]`:                     {0, 0.5, 0.25, 0, 0, -0.5, 0.25, 0.5},
		`[{"Decode": {}}, {"Pad": {"length": 2, "truncate": true}}]`:                    {0.5, 0.25, -0.5, 0.25},
		`[{"Decode": {}}, {"Pad": {"length": 2}}]`:                                      {0.5, 0.25, 0, -0.5, 0.25, 0.5},
		`[{"Decode": {}}, {"Truncate": {"length": 1}}]`:                                 {0.5, -0.5},
		`[{"Decode": {}}, {"Preemphasis": {"coeff": 0.5}}]`:                             {0.5, 0, -0.125, -0.5, 0.5, 0.375},
		`[{"Decode": {}}, {"RandomGain": {"min_gain_db": -40, "p": 0}}]`:                {0.5, 0.25, 0, -0.5, 0.25, 0.5},
		`[{"Decode": {}}, {"Normalize": {"mean": 0.5, "std": 0.5}}]`:                    {0, -0.5, -1, -2, -0.5, 0},
		`[{"Decode": {}}, {"RandomCrop": {"length": 9, "pad_if_needed": false}}]`:       {0.5, 0.25, 0, -0.5, 0.25, 0.5},
		`[{"Decode": {}}, {"Layout": {"axes": "TC"}}]`:                                  {0.5, -0.5, 0.25, 0.25, 0, 0.5},
		`[{"Decode": {}}, {"Trim": {"top_db": 3, "frame_length": 2, "hop_length": 1}}]`: {0.5, 0.25, 0, -0.5, 0.25, 0.5},
	} {
		got, _ := run(t, compiled(t, steps), cell, 1)
		if !slices.Equal(floats(got), want) {
			t.Errorf("%s: %v, want %v", steps, floats(got), want)
		}
	}
}

// TestBombs checks that large sizes in a header are refused before anything is allocated.
func TestBombs(t *testing.T) {
	hour := file(t, "silence.flac")
	hour[21] |= 0x0f // 2³⁶ samples
	copy(hour[22:], "\xff\xff\xff\xff")
	p := compiled(t, logMel)
	if _, err := p.Cost(hour, wide); !errors.Is(err, program.ErrTooLarge) ||
		!strings.Contains(err.Error(), "step 0 (Decode)") {
		t.Errorf("an FLAC of 2³⁶ samples: %v", err)
	}
	crop := compiled(t, `[{"Decode": {}}, {"RandomCrop": {"length": 100}}]`)
	if cost, err := crop.Cost(hour, wide); err != nil || cost.Working.Beyond(1<<20) {
		t.Errorf("a crop of an FLAC of 2³⁶ samples: %+v, %v", cost, err)
	}
	long := compiled(t, `[{"Decode": {}}, {"Pad": {"length": 1000000000}}]`)
	if _, err := long.Cost(file(t, "mono16.flac"), wide); !errors.Is(err, program.ErrTooLarge) ||
		!strings.Contains(err.Error(), "step 1 (Pad)") {
		t.Errorf("a pad to 10⁹ samples: %v", err)
	}
	small := program.Limits{Samples: 1 << 24, Bytes: 1000}
	if _, err := p.Cost(file(t, "mono16.flac"), small); !errors.Is(err, program.ErrTooLarge) {
		t.Errorf("within 1,000 bytes: %v", err)
	}
	if _, err := p.Cost([]byte("no sound"), wide); !errors.Is(err, program.ErrDamaged) ||
		!strings.Contains(err.Error(), "step 0 (Decode)") {
		t.Errorf("text: %v", err)
	}
	short := compiled(t, `[{"Decode": {"num_frames": 100}}, {"Resample": {}}, {"MelSpectrogram": {}}]`)
	if _, err := short.Cost(file(t, "mono16.flac"), wide); !errors.Is(err, program.ErrDamaged) ||
		!strings.Contains(err.Error(), "too short") {
		t.Errorf("a spectrogram of 100 samples: %v", err)
	}
}

// FuzzPipeline checks that no request and no bytes do harm together, and that the cost
// bounds memory and steps.
func FuzzPipeline(f *testing.F) {
	for _, name := range []string{"stereo16.flac", "mono16.wav", "mono.mp3"} {
		f.Add(logMel, file(f, name))
	}
	f.Fuzz(func(t *testing.T, text string, cell []byte) {
		var given []map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &given) != nil {
			return
		}
		var steps []program.Step
		for _, s := range given {
			for name, params := range s {
				steps = append(steps, program.Step{Name: name, Params: params})
			}
		}
		p, err := Compile(steps)
		if err != nil {
			return
		}
		holds(t, p, cell, program.Limits{Samples: 1 << 18, Bytes: 1 << 23, Steps: 1 << 32})
	})
}

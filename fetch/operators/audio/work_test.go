package audio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"bowstring/fetch/operators/program"
	"bowstring/internal/programtest"
)

// wav is a file of n samples of 8 bits of each channel.
func wav(channels, rate, n int) []byte {
	b := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00"), byte(channels), 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(rate))
	b = binary.LittleEndian.AppendUint32(b, uint32(rate*channels))
	b = append(b, byte(channels), 0, 8, 0)
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, uint32(n*channels))
	for i := range n * channels {
		b = append(b, byte(128+i%100))
	}
	return b
}

// minute is the limit of the tests: the steps of about a minute.
const minute = 60_000_000_000

// TestTooMuchWork checks that lists that would take minutes or hours for a cell are refused
// before a run begins.
func TestTooMuchWork(t *testing.T) {
	limits := program.Ceiling
	limits.Steps = minute
	for _, c := range []struct {
		list, step string
		cell       []byte
	}{
		{`[{"Decode": {}}, {"Spectrogram": {"n_fft": 32749, "hop_length": 128}}]`, "Spectrogram", wav(1, 16000, 16<<20)},
		{`[{"Decode": {}}, {"MelSpectrogram": {"n_fft": 32768, "hop_length": 128, "sample_rate": 16000}}]`,
			"MelSpectrogram", wav(1, 16000, 16<<20)},
		{`[{"Decode": {}}, {"Resample": {"new_freq": 96000, "lowpass_filter_width": 256, "rolloff": 0.01}}]`, "Resample",
			wav(1, 768000, 64<<20)},
		{`[{"Decode": {}}, {"Trim": {"frame_length": 65536, "hop_length": 1024}}, {"Trim": {"frame_length": 65536, "hop_length": 1024}},
			{"Trim": {"frame_length": 65536, "hop_length": 1024}}, {"Trim": {"frame_length": 65536, "hop_length": 1024}},
			{"Trim": {"frame_length": 65536, "hop_length": 1024}}, {"Trim": {"frame_length": 65536, "hop_length": 1024}},
			{"Trim": {"frame_length": 65536, "hop_length": 1024}}, {"Trim": {"frame_length": 65536, "hop_length": 1024}}]`,
			"Trim", wav(1, 16000, 64<<20)},
	} {
		_, err := compiled(t, c.list).Cost(c.cell, limits)
		if !errors.Is(err, program.ErrTooLarge) || !strings.Contains(fmt.Sprint(err), "("+c.step+")") ||
			!strings.Contains(fmt.Sprint(err), "steps of work") {
			t.Errorf("%.80s: %v", c.list, err)
		}
	}
}

// TestUsualWork checks that usual work is far below the limit: a quarter of an hour of
// stereo sound at 44,100 Hz, resampled, for a model of speech.
func TestUsualWork(t *testing.T) {
	limits := program.Ceiling
	limits.Steps = minute / 4
	cell := wav(2, 44100, 15*60*44100)
	if _, err := compiled(t, logMel).Cost(cell, limits); err != nil {
		t.Error(err)
	}
}

// counted is a context that ends after that number of checks.
type counted struct {
	context.Context //nolint:containedctx // it stands for one
	left            *int
	why             error
}

func (l counted) Err() error {
	if *l.left--; *l.left < 0 {
		return l.why
	}
	return nil
}

// everything keeps a cell in each step for long enough that the meter checks the context
// during the step.
var everything = map[string]string{
	"Decode":        `[{"Decode": {}}]`,
	"Resample":      `[{"Decode": {}}, {"Resample": {"new_freq": 48000}}]`,
	"Mono":          `[{"Decode": {}}, {"Mono": {}}]`,
	"Vol":           `[{"Decode": {}}, {"Vol": {"gain": 0.5}}]`,
	"RandomGain":    `[{"Decode": {}}, {"RandomGain": {}}]`,
	"Preemphasis":   `[{"Decode": {}}, {"Preemphasis": {}}]`,
	"Trim":          `[{"Decode": {}}, {"Trim": {"top_db": 10}}]`,
	"Pad":           `[{"Decode": {}}, {"Pad": {"length": 20000000}}]`,
	"RandomCrop":    `[{"Decode": {}}, {"Vol": {"gain": 0.5}}, {"RandomCrop": {"length": 5000000}}]`,
	"Truncate":      `[{"Decode": {}}, {"Vol": {"gain": 0.5}}, {"Truncate": {"length": 5000000}}]`,
	"Spectrogram":   `[{"Decode": {}}, {"Mono": {}}, {"Spectrogram": {}}]`,
	"prime":         `[{"Decode": {}}, {"Mono": {}}, {"Spectrogram": {"n_fft": 4093}}]`,
	"AmplitudeToDB": `[{"Decode": {}}, {"Mono": {}}, {"Resample": {"orig_freq": 44100}}, {"MelSpectrogram": {"n_mels": 400}}, {"AmplitudeToDB": {"top_db": 80}}]`,
	"SpecAugment":   `[{"Decode": {}}, {"Spectrogram": {}}, {"SpecAugment": {"n_time_masks": 2, "time_mask_param": 50, "n_freq_masks": 3, "freq_mask_param": 40}}]`,
	"Standardize":   `[{"Decode": {}}, {"Spectrogram": {}}, {"Log": {}}, {"Normalize": {"mean": 1, "std": 2}}, {"Standardize": {"per": "row"}}]`,
}

// TestStepsEnd checks that a run uses no more steps and memory than were counted for it. It
// ends with the cause, wherever its context ends.
func TestStepsEnd(t *testing.T) {
	cell := wav(2, 44100, 2<<20)
	limits := program.Ceiling
	limits.Steps = minute
	why := errors.New("the stream has ended")
	for name, list := range everything {
		t.Run(name, func(t *testing.T) {
			p := compiled(t, list)
			cost, err := p.Cost(cell, limits)
			if err != nil {
				t.Fatal(err)
			}
			once := func(most int) (left int, err error) {
				ctx := counted{t.Context(), &most, why}
				_, err = p.Run(ctx, cell, program.Draws{}, func(n int) []byte { return make([]byte, n) })
				return most, err
			}
			const plenty = 1 << 30
			left, err := once(plenty)
			if err != nil {
				t.Fatal(err) // also where it takes more steps than were counted
			}
			looked := plenty - left
			if least := int(cost.Steps.Int64()>>24) / 4; looked < max(1, least) {
				t.Errorf("a run of at most %v steps looked %d times; want %d", cost.Steps, looked, least)
			}
			for _, after := range []int{0, looked / 2, looked - 1} {
				if _, err := once(after); !errors.Is(err, why) || errors.Is(err, program.ErrDamaged) {
					t.Errorf("a context that ends after %d checks: %v", after, err)
				}
			}
		})
	}
}

// slack is the memory that a run may allocate besides its cost: errors, drawn values, and
// the tables that the first run of a kind makes for all. MP3's library also allocates
// memory for each frame, which the next garbage collection frees.
func slack(cell []byte) int64 { return 2<<20 + 64*int64(len(cell)) }

// holds fails if a run has allocated more than was counted.
func holds(t testing.TB, p program.Program, cell []byte, limits program.Limits) {
	t.Helper()
	cost, err := p.Cost(cell, limits)
	if err != nil {
		if !errors.Is(err, program.ErrDamaged) && !errors.Is(err, program.ErrTooLarge) {
			t.Fatal(err)
		}
		return
	}
	got := programtest.Allocated(func() {
		_, err = p.Run(t.Context(), cell, program.Draws{}, func(n int) []byte { return make([]byte, n) })
	})
	if err != nil && !errors.Is(err, program.ErrDamaged) {
		t.Fatal(err)
	}
	if most := cost.Working.Plus(cost.Result).Int64() + slack(cell); got > most {
		t.Fatalf("a run allocated %d bytes; %v and %v were counted for it, and %d are allowed besides", got, cost.Working,
			cost.Result, slack(cell))
	}
}

// TestAllocations checks that runs allocate no more than their cost.
func TestAllocations(t *testing.T) {
	for name, list := range everything {
		t.Run(name, func(t *testing.T) {
			holds(t, compiled(t, list), wav(2, 44100, 1<<20), program.Ceiling)
		})
	}
	for _, name := range []string{"stereo16.flac", "mono16.wav", "mono.mp3", "stereo.mp3", "mono.ogg", "silence.flac"} {
		t.Run(name, func(t *testing.T) { holds(t, compiled(t, logMel), file(t, name), program.Ceiling) })
	}
}

// TestNoMemory checks that a run fails if there is no memory for its result.
func TestNoMemory(t *testing.T) {
	p := compiled(t, `[{"Decode": {}}, {"RandomGain": {}}]`)
	head, tail, _ := p.(program.Splitter).Split()
	var between []byte
	if _, err := head.Run(t.Context(), wav(1, 16000, 100), program.Draws{}, func(n int) []byte {
		between = make([]byte, n)
		return between
	}); err != nil {
		t.Fatal(err)
	}
	for name, one := range map[string]struct {
		program.Program
		cell []byte
	}{"whole": {p, wav(1, 16000, 100)}, "head": {head, wav(1, 16000, 100)}, "tail": {tail, between}} {
		if _, err := one.Run(t.Context(), one.cell, program.Draws{}, func(int) []byte { return nil }); !errors.Is(err,
			program.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

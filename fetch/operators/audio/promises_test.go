package audio

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"bowstring/fetch/operators/audio/codec"
	"bowstring/fetch/operators/program"
)

// TestBombsAtOnce checks that Run refuses them even if Cost was not called.
func TestBombsAtOnce(t *testing.T) {
	hour := file(t, "silence.flac")
	hour[21] |= 0x0f // 2³⁶ samples
	copy(hour[22:], "\xff\xff\xff\xff")
	for list, cell := range map[string][]byte{
		`[{"Decode": {}}]`: hour,
		`[{"Decode": {}}, {"Pad": {"length": 1000000000}}]`: file(t, "mono16.flac"),
	} {
		_, err := compiled(t, list).Run(t.Context(), cell, program.Draws{}, func(int) []byte {
			t.Errorf("%s: memory was asked for", list)
			return nil
		})
		if !errors.Is(err, program.ErrTooLarge) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

// TestNoNumbers checks that NaN and infinite samples do not fail a run.
func TestNoNumbers(t *testing.T) {
	cell := []byte("RIFF\x00\x00\x00\x00WAVEfmt " +
		"\x10\x00\x00\x00\x03\x00\x01\x00\x80\x3e\x00\x00\x00\xfa\x00\x00\x04\x00\x20\x00data")
	cell = binary.LittleEndian.AppendUint32(cell, 4*4000)
	for i := range 4000 {
		cell = binary.LittleEndian.AppendUint32(cell, []uint32{0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff,
			0xff7fffff, 1}[i%6])
	}
	for _, list := range []string{
		logMel,
		`[{"Decode": {}}, {"Resample": {"new_freq": 8000}}, {"RandomGain": {}}, {"Preemphasis": {}}, {"ToDtype": {"dtype": "int16"}}]`,
		`[{"Decode": {}}, {"Trim": {}}, {"Standardize": {}}, {"ToDtype": {"dtype": "float16"}}]`,
		`[{"Decode": {}}, {"MelSpectrogram": {}}, {"AmplitudeToDB": {"top_db": 80}}, {"SpecAugment": {"n_time_masks": 2, "time_mask_param": 5}}, {"Standardize": {"per": "row"}}]`,
	} {
		run(t, compiled(t, list), cell, 1)
	}
}

// TestContract checks that the contract names the decoder of MP3.
func TestContract(t *testing.T) {
	lossy, err := codec.Lossy()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Contract(); err != nil || got != ContractVersion+"/"+lossy {
		t.Errorf("the contract is %q, %v", got, err)
	}
}

// TestDocs checks that docs/sound.md names every operator with each of its parameters.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sound.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.HasPrefix(line, "| `") {
			for name := range strings.SplitSeq(first, ", ") {
				rows[strings.Trim(name, "`")] = line
			}
		}
	}
	rows["MelSpectrogram"] += rows["Spectrogram"]
	needed := map[string]string{"Vol": `{"gain": 1}`, "Truncate": `{"length": 1}`, "Pad": `{"length": 1}`,
		"RandomCrop":       `{"length": 1}`,
		"FrequencyMasking": `{"freq_mask_param": 1}`, "TimeMasking": `{"time_mask_param": 1}`,
		"Normalize": `{"mean": 0, "std": 1}`,
		"ToDtype":   `{"dtype": "float32"}`, "Layout": `{"axes": "CT"}`}
	for _, name := range Names() {
		s := makers[name]()
		if err := errors.Join(parse(json.RawMessage(needed[name]), s), s.check()); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, p := range fields(s) {
			if !strings.Contains(rows[name], "`"+p+"`") {
				t.Errorf("docs/sound.md has no parameter %s of %s", p, name)
			}
		}
	}
}

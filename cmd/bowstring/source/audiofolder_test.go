package source

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
)

// TestAudioFolder reads LibriSpeech's layout: speakers' folders, chapters in them,
// transcripts beside the files.
func TestAudioFolder(t *testing.T) {
	flac, err := os.ReadFile("../../../fetch/operators/audio/codec/testdata/stereo16.flac")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"84/121123/84-121123-0000.flac":      string(flac),
		"84/121123/84-121123-0001.flac":      "no FLAC",
		"84/121123/84-121123.trans.txt":      "84-121123-0000 GO ON\n84-121123-0001 WELL\n84-121123-0002 NOT THERE\n",
		"174/50561/174-50561-0000.flac":      string(flac),
		"174/50561/174-50561.trans.txt":      "174-50561-0000 FORGOTTEN TOO\r\n",
		"174/50561/notes.txt":                "nothing of sound",
		"174/50561/174-50561-lacks-row.flac": string(flac),
	}
	found := readAll(t, tree(t, files), Options{}, ReadOptions{Dataset: "speech"}).text()
	for _, want := range []string{
		`duration`, `sampling_rate`, `channels`, `GO ON`, `WELL`, `FORGOTTEN TOO`, `44100`, `0.113`,
		`names it and there is no such audio`, `no row of the metadata`,
	} {
		if !strings.Contains(found, want) {
			t.Errorf("no %q in:\n%s", want, found)
		}
	}

	// Without transcripts a folder is the class, as for images.
	for name := range files {
		if strings.HasSuffix(name, ".txt") {
			delete(files, name)
		}
	}
	root := tree(t, files)
	s, err := Open(t.Context(), root, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Format() != "audiofolder" || s.Rows() != 4 {
		t.Errorf("%s of %d rows", s.Format(), s.Rows())
	}
	r, err := NewReader(s, ReadOptions{Dataset: "speech"})
	if err != nil {
		t.Fatal(err)
	}
	var seconds []float64
	nulls := 0
	for b, err := range r.Batches(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		at := slices.Index(fieldNames(r.meta), "duration")
		column := b.Meta.Column(at).(*array.Float64)
		for i := range column.Len() {
			if column.IsNull(i) {
				nulls++
			} else {
				seconds = append(seconds, column.Value(i))
			}
		}
	}
	if want := 5000.0 / 44100; len(seconds) != 3 || seconds[0] != want || nulls != 1 {
		t.Errorf("durations of %v, %d null; want 3 of %g, and a null", seconds, nulls, want)
	}
}

// TestDamagedSound: a file of a known format with an invalid header is bad. A file of
// another format is imported unchanged.
func TestDamagedSound(t *testing.T) {
	flac, err := os.ReadFile("../../../fetch/operators/audio/codec/testdata/stereo16.flac")
	if err != nil {
		t.Fatal(err)
	}
	const format = "RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00" +
		"\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00"
	root := tree(t, map[string]string{
		"cut.flac":    string(flac[:30]),
		"empty.wav":   format + "data\x00\x00\x00\x00",
		"no-size.wav": format + "data\x00\x00\x00\x00\x01\x02\x03\x04",
		"other.m4a":   "\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00",
	})
	found := readAll(t, root, Options{}, ReadOptions{Dataset: "sound"}).text()
	for _, want := range []string{
		"no-size.wav: damaged sample: WAV: its chunk of samples says that it is empty, and 4 bytes follow",
		"cut.flac: damaged sample: FLAC",
	} {
		if !strings.Contains(found, want) {
			t.Errorf("no %q in:\n%s", want, found)
		}
	}
	if !strings.Contains(found, "train other.m4a") || !strings.Contains(found, "train empty.wav") {
		t.Errorf("what is not damaged is bad:\n%s", found)
	}
	found = readAll(t, root, Options{}, ReadOptions{Dataset: "sound", Verify: VerifyNone}).text()
	if strings.Contains(found, "damaged") {
		t.Errorf("unasked, files are looked at:\n%s", found)
	}
}

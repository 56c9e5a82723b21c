package source

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestCommonVoice reads tables beside their clips, as Common Voice lays out a language.
func TestCommonVoice(t *testing.T) {
	sound, err := os.ReadFile("../../../fetch/operators/audio/codec/testdata/mono.mp3")
	if err != nil {
		t.Fatal(err)
	}
	const columns = "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccents\tlocale\tsegment\n"
	row := func(name, sentence string) string {
		return "07ab\t" + name + "\t" + sentence + "\t2\t0\ttwenties\t\t\teo\t\n"
	}
	files := map[string]string{
		"train.tsv":        columns + row("a.mp3", `"Jes," li diris`) + row("old", "1984") + row("none.mp3", "neniu"),
		"dev.tsv":          columns + row("b.mp3", "Ne."),
		"validated.tsv":    columns + row("a.mp3", `"Jes," li diris`) + row("c.mp3", "Eble."),
		"reported.tsv":     "sentence\treason\n",
		"clips/a.mp3":      string(sound),
		"clips/b.mp3":      string(sound),
		"clips/c.mp3":      string(sound),
		"clips/old.mp3":    string(sound),
		"clips/unused.mp3": string(sound),
	}
	root := tree(t, files)
	found := readAll(t, root, Options{}, ReadOptions{Dataset: "voice"}).text()
	for _, want := range []string{
		`train clips/a.mp3: file_name=clips/a.mp3 client_id=07ab sentence="Jes," li diris up_votes=2`, `sentence=1984`,
		`dev clips/b.mp3`,
		`sampling_rate=16000`, `none.mp3`, `validated.tsv were not read`, `sentence: utf8`, `up_votes: int`,
	} {
		if !strings.Contains(found, want) {
			t.Errorf("no %q in:\n%s", want, found)
		}
	}
	if strings.Contains(found, "c.mp3") || strings.Contains(found, "unused") {
		t.Errorf("clips that no table names:\n%s", found)
	}

	s, err := Open(t.Context(), root, Options{Split: "validated"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Format() != "commonvoice" || s.Rows() != 2 || !slices.Equal(s.Splits(), []string{"validated"}) {
		t.Errorf("%s of %d rows in %v", s.Format(), s.Rows(), s.Splits())
	}
	if s, err = Open(t.Context(), root, Options{Split: "dev"}); err != nil || s.Rows() != 1 {
		t.Errorf("dev: %v, %v", s, err)
	}
	for name, c := range map[string]struct{ table, why string }{
		"too few values": {columns + "07ab\ta.mp3\n",
			"train.tsv:2: the number of its cells is 2, and that of columns 10"},
		"nothing":  {"", "the file is empty"},
		"no paths": {"sentence\nJes\n", "no column path, only"},
		"no text":  {columns + row("a.mp3", "\xff"), "train.tsv:2: cell 3 is not valid UTF-8"},
	} {
		files["train.tsv"] = c.table
		s, err := Open(t.Context(), tree(t, files), Options{Split: "train"})
		why := fmt.Sprint(err)
		if err == nil {
			for sample, err := range s.Samples(t.Context()) {
				why = fmt.Sprintf("%s: %s, %v", sample.Key, sample.Bad, err)
			}
		}
		if !strings.Contains(why, c.why) {
			t.Errorf("%s: %s, want %q", name, why, c.why)
		}
	}
}

// TestWebDatasetOfSound reads sound, its transcript and what JSON says out of a tar.
func TestWebDatasetOfSound(t *testing.T) {
	flac, err := os.ReadFile("../../../fetch/operators/audio/codec/testdata/stereo16.flac")
	if err != nil {
		t.Fatal(err)
	}
	packed := makeTar(t,
		entry{"0001.flac", string(flac)}, entry{"0001.txt", "go on"}, entry{"0001.json", `{"speaker": 84}`},
		entry{"0002.flac", string(flac)}, entry{"0002.txt", "well"}, entry{"0002.json", `{"speaker": 174}`},
	)
	found := readAll(t, tree(t, map[string]string{"train-000000.tar": packed}), Options{},
		ReadOptions{Dataset: "speech"}).text()
	for _, want := range []string{"audio: large_binary blob audio", "txt=go on", "speaker=174", "sampling_rate=44100",
		"channels=2", "duration=0.113"} {
		if !strings.Contains(found, want) {
			t.Errorf("no %q in:\n%s", want, found)
		}
	}
}

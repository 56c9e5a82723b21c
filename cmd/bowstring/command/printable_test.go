package command

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"bowstring/cmd/bowstring/source"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "",
		"a photo (1).jpg":  "a photo (1).jpg",
		"größe 猫":          "größe 猫",
		"a\nb":             `a\nb`,
		"\x1b[2J\x07'":     `\x1b[2J\a'`,
		"x\u202egpj.exe":   `x\u202egpj.exe`,
		"\u009b31m":        `\u009b31m`,
		"\xff\xfe":         `\xff\xfe`,
		"\ufffd":           "\ufffd",
		"C:\\path":         `C:\path`,
		"tab\tnul\x00":     `tab\tnul\x00`,
		"\U000e0001tagged": `\U000e0001tagged`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// FuzzPrintable: what is printed holds nothing that is not printable, and JSON means what it did.
func FuzzPrintable(f *testing.F) {
	f.Add("a\n\x1b[2J\u202e\u009b\U000e0001\xff\"\\")
	f.Fuzz(func(t *testing.T, s string) {
		if got := printable(s); !isPrintable(got) {
			t.Errorf("%q", got)
		}
		if got := printable(source.Quoted(s)); !isPrintable(got) || len(got) > 4096 {
			t.Errorf("%q", got)
		}
		text, err := json.Marshal(map[string]any{s: []string{s}})
		if err != nil {
			t.Fatal(err)
		}
		escaped := printableJSON(text)
		if !isPrintable(string(escaped)) {
			t.Errorf("%q", escaped)
		}
		var want, got any
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(escaped, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v; want %v", escaped, got, err, want)
		}
	})
}

// hostile is a name that clears a screen, pretends to be two lines, and turns the direction of writing.
const hostile = "\x1b[2J\x1b]0;title\x07bad: fine.jpg: ok\nbowstring: done \u202e\u009b31m"

// TestHostileNames: whatever the names in the data, nothing but printable lines reaches a
// terminal, and as many lines as there are messages.
func TestHostileNames(t *testing.T) {
	root, store := photos(t, 4), filepath.Join(t.TempDir(), "store")
	class := filepath.Join(root, "train", "c"+hostile)
	if err := os.MkdirAll(class, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(class, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(hostile+".jpg", nil)
	write("ignored"+hostile, nil)
	status, out, errs := runImport(t, root, "photos", "--store", store)
	if lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n"); status != 1 || out != "" || len(lines) != 2 ||
		!isPrintable(strings.Join(lines, "")) ||
		!strings.HasPrefix(lines[0],
			`bad: "train/c\x1b[2J\x1b]0;title\abad: fine.jpg: ok\nbowstring: done \u202e\u009b31m/\x1b[2J`) ||
		!strings.HasSuffix(lines[0], `: empty`) {
		t.Errorf("status %d, %s, %d lines %q", status, out, len(lines), errs)
	}
	write("good.jpg", photo(t, 1))
	list := filepath.Join(t.TempDir(), "bad.jsonl")
	status, out, errs = runImport(t, root, "photos", "--store", store, "--skip-bad", "--bad-list", list)
	if status != 0 || !isPrintable(strings.ReplaceAll(out, "\n", "")) ||
		!strings.Contains(out, `such as "train/c\x1b[2J`) || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	if b, err := os.ReadFile(list); err != nil || !isPrintable(strings.TrimSuffix(string(b), "\n")) {
		t.Errorf("list of bad items: %q, %v", b, err)
	}
	for _, args := range [][]string{{"describe", "photos"}, {"describe", "photos", "--json"}, {"take", "photos", "4"},
		{"take", "photos", "4", "--json"}, {"ls"}} {
		status, out, errs := runCommand(t, append(args, "--store", store)...)
		if status != 0 || !isPrintable(strings.ReplaceAll(out, "\n", "")) || errs != "" {
			t.Errorf("%q: status %d, %q, %q", args, status, out, errs)
		}
	}
	status, _, errs = runImport(t, filepath.Join(root, hostile), "photos", "--store", store)
	if status != 1 || !isPrintable(strings.TrimSuffix(errs, "\n")) {
		t.Errorf("status %d, %q", status, errs)
	}
}

// TestPrintableAny draws texts at random from characters that matter.
func TestPrintableAny(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	letters := []string{"a", "\n", "\r", "\x1b", "\u202e", "\u009b", "\x7f", "\xff", "\xc2", "ö", "\ufeff",
		"\U0010ffff", "\"", "\\"}
	for range 5000 {
		var s strings.Builder
		for range random.IntN(8) {
			s.WriteString(letters[random.IntN(len(letters))])
		}
		if got := printable(s.String()); !isPrintable(got) {
			t.Errorf("%q: %q", s.String(), got)
		}
	}
}

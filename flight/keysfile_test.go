package flight

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/flight/auth"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// A file of keys has one or two, of 32 characters or more, one a line.
func TestParseKeys(t *testing.T) {
	one, two := strings.Repeat("1", 32), strings.Repeat("2", 40)
	for text, want := range map[string][]string{
		one:                           {one},
		one + "\n":                    {one},
		"\n " + one + " \r\n" + two:   {one, two},
		two + "\n\n" + one + "\n":     {two, one},
		"":                            nil,
		"\n \n":                       nil,
		one[1:]:                       nil,
		one + "\n" + one[1:]:          nil,
		one + "\n" + two + "\n" + one: nil,
	} {
		keys, err := peer.ParseKeys("FILE", []byte(text))
		if want == nil {
			if !errors.Is(err, schema.ErrInvalid) || strings.Contains(err.Error(), one[:8]) {
				t.Errorf("%q: %v, want that it is invalid, and nothing of a key", text, err)
			}
			continue
		}
		if err != nil || len(*keys) != len(want) {
			t.Errorf("%q: %q, %v", text, keys, err)
			continue
		}
		for i := range want {
			if string((*keys)[i]) != want[i] {
				t.Errorf("%q: key %d is %q, want %q", text, i, (*keys)[i], want[i])
			}
		}
	}
}

// Keys change with their file. A wrong or missing file changes nothing. No key is in the
// log.
func TestKeysFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cluster.key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, second := strings.Repeat("first", 8), strings.Repeat("second", 8)
	write(first + "\n")
	log := &lockedBuffer{}
	f, err := openKeys(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	held := peer.NewKeys(*f.Current().Load()...)
	changed := func() (yes bool) {
		for range 3 { // a new text counts after it was read twice
			if f.Check(t.Context()) {
				held.Set(*f.Current().Load()...)
				yes = true
			}
		}
		return yes
	}
	if !held.Any() || changed() {
		t.Error("a file that has not changed has changed the keys")
	}
	for _, test := range []struct {
		text    string
		changes bool
	}{{first + "\n" + second, true}, {second + "\n" + first, true}, {"short", false}, {"", false}, {second, true}} {
		write(test.text)
		if got := changed(); got != test.changes {
			t.Errorf("%d characters change the keys: %v, want %v", len(test.text), got, test.changes)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if changed() || !held.Any() {
		t.Error("a file that is gone has changed the keys")
	}
	if text := log.String(); strings.Contains(text, first[:5]) || strings.Contains(text, second[:6]) ||
		!strings.Contains(text, "entries=2") {
		t.Errorf("the log says %s", text)
	}
	if _, err := openKeys(path, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file that is not there was opened")
	}
}

func openKeys(path string, log *slog.Logger) (*auth.File[[][]byte], error) {
	return auth.OpenFile("keys of the cluster", path, peer.ParseKeys, func(keys *[][]byte) int { return len(*keys) }, nil, log)
}

package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch/operators/program"
)

// kinds are files as Pillow and tifffile write them: tests/own_images.py has made them.
func kinds(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/kinds/*")
	if err != nil || len(names) < 80 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	all := map[string][]byte{}
	for _, n := range names {
		if all[filepath.Base(n)], err = os.ReadFile(n); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestKinds checks that each file decodes to the pixels of its library, or is refused by
// name as unsupported and not as damaged.
func TestKinds(t *testing.T) {
	text, err := os.ReadFile("testdata/kinds.json")
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]string
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	files := kinds(t)
	if len(files) != len(want) {
		t.Fatalf("%d files, and sums of %d", len(files), len(want))
	}
	p := compiledOf(t, `[{"name":"Decode"}]`)
	for name, cell := range files {
		if len(want[name]) == 2*sha256.Size {
			holdsBound(t, cell)
		}
		out, _, err := result(p, cell, program.Draws{})
		if len(want[name]) != 2*sha256.Size {
			if !errors.Is(err, program.ErrNotSupported) || errors.Is(err, program.ErrDamaged) ||
				!strings.Contains(err.Error(), want[name]) {
				t.Errorf("%s: %v, want it refused as %q", name, err, want[name])
			}
			continue
		}
		if sum := sha256.Sum256(out); err != nil || hex.EncodeToString(sum[:]) != want[name] {
			t.Errorf("%s: other pixels, %v", name, err)
		}
		// A file that ends early is an error, or is decoded partly, within the counted memory.
		for n := 0; n < len(cell); n += 1 + len(cell)/40 {
			hostile(t, p, cell[:n:n], 0)
		}
	}
}

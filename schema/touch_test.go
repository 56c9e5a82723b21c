package schema

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// touched is a page by its method alone: where the compiler knows what is called it may put another copy of it there.
var touched interface{ Touch() error }

// Touch reports a page of a file that cannot be read, wherever it is in the rows' memory.
func TestTouch(t *testing.T) {
	const pages = 3
	size := pages * os.Getpagesize()
	path := filepath.Join(t.TempDir(), "cut")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}()
	touched = &Page{blob: NewBlob(mem, nil)}
	defer func() { touched = nil }()
	for left := pages; left >= 0; left-- {
		if err := os.Truncate(path, int64(left*os.Getpagesize())); err != nil {
			t.Fatal(err)
		}
		switch err := touched.Touch(); {
		case left == pages && err != nil:
			t.Error(err)
		case left < pages && (!errors.Is(err, ErrDataLoss) || !strings.Contains(err.Error(), path)):
			t.Errorf("with %d of %d pages: %v; want a data loss that names %s", left, pages, err, path)
		}
	}
}

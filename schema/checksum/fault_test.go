package checksum

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// A page that cannot be read is a panic, wherever it is in the bytes, and no more is
// written than was read.
func TestFault(t *testing.T) {
	page := os.Getpagesize()
	size := 20 * page
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
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	faults := func(what func()) (yes bool) {
		defer func() { yes = recover() != nil }()
		what()
		return false
	}
	for left := 20; left >= 0; left-- {
		if err := os.Truncate(path, int64(left*page)); err != nil {
			t.Fatal(err)
		}
		to := make([]byte, size)
		for name, what := range map[string]func(){
			"Of":   func() { Sum(mem, nil) },
			"Copy": func() { Copy(to, mem, nil) },
		} {
			if got, want := faults(what), left < 20; got != want {
				t.Errorf("%s of 20 pages of which %d are there panics: %v, want %v", name, left, got, want)
			}
		}
		// The next bytes are prefetched, and not read.
		if faults(func() { Sum(to, mem); Copy(make([]byte, size), to, mem) }) {
			t.Errorf("the %d pages that are there of the next bytes were read", left)
		}
	}
}

package schema_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// mapFile makes a file of n bytes, and maps it until the test ends.
func mapFile(t *testing.T, n int) (path string, mem []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	mem, err = unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	})
	return path, mem
}

// sink keeps reads from being left out; nowhere and nothing are what no linter can know to be nil.
var (
	sink    byte
	nowhere *[8]byte
	nothing []byte
)

func TestGuard(t *testing.T) {
	path, mem := mapFile(t, 3*os.Getpagesize())
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	at := 2*os.Getpagesize() + 5
	read := func() error { sink = mem[at]; return nil }
	requireLoss := func(err error) {
		t.Helper()
		if !errors.Is(err, schema.ErrDataLoss) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v; want a data loss that names %s", err, path)
		}
	}
	requireLoss(schema.Guard(read))
	requireLoss(schema.Guard(func() error {
		requireLoss(schema.Guard(read)) // and the outer one still holds
		return read()
	}))
	ref := schema.RefOf(make([]byte, len(mem)))
	err := ref.Check(mem)
	requireLoss(err)
	if !strings.Contains(err.Error(), ref.Key.String()) {
		t.Errorf("%v does not name the blob %s", err, ref.Key)
	}

	want := errors.New("an error of its own")
	if err := schema.Guard(func() error { return want }); err != want { //nolint:errorlint // the very same
		t.Errorf("got %v, want %v", err, want)
	}
}

// TestGuardPassesPanics requires that what is no fault of a file stays a panic.
func TestGuardPassesPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"a panic":       func() { panic("a defect") },
		"a nil pointer": func() { sink = nowhere[3] },
		"an index":      func() { sink = nothing[len(os.Args)] },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it did not panic")
				}
			}()
			_ = schema.Guard(func() error { f(); return nil })
		})
	}
}

func BenchmarkGuard(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if err := schema.Guard(func() error { sink++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

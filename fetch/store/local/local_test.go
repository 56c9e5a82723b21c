package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"bowstring/fetch/store"
	"bowstring/internal/storetest"
	"bowstring/schema"
	"bowstring/spill/segment"
)

func TestConformance(t *testing.T) {
	for name, size := range map[string]int64{"one segment": 0, "many segments": 256 << 10} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t testing.TB) storetest.Opener {
				dir := t.TempDir()
				return func() (store.Store, error) { return Open(dir, Options{SegmentBytes: size}) }
			})
		})
	}
}

func openTest(t testing.TB, dir string, opts Options) *Store {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tree lists a directory with the sizes of its files.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(&b, path, info.Size(), info.ModTime())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		kind  error
		says  []string
	}{
		"somebody else's files": {map[string]string{"photo.jpg": "x"}, schema.ErrInvalid,
			[]string{"not a Bowstring store", "photo.jpg"}},
		"a newer format": {map[string]string{"FORMAT": `{"format":"bowstring-local","version":3}`}, schema.ErrInvalid,
			[]string{"version 3", "reads version 2"}},
		"another format": {map[string]string{"FORMAT": `{"format":"something","version":1}`}, schema.ErrInvalid,
			[]string{"not a Bowstring store"}},
		"no format": {map[string]string{"FORMAT": "?"}, schema.ErrInvalid, []string{"not a Bowstring store"}},
		"segments without a catalog": {map[string]string{
			"FORMAT": `{"format":"bowstring-local","version":2}`, "segments/00000000.seg": "x",
		}, schema.ErrDataLoss, []string{"pebble"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range c.files {
				path := filepath.Join(dir, file)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, dir)
			_, err := Open(dir, Options{})
			if !errors.Is(err, c.kind) {
				t.Fatalf("got %v, want %v", err, c.kind)
			}
			for _, word := range append(c.says, dir) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
			if after := tree(t, dir); after != before {
				t.Errorf("the directory was changed from\n%s to\n%s", before, after)
			}
		})
	}
}

// TestInterruptedCreation opens what the making of a store leaves when it is
// killed between two steps.
func TestInterruptedCreation(t *testing.T) {
	for name, files := range map[string][]string{"locked": {"LOCK"}, "format begun": {"LOCK", "FORMAT.tmp"}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range files {
				if err := os.WriteFile(filepath.Join(dir, f), []byte("{"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := openTest(t, dir, Options{})
			if _, err := importSource(t.Context(), s, "d", "x", func(string) {}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	c := startChild(t, "hold", dir, 0)
	refused := func(words ...string) {
		t.Helper()
		_, err := Open(dir, Options{})
		if !errors.Is(err, schema.ErrUnavailable) {
			t.Fatalf("got %v, want %v", err, schema.ErrUnavailable)
		}
		host, _ := os.Hostname()
		for _, word := range append(words, dir, fmt.Sprint(c.cmd.Process.Pid), host, os.Args[0], "--server") {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the error %q does not say %q", err, word)
			}
		}
	}
	c.until(t, func(line string) bool { return line == "open" })
	refused()
	c.until(t, func(line string) bool { return line == "serving" })
	refused("--server grpc://127.0.0.1:7777")
	c.kill(t, func(string) {})
	// The content that a dead process left in the file does not matter.
	stale, err := os.ReadFile(filepath.Join(dir, lockFile))
	if err != nil || !json.Valid(stale) {
		t.Fatalf("the lock file holds %q, %v", stale, err)
	}
	s := openTest(t, dir, Options{})
	if _, err := Open(dir, Options{}); !errors.Is(err, schema.ErrUnavailable) ||
		!strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("opened twice by one process: %v", err)
	}
	if _, err := s.Datasets(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDiskFull(t *testing.T) {
	free := int64(100 << 20)
	s := openTest(t, t.TempDir(), Options{KeepFree: 64 << 20, free: func(*os.File) (int64, error) { return free, nil }})
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	snap, err := storetest.Put(t.Context(), in, sourceBlobs("x"), 5)
	if err != nil {
		t.Fatal(err)
	}
	snap.Source = "x"
	free = 64 << 20
	_, err = in.Put(t.Context(), make([]byte, 32<<20))
	if !errors.Is(err, schema.ErrLimit) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("put on a full disk: %v", err)
	}
	// Blobs put before can still be committed.
	if _, err := in.Commit(t.Context(), snap); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	requireWhole(t, s)
	requireExact(t, s)
}

// TestLeftovers opens a store in which a collection was killed before it
// unlinked a segment, and one with a segment from nowhere.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := importSource(t.Context(), s, "d", "x", func(string) {}); err != nil {
		t.Fatal(err)
	}
	segments := filepath.Join(dir, segmentsDir)
	image, err := os.ReadFile(filepath.Join(segments, segment.FileName(0)))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const alien = 900
	for _, id := range []uint32{0, alien} {
		if err := os.WriteFile(filepath.Join(segments, segment.FileName(id)), image, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// At each open: the number of the one from nowhere is below that of the next segment then.
	for i := range 3 {
		if s, err = Open(dir, testOptions()); err != nil {
			t.Fatal(err)
		}
		if _, err := importSource(t.Context(), s, "d", fmt.Sprint("y", i), func(string) {}); err != nil {
			t.Fatal(err)
		}
		requireWhole(t, s)
		ids, err := segment.List(segments)
		if err != nil || ids[0] != alien || ids[len(ids)-1] <= alien {
			t.Errorf("the segments are %v, %v; want the unknown one and new ones above it, and not the one "+
				"that was freed", ids, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReadingWritesNothing opens and reads a store that was left clean.
func TestReadingWritesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := importSource(t.Context(), s, "d", "x", func(string) {}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, filepath.Join(dir, segmentsDir))
	s = openTest(t, dir, testOptions())
	requireWhole(t, s)
	if s.writable.Load() {
		t.Error("reading marked the store as changed")
	}
	if after := tree(t, filepath.Join(dir, segmentsDir)); after != before {
		t.Errorf("the segments were changed from\n%s to\n%s", before, after)
	}
}

func BenchmarkPut(b *testing.B) {
	s := openTest(b, b.TempDir(), Options{SegmentBytes: 256 << 20})
	in, err := s.Begin(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 110_000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		copy(data, fmt.Sprint(n))
		if _, err := in.Put(b.Context(), data); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if err := in.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkGet(b *testing.B) {
	s := openTest(b, b.TempDir(), Options{})
	in, err := s.Begin(b.Context(), "bench")
	if err != nil {
		b.Fatal(err)
	}
	refs := make([]schema.BlobRef, 1000)
	data := make([]byte, 110_000)
	for i := range refs {
		copy(data, fmt.Sprint(i))
		if refs[i], err = in.Put(b.Context(), data); err != nil {
			b.Fatal(err)
		}
	}
	if err := in.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		blob, err := s.Get(b.Context(), refs[n%len(refs)])
		if err != nil {
			b.Fatal(err)
		}
		blob.Release()
	}
}

// A closed store can be opened at once, though a child that was just forked
// still has the lock's open file.
func TestCloseReleasesTheLockForChildrenToo(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Dup(int(s.lock.file.Fd())) // as fork does
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

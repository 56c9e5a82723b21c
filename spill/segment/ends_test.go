package segment

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/schema"
)

// mappings counts the mappings of a directory's files.
func mappings(t *testing.T, dir string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return strings.Count(string(maps), dir)
}

func TestRetireUnderPins(t *testing.T) {
	s, dir := newSet(t, Options{MaxBytes: 1 << 20})
	data := content("pinned", 200_000)
	loc := appendBlob(t, s, data)
	if err := s.Retire(loc.Segment); !errors.Is(err, schema.ErrInvalid) {
		t.Fatalf("retiring the active segment: %v", err)
	}
	s.Roll()
	a, err := s.Get(loc)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Get(loc)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Retire(loc.Segment); err != nil {
		t.Fatal(err)
	}
	if ids, err := List(dir); err != nil || len(ids) != 0 {
		t.Errorf("files of segments %v are left, %v", ids, err)
	}
	if _, err := s.Get(loc); !errors.Is(err, ErrRetired) {
		t.Errorf("reading from a retired segment: %v", err)
	}
	if !bytes.Equal(a.Bytes(), data) {
		t.Error("the pinned bytes changed")
	}
	a.Release()
	a.Release() // does nothing
	if !bytes.Equal(b.Bytes(), data) || mappings(t, dir) != 1 {
		t.Error("the segment was unmapped before its last unpin")
	}
	b.Release()
	if n := mappings(t, dir); n != 0 {
		t.Errorf("%d mappings are left after the last release", n)
	}
}

func TestCloseUnderPins(t *testing.T) {
	s, dir := newSet(t, Options{})
	data := content("pinned", 100_000)
	loc := appendBlob(t, s, data)
	b, err := s.Get(loc)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	if !bytes.Equal(b.Bytes(), data) {
		t.Error("the pinned bytes changed")
	}
	if _, err := s.Append(schema.Key{}, 0, nil); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("append after close: %v", err)
	}
	b.Release()
	if n := mappings(t, dir); n != 0 {
		t.Errorf("%d mappings are left after the last release", n)
	}
}

// TestPinsRace has readers race with the retirement of what they read.
func TestPinsRace(t *testing.T) {
	s, dir := newSet(t, Options{MaxBytes: 1 << 20})
	data := content("raced for", 10_000)
	for range 50 {
		loc := appendBlob(t, s, data)
		s.Roll()
		var g errgroup.Group
		for range 4 {
			g.Go(func() error {
				for {
					b, err := s.Get(loc)
					if errors.Is(err, ErrRetired) {
						return nil
					} else if err != nil {
						return err
					}
					ok := bytes.Equal(b.Bytes(), data)
					b.Release()
					if !ok {
						return errors.New("wrong bytes")
					}
				}
			})
		}
		if err := s.Retire(loc.Segment); err != nil {
			t.Fatal(err)
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	if n := mappings(t, dir); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

// TestVanishedPages reads where the file has no page any more: an error, where
// touching the mapping would kill the process.
func TestVanishedPages(t *testing.T) {
	s, dir := newSet(t, Options{})
	loc := appendBlob(t, s, content("gone", 100_000))
	if err := os.Truncate(filepath.Join(dir, FileName(loc.Segment)), 4096); err != nil {
		t.Fatal(err)
	}
	b, err := s.Get(loc)
	if err == nil {
		b.Release()
		t.Fatal("a blob whose pages are gone was handed out")
	}
	// Beyond what was ever written.
	for _, loc := range []Location{{loc.Segment, 1 << 20, 10}, {loc.Segment, 0, 10}, {loc.Segment, 64, -1},
		{loc.Segment, 64, 1 << 40}} {
		if _, err := s.Get(loc); !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("reading %+v: %v", loc, err)
		}
		if s.Holds(loc) {
			t.Errorf("the set claims to hold %+v", loc)
		}
	}
}

func TestFailedWriteLeavesVoid(t *testing.T) {
	s, dir := newSet(t, Options{})
	first := appendBlob(t, s, content("first", 1000))
	g := s.Segment(first.Segment)

	// A descriptor that cannot be written to.
	file := g.file
	readOnly, err := os.Open(filepath.Join(dir, FileName(first.Segment)))
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	s.mu.Lock()
	g.reserved = 1 << 20 // no allocation on it
	s.mu.Unlock()
	g.file = readOnly
	if _, err := s.Append(schema.Key{}, 0, make([]byte, 5000)); err == nil {
		t.Fatal("a write to a read-only file succeeded")
	}
	if err := s.Sync(); err == nil {
		t.Fatal("a sync that could not mark the failed write succeeded")
	}
	g.file = file
	second := content("second", 2000)
	loc := appendBlob(t, s, second)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if g.Durable() != g.Size() {
		t.Errorf("%d of %d bytes are durable", g.Durable(), g.Size())
	}
	var void, good int
	for rec, err := range g.Scan(ScanOptions{Payloads: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Void {
			void++
		} else {
			good++
		}
	}
	if void != 1 || good != 2 {
		t.Errorf("the scan found %d good and %d void records, want 2 and 1", good, void)
	}
	requireBlob(t, s, loc, second)
}

func TestDiskFull(t *testing.T) {
	free := int64(1 << 20)
	s, _ := newSet(t, Options{KeepFree: 1000, Free: func(*os.File) (int64, error) { return free, nil }})
	small := content("small", 1000)
	loc := appendBlob(t, s, small)
	_, err := s.Append(schema.Key{}, 0, make([]byte, 2<<20))
	if !errors.Is(err, schema.ErrLimit) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append beyond the free space: %v", err)
	}
	free = 2200
	// Just enough.
	appendBlob(t, s, small)
	_, err = s.Append(schema.Key{}, 0, make([]byte, 1<<20))
	if !errors.Is(err, schema.ErrLimit) {
		t.Fatalf("append into the reserve: %v", err)
	}
	free = 1 << 30
	appendBlob(t, s, make([]byte, 2<<20))
	requireBlob(t, s, loc, small)
}

package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// disk is a segment directory's disk, which fails on request.
type disk struct {
	fails []segment.Op
	seen  []segment.Op
}

func (d *disk) fault(op segment.Op, _ string) error {
	d.seen = append(d.seen, op)
	if slices.Contains(d.fails, op) {
		return syscall.EIO
	}
	return nil
}

// TestFailedSyncIsNotForgotten commits, makes a sync fail, and opens the store again under the same kernel, which
// counts the pages that it failed to store as stored. Unsynced data is written again before a blob is deduplicated
// onto it, or is not trusted.
func TestFailedSyncIsNotForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		lost  bool         // the kernel has dropped the pages: the file has the disk's content
		fails []segment.Op // when the store is opened again
		reuse bool         // whether the first written bytes are used
	}{
		"pages that are still there": {reuse: true},
		"pages that are gone":        {lost: true},
		"a disk that fails to write": {fails: []segment.Op{segment.OpWrite}},
		"a disk that fails to sync":  {fails: []segment.Op{segment.OpSync}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, d := t.TempDir(), &disk{}
			opts := testOptions()
			opts.SegmentBytes, opts.boot, opts.fault = 0, "one", d.fault
			s, err := Open(dir, opts)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := importSource(t.Context(), s, "d", "kept", func(string) {}); err != nil {
				t.Fatal(err)
			}
			d.fails = []segment.Op{segment.OpSync}
			if _, err := importSource(t.Context(), s, "d", "failed", func(string) {}); !errors.Is(err, syscall.EIO) {
				t.Fatalf("a commit whose sync fails: %v", err)
			}
			ref := schema.RefOf(sourceBlobs("failed")[1])
			first, _, err := s.entry(ref.Key)
			if err != nil {
				t.Fatal(err)
			}
			durable := s.set.Segments()[0].Durable()
			if err := s.Close(); !errors.Is(err, syscall.EIO) {
				t.Fatalf("a close after a sync has failed: %v", err)
			}
			if c.lost {
				zero(t, filepath.Join(dir, segmentsDir, segment.FileName(first.Segment)), durable)
			}

			d.fails, d.seen = c.fails, nil
			if s, err = Open(dir, opts); err != nil {
				t.Fatal(err)
			}
			in, err := s.Begin(t.Context(), "d")
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(d.seen, segment.OpWrite) {
				t.Error("what was not synced was not written again")
			}
			d.fails = nil // the disk is well from now on
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := importSource(t.Context(), s, "d", "failed", func(string) {}); err != nil {
				t.Fatal(err)
			}
			requireWhole(t, s)
			again, _, err := s.entry(ref.Key)
			if err != nil || (again.Location == first.Location) != c.reuse {
				t.Errorf("the blob is at %+v and was at %+v, %v; used again: want %v", again.Location, first.Location,
					err, c.reuse)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// zero overwrites a file from an offset on.
func zero(t *testing.T, path string, from int64) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(make([]byte, st.Size()-from), from)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestModes requires that only the owner can read a store.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openTest(t, dir, testOptions())
	if _, err := importSource(t.Context(), s, "d", "x", func(string) {}); err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"", "*", segmentsDir + "/*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %s, %v", path, st.Mode(), err)
			}
		}
	}
}

package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"bowstring/fetch/store"
	"bowstring/internal/storetest"
	"bowstring/schema"
	"bowstring/spill/segment"
)

func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 4
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// TestFlippedPayload damages committed blobs on disk: their references detect it, Verify finds them, and a collection
// carries them along without hiding it.
func TestFlippedPayload(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions()
	opts.SegmentBytes = 0
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	snap, err := importSource(t.Context(), s, "d", "flipped", func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"dropped", "dropped too"} {
		if _, err := importSource(t.Context(), s, "e", source, func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	data := sourceBlobs("flipped")[1]
	ref := schema.RefOf(data)
	e, ok, err := s.entry(ref.Key)
	if err != nil || !ok {
		t.Fatal(err)
	}
	flip(t, filepath.Join(dir, segmentsDir, segment.FileName(e.Segment)), e.Offset+int64(len(data)/2))
	check := func() {
		t.Helper()
		b, err := s.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		if err := ref.Check(b.Bytes()); !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("the check of a damaged blob says %v", err)
		}
		if _, err := storetest.Read(t.Context(), s, snap); !errors.Is(err, schema.ErrDataLoss) {
			t.Errorf("reading the snapshot says %v", err)
		}
		v, err := s.Verify(t.Context(), nil)
		if err != nil || len(v.Damaged) != 1 || v.Damaged[0] != ref.Key {
			t.Errorf("verify found %v, %v", v.Damaged, err)
		}
	}
	check()
	if err := s.Drop(t.Context(), "e", 0); err != nil {
		t.Fatal(err)
	}
	r, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if moved, _, err := s.entry(ref.Key); err != nil || moved.Location == e.Location {
		t.Fatalf("the collection did not move the blob: %+v, %v", r, err)
	}
	check()
}

// TestDamagedHeader flips a bit in the header of a live record: the collection
// must keep the segment, because it cannot find all that it holds.
func TestDamagedHeader(t *testing.T) {
	dir := t.TempDir()
	opts := testOptions()
	opts.SegmentBytes = 0
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, d := range []string{"kept", "dropped", "dropped2"} {
		if _, err := importSource(t.Context(), s, d, d, func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	ref := schema.RefOf(sourceBlobs("kept")[1])
	e, _, err := s.entry(ref.Key)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(dir, segmentsDir, segment.FileName(e.Segment)), e.Offset-segment.HeaderSize+9)
	for _, d := range []string{"dropped", "dropped2"} {
		if err := s.Drop(t.Context(), d, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if r, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil || r.FreedBytes != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		requireWhole(t, s)
	}
}

package bucket

import (
	"bytes"
	"errors"
	"testing"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// TestRepair: a damaged blob of a segment is put back by its own bytes alone, the others stay what they are, and what
// cannot be repaired is an error.
func TestRepair(t *testing.T) {
	for name, place := range map[string]func(t *testing.T) string{
		"directory": func(t *testing.T) string { return "file://" + t.TempDir() },
		"server":    func(t *testing.T) string { return at(startServer(t, objecttest.Config{}), "repair") },
	} {
		t.Run(name, func(t *testing.T) {
			url := place(t)
			found(t, url)
			s := open(t, url, testOptions())
			rows := [][]byte{bytes.Repeat([]byte("one"), 300), bytes.Repeat([]byte("two"), 300)}
			in := must(s.Begin(t.Context(), "d"))
			snap, err := storetest.Put(t.Context(), in, rows, 1)
			if err != nil {
				t.Fatal(err)
			}
			ref := must(in.Put(t.Context(), []byte("beside")))
			snap.Parent = 0
			if _, err := in.Commit(t.Context(), snap); err != nil {
				t.Fatal(err)
			}
			if err := s.Repair(t.Context(), ref, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a segment that an ingest has: %v", err)
			}
			if err := in.Close(); err != nil {
				t.Fatal(err)
			}
			a, _ := schema.ParseObjectAddress(ref.Key)
			b := harmed{t, must(object.Open(t.Context(), urlOf(s), testOptions().Bucket))}
			key := s.segmentKey(a.Prefix, a.Object)
			whole, _, err := b.Get(t.Context(), key, schema.ObjectVersion{}, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			bad := bytes.Clone(whole)
			copy(bad[a.Offset:], "BESIDE")
			b.put(key, bad)
			if err := s.Repair(t.Context(), ref, []byte("BESIDE")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("by other bytes: %v", err)
			}
			for range 2 { // the second time nothing is to be done
				if err := s.Repair(t.Context(), ref, []byte("beside")); err != nil {
					t.Fatal(err)
				}
				if now, _, err := b.Get(t.Context(), key, schema.ObjectVersion{}, 1<<30); err != nil || !bytes.Equal(now, whole) {
					t.Fatalf("the segment is not what it was: %v", err)
				}
			}
			if _, got, err := readAll(t, url); err != nil || !bytes.Equal(got[0], rows[0]) || !bytes.Equal(got[1], rows[1]) {
				t.Errorf("what lies beside: %v", err)
			}
			other := ref
			other.Sum++
			if err := s.Repair(t.Context(), other, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a blob that is not there: %v", err)
			}
			b.tear(key, len(whole)-3)
			if err := s.Repair(t.Context(), ref, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a torn segment: %v", err)
			}
			b.remove(key)
			if err := s.Repair(t.Context(), ref, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a segment that is gone: %v", err)
			}
		})
	}
}

// urlOf is the bucket of a store without the store's prefix.
func urlOf(s *Store) string { return s.bucket.URL() }

package local

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// TestGCMoves requires that a mostly dead segment is rewritten, and a mostly
// live one is not.
func TestGCMoves(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{SegmentBytes: 64 << 20})
	size := func() (n int64) {
		for _, g := range s.set.Segments() {
			n += g.Size()
		}
		return n
	}
	for i := range 6 {
		if _, err := importSource(t.Context(), s, fmt.Sprint("d", i), fmt.Sprint(i), func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Drop(t.Context(), "d0", 0); err != nil {
		t.Fatal(err)
	}
	before := size()
	r, err := s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil || r.MovedBytes != 0 || r.FreedBytes != 0 || size() != before {
		t.Fatalf("a segment that is mostly live was moved: %+v, %v", r, err)
	}
	for i := range 3 {
		if err := s.Drop(t.Context(), fmt.Sprint("d", i+1), 0); err != nil {
			t.Fatal(err)
		}
	}
	r, err = s.GC(t.Context(), store.GCOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.MovedBytes != r.LiveBytes || r.FreedBytes <= 0 || size() > before-r.FreedBytes+segment.HeaderSize {
		t.Errorf("%+v, and the segments went from %d to %d bytes", r, before, size())
	}
	requireWhole(t, s)
	requireExact(t, s)
}

// TestGCWaitsForPuts stops a put between its two writes, to the segment and to
// the index, while a collection that frees the segment runs.
func TestGCWaitsForPuts(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	if _, err := importSource(t.Context(), s, "d", "dead", func(string) {}); err != nil {
		t.Fatal(err)
	}
	// Blobs put since the last collection are kept while an ingest is open.
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(t.Context(), "d", 0); err != nil {
		t.Fatal(err)
	}
	in, err := s.Begin(t.Context(), "d")
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("between the two")
	ref := schema.RefOf(data)
	stripe := s.stripe(&ref.Key)
	stripe.Lock()
	loc, err := s.set.Append(ref.Key, ref.Sum, data)
	if err != nil {
		t.Fatal(err)
	}
	collected := make(chan error, 1)
	go func() {
		_, err := s.GC(t.Context(), store.GCOptions{}, nil)
		collected <- err
	}()
	for id, ok := s.set.Active(); ok && id == loc.Segment; id, ok = s.set.Active() {
		runtime.Gosched()
	}
	for range 100_000 { // time enough for a collection that does not wait
		runtime.Gosched()
	}
	e := entry{Location: loc, sum: ref.Sum, touch: 2}
	var key [33]byte
	var value [entrySize]byte
	if err := s.db.Set(blobKey(&key, &ref.Key), e.encode(&value), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	stripe.Unlock()
	if err := errors.Join(<-collected, in.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := s.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if err := ref.Check(b.Bytes()); err != nil {
		t.Fatal(err)
	}
}

package fetch_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"bowstring/fetch"
	"bowstring/schema"
	"bowstring/spill"
)

// rot writes zeros over the files of a spill, from its second block on.
func rot(t *testing.T, dir string) {
	t.Helper()
	names := must(filepath.Glob(filepath.Join(dir, "*", "*.seg")))
	if len(names) == 0 {
		t.Fatal("the spill has no files")
	}
	for _, name := range names {
		f := must(os.OpenFile(name, os.O_RDWR, 0))
		size := must(f.Stat()).Size()
		if _, err := f.WriteAt(make([]byte, size-4<<10), 4<<10); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A stream whose consumer checks marks the blobs that were not checked, with their checksums. A blob that is damaged in
// the spill fails the consumer's check, and Again returns the right one. Streams that leave the checks to the engine
// never deliver the damaged blob, and neither do streams with on_error.
func TestCheckedLate(t *testing.T) {
	store := newStore(t)
	far := newCounted(store, put(t, store, "ds", 300))
	cache, future, dir := newSpill(t, spill.MinBytes+(16<<20))
	e := newEngine(t, far, fetch.Options{Spill: cache, Future: future, NoHedge: true})
	req := shuffled("ds", 1, 0)
	drain(t, e, open(t, e, req), ticket(req, 0))
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })

	// read returns how many blobs came unchecked, and how many of them were wrong.
	read := func(req schema.Request) (unchecked, wrong int) {
		t.Helper()
		j := open(t, e, req)
		s := must(e.Serve(t.Context(), j, ticket(req, 0), fetch.Serving{CheckedLate: true}))
		defer s.Close()
		for b := range batches(t, s) {
			pixels := &b.Columns[0].Buffers[2]
			if pixels.Unchecked == nil {
				compare(t, j, b)
			} else if len(pixels.Unchecked) != len(pixels.Pieces) {
				t.Fatalf("%d of %d pieces are unchecked", len(pixels.Unchecked), len(pixels.Pieces))
			}
			for i, u := range pixels.Unchecked {
				unchecked++
				ref, ok := refAt(t, j, b.Positions[u.Row])
				if !ok || ref != u.Ref {
					t.Fatalf("row %d has to be %v; it is to be %v", u.Row, ref, u.Ref)
				}
				if u.Ref.Check(pixels.Pieces[i]) == nil {
					continue
				}
				wrong++
				again, err := b.Again(t.Context(), u.Row, u.Ref)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(again.Bytes(), content(int(b.Positions[u.Row]))) {
					t.Errorf("position %d is wrong again", b.Positions[u.Row])
				}
				again.Release()
			}
			b.Release()
		}
		return unchecked, wrong
	}
	if unchecked, wrong := read(shuffled("ds", 1, 1)); unchecked != images || wrong != 0 {
		t.Fatalf("%d blobs came unchecked and %d wrong; want %d and none", unchecked, wrong, images)
	}
	far.reads.Store(0)
	rot(t, dir)
	req = shuffled("ds", 1, 2)
	req.OnError = schema.OnErrorNull
	if unchecked, _ := read(req); unchecked != 0 {
		t.Errorf("%d blobs came unchecked to a stream that makes nulls of what cannot be read", unchecked)
	}
	if n := far.reads.Load(); n == 0 {
		t.Fatal("nothing has rotten")
	}
	// All was read from the store, and is stored anew.
	until(t, "all is in the spill", func() bool { return cache.Stats().Entries == images })
	rot(t, dir)
	far.reads.Store(0)
	_, wrong := read(shuffled("ds", 1, 3))
	if wrong == 0 || far.reads.Load() < int64(wrong) {
		t.Errorf("%d blobs were wrong, %d were read from the store", wrong, far.reads.Load())
	}
	rot(t, dir)
	req = shuffled("ds", 1, 4)
	drain(t, e, open(t, e, req), ticket(req, 0)) // which compares
}

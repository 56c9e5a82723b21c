package local

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill/segment"
)

// read returns a blob's bytes, copied.
func read(t *testing.T, s *Store, ref schema.BlobRef) ([]byte, error) {
	t.Helper()
	b, err := s.Get(t.Context(), ref)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	return append([]byte(nil), b.Bytes()...), nil
}

// A blob whose place is cached because it was read is collected: it is not found any more, though the segment with
// its bytes still exists.
func TestPlaceOfCollected(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	for _, source := range []string{"live1", "live2", "live3", "dead"} {
		if _, err := importSource(t.Context(), s, source, source, func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	dead, live := schema.RefOf(sourceBlobs("dead")[1]), schema.RefOf(sourceBlobs("live2")[1])
	for range 2 {
		for _, ref := range []schema.BlobRef{dead, live} {
			if b, err := read(t, s, ref); err != nil || ref.Check(b) != nil {
				t.Fatal("a blob is not what it was", err)
			}
			if _, _, ok := s.places.find(&ref.Key); !ok {
				t.Fatal("a blob that was read is not known")
			}
		}
	}
	e, _, err := s.entry(dead.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Drop(t.Context(), "dead", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if !s.set.Holds(e.Location) {
		t.Fatal("the bytes are gone, too: this shows nothing")
	}
	if _, err := read(t, s, dead); !errors.Is(err, schema.ErrNotFound) {
		t.Errorf("a collected blob: %v", err)
	}
	if b, err := read(t, s, live); err != nil || live.Check(b) != nil {
		t.Errorf("a blob beside it: %v", err)
	}
}

// A blob whose segment was moved is found at its new place.
func TestPlaceOfMoved(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{SegmentBytes: 64 << 20})
	for i := range 4 {
		if _, err := importSource(t.Context(), s, fmt.Sprint("d", i), fmt.Sprint(i), func(string) {}); err != nil {
			t.Fatal(err)
		}
	}
	ref := schema.RefOf(sourceBlobs("3")[1])
	if _, err := read(t, s, ref); err != nil {
		t.Fatal(err)
	}
	before, _, _ := s.places.find(&ref.Key)
	for i := range 3 {
		if err := s.Drop(t.Context(), fmt.Sprint("d", i), 0); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.GC(t.Context(), store.GCOptions{}, nil); err != nil || r.MovedBytes == 0 {
		t.Fatalf("nothing was moved: %+v, %v", r, err)
	}
	for range 2 {
		if b, err := read(t, s, ref); err != nil || ref.Check(b) != nil {
			t.Fatal("a moved blob is not what it was", err)
		}
	}
	if after, _, ok := s.places.find(&ref.Key); !ok || after == before {
		t.Errorf("its known place is %v, as before: %t", after, ok)
	}
}

// A damaged blob that was read, and repaired, is the repaired one.
func TestPlaceOfRepaired(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir, Options{})
	if _, err := importSource(t.Context(), s, "d", "repaired", func(string) {}); err != nil {
		t.Fatal(err)
	}
	data := sourceBlobs("repaired")[1]
	ref := schema.RefOf(data)
	e, _, err := s.entry(ref.Key)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, filepath.Join(dir, segmentsDir, segment.FileName(e.Segment)), e.Offset+int64(len(data)/2))
	if b, err := read(t, s, ref); err != nil || ref.Check(b) == nil {
		t.Fatal("the blob is not damaged", err)
	}
	if err := s.Repair(t.Context(), ref, data); err != nil {
		t.Fatal(err)
	}
	if b, err := read(t, s, ref); err != nil || ref.Check(b) != nil {
		t.Error("the blob is still damaged", err)
	}
}

// A reader's look-up from before a change of the index is not cached after it.
func TestPlaceSeenBeforeChange(t *testing.T) {
	var p places
	key := schema.Key(sha256.Sum256([]byte("a")))
	_, seen, _ := p.find(&key)
	p.forget(&key)
	p.put(&key, segment.Location{Segment: 1}, seen)
	if at, _, ok := p.find(&key); ok {
		t.Errorf("a place %v from before the change is known", at)
	}
	_, seen, _ = p.find(&key)
	p.put(&key, segment.Location{Segment: 2}, seen)
	if at, _, ok := p.find(&key); !ok || at.Segment != 2 {
		t.Errorf("the place after the change is %v, known: %t", at, ok)
	}
}

// Whatever readers and changes do at once: while none is half way, a place that is known is the index's, and there are no
// more than there may be.
func TestPlacesFollowIndex(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var p places
	var mu sync.Mutex // of index, as stripes are
	index := map[schema.Key]uint32{}
	keys := make([]schema.Key, 3*placesEach) // one shard's, more than it has room for
	for i := range keys {
		keys[i] = sha256.Sum256([]byte(fmt.Sprint(i)))
		keys[i][0] = placeShards + 1
		index[keys[i]] = 0
	}
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 10_000 {
				key := keys[rng.IntN(len(keys))]
				if rng.IntN(2) == 0 {
					key = keys[rng.IntN(4)] // that others are at, too
				}
				if rng.IntN(4) == 0 {
					mu.Lock()
					index[key]++
					p.forget(&key)
					mu.Unlock()
					continue
				}
				mu.Lock()
				at, _, ok := p.find(&key)
				now := index[key]
				mu.Unlock()
				if ok && at.Segment != now {
					t.Errorf("the %d. change is known of a blob that had %d", at.Segment, now)
					return
				}
				if ok {
					continue
				}
				_, seen, _ := p.find(&key)
				mu.Lock()
				now = index[key]
				mu.Unlock()
				runtime.Gosched() // others may change it now
				p.put(&key, segment.Location{Segment: now}, seen)
			}
		})
	}
	all.Wait()
	known := 0
	for _, key := range keys {
		if _, _, ok := p.find(&key); ok {
			known++
		}
	}
	if known == 0 || known > placesEach {
		t.Errorf("%d places are known of at most %d", known, placesEach)
	}
}

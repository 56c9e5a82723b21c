package bucket

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/object"
	"bowstring/internal/objecttest"
	"bowstring/internal/storetest"
	"bowstring/schema"
)

// TestRepair: a damaged blob of a segment is repaired by its own bytes alone, the others
// stay what they are, and a blob that cannot be repaired is an error. In a torn or
// missing segment, repaired blobs can be read.
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
				t.Errorf("the other blob: %v", err)
			}
			other := ref
			other.Sum++
			if err := s.Repair(t.Context(), other, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a blob that is not there: %v", err)
			}
			again := func(what string, refs ...schema.BlobRef) {
				t.Helper()
				for _, ref := range refs {
					a, _ := schema.ParseObjectAddress(ref.Key)
					if err := s.Repair(t.Context(), ref, whole[a.Offset:a.Offset+ref.Size]); err != nil {
						t.Fatalf("%s: %v", what, err)
					}
				}
				now, _, err := b.Get(t.Context(), key, schema.ObjectVersion{}, 1<<30)
				if err != nil {
					t.Fatal(err)
				}
				entries, err := s.readIndex(t.Context(), a.Prefix, a.Object, int64(len(now)))
				if err != nil || len(entries) < len(refs) {
					t.Errorf("%s: the segment has %d blobs, %v", what, len(entries), err)
				}
				if _, got, err := readAll(t, url); err != nil || !bytes.Equal(got[0], rows[0]) || !bytes.Equal(got[1], rows[1]) {
					t.Errorf("%s: the rows: %v", what, err)
				}
			}
			entries := must(s.readIndex(t.Context(), a.Prefix, a.Object, int64(len(whole))))
			var refs, behind []schema.BlobRef
			for _, e := range entries {
				refs = append(refs, e.ref(a.Prefix, a.Object))
				if e.offset+e.size > a.Offset {
					behind = append(behind, e.ref(a.Prefix, a.Object))
				}
			}
			b.tear(key, len(whole)-3)
			again("without its end", ref)
			b.tear(key, int(a.Offset)+2)
			again("torn within a blob", behind...)
			b.tear(key, 5)
			again("nearly nothing of it", refs...)
			b.remove(key)
			again("gone", refs...)
			b.remove(key)
			var g errgroup.Group
			for _, ref := range refs {
				a, _ := schema.ParseObjectAddress(ref.Key)
				g.Go(func() error { return s.Repair(t.Context(), ref, whole[a.Offset:a.Offset+ref.Size]) })
			}
			if err := g.Wait(); err != nil {
				t.Error(err)
			}
			again("gone, and put back by many at once", refs...)
			if now := must(s.readIndex(t.Context(), a.Prefix, a.Object, sizeOf(t, b, key))); len(now) != len(refs) {
				t.Errorf("it has %d blobs of %d", len(now), len(refs))
			}
			if err := s.Repair(t.Context(), other, []byte("beside")); !errors.Is(err, schema.ErrInvalid) {
				t.Errorf("of a blob that is not there, in a segment that was made anew: %v", err)
			}
		})
	}
}

// TestRepairCancelled: a cancelled call may reuse its bytes at once, even though another
// call is about to write them.
func TestRepairCancelled(t *testing.T) {
	url := "file://" + t.TempDir()
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
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	a, _ := schema.ParseObjectAddress(ref.Key)
	key := s.segmentKey(a.Prefix, a.Object)
	harmed{t, must(object.Open(t.Context(), urlOf(s), testOptions().Bucket))}.remove(key)

	own := &piece{entry: entry{offset: headerSize, sum: schema.Checksum(nil)}}
	g := s.repairs.join(key, own)
	defer s.repairs.quit(key, g, own)
	g.turn <- struct{}{}
	defer func() { <-g.turn }()
	ctx, cancel := context.WithCancel(t.Context())
	data, back := []byte("beside"), make(chan error)
	go func() { back <- s.Repair(ctx, ref, data) }()
	list := s.repairs.take(g, own)
	for ; len(list) < 2; list = s.repairs.take(g, own) {
		runtime.Gosched()
	}
	cancel()
	if err := <-back; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	copy(data, "REUSED")
	if err := s.rewrite(t.Context(), a.Prefix, a.Object, list); err != nil {
		t.Fatal(err)
	}
	b, err := s.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if !bytes.Equal(b.Bytes(), []byte("beside")) {
		t.Errorf("the blob is %q", b.Bytes())
	}
}

func sizeOf(t *testing.T, b object.Bucket, key string) int64 {
	t.Helper()
	return must(b.Stat(t.Context(), key)).Size
}

// urlOf is the bucket of a store without the store's prefix.
func urlOf(s *Store) string { return s.bucket.URL() }

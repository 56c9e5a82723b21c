package read_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"bowstring/fetch/read"
	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
)

// A receiver that verifies blobs itself shares any read, or gets an unchecked blob. Other receivers never get an
// unchecked blob.
func TestLateIsSharedOneWay(t *testing.T) {
	far, near := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "spill")
	s, in := newLocal(t, far)
	cache := newSpill(t, near)
	at := spill.Place{Dataset: cache.Dataset("d@1")}
	r := newReader(t, read.Options{NoHedge: true}, read.Spill(cache), read.Store(s))
	data, ref := content(1)
	if _, err := in.Put(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	get := func(late bool) read.Outcome {
		t.Helper()
		to := newOutcomes()
		want(t, r, read.Want{Ref: ref, At: at, To: to, Late: late})
		o := to.next(t)
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		return o
	}
	// Blobs that the spill is to cache are checked before.
	o := get(true)
	if o.Blob.Unchecked() || o.Tier != 1 {
		t.Errorf("from tier %d comes a blob for the spill, unchecked: %t", o.Tier, o.Blob.Unchecked())
	}
	o.Blob.Release()
	until(t, "it is read from the disk", func() bool {
		b, unchecked, ok := cache.GetUnchecked(ref, at)
		b.Release()
		return ok && unchecked
	})

	late := get(true)
	if !late.Blob.Unchecked() || late.Tier != 0 {
		t.Fatalf("tier %d; unchecked: %t", late.Tier, late.Blob.Unchecked())
	}
	too := get(true)
	if &too.Blob.Bytes()[0] != &late.Blob.Bytes()[0] || too.Tier != read.InWindow && too.Tier != 0 ||
		!too.Blob.Unchecked() {
		t.Errorf("tier %d; unchecked: %t", too.Tier, too.Blob.Unchecked())
	}
	// A bit of the file flips while both hold it.
	names, err := filepath.Glob(filepath.Join(near, "*", "*.seg"))
	if err != nil || len(names) == 0 {
		t.Fatal("no segments", err)
	}
	e, ok := late.Blob.Extent()
	if !ok {
		t.Fatal("the blob is in no file")
	}
	flip(t, e.File.Name(), e.Offset+7)
	if ref.Check(late.Blob.Bytes()) == nil {
		t.Fatal("nothing has changed")
	}
	checked := get(false)
	if checked.Blob.Unchecked() || ref.Check(checked.Blob.Bytes()) != nil {
		t.Errorf("who leaves the check to the reader gets wrong bytes of tier %d; unchecked: %t", checked.Tier,
			checked.Blob.Unchecked())
	}
	// By now the spill has dropped it, and checked reads are shared.
	shared := get(true)
	if shared.Blob.Unchecked() || ref.Check(shared.Blob.Bytes()) != nil {
		t.Errorf("from tier %d, unchecked: %t", shared.Tier, shared.Blob.Unchecked())
	}
	for _, o := range []read.Outcome{late, too, checked, shared} {
		o.Blob.Release()
	}
}

// flip changes a byte of a file.
func flip(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	if _, err = f.ReadAt(b[:], at); err == nil {
		b[0] ^= 1
		_, err = f.WriteAt(b[:], at)
	}
	if err2 := f.Close(); err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
}

// turning is a store during whose reads this node becomes the owner.
type turning struct {
	store.Store
	keeps *atomic.Bool
}

func (turning) Traits() store.Traits { return store.Traits{Mapped: true, Replicas: 1} }

func (s turning) Get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	s.keeps.Store(true)
	return s.Store.Get(ctx, ref)
}

// An unchecked blob is not cached, even if ownership changes during the read.
func TestUncheckedIsNotKept(t *testing.T) {
	s, in := newLocal(t, t.TempDir())
	cache := newSpill(t, t.TempDir())
	at := spill.Place{Dataset: cache.Dataset("d@1")}
	var keeps atomic.Bool
	r := newReader(t, read.Options{NoHedge: true, Keeps: func(schema.BlobRef) bool { return keeps.Load() }},
		read.Spill(cache), read.Store(turning{s, &keeps}))
	var refs []schema.BlobRef
	for i, unchecked := range []bool{true, false} { // the second one is cached: the first offer is done by then
		data, ref := content(i)
		if _, err := in.Put(t.Context(), data); err != nil {
			t.Fatal(err)
		}
		to := newOutcomes()
		want(t, r, read.Want{Ref: ref, At: at, To: to, Late: true})
		o := to.next(t)
		if o.Err != nil || o.Blob.Unchecked() != unchecked {
			t.Fatalf("read %d: unchecked: %t, %v", i, o.Blob.Unchecked(), o.Err)
		}
		o.Blob.Release()
		refs = append(refs, ref)
	}
	until(t, "the second one is kept", func() bool { return cache.Has(refs[1]) })
	if cache.Has(refs[0]) {
		t.Error("a blob is kept that was not checked")
	}
}

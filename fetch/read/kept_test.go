package read_test

import (
	"testing"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// Blobs of other owners are not cached here, except pages of manifests, which are not requested from other nodes.
func TestPagesAreKept(t *testing.T) {
	near, far := newFake(t), newFake(t)
	near.traits.Remote = true
	cache := newSpill(t, t.TempDir())
	others := func(schema.BlobRef) bool { return false }
	r := newReader(t, read.Options{NoHedge: true, Keeps: others}, read.Spill(cache), peer{near}, read.Store(far))
	dataset := cache.Dataset("d@1")
	for i, c := range []struct {
		at   spill.Place
		kept bool
	}{{spill.PageAt(dataset, 0), true}, {spill.PageAt(dataset, 4096), true},
		{spill.Place{Dataset: dataset, Position: 7}, false}, {spill.Place{}, false}} {
		_, ref := content(i)
		b, err := r.GetAt(t.Context(), ref, c.at)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if cache.Has(ref) != c.kept {
			t.Errorf("%+v: it is kept: %v, want %v", c.at, !c.kept, c.kept)
		}
	}
	if n := near.gets.Load(); n != 0 {
		t.Errorf("another node was asked %d times", n)
	}
}

// FellBack counts a blob of another owner that is read from the store, except if the receiver caches it itself.
func TestStoodIn(t *testing.T) {
	for _, owns := range []bool{true, false} {
		r := newReader(t, read.Options{NoHedge: true, Keeps: func(schema.BlobRef) bool {
			return owns
		}}, read.Store(newFake(t)))
		_, ref := content(1)
		result := make(outcomes, 1)
		want := read.Want{Ref: ref, At: spill.Place{Dataset: 1, Position: 7}, Context: t.Context(), To: result}
		if v := r.Fill(&want, false); v != read.Begun {
			t.Fatalf("nothing was begun: %v", v)
		}
		o := <-result
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		o.Blob.Release()
		if n := r.Stats().FellBack; (n == 0) != owns {
			t.Errorf("of a blob that is this node's to keep (%v) the store has stood in %d times", owns, n)
		}
	}
}

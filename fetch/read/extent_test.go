package read_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"bowstring/fetch/read"
	"bowstring/schema"
	"bowstring/spill"
)

// requireExtent requires that the blob has an extent in a file below a directory, with the right bytes.
func requireExtent(t *testing.T, b *schema.Blob, want []byte, dir string) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Length != int64(len(want)) {
		t.Fatalf("a blob of %d bytes is stored in %+v, %t", len(want), e, ok)
	}
	if !strings.HasPrefix(e.File.Name(), dir+"/") {
		t.Errorf("the blob is stored in %s, which is not below %s", e.File.Name(), dir)
	}
	got := make([]byte, e.Length)
	if _, err := e.File.ReadAt(got, e.Offset); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has other bytes at %+v: %v", e, err)
	}
}

// A blob's extent is that of the tier that brought it, for all receivers that share it.
func TestExtent(t *testing.T) {
	far, near := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "spill")
	s, in := newLocal(t, far)
	cache := newSpill(t, near)
	at := spill.Place{Dataset: cache.Dataset("d@1")}
	r := newReader(t, read.Options{NoHedge: true}, read.Spill(cache), read.Store(s))
	data, ref := content(1)
	if _, err := in.Put(t.Context(), data); err != nil {
		t.Fatal(err)
	}
	direct, err := s.Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	requireExtent(t, &direct, data, far)
	direct.Release()

	get := func() read.Outcome {
		t.Helper()
		to := newOutcomes()
		want(t, r, read.Want{Ref: ref, At: at, To: to})
		o := to.next(t)
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		return o
	}
	first := get()
	if first.Tier != 1 {
		t.Fatalf("the blob came from tier %d", first.Tier)
	}
	requireExtent(t, &first.Blob, data, far)
	shared := get()
	requireExtent(t, &shared.Blob, data, far)
	first.Blob.Release()
	shared.Blob.Release()

	until(t, "the blob is stored", func() bool { return cache.Stats().Datasets["d@1"].Entries == 1 })
	until(t, "it is read from the disk", func() bool {
		b, ok := cache.Get(ref, at)
		e, _ := b.Extent()
		there := ok && strings.HasPrefix(e.File.Name(), near)
		b.Release()
		return there
	})
	again := get()
	if again.Tier != 0 {
		t.Fatalf("the blob came from tier %d", again.Tier)
	}
	requireExtent(t, &again.Blob, data, near)
	again.Blob.Release()
}

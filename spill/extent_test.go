package spill

import (
	"bytes"
	"sync/atomic"
	"testing"

	"bowstring/schema"
)

// located is the owner of a blob that lies in some file.
type located struct {
	owner
	extent schema.Extent
}

func (l located) Extent([]byte) (schema.Extent, bool) { return l.extent, true }

// requireExtent requires that the file has the bytes of a blob that is held where the blob says that it lies.
func requireExtent(t *testing.T, b *schema.Blob) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Length != int64(len(b.Bytes())) {
		t.Fatalf("a blob of %d bytes lies in %+v, %t", len(b.Bytes()), e, ok)
	}
	got := make([]byte, e.Length)
	if _, err := e.File.ReadAt(got, e.Offset); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("the file has other bytes at %+v: %v", e, err)
	}
}

// A blob that waits to be stored lies where it came from, if that is known.
func TestExtentOfWhatWaits(t *testing.T) {
	data, ref := content(1)
	var released atomic.Int64
	from := schema.Extent{Offset: 7, Length: ref.Size}
	for _, where := range []schema.Owner{owner{&released}, located{owner{&released}, from}} {
		o := offer{ref: ref, blob: schema.NewBlob(data, where)}
		o.holds.Store(1)
		_, known := where.(schema.Locator)
		b := schema.NewBlob(data, &o)
		if e, ok := b.Extent(); ok != known || ok && e != from {
			t.Errorf("what waits lies in %+v, %t", e, ok)
		}
		b.Release()
	}
	if n := released.Load(); n != 2 {
		t.Errorf("%d of 2 blobs were released", n)
	}
}

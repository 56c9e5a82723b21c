package spill

import (
	"bytes"
	"testing"

	"bowstring/schema"
)

// requireExtent requires that the file has the bytes of a held blob at the blob's extent.
func requireExtent(t *testing.T, b *schema.Blob) {
	t.Helper()
	e, ok := b.Extent()
	if !ok || e.Length != int64(len(b.Bytes())) {
		t.Fatalf("a blob of %d bytes is at %+v, %t", len(b.Bytes()), e, ok)
	}
	got := make([]byte, e.Length)
	if _, err := e.File.ReadAt(got, e.Offset); err != nil || !bytes.Equal(got, b.Bytes()) {
		t.Errorf("the file has other bytes at %+v: %v", e, err)
	}
}

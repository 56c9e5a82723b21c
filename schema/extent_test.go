package schema

import "testing"

type nowhere struct{}

func (nowhere) Unpin() {}

type somewhere struct{ nowhere }

func (somewhere) Extent(data []byte) (Extent, bool) {
	return Extent{Offset: 64, Length: int64(len(data))}, true
}

// A blob has an extent if its owner knows it.
func TestExtent(t *testing.T) {
	for _, owner := range []Owner{nil, nowhere{}} {
		b := NewBlob([]byte("abc"), owner)
		if e, ok := b.Extent(); ok {
			t.Errorf("a blob of %T is in %+v", owner, e)
		}
	}
	b := NewBlob([]byte("abc"), somewhere{})
	if e, ok := b.Extent(); !ok || e != (Extent{Offset: 64, Length: 3}) {
		t.Errorf("%+v, %t", e, ok)
	}
	b.Release()
	if e, ok := b.Extent(); ok {
		t.Errorf("a blob that was released is in %+v", e)
	}
	var zero Blob
	if e, ok := zero.Extent(); ok {
		t.Errorf("the zero blob is in %+v", e)
	}
}

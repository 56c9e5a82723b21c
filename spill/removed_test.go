package spill

import (
	"testing"

	"bowstring/schema"
)

// released records the release of an offered blob.
type released chan struct{}

func (r released) Unpin() { close(r) }

// Removed counts each blob that Has has reported and that is gone: an offer that was not stored, and a stored blob
// that was removed.
func TestRemoved(t *testing.T) {
	c := openCache(t, testOptions(t.TempDir()))
	if !put(c, 1) || !requireRight(t, c, 1) || c.Removed() != 0 {
		t.Fatalf("%d are removed of one that is there", c.Removed())
	}
	data := make([]byte, 12<<20) // more than one blob may have of the budget
	ref, gone := schema.RefOf(data), make(released)
	if !c.Offer(ref, Place{}, 1e6, schema.NewBlob(data, gone)) {
		t.Fatal("it was not taken")
	}
	<-gone
	if c.Has(ref) || c.Removed() != 1 {
		t.Errorf("%d are removed after an offer that was not stored: %+v", c.Removed(), c.Stats())
	}
	_, ref = content(1)
	c.mu.Lock()
	i, s := c.table.find(&ref.Key)
	c.mu.Unlock()
	c.lost(i, s, ref.Key, schema.ErrDataLoss)
	if c.Has(ref) || c.Removed() != 2 {
		t.Errorf("%d are removed after one that was lost: %+v", c.Removed(), c.Stats())
	}
}

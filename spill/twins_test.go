package spill

import (
	"bytes"
	"testing"
	"time"

	"bowstring/schema"
	"bowstring/schema/checksum/forge"
)

// collide has all keys of a cache have the same hash.
func collide(c *Cache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.table
	t.hash, t.first = func(*schema.Key) uint64 { return 7 }, map[uint64]uint32{}
	for i := range uint32(t.slots) {
		s := t.at(i)
		if s.state != live {
			continue
		}
		s.next = 0
		if first, ok := t.first[7]; ok {
			s.next = first + 1
		}
		t.first[7] = i
	}
}

// checkKept fails unless each blob is there with its own bytes, or none of them where want is false.
func checkKept(t *testing.T, c *Cache, refs []schema.BlobRef, data [][]byte, want func(i int) bool) {
	t.Helper()
	for i, ref := range refs {
		b, ok := c.Get(ref, Place{Position: int64(i)})
		if ok != want(i) || ok && !bytes.Equal(b.Bytes(), data[i]) {
			t.Errorf("blob %d: there %v, want %v; its bytes are %v", i, ok, want(i), bytes.Equal(b.Bytes(), data[i]))
		}
		b.Release()
		if known, ok := c.Ref(ref.Key); ok != want(i) || ok && known != ref {
			t.Errorf("blob %d is known as %+v, %v; want %+v, %v", i, known, ok, ref, want(i))
		}
		if got := c.Has(ref); got != want(i) {
			t.Errorf("blob %d is said to be there: %v, want %v", i, got, want(i))
		}
	}
}

// Blobs are distinguished by their whole keys, even if the hashes of their keys, their sizes and their checksums are
// equal: when they are written, removed in any order, and found again by the next process.
func TestTwinsAreDistinguished(t *testing.T) {
	r := testRand(t)
	opts := testOptions(t.TempDir())
	c := openCache(t, opts)
	collide(c)
	var data [][]byte
	var refs []schema.BlobRef
	for range 8 {
		b, _ := fill(r, 5000)
		one, other := forge.Twins(b)
		data = append(data, one, other)
		refs = append(refs, schema.RefOf(one), schema.RefOf(other))
	}
	if refs[0].Sum != refs[1].Sum || refs[0].Size != refs[1].Size {
		t.Fatal("the twins have different checksums")
	}
	for i := 0; i < len(refs); i += 2 {
		if !c.Put(refs[i], Place{Position: int64(i)}, time.Millisecond, data[i]) {
			t.Fatal("a blob was not stored")
		}
	}
	checkKept(t, c, refs, data, func(i int) bool { return i%2 == 0 })
	for i := 1; i < len(refs); i += 2 {
		if !c.Put(refs[i], Place{Position: int64(i)}, time.Millisecond, data[i]) {
			t.Fatal("the twin of a blob was not stored")
		}
	}
	checkKept(t, c, refs, data, func(int) bool { return true })
	gone := map[int]bool{}
	for _, i := range r.Perm(len(refs))[:len(refs)/2] {
		c.mu.Lock()
		slot, s := c.table.find(&refs[i].Key)
		c.mu.Unlock()
		c.lost(slot, s, refs[i].Key, schema.ErrDataLoss)
		c.release(slot)
		gone[i] = true
		checkKept(t, c, refs, data, func(i int) bool { return !gone[i] })
	}
	for _, clean := range []bool{true, false} {
		if !clean {
			c.index.dropped.Store(1) // as kill -9 leaves it
		}
		closeCache(t, c)
		c = openCache(t, opts)
		collide(c)
		checkKept(t, c, refs, data, func(i int) bool { return !gone[i] })
	}
}

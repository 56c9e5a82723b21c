package spill

import (
	"slices"
	"testing"

	"bowstring/schema"
)

// inOrder is an Oracle: the use at a position is at that time.
type inOrder struct{}

func (inOrder) NextUse(at Place, now Time) (Time, bool) { return now + Time(at.Position), true }

// A spare blob makes room for a blob that only the store has, though it is used sooner; and never displaces one.
func TestSpareMakesRoom(t *testing.T) {
	r := testRand(t)
	const size, budget = 50_000, MinBytes + 8<<20
	opts := testOptions(t.TempDir())
	opts.Bytes, opts.Oracle, opts.SegmentBytes = budget, inOrder{}, 1<<20
	c := openCache(t, opts)
	spare := map[schema.Key]bool{}
	var spares []schema.BlobRef
	c.SetSpare(func(ref schema.BlobRef) bool { return spare[ref.Key] })
	number := c.Dataset("d@1")
	store := func(position int, isSpare bool) schema.BlobRef {
		data, ref := fill(r, size)
		if spare[ref.Key] = isSpare; isSpare {
			spares = append(spares, ref)
		}
		c.Put(ref, Place{Dataset: number, Position: int64(position)}, 0, data)
		return ref
	}
	room := int(Capacity(budget) / size)
	for i := range 2 * room { // sooner than all that are owned
		store(1+i, true)
	}
	if n := c.Stats().Entries; int(n) < room {
		t.Fatalf("%d spare blobs are kept, of which %d have room", n, room)
	}
	owned := make([]schema.BlobRef, room)
	for i := range owned {
		owned[i] = store(1_000_000-i, false)
	}
	for i := range 2 * room {
		store(1+i, true)
	}
	lost := 0
	for _, ref := range owned {
		if !c.Has(ref) {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d blobs are gone that the store alone has", lost, room)
	}
	// The remaining room holds spare blobs. They go, too: tried as often as needed, because a victim is chosen among
	// a sample.
	kept := func() bool {
		return slices.ContainsFunc(spares, c.Has)
	}
	for i := 0; i < 100*room && kept(); i++ {
		store(2_000_000+i, false)
	}
	if kept() {
		t.Fatalf("spare blobs are left beside %d that the store alone has", c.Stats().Entries)
	}
	_, ref := fill(r, 4<<20) // more than there is room for
	if !c.WantsBlob(ref, Place{Dataset: number, Position: 1}, true) {
		t.Error("a blob that is used next is not wanted in the place of those that are used last")
	}
	spare[ref.Key] = true
	if c.WantsBlob(ref, Place{Dataset: number, Position: 1}, true) {
		t.Error("a spare blob is wanted in the place of one that the store alone has")
	}
}

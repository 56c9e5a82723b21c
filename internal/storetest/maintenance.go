package storetest

import (
	"slices"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// restore: a snapshot is restored with its number, parent and time; later numbers continue from
// there, and no number is given twice.
func restore(b *bench) {
	blobs := blobsOf("restore", 6, 300)
	in := b.begin("r")
	made, err := Put(b.ctx, in, blobs, 4)
	b.ok(err, "put")
	// A number in the middle: the dataset has none of the numbers before it.
	snap := &made
	snap.Dataset, snap.Number, snap.Parent, snap.Created = "r", 5, 3, time.Unix(1e9, 123000).UTC()
	b.ok(b.store.Restorable(b.ctx, snap), "ask whether a snapshot can be restored")
	b.ok(in.Restore(b.ctx, *snap), "restore")
	b.ok(in.Close(), "close the ingest")
	b.reopen()
	b.catalog(store.Dataset{Name: "r", Snapshots: []int64{5}})
	got := b.snapshot("r", 0)
	b.that(got.Number == 5 && got.Parent == 3 && got.Created.Equal(snap.Created) && got.Source == snap.Source,
		"restored %d of parent %d, created %s", got.Number, got.Parent, got.Created)
	b.holds(got, blobs)

	// Numbers continue from there, and none is used twice.
	b.that(b.ingest("r", 5, blobs[:2]).Number == 6, "the next number is not 6")
	// Numbers of dropped snapshots are not used again.
	b.ok(b.store.Advance(b.ctx, "r", 9), "advance")
	b.ok(b.store.Advance(b.ctx, "r", 8), "advance to where it has been")
	b.reopen()
	last, err := b.store.LastNumber(b.ctx, "r")
	b.ok(err, "ask for the last number")
	b.that(last == 9, "the last number is %d, want 9", last)
	b.that(b.ingest("r", 6, blobs[:2]).Number == 10, "the next number is not 10")
	b.ok(b.store.Drop(b.ctx, "r", 0), "drop")
	in = b.begin("r")
	snap.Sets = got.Sets // of a store that keeps blobs in segments
	// Smaller numbers, and numbers that were used, cannot be restored any more.
	for _, number := range []int64{4, 5, 6} {
		snap.Number = number
		b.fails(b.store.Restorable(b.ctx, snap), schema.ErrConflict, "ask for number %d again", number)
		b.fails(in.Restore(b.ctx, *snap), schema.ErrConflict, "restore number %d again", number)
	}
	snap.Number, snap.Parent = 7, 7
	b.fails(in.Restore(b.ctx, *snap), schema.ErrInvalid, "restore a snapshot that is its own parent")
	b.ok(in.Close(), "close the ingest")
	b.catalog()

	// A blob that was not put cannot be restored.
	in = b.begin("other")
	b.fails(in.Restore(b.ctx, *snap), schema.ErrInvalid, "restore a snapshot of another dataset")
	lost := *snap
	lost.Dataset, lost.Number, lost.Parent = "other", 1, 0
	lost.Chunks = slices.Clone(lost.Chunks)
	lost.Chunks[0].BlobRef = schema.RefOf([]byte("never put"))
	b.fails(in.Restore(b.ctx, lost), schema.ErrInvalid, "restore without the chunks")
	b.ok(in.Close(), "close the ingest")
}

// adopt: an ingest may take over a stored blob without its bytes, which then counts as put. A blob
// that is not there, or was freed, is not adopted.
func adopt(b *bench) {
	if b.segments() {
		adoptPacked(b)
		return
	}
	old := blobsOf("adopt", 4, gcBlob)
	b.ingest("a", 0, old)
	b.gc(store.GCOptions{}) // blobs put since the last collection may stay while an ingest is open
	b.ok(b.store.Drop(b.ctx, "a", 1), "drop")
	in := b.begin("a")
	there, err := in.Adopt(b.ctx, schema.RefOf(old[0]))
	b.ok(err, "adopt")
	b.that(there, "a blob that is there is not adopted")
	there, err = in.Adopt(b.ctx, schema.RefOf([]byte("no such blob")))
	b.ok(err, "adopt what is not there")
	b.that(!there, "a blob that is not there is adopted")
	b.gc(store.GCOptions{})
	b.has(old[0]) // as if it had been put
	b.lacks(old[1])
	there, err = in.Adopt(b.ctx, schema.RefOf(old[1]))
	b.ok(err, "adopt what was freed")
	b.that(!there, "a blob that was freed is adopted")
	b.ok(in.Close(), "close the ingest")
	_, err = in.Adopt(b.ctx, schema.RefOf(old[0]))
	b.fails(err, schema.ErrInvalid, "adopt through an ingest that is closed")
}

// adoptPacked: a blob in a segment belongs to an ingest if the ingest has put it; otherwise it has to be put again.
func adoptPacked(b *bench) {
	old, own := blobOf("old", gcBlob), blobOf("own", gcBlob)
	b.ingest("a", 0, [][]byte{old})
	in := b.begin("a")
	b.put(in, own)
	for what, want := range map[*schema.BlobRef]bool{
		ptr(b.ref(own)): true, ptr(b.ref(old)): false, ptr(schema.RefOf(own)): false, ptr(schema.RefOf([]byte("none"))): false,
	} {
		there, err := in.Adopt(b.ctx, *what)
		b.ok(err, "adopt")
		b.that(there == want, "adopt of %+v: %t, want %t", *what, there, want)
	}
	b.ok(in.Close(), "close the ingest")
	_, err := in.Adopt(b.ctx, b.ref(own))
	b.fails(err, schema.ErrInvalid, "adopt through an ingest that is closed")
}

// ptr makes references to be keys of a map, although some are equal.
func ptr[T any](v T) *T { return &v }

// repair: only the bytes of the blob itself repair it, and repaired blobs are collected as others.
func repair(b *bench) {
	if b.segments() { // a segment is rewritten as a whole; the store's own tests have a damaged one
		data, other, none := blobOf("repair", 700), blobOf("other", 700), blobOf("none", 700)
		b.ingest("r", 0, [][]byte{data, other})
		b.ok(b.store.Repair(b.ctx, b.ref(data), data), "repair of what is whole")
		b.fails(b.store.Repair(b.ctx, b.ref(data), other), schema.ErrInvalid, "repair with other bytes")
		b.fails(b.store.Repair(b.ctx, schema.RefOf(none), none), schema.ErrInvalid, "repair of a blob in no segment")
		b.has(data)
		b.has(other)
		return
	}
	blobs := append(blobsOf("repair", 5, 700), blobOf("large", 1<<20+5), []byte{})
	b.ingest("r", 0, blobs)
	before := b.store.Stats()
	for _, data := range blobs {
		b.ok(b.store.Repair(b.ctx, schema.RefOf(data), data), "repair")
	}
	got := b.store.Stats()
	b.that(got.Blobs == before.Blobs && got.StoredBytes == before.StoredBytes, "repairs went from %+v to %+v", before,
		got)
	b.fails(b.store.Repair(b.ctx, schema.RefOf(blobs[0]), blobs[1]), schema.ErrInvalid, "repair with other bytes")
	b.holds(b.snapshot("r", 0), blobs)
	b.gc(store.GCOptions{})
	b.reopen()
	b.holds(b.snapshot("r", 0), blobs)
	// Repaired blobs are garbage like others once they are unreferenced.
	b.ok(b.store.Drop(b.ctx, "r", 0), "drop")
	b.reopen()
	b.gc(store.GCOptions{})
	for _, data := range blobs {
		b.lacks(data)
	}
}

// listSelections: the selections of one dataset, or of all, are listed.
func listSelections(b *bench) {
	b.ingest("s", 0, blobsOf("s", 8, 100))
	b.ingest("t", 0, blobsOf("s", 8, 100))
	first := b.saveSelection("s", 1, blobOf("bits", 8))
	second := b.saveSelection("s", 1, blobOf("more bits", 8))
	other := b.saveSelection("t", 1, blobOf("bits", 8))
	// The order of the list is not defined.
	names := func(dataset string) []string {
		list, err := b.store.Selections(b.ctx, dataset)
		b.ok(err, "list the selections of %q", dataset)
		var names []string
		for _, sel := range list {
			names = append(names, sel.Dataset+" "+sel.Name())
		}
		slices.Sort(names)
		return names
	}
	want := []string{"s " + first.Name(), "s " + second.Name()}
	slices.Sort(want)
	got := names("s")
	b.that(slices.Equal(got, want), "the selections of s are %q, want %q", got, want)
	got, want = names(""), append(want, "t "+other.Name())
	b.that(slices.Equal(got, want), "all selections are %q, want %q", got, want)
	b.that(len(names("u")) == 0, "a dataset that there is not has selections")
}

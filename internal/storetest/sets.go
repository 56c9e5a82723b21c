package storetest

import (
	"slices"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// gcSets: the blobs of the object sets that a snapshot names live as long as the snapshot, or a reader of it. A
// snapshot that names a set that was not put is refused. The record lists the sets.
func gcSets(b *bench) {
	sets := blobsOf("sets", 4, gcBlob)
	rows := blobsOf("rows", 3, gcBlob)
	// commit first tries a snapshot with a set that was not put.
	commit := func(parent int64, sets ...[]byte) *schema.Snapshot {
		in := b.begin("g")
		defer func() { b.ok(in.Close(), "close the ingest") }()
		snap, err := Put(b.ctx, in, rows, 2)
		b.ok(err, "put")
		snap.Parent = parent
		for i, data := range sets {
			ref, err := in.Put(b.ctx, data)
			b.ok(err, "put a set")
			snap.Sets = append(snap.Sets, schema.SetRef{Prefix: schema.ObjectPrefix{byte(i), data[0]}, Blob: ref})
		}
		missing := snap
		missing.Sets = append(slices.Clone(snap.Sets), schema.SetRef{Blob: schema.RefOf([]byte("never put"))})
		_, err = in.Commit(b.ctx, missing)
		b.fails(err, schema.ErrInvalid, "commit a snapshot whose set was not put")
		made, err := in.Commit(b.ctx, snap)
		b.ok(err, "commit")
		named := made.Sets
		if b.segments() { // and the ingest's own
			named = slices.DeleteFunc(slices.Clone(named), func(set schema.SetRef) bool { return set.Blob == schema.BlobRef{} })
			b.that(len(made.Sets) == len(named)+1, "the snapshot names the sets %v, want one of its own", made.Sets)
		}
		b.that(slices.Equal(named, snap.Sets), "the snapshot names the sets %v, want %v", named, snap.Sets)
		return made
	}
	commit(0, sets[0], sets[1])
	second := commit(1, sets[1], sets[2])
	b.ingest("g", 2, rows)
	b.gc(store.GCOptions{})
	b.reopen()
	for _, data := range sets[:3] {
		b.has(data)
	}
	b.ok(b.store.Drop(b.ctx, "g", 1), "drop")
	b.gc(store.GCOptions{})
	b.lacks(sets[0])
	b.has(sets[1])
	read := b.snapshot("g", 2)
	b.that(slices.Equal(read.Sets, second.Sets), "the snapshot names the sets %v, want %v", read.Sets, second.Sets)
	b.ok(b.store.Drop(b.ctx, "g", 2), "drop")
	_, err := b.store.GC(b.ctx, store.GCOptions{}, func() []*schema.Snapshot { return []*schema.Snapshot{read} })
	b.ok(err, "collect")
	b.has(sets[1])
	b.has(sets[2])
	b.gc(store.GCOptions{})
	b.lacks(sets[1])
	b.lacks(sets[2])
}

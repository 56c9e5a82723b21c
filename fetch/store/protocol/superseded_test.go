package protocol

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// interrupted is a database as a process has it that stands still at some of its calls.
type interrupted struct {
	*memory
	load   func(name string) // before a Load
	remove func()            // before a Delete
}

func (d *interrupted) Load(ctx context.Context, name string) (Partition, error) {
	d.load(name)
	return d.memory.Load(ctx, name)
}

func (d *interrupted) Delete(ctx context.Context, row BlobRow, before Epoch) error {
	d.remove()
	return d.memory.Delete(ctx, row, before)
}

// TestSupersededRoots: a collection that was superseded before it loaded its roots deletes nothing. What its
// successor has found live may be dropped since, so that it is dead to the one before, and is relied upon by puts, as
// the successor has ended.
func TestSupersededRoots(t *testing.T) {
	if _, err := encodeRecord(schema.Snapshot{Schema: simSchema}); err != nil { // what all have in common must be of no bubble
		t.Fatal(err)
	}
	// Rows are renewed by a clock that stands while anything goes on.
	synctest.Test(t, func(t *testing.T) {
		if lost := supersededRoots(t, 0); lost > 0 {
			t.Errorf("a committed snapshot lacks %d blobs", lost)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if supersededRoots(t, bugRootsUnconfirmed) == 0 {
			t.Error("it is not found when the rule is left out")
		}
	})
}

// supersededRoots is how many blobs of what was committed are gone.
func supersededRoots(t *testing.T, bugs bug) (lost int) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	db := newMemory()
	stuck := &interrupted{memory: db, load: func(string) {}, remove: func() {}}
	options := Options{References: simReferences, RenewEvery: 500 * time.Millisecond}
	a, b := New(stuck, System(), options), New(db, System(), options)
	a.bugs = bugs
	defer func() { must(a.Close()) }()
	defer func() { must(b.Close()) }()
	commit := func() schema.BlobRef {
		t.Helper()
		in, err := b.Begin(ctx, "d")
		must(err)
		defer in.Close()
		ref, err := in.Put(ctx, []byte("payload"))
		must(err)
		chunk, err := in.Put(ctx, ref.Key[:])
		must(err)
		snap := schema.Snapshot{Schema: simSchema,
			Chunks: []schema.Chunk{{BlobRef: chunk, Rows: 1, BlobBytes: []int64{ref.Size}}}}
		_, err = in.Commit(ctx, snap)
		must(err)
		return ref
	}
	commit()
	var superseded, again sync.Once
	stuck.load = func(name string) {
		if name != "d" {
			return
		}
		// its row lapses, another collection begins and ends, and what that found live is dropped
		superseded.Do(func() {
			synctest.Wait() // a renewal that the collection has asked for is over
			must(db.Leave(ctx, a.member.id))
			_, err := b.GC(ctx, store.GCOptions{}, nil)
			must(err)
			must(b.Drop(ctx, "d", 0))
		})
	}
	stuck.remove = func() { again.Do(func() { commit() }) }
	_, err := a.GC(ctx, store.GCOptions{}, nil)
	t.Logf("the collection that was superseded: %v", err)
	again.Do(func() { commit() })
	snap, err := b.Snapshot(ctx, "d", 0)
	must(err)
	for _, chunk := range snap.Chunks {
		blob, err := db.Read(ctx, chunk.BlobRef)
		if err != nil {
			lost++
			continue
		}
		for _, key := range keysIn(blob.Bytes()) {
			if _, err := db.Read(ctx, schema.BlobRef{Key: key}); err != nil {
				lost++
			}
		}
		blob.Release()
	}
	return lost
}

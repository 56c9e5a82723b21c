package protocol

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// interrupted is the database of a process whose calls may stop before they are made, or get lost.
type interrupted struct {
	*memory
	load   func(name string)                     // before a Load
	remove func(row BlobRow, before Epoch) error // before a Delete, which is not made if it fails
}

func (d *interrupted) Load(ctx context.Context, name string) (Partition, error) {
	d.load(name)
	return d.memory.Load(ctx, name)
}

func (d *interrupted) Delete(ctx context.Context, row BlobRow, before Epoch) error {
	if err := d.remove(row, before); err != nil {
		return err
	}
	return d.memory.Delete(ctx, row, before)
}

// directedRun is two processes at one database; calls of the first are interrupted.
type directedRun struct {
	*testing.T
	db    *memory
	stuck *interrupted
	a, b  *Store
}

func (r *directedRun) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// commit has b commit the same blob each time.
func (r *directedRun) commit() {
	r.Helper()
	ctx := r.Context()
	in, err := r.b.Begin(ctx, "d")
	r.must(err)
	defer in.Close()
	ref, err := in.Put(ctx, []byte("payload"))
	r.must(err)
	chunk, err := in.Put(ctx, ref.Key[:])
	r.must(err)
	snap := schema.Snapshot{Schema: simSchema,
		Chunks: []schema.Chunk{{BlobRef: chunk, Rows: 1, BlobBytes: []int64{ref.Size}}}}
	_, err = in.Commit(ctx, snap)
	r.must(err)
}

// lost is the number of committed blobs that are missing.
func (r *directedRun) lost() (lost int) {
	ctx := r.Context()
	snap, err := r.b.Snapshot(ctx, "d", 0)
	r.must(err)
	for _, chunk := range snap.Chunks {
		blob, err := r.db.Read(ctx, chunk.BlobRef)
		if err != nil {
			lost++
			continue
		}
		for _, key := range keysIn(blob.Bytes()) {
			if _, err := r.db.Read(ctx, schema.BlobRef{Key: key}); err != nil {
				lost++
			}
		}
		blob.Release()
	}
	return lost
}

// direct runs what happens with a's rules and with one of them left out, and wants blobs to be lost then alone.
func direct(t *testing.T, without bug, happens func(r *directedRun)) {
	if _, err := encodeRecord(schema.Snapshot{Schema: simSchema}); err != nil { // what all have in common must be of no bubble
		t.Fatal(err)
	}
	for _, bugs := range []bug{0, without} {
		// Rows are renewed by a clock that stands while anything goes on.
		synctest.Test(t, func(t *testing.T) {
			db := newMemory()
			stuck := &interrupted{memory: db, load: func(string) {}, remove: func(BlobRow, Epoch) error { return nil }}
			options := Options{References: simReferences, RenewEvery: 500 * time.Millisecond}
			r := &directedRun{t, db, stuck, New(stuck, System(), options), New(db, System(), options)}
			defer func() { r.must(r.a.Close()) }()
			defer func() { r.must(r.b.Close()) }()
			r.a.bugs = bugs
			r.commit()
			happens(r)
			switch lost := r.lost(); {
			case bugs == 0 && lost > 0:
				t.Errorf("a committed snapshot lacks %d blobs", lost)
			case bugs != 0 && lost == 0:
				t.Error("it is not found when the rule is left out")
			}
		})
	}
}

// TestSupersededRoots: a collection that was superseded before it loaded its roots
// deletes nothing. A blob that its successor found live may be dropped since. Then it is
// dead to the one before, and puts rely on it, as the successor has ended.
func TestSupersededRoots(t *testing.T) {
	direct(t, bugRootsUnconfirmed, func(r *directedRun) {
		ctx := r.Context()
		var superseded, again sync.Once
		r.stuck.load = func(name string) {
			if name != "d" {
				return
			}
			// its row lapses, another collection begins and ends, and what that found live is dropped
			superseded.Do(func() {
				synctest.Wait() // a renewal that the collection has asked for is over
				r.must(r.db.Leave(ctx, r.a.member.id))
				_, err := r.b.GC(ctx, store.GCOptions{}, nil)
				r.must(err)
				r.must(r.b.Drop(ctx, "d", 0))
			})
		}
		r.stuck.remove = func(BlobRow, Epoch) error {
			again.Do(r.commit)
			return nil
		}
		_, err := r.a.GC(ctx, store.GCOptions{}, nil)
		r.Logf("the collection that was superseded: %v", err)
		again.Do(r.commit)
	})
}

// TestUncleanForgotten: a collection fails whose deletions are still on their way. Puts that begin before another
// collection has ended store their blobs again, and the late deletions take nothing from them.
func TestUncleanForgotten(t *testing.T) {
	direct(t, bugUncleanForgotten, func(r *directedRun) {
		ctx := r.Context()
		var mu sync.Mutex
		var late []func() error
		r.stuck.remove = func(row BlobRow, before Epoch) error {
			mu.Lock()
			defer mu.Unlock()
			late = append(late, func() error { return r.db.Delete(ctx, row, before) })
			return fmt.Errorf("%w: no answer", schema.ErrUnavailable)
		}
		r.must(r.b.Drop(ctx, "d", 0))
		if _, err := r.a.GC(ctx, store.GCOptions{}, nil); err == nil {
			r.Fatal("a collection without answers ended well")
		}
		r.commit()
		for _, remove := range late {
			r.must(remove())
		}
	})
}

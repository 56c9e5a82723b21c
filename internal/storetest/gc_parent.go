package storetest

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// gcParent: a manifest may refer to its parent's blobs without putting them again. They live as long as one of the
// two snapshots. If the parent is not the newest snapshot, the commit fails.
func gcParent(b *bench) {
	blobs := blobsOf("parent", 10, gcBlob)
	parent := b.ingest("g", 0, blobs)
	b.gc(store.GCOptions{}) // blobs put since the last one may stay
	in := b.begin("g")
	b.gc(store.GCOptions{})
	kept := slices.Concat(blobs[7:], blobs[:3])
	snap, err := refer(b.ctx, in, b.refs(kept), 4)
	b.ok(err, "put a manifest of the parent's blobs")
	b.gc(store.GCOptions{})
	snap.Parent, snap.Sets = 1, parent.Sets
	_, err = in.Commit(b.ctx, snap)
	b.ok(err, "commit a manifest of the parent's blobs")
	b.ok(in.Close(), "close the ingest")
	b.ok(b.store.Drop(b.ctx, "g", 1), "drop the parent")
	b.gc(store.GCOptions{})
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("g", 0), kept)
	if !b.segments() { // blobs of one ingest live together
		for _, data := range blobs[3:7] {
			b.lacks(data)
		}
	}

	// Another snapshot is committed and the parent is collected before the commit.
	in = b.begin("g")
	snap, err = refer(b.ctx, in, b.refs(kept[:4]), 4)
	b.ok(err, "put a manifest")
	other := blobsOf("other", 3, gcBlob)
	b.ingest("g", 2, other)
	b.ok(b.store.Drop(b.ctx, "g", 2), "drop")
	b.gc(store.GCOptions{})
	snap.Parent, snap.Sets = 2, parent.Sets
	_, err = in.Commit(b.ctx, snap)
	b.that(errors.Is(err, schema.ErrConflict), "commit on a parent that is gone: %v, want ErrConflict", err)
	b.ok(in.Close(), "close the ingest")
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("g", 0), other)
}

// gcDuringAlterations makes snapshots that take over all but one of the blobs of the previous one, which is dropped,
// while collections run.
func gcDuringAlterations(b *bench) {
	const rounds, window = 12, 30
	pool := blobsOf("altered", rounds+window, 4000)
	want := func(number int64) [][]byte { return pool[number-1 : number-1+window] }
	// base has the sets that a snapshot of a store of segments must name.
	base := b.ingest("turn", 0, want(1))
	done := make(chan struct{})
	g, ctx := errgroup.WithContext(b.ctx)
	g.Go(func() error {
		defer close(done)
		for n := int64(1); n < rounds; n++ {
			err := func() (err error) {
				in, err := b.store.Begin(ctx, "turn")
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, in.Close()) }()
				blobs := want(n + 1)
				refs := b.refs(blobs)
				if refs[window-1], err = in.Put(ctx, blobs[window-1]); err != nil {
					return err
				}
				snap, err := refer(ctx, in, refs, 8)
				if err != nil {
					return err
				}
				snap.Parent, snap.Sets = n, base.Sets
				made, err := in.Commit(ctx, snap)
				if err != nil {
					return err
				}
				if err := b.store.Drop(ctx, "turn", n); err != nil {
					return fmt.Errorf("drop: %w", err)
				}
				base = made
				return holds(ctx, b.store, made, blobs)
			}()
			if err != nil {
				return fmt.Errorf("alteration %d: %w", n, err)
			}
		}
		return nil
	})
	g.Go(func() error { return collectUntil(ctx, b.store, done) })
	b.ok(g.Wait(), "collect during alterations")
	b.gc(store.GCOptions{})
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("turn", 0), want(rounds))
	if !b.segments() { // its segment has others of the newest
		b.lacks(pool[0])
	}
}

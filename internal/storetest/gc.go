package storetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// the size of blobs that are worth collecting
const gcBlob = 50_000

// gcFrees: a collection removes exactly the unreferenced blobs, reports them, and the counts of
// the store agree with the report. A collected blob can be put again.
func gcFrees(b *bench) {
	shared, only1, only2 := blobsOf("shared", 10, gcBlob), blobsOf("only1", 10, gcBlob), blobsOf("only2", 10, gcBlob)
	b.ingest("g", 0, slices.Concat(shared, only1))
	b.ingest("g", 1, slices.Concat(shared, only2))
	// First with nothing dead, then with a dropped snapshot, and then with nothing alive.
	full := b.store.Stats()
	r := b.gc(store.GCOptions{})
	b.that(r.DeadBlobs == 0 && r.LiveBlobs == full.Blobs && r.LiveBytes == full.StoredBytes,
		"nothing is dead, but gc reports %+v of %+v", r, full)

	b.ok(b.store.Drop(b.ctx, "g", 1), "drop")
	r = b.gc(store.GCOptions{})
	b.that((r.DeadBlobs >= 10 || b.segments() && r.DeadBlobs > 0) && r.DeadBytes >= 10*gcBlob,
		"gc found %+v dead, want the 10 blobs of the dropped snapshot alone", r)
	b.that(r.FreedBytes > 0, "gc freed nothing of %d dead bytes", r.DeadBytes)
	now := b.store.Stats()
	b.that(now.Blobs == full.Blobs-r.DeadBlobs && now.Blobs == r.LiveBlobs && now.StoredBytes == r.LiveBytes,
		"the store has %+v after gc reported %+v", now, r)
	for _, data := range only1 {
		b.lacks(data)
	}
	for range 2 {
		b.holds(b.snapshot("g", 2), slices.Concat(shared, only2))
		b.reopen()
	}
	// Collected blobs can be put again.
	b.ingest("g", 2, only1)
	b.holds(b.snapshot("g", 0), only1)

	b.ok(b.store.Drop(b.ctx, "g", 0), "drop all")
	r = b.gc(store.GCOptions{})
	b.that(r.LiveBlobs == 0 && r.LiveBytes == 0 && b.store.Stats().Blobs == 0, "with nothing left gc reports %+v", r)
	b.lacks(shared[0])
	b.reopen()
	b.lacks(shared[0])
	b.that(b.store.Stats().Blobs == 0, "an empty store counts %+v", b.store.Stats())
}

// gcDryRun: a dry run reports dead blobs and changes nothing.
func gcDryRun(b *bench) {
	blobs := blobsOf("dry", 10, gcBlob)
	b.ingest("g", 0, blobs)
	b.snapshot("g", 1) // it was read, and is unused now
	b.ok(b.store.Drop(b.ctx, "g", 1), "drop")
	before := b.store.Stats()
	r := b.gc(store.GCOptions{DryRun: true})
	b.that((r.DeadBlobs >= 10 || b.segments() && r.DeadBlobs > 0) && r.DeadBytes >= 10*gcBlob && r.FreedBytes == 0 && r.MovedBytes == 0,
		"a dry run reports %+v", r)
	b.that(b.store.Stats() == before, "a dry run changed the store from %+v to %+v", before, b.store.Stats())
	for _, data := range blobs {
		b.has(data)
	}
}

// gcOpenIngest: blobs that an open ingest has put or found survive a collection. After the ingest
// has ended without a commit they are removed.
func gcOpenIngest(b *bench) {
	old, fresh := blobsOf("old", 5, gcBlob), blobsOf("fresh", 5, gcBlob)
	b.ingest("g", 0, old)
	// Blobs put since the last collection may stay while an ingest is open.
	b.gc(store.GCOptions{})
	b.ok(b.store.Drop(b.ctx, "g", 1), "drop")
	// Garbage, except that an ingest has found some of these blobs.
	in := b.begin("g")
	for _, data := range slices.Concat(old[:3], fresh) {
		b.put(in, data)
	}
	for range 2 {
		b.gc(store.GCOptions{})
		for _, data := range slices.Concat(old[:3], fresh) {
			b.has(data)
		}
		for _, data := range old[3:] {
			b.lacks(data)
		}
	}
	snap, err := Put(b.ctx, in, slices.Concat(fresh[:2], old[:2]), 8)
	b.ok(err, "put after gc")
	_, err = in.Commit(b.ctx, snap)
	b.ok(err, "commit after gc")
	b.ok(in.Close(), "close the ingest")
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("g", 0), slices.Concat(fresh[:2], old[:2]))
	if !b.segments() { // blobs of one ingest live together
		b.lacks(fresh[3]) // put and not committed
		b.lacks(old[2])
	}

	// An ingest that does not commit leaves no blobs.
	in = b.begin("g")
	vain := blobOf("in vain", gcBlob)
	b.put(in, vain)
	b.ok(in.Close(), "close the ingest")
	b.gc(store.GCOptions{})
	b.lacks(vain)
}

// gcInUse: a dropped snapshot that the caller of GC names as in use keeps its blobs.
func gcInUse(b *bench) {
	blobs := blobsOf("used", 10, gcBlob)
	snap := b.ingest("g", 0, blobs)
	b.ok(b.store.Drop(b.ctx, "g", 0), "drop")
	b.gc(store.GCOptions{}, snap)
	b.holds(snap, blobs)
	b.gc(store.GCOptions{})
	b.lacks(blobs[0])
	_, err := b.store.GC(b.ctx, store.GCOptions{}, nil)
	b.ok(err, "gc without inUse")
}

// gcSelections: a bitmap lives as long as its selection, which goes with its dataset.
func gcSelections(b *bench) {
	b.ingest("g", 0, blobsOf("sel", 3, 100))
	bitmap := blobOf("bitmap", gcBlob)
	sel := b.saveSelection("g", 1, bitmap)
	b.gc(store.GCOptions{})
	b.has(bitmap)
	_, err := b.store.Selection(b.ctx, "g", sel.Name())
	b.ok(err, "selection after gc")
	b.ok(b.store.Drop(b.ctx, "g", 0), "drop the dataset with its selections")
	b.gc(store.GCOptions{})
	b.lacks(bitmap)
}

// gcExpires: a collection removes selections that expired more than an hour ago, and their bitmaps.
func gcExpires(b *bench) {
	b.ingest("g", 0, blobsOf("exp", 3, 100))
	bitmaps := blobsOf("bitmaps", 3, gcBlob)
	now := time.Now()
	// One expired for long, one within the grace time, and one that is valid.
	over := b.saveUntil("g", 1, bitmaps[0], "", now.Add(-2*store.ExpiredGrace))
	b.saveUntil("g", 1, bitmaps[1], "", now.Add(-store.ExpiredGrace/2))
	lives := b.saveUntil("g", 1, bitmaps[2], "", now.Add(time.Hour))
	b.gc(store.GCOptions{DryRun: true})
	b.has(bitmaps[0])
	b.gc(store.GCOptions{})
	b.lacks(bitmaps[0])
	b.has(bitmaps[1])
	b.has(bitmaps[2])
	_, err := b.store.Selection(b.ctx, "g", lives.Name())
	b.ok(err, "a selection that has not expired")
	_, err = b.store.Selection(b.ctx, "g", over.Name())
	b.fails(err, schema.ErrNotFound, "a selection that was collected")
}

// gcPinned holds blobs, live and garbage, over collections and new writes.
func gcPinned(b *bench) {
	// Readers of both: a pin protects a blob also when nothing else refers to it.
	live, dead := blobsOf("live", 20, gcBlob), blobsOf("dead", 40, gcBlob)
	b.ingest("dead", 0, dead)
	b.ingest("live", 0, live)
	var want [][]byte
	var pins []schema.Blob
	defer func() {
		for i := range pins {
			pins[i].Release()
		}
	}()
	for _, data := range slices.Concat(live, dead) {
		blob, err := b.store.Get(b.ctx, b.ref(data))
		b.ok(err, "get")
		want, pins = append(want, data), append(pins, blob)
	}
	b.ok(b.store.Drop(b.ctx, "dead", 0), "drop")
	for round := range 3 {
		b.gc(store.GCOptions{})
		b.lacks(dead[0])
		b.ingest("more", int64(round), blobsOf(fmt.Sprint(round), 20, gcBlob))
		for i := range pins {
			b.that(bytes.Equal(pins[i].Bytes(), want[i]), "the bytes of a pinned blob changed in round %d", round)
		}
		b.holds(b.snapshot("live", 0), live)
	}
}

// collectUntil collects repeatedly until done is closed.
func collectUntil(ctx context.Context, s store.Store, done <-chan struct{}) error {
	for {
		if _, err := s.GC(ctx, store.GCOptions{}, nil); err != nil {
			return fmt.Errorf("gc: %w", err)
		}
		select {
		case <-done:
			return nil
		default:
		}
	}
}

// gcDuringImports collects repeatedly while one writer replaces a dataset's content, another drops old snapshots, and
// readers read the newest.
func gcDuringImports(b *bench) {
	// Each snapshot shares all but one blob with the one before. A collection that is
	// wrong about shared blobs therefore fails soon.
	const rounds, window = 12, 30
	pool := blobsOf("pool", rounds+window, 4000)
	want := func(number int64) [][]byte { return pool[number-1 : number-1+window] }
	done := make(chan struct{})
	g, ctx := errgroup.WithContext(b.ctx)
	g.Go(func() error {
		defer close(done)
		for n := range int64(rounds) {
			snap, err := ingest(ctx, b.store, "turn", n, want(n+1))
			if err != nil {
				return fmt.Errorf("import: %w", err)
			}
			if err := holds(ctx, b.store, snap, want(n+1)); err != nil {
				return fmt.Errorf("after import: %w", err)
			}
			if n > 0 {
				if err := b.store.Drop(ctx, "turn", n); err != nil {
					return fmt.Errorf("drop: %w", err)
				}
			}
		}
		return nil
	})
	g.Go(func() error { return collectUntil(ctx, b.store, done) })
	b.ok(g.Wait(), "collect during imports")
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("turn", 0), want(rounds))
	b.lacks(pool[0])
}

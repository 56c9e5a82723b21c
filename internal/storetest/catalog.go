package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// emptyStore: an empty store answers with ErrNotFound that names the dataset, and its counts are 0.
func emptyStore(b *bench) {
	b.catalog()
	_, err := b.store.Snapshot(b.ctx, "absent", 0)
	b.fails(err, schema.ErrNotFound, "newest snapshot of an empty store")
	b.that(strings.Contains(err.Error(), "absent"), "the error %q does not name the dataset", err)
	_, err = b.store.Snapshot(b.ctx, "absent", 3)
	b.fails(err, schema.ErrNotFound, "snapshot of an empty store")
	b.lacks([]byte("this was never put"))
	b.fails(b.store.Drop(b.ctx, "absent", 0), schema.ErrNotFound, "drop from an empty store")
	_, err = b.store.Selection(b.ctx, "absent", schema.RefOf(nil).Key.String())
	b.fails(err, schema.ErrNotFound, "selection of an empty store")
	r := b.gc(store.GCOptions{})
	b.that(r == store.GCReport{}, "gc of an empty store found %+v", r)
	stats := b.store.Stats()
	stats.CountedAt = time.Time{}
	b.that(stats == store.Stats{}, "an empty store counts %+v", stats)
}

// commitAndRead: a committed snapshot is read back as it was, and Commit does not change its
// argument. Errors for absent snapshots list what there is.
func commitAndRead(b *bench) {
	blobs := blobsOf("commit", 20, 1000)
	in := b.begin("flowers")
	snap, err := Put(b.ctx, in, blobs, 8)
	b.ok(err, "put")
	before := time.Now()
	got, err := in.Commit(b.ctx, snap)
	b.ok(err, "commit")
	b.ok(in.Close(), "close the ingest")
	b.ok(in.Close(), "close the ingest again")
	b.that(snap.Number == 0 && snap.Created.IsZero() && snap.Dataset == "", "commit changed its argument: %+v", snap)
	b.that(got.Dataset == "flowers" && got.Number == 1 && got.Parent == 0,
		"committed %s@%d with parent %d, want flowers@1 with 0",
		got.Dataset, got.Number, got.Parent)
	b.that(got.Created.After(before.Add(-time.Minute)) && got.Created.Before(time.Now().Add(time.Minute)),
		"created %v, want about %v", got.Created, before)
	// 0 is the newest snapshot, which is 1 here.
	for _, number := range []int64{0, 1} {
		read := b.snapshot("flowers", number)
		b.that(read.Number == 1 && read.Created.Equal(got.Created) && read.Source == "storetest",
			"read %+v, want what commit returned", read)
		b.that(read.Schema.Equal(snap.Schema), "the schema came back as %s, want %s", read.Schema, snap.Schema)
		b.that(fmt.Sprint(read.Splits) == fmt.Sprint(snap.Splits), "splits %v, want %v", read.Splits, snap.Splits)
		b.that(fmt.Sprint(read.Chunks) == fmt.Sprint(snap.Chunks), "chunks %v, want %v", read.Chunks, snap.Chunks)
		b.holds(read, blobs)
	}
	b.ingest("birds", 0, blobs[:3])
	b.ingest("flowers", 1, blobs[3:])
	b.catalog(store.Dataset{Name: "birds", Snapshots: []int64{1}},
		store.Dataset{Name: "flowers", Snapshots: []int64{1, 2}})

	_, err = b.store.Snapshot(b.ctx, "flowers", 9)
	b.fails(err, schema.ErrNotFound, "absent snapshot")
	// A user who misspelled a number or a name sees the right ones.
	for _, word := range []string{"flowers", "9", "1", "2"} {
		b.that(strings.Contains(err.Error(), word), "the error %q does not say %s", err, word)
	}
	_, err = b.store.Snapshot(b.ctx, "fish", 0)
	b.fails(err, schema.ErrNotFound, "absent dataset")
	for _, word := range []string{"fish", "birds", "flowers"} {
		b.that(strings.Contains(err.Error(), word), "the error %q does not say %s", err, word)
	}
}

// invisible: an ingest that was not committed shows in no call, also after reopening.
func invisible(b *bench) {
	blobs := blobsOf("invisible", 5, 500)
	in := b.begin("ghost")
	_, err := Put(b.ctx, in, blobs, 8)
	b.ok(err, "put")
	b.catalog()
	_, err = b.store.Snapshot(b.ctx, "ghost", 0)
	b.fails(err, schema.ErrNotFound, "snapshot that was not committed")
	b.ok(in.Close(), "close the ingest")
	b.catalog()
	b.reopen()
	b.catalog()
	_, err = b.store.Snapshot(b.ctx, "ghost", 1)
	b.fails(err, schema.ErrNotFound, "snapshot that was not committed")
}

// commitRefuses: a commit is refused if it refers to a chunk that was not put, lacks a schema, or
// belongs to another dataset; and an ingest refuses calls after Close.
func commitRefuses(b *bench) {
	in := b.begin("picky")
	snap, err := Put(b.ctx, in, blobsOf("picky", 2, 10), 8)
	b.ok(err, "put")
	other := snap
	other.Dataset = "another"
	_, err = in.Commit(b.ctx, other)
	b.fails(err, schema.ErrInvalid, "commit to another dataset")
	without := snap
	without.Schema = nil
	_, err = in.Commit(b.ctx, without)
	b.fails(err, schema.ErrInvalid, "commit without a schema")
	// A chunk that was never put would make a snapshot that cannot be read.
	dangling := snap
	dangling.Chunks = append(slices.Clone(snap.Chunks), schema.Chunk{BlobRef: schema.RefOf([]byte("never put")),
		Rows: 1})
	_, err = in.Commit(b.ctx, dangling)
	b.fails(err, schema.ErrInvalid, "commit of a chunk that was not put")
	b.catalog()
	b.ok(in.Close(), "close the ingest")
	_, err = in.Commit(b.ctx, snap)
	b.fails(err, schema.ErrInvalid, "commit after close")
	_, err = in.Put(b.ctx, []byte("x"))
	b.fails(err, schema.ErrInvalid, "put after close")
}

// names: invalid names are refused, and names that are prefixes of each other do not mix.
func names(b *bench) {
	for _, name := range []string{"", "a/b", "a\x00b", ".hidden", "a b", strings.Repeat("n", 129)} {
		_, err := b.store.Begin(b.ctx, name)
		b.fails(err, schema.ErrInvalid, "begin an ingest into %q", name)
	}
	// Names that are prefixes of each other are different datasets.
	want := []string{"a", "a-b", "a.b", "a0", "aa", "b"}
	for i, name := range want {
		b.ingest(name, 0, blobsOf(name, i+1, 20))
	}
	b.ok(b.store.Drop(b.ctx, "a", 0), "drop a")
	var list []store.Dataset
	for _, name := range want[1:] {
		list = append(list, store.Dataset{Name: name, Snapshots: []int64{1}})
	}
	b.catalog(list...)
	for i, name := range want[1:] {
		b.holds(b.snapshot(name, 0), blobsOf(name, i+2, 20))
	}
}

// conflict: a commit whose parent is not the newest snapshot is an ErrConflict, and the ingest
// can commit with the right parent afterwards.
func conflict(b *bench) {
	in := b.begin("race")
	late, err := Put(b.ctx, in, blobsOf("late", 3, 100), 8)
	b.ok(err, "put")
	b.ingest("race", 0, blobsOf("early", 3, 100))
	_, err = in.Commit(b.ctx, late)
	b.fails(err, schema.ErrConflict, "commit with an old parent")
	late.Parent = 7
	_, err = in.Commit(b.ctx, late)
	b.fails(err, schema.ErrConflict, "commit with a parent there never was")
	b.catalog(store.Dataset{Name: "race", Snapshots: []int64{1}})
	late.Parent = 1
	got, err := in.Commit(b.ctx, late)
	b.ok(err, "commit with the right parent, after conflicts")
	b.that(got.Number == 2 && got.Parent == 1, "committed %d with parent %d, want 2 with 1", got.Number, got.Parent)
	b.ok(in.Close(), "close the ingest")
	b.holds(b.snapshot("race", 0), blobsOf("late", 3, 100))
	b.holds(b.snapshot("race", 1), blobsOf("early", 3, 100))
}

// numbering: numbers grow by one and are never used again, also after a drop and after reopening.
func numbering(b *bench) {
	// A number that was used twice would make DATASET@N mean two things.
	expect := func(parent, number int64) {
		got := b.ingest("count", parent, blobsOf(fmt.Sprint(number), 1, 10))
		b.that(got.Number == number, "the snapshot got number %d, want %d", got.Number, number)
	}
	expect(0, 1)
	expect(1, 2)
	expect(2, 3)
	b.ok(b.store.Drop(b.ctx, "count", 3), "drop the newest")
	b.that(b.snapshot("count", 0).Number == 2, "the newest is %d after 3 was dropped, want 2",
		b.snapshot("count", 0).Number)
	expect(2, 4)
	b.ok(b.store.Drop(b.ctx, "count", 2), "drop one in the middle")
	b.that(b.snapshot("count", 0).Number == 4, "the newest is %d after 2 was dropped, want 4",
		b.snapshot("count", 0).Number)
	b.catalog(store.Dataset{Name: "count", Snapshots: []int64{1, 4}})
	b.reopen()
	expect(4, 5)
	b.ok(b.store.Drop(b.ctx, "count", 0), "drop all")
	b.catalog()
	b.reopen()
	expect(0, 6)
	b.ok(b.store.Drop(b.ctx, "count", 6), "drop the only one")
	b.catalog()
	_, err := b.store.Snapshot(b.ctx, "count", 0)
	b.fails(err, schema.ErrNotFound, "newest of a dataset without snapshots")
	expect(0, 7)
}

// concurrentCommitters makes several writers append to one dataset. Each attempt names the parent that it saw. If
// several name the same one, exactly one wins.
func concurrentCommitters(b *bench) {
	// A conflict is tried again with the newest parent, as an import does.
	const writers, each = 4, 5
	wins := make([][]*schema.Snapshot, writers)
	g, ctx := errgroup.WithContext(b.ctx)
	for w := range writers {
		g.Go(func() (err error) {
			in, err := b.store.Begin(ctx, "shared")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, in.Close()) }()
			for len(wins[w]) < each {
				snap, err := Put(ctx, in, blobsOf(fmt.Sprintf("%d-%d", w, len(wins[w])), 2, 100), 8)
				if err != nil {
					return err
				}
				newest, err := b.store.Snapshot(ctx, "shared", 0)
				switch {
				case err == nil:
					snap.Parent = newest.Number
				case !errors.Is(err, schema.ErrNotFound):
					return err
				}
				got, err := in.Commit(ctx, snap)
				if errors.Is(err, schema.ErrConflict) {
					continue
				} else if err != nil {
					return err
				}
				wins[w] = append(wins[w], got)
			}
			return nil
		})
	}
	b.ok(g.Wait(), "commit concurrently")
	// Numbers must be a sequence without gaps, each with the one before as its parent.
	all := make([]*schema.Snapshot, writers*each+1)
	for w := range wins {
		for i, got := range wins[w] {
			b.that(got.Number >= 1 && got.Number < int64(len(all)), "the snapshot got number %d of %d", got.Number,
				len(all)-1)
			b.that(all[got.Number] == nil, "two commits got number %d", got.Number)
			b.that(got.Parent == got.Number-1, "snapshot %d has parent %d, want the one before", got.Number, got.Parent)
			all[got.Number] = got
			b.holds(b.snapshot("shared", got.Number), blobsOf(fmt.Sprintf("%d-%d", w, i), 2, 100))
		}
	}
}

// reopen: snapshots, selections, blobs and counts survive reopening.
func reopen(b *bench) {
	first, second := blobsOf("first", 10, 3000), blobsOf("second", 10, 3000)
	b.ingest("kept", 0, first)
	b.ingest("kept", 1, second)
	b.ingest("dropped", 0, first)
	sel := b.saveSelection("kept", 2, blobOf("bitmap", 64))
	b.ok(b.store.Drop(b.ctx, "dropped", 0), "drop")
	stats := b.store.Stats()
	if !stats.CountedAt.IsZero() { // it has the count of the last collection
		b.gc(store.GCOptions{})
		stats = b.store.Stats()
	}
	for range 3 {
		b.reopen()
		b.catalog(store.Dataset{Name: "kept", Snapshots: []int64{1, 2}})
		b.holds(b.snapshot("kept", 1), first)
		b.holds(b.snapshot("kept", 0), second)
		got, err := b.store.Selection(b.ctx, "kept", sel.Name())
		b.ok(err, "selection after reopening")
		b.that(got.Bitmap == sel.Bitmap && got.Rows == sel.Rows && got.Snapshot == 2,
			"the selection came back as %+v, want %+v", got, sel)
		b.has(blobOf("bitmap", 64))
		now := b.store.Stats()
		b.that(now.Blobs == stats.Blobs && now.StoredBytes == stats.StoredBytes,
			"the store has %d blobs of %d bytes after reopening, had %d of %d", now.Blobs, now.StoredBytes, stats.Blobs,
			stats.StoredBytes)
	}
	b.ingest("kept", 2, first[:4])
	b.holds(b.snapshot("kept", 3), first[:4])
}

// drop: a dropped snapshot is not found, while a reader that has it open can still read it.
func drop(b *bench) {
	one, two := blobsOf("one", 4, 700), blobsOf("two", 4, 700)
	// The reader has the snapshot in memory, and needs the blobs alone.
	open := b.ingest("d", 0, one)
	b.ingest("d", 1, two)
	err := b.store.Drop(b.ctx, "d", 5)
	b.fails(err, schema.ErrNotFound, "drop an absent snapshot")
	b.that(strings.Contains(err.Error(), "5"), "the error %q does not name the snapshot", err)
	b.ok(b.store.Drop(b.ctx, "d", 1), "drop")
	b.fails(b.store.Drop(b.ctx, "d", 1), schema.ErrNotFound, "drop again")
	_, err = b.store.Snapshot(b.ctx, "d", 1)
	b.fails(err, schema.ErrNotFound, "a dropped snapshot")
	b.holds(open, one) // a reader that has it open can still read it
	b.holds(b.snapshot("d", 0), two)
	b.ok(b.store.Drop(b.ctx, "d", 0), "drop the dataset")
	_, err = b.store.Snapshot(b.ctx, "d", 0)
	b.fails(err, schema.ErrNotFound, "a dropped dataset")
}

// cancelled: each call ends with the cause of a cancelled context and changes nothing.
func cancelled(b *bench) {
	b.ingest("c", 0, blobsOf("c", 3, 100))
	in := b.begin("c")
	snap, err := Put(b.ctx, in, blobsOf("c2", 3, 100), 8)
	b.ok(err, "put")
	snap.Parent = 1
	ref := b.put(in, blobOf("bitmap", 8))
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	// Each method of a store and of an ingest that takes a context.
	calls := map[string]func() error{
		"Datasets":  func() error { _, err := b.store.Datasets(ctx); return err },
		"Snapshot":  func() error { _, err := b.store.Snapshot(ctx, "c", 0); return err },
		"Get":       func() error { _, err := b.store.Get(ctx, ref); return err },
		"Begin":     func() error { _, err := b.store.Begin(ctx, "c"); return err },
		"Drop":      func() error { return b.store.Drop(ctx, "c", 1) },
		"Selection": func() error { _, err := b.store.Selection(ctx, "c", ref.Key.String()); return err },
		"GC":        func() error { _, err := b.store.GC(ctx, store.GCOptions{}, nil); return err },
		"Put":       func() error { _, err := in.Put(ctx, []byte("late")); return err },
		"Commit":    func() error { _, err := in.Commit(ctx, snap); return err },
		"RenewSelection": func() error {
			return b.store.RenewSelection(ctx, "c", ref.Key.String(), time.Now())
		},
		"Run": func() error { _, err := b.store.Run(ctx, "c", "llama"); return err },
		"ChangeRun": func() error {
			_, err := b.store.ChangeRun(ctx, "c", "llama", func(*store.Run) (*store.Run, error) { return nil, nil })
			return err
		},
		"SaveSelection": func() error {
			return in.SaveSelection(ctx, schema.Selection{Dataset: "c", Snapshot: 1, Bitmap: ref})
		},
	}
	for name, call := range calls {
		b.fails(call(), context.Canceled, "%s with a cancelled context", name)
	}
	b.catalog(store.Dataset{Name: "c", Snapshots: []int64{1}})
	_, err = in.Commit(b.ctx, snap)
	b.ok(err, "commit after a cancelled attempt")
	b.ok(in.Close(), "close the ingest")
}

// closeDuringCalls closes a store in full use: every call succeeds or reports that the store is closed, and committed
// snapshots are there afterwards.
func closeDuringCalls(b *bench) {
	blobs := blobsOf("busy", 20, 5000)
	b.ingest("busy", 0, blobs)
	in := b.begin("busy")
	// Each call has run once before the store is closed.
	started := make(chan struct{}, 5)
	var g errgroup.Group
	for _, call := range []func(i int) error{
		func(int) error { _, err := b.store.Datasets(b.ctx); return err },
		func(int) error { _, err := b.store.Snapshot(b.ctx, "busy", 0); return err },
		func(i int) error {
			blob, err := b.store.Get(b.ctx, b.ref(blobs[i%len(blobs)]))
			if err == nil {
				err = b.ref(blobs[i%len(blobs)]).Check(blob.Bytes())
			}
			blob.Release()
			return err
		},
		func(i int) error { _, err := in.Put(b.ctx, blobOf(fmt.Sprint("late", i), 3000)); return err },
		func(int) error { _, err := b.store.GC(b.ctx, store.GCOptions{}, nil); return err },
	} {
		g.Go(func() error {
			for i := 0; ; i++ {
				err := call(i)
				if i == 0 {
					started <- struct{}{}
				}
				if errors.Is(err, schema.ErrUnavailable) {
					return nil
				} else if err != nil {
					return err
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	b.ok(b.store.Close(), "close")
	b.ok(g.Wait(), "calls while the store was closed")
	b.ok(in.Close(), "close the ingest")
	b.open()
	b.catalog(store.Dataset{Name: "busy", Snapshots: []int64{1}})
	b.holds(b.snapshot("busy", 0), blobs)
}

// closing: after Close a blob that was handed out is still valid, and calls are ErrUnavailable.
func closing(b *bench) {
	data := blobOf("pinned", 300_000)
	b.ingest("c", 0, [][]byte{data})
	blob, err := b.store.Get(b.ctx, b.ref(data))
	b.ok(err, "get")
	in := b.begin("c")
	b.ok(b.store.Close(), "close")
	b.ok(b.store.Close(), "close again")
	b.ok(b.ref(data).Check(blob.Bytes()), "a blob that was handed out, after close")
	blob.Release()
	blob.Release()

	_, err = b.store.Datasets(b.ctx)
	b.fails(err, schema.ErrUnavailable, "Datasets after close")
	_, err = b.store.Get(b.ctx, b.ref(data))
	b.fails(err, schema.ErrUnavailable, "Get after close")
	_, err = b.store.Begin(b.ctx, "c")
	b.fails(err, schema.ErrUnavailable, "Begin after close")
	_, err = in.Put(b.ctx, data)
	b.fails(err, schema.ErrUnavailable, "Put after close")
	_, err = b.store.GC(b.ctx, store.GCOptions{}, nil)
	b.fails(err, schema.ErrUnavailable, "GC after close")
	b.ok(in.Close(), "close an ingest after its store")
	b.open()
	b.holds(b.snapshot("c", 0), [][]byte{data})
}

package storetest

import (
	"fmt"
	"slices"
	"strings"

	"bowstring/fetch/store"
	"bowstring/schema"
)

// tags are names of snapshots.
func tags(b *bench) {
	// points requires exactly these tags, before and after reopening.
	points := func(want ...store.Tag) {
		for range 2 {
			list, err := b.store.Datasets(b.ctx)
			b.ok(err, "list")
			b.that(len(list) == 1 && slices.Equal(list[0].Tags, want), "the tags of %+v, want %+v", list, want)
			for _, tag := range want {
				number, err := b.store.Tagged(b.ctx, "t", tag.Name)
				b.ok(err, "look up %s", tag.Name)
				b.that(number == tag.Snapshot, "%s is snapshot %d, want %d", tag.Name, number, tag.Snapshot)
			}
			b.reopen()
		}
	}
	for n := range int64(3) {
		b.ingest("t", n, blobsOf(fmt.Sprint("tagged", n), 3, 200))
	}
	_, err := b.store.Tagged(b.ctx, "t", "prod")
	b.fails(err, schema.ErrNotFound, "a tag that is not there")
	b.fails(b.store.Tag(b.ctx, "t", "prod", 9), schema.ErrNotFound, "tag an absent snapshot")
	b.fails(b.store.Tag(b.ctx, "t", "7", 1), schema.ErrInvalid, "a tag that is a number")
	b.fails(b.store.Tag(b.ctx, "t", "99999999999999999999", 1), schema.ErrInvalid, "a tag that is digits alone")
	b.fails(b.store.Tag(b.ctx, "u", "prod", 1), schema.ErrNotFound, "tag in an absent dataset")
	_, err = b.store.Tagged(b.ctx, "u", "prod")
	b.fails(err, schema.ErrNotFound, "a tag of an absent dataset")
	b.fails(b.store.Tag(b.ctx, "t", "a/b", 1), schema.ErrInvalid, "a tag that is no name")
	b.fails(b.store.Untag(b.ctx, "t", "prod"), schema.ErrNotFound, "remove a tag that is not there")
	b.ok(b.store.Tag(b.ctx, "t", "prod", 1), "tag")
	b.ok(b.store.Tag(b.ctx, "t", "best", 1), "tag again")
	points(store.Tag{Name: "best", Snapshot: 1}, store.Tag{Name: "prod", Snapshot: 1})
	_, err = b.store.Tagged(b.ctx, "t", "prd")
	b.fails(err, schema.ErrNotFound, "a slip of a tag")
	b.that(err != nil && strings.Contains(err.Error(), `did you mean "prod"`), "a slip of a tag: %v", err)
	// A snapshot with a tag stays, and so do its blobs.
	b.fails(b.store.Drop(b.ctx, "t", 1), schema.ErrInvalid, "drop what has a tag")
	b.fails(b.store.Drop(b.ctx, "t", 0), schema.ErrInvalid, "drop a dataset that has one")
	b.ok(b.store.Tag(b.ctx, "t", "prod", 2), "move a tag")
	b.ok(b.store.Untag(b.ctx, "t", "best"), "remove a tag")
	b.ok(b.store.Drop(b.ctx, "t", 1), "drop what has none any more")
	b.fails(b.store.Tag(b.ctx, "t", "best", 1), schema.ErrNotFound, "tag what was dropped")
	points(store.Tag{Name: "prod", Snapshot: 2})
	b.gc(store.GCOptions{})
	b.holds(b.snapshot("t", 2), blobsOf("tagged1", 3, 200))
	b.ok(b.store.Untag(b.ctx, "t", "prod"), "remove the last tag")
	b.ok(b.store.Drop(b.ctx, "t", 0), "drop the dataset")
}

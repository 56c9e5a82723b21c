package storetest

import (
	"strings"
	"time"

	"bowstring/schema"
)

// saveSelection saves a selection without an owner, which does not expire.
func (b *bench) saveSelection(dataset string, number int64, bitmap []byte) schema.Selection {
	return b.saveUntil(dataset, number, bitmap, "", time.Time{})
}

// saveUntil saves a selection of an owner that expires.
func (b *bench) saveUntil(dataset string, number int64, bitmap []byte, owner string,
	expires time.Time) schema.Selection {
	in := b.begin(dataset)
	sel := schema.Selection{Dataset: dataset, Snapshot: number, Rows: 3, Owner: owner, Expires: expires}
	sel.SetBitmap(b.put(in, bitmap), bitmap)
	b.ok(in.SaveSelection(b.ctx, sel), "save a selection")
	b.ok(in.SaveSelection(b.ctx, sel), "save it again")
	b.ok(in.Close(), "close the ingest")
	return sel
}

// selections checks that a selection belongs to its dataset and snapshot, and goes with
// them.
func selections(b *bench) {
	b.ingest("s", 0, blobsOf("s", 8, 100))
	b.ingest("other", 0, blobsOf("s", 8, 100))
	sel := b.saveSelection("s", 1, blobOf("bits", 8))
	b.saveSelection("s", 1, blobOf("bits", 8))
	got, err := b.store.Selection(b.ctx, "s", sel.Name())
	b.ok(err, "selection")
	b.that(got.Dataset == "s" && got.Snapshot == 1 && got.Rows == 3 && got.Bitmap == sel.Bitmap, "got %+v, want %+v",
		got, sel)
	b.that(!got.Created.IsZero(), "the selection has no time of creation")

	_, err = b.store.Selection(b.ctx, "other", sel.Name())
	b.fails(err, schema.ErrNotFound, "selection of another dataset")
	_, err = b.store.Selection(b.ctx, "s", schema.RefOf([]byte("no such")).Key.String())
	b.fails(err, schema.ErrNotFound, "absent selection")
	_, err = b.store.Selection(b.ctx, "s", "not a name")
	b.fails(err, schema.ErrInvalid, "selection by a name that is none")

	in := b.begin("s")
	missing := schema.Selection{Dataset: "s", Snapshot: 1, Rows: 1, Bitmap: schema.RefOf([]byte("not put"))}
	b.fails(in.SaveSelection(b.ctx, missing), schema.ErrInvalid, "save a selection whose bitmap was not put")
	nowhere := schema.Selection{Dataset: "s", Snapshot: 9, Rows: 1, Bitmap: b.put(in, blobOf("bits9", 8))}
	b.fails(in.SaveSelection(b.ctx, nowhere), schema.ErrNotFound, "save a selection of an absent snapshot")
	b.ok(in.Close(), "close the ingest")

	// The same positions of a later snapshot are another selection.
	b.ingest("s", 1, blobsOf("t", 8, 100))
	later := b.saveSelection("s", 2, blobOf("bits", 8))
	b.that(later.Name() != sel.Name(), "the same positions of two snapshots have one name")
	for _, want := range []schema.Selection{sel, later} {
		got, err = b.store.Selection(b.ctx, "s", want.Name())
		b.ok(err, "selection")
		b.that(got.Snapshot == want.Snapshot, "the selection is of snapshot %d, want %d", got.Snapshot, want.Snapshot)
	}
	b.ok(b.store.Drop(b.ctx, "s", 2), "drop the later snapshot")
	_, err = b.store.Selection(b.ctx, "s", later.Name())
	b.fails(err, schema.ErrNotFound, "selection of a dropped snapshot")
	_, err = b.store.Selection(b.ctx, "s", sel.Name())
	b.ok(err, "selection of the snapshot that is left")

	b.ok(b.store.Drop(b.ctx, "s", 0), "drop the dataset")
	_, err = b.store.Selection(b.ctx, "s", sel.Name())
	b.fails(err, schema.ErrNotFound, "selection of a dropped dataset")
}

// selectionsAreLimited: an owner has a limited number of unexpired selections in each dataset.
func selectionsAreLimited(b *bench) {
	b.ingest("l", 0, blobsOf("l", 8, 100))
	b.ingest("other", 0, blobsOf("l", 8, 100))
	soon := time.Now().Add(time.Hour)
	// Equal bits are the same selection, and count once.
	save := func(dataset, owner, bits string, expires time.Time) error {
		in := b.begin(dataset)
		defer func() { b.ok(in.Close(), "close the ingest") }()
		sel := schema.Selection{Dataset: dataset, Snapshot: 1, Rows: 3, Owner: owner, Expires: expires, Most: 2}
		sel.SetBitmap(b.put(in, blobOf(bits, 8)), blobOf(bits, 8))
		return in.SaveSelection(b.ctx, sel)
	}
	b.ok(save("l", "ann", "1", soon), "the first")
	b.ok(save("l", "ann", "2", time.Now().Add(-time.Minute)), "one that has expired")
	b.ok(save("l", "ann", "3", soon), "the second")
	err := save("l", "ann", "4", soon)
	b.fails(err, schema.ErrLimit, "the third")
	b.that(strings.Contains(err.Error(), "MaxSelections") && strings.Contains(err.Error(), `"ann" has 2`),
		"the error does not say what the limit is: %v", err)
	b.ok(save("l", "ann", "3", soon.Add(time.Hour)), "one that there is")
	b.ok(save("l", "bob", "3", soon), "one of another owner's")
	b.ok(save("l", "bob", "4", soon), "another owner's first")
	b.ok(save("l", "", "5", soon), "one without an owner")
	b.ok(save("other", "ann", "1", soon), "one of another dataset")
}

// selectionsExpire: a selection lives until it expires. Use and a repeated upload put its expiry off and never bring
// it forward.
func selectionsExpire(b *bench) {
	b.ingest("e", 0, blobsOf("e", 8, 100))
	later := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	expires := func(sel schema.Selection, want time.Time) {
		got, err := b.store.Selection(b.ctx, "e", sel.Name())
		b.ok(err, "selection")
		b.that(got.Expires.Equal(want) && got.Owner == "ann",
			"the selection is %s's and expires on %s, want ann's and %s", got.Owner, got.Expires, want)
	}
	sel := b.saveUntil("e", 1, blobOf("bits", 8), "ann", later)
	expires(sel, later)
	b.saveUntil("e", 1, blobOf("bits", 8), "bob", later.Add(-time.Minute))
	expires(sel, later)
	b.saveUntil("e", 1, blobOf("bits", 8), "bob", later.Add(time.Minute))
	expires(sel, later.Add(time.Minute))
	b.ok(b.store.RenewSelection(b.ctx, "e", sel.Name(), later), "renew it for less")
	expires(sel, later.Add(time.Minute))
	b.ok(b.store.RenewSelection(b.ctx, "e", sel.Name(), later.Add(time.Hour)), "renew it")
	expires(sel, later.Add(time.Hour))
	b.fails(b.store.RenewSelection(b.ctx, "e", schema.RefOf([]byte("no such")).Key.String(), later), schema.ErrNotFound,
		"renew an absent selection")

	// A selection without an expiry keeps having none.
	ever := b.saveUntil("e", 1, blobOf("ever", 8), "ann", time.Time{})
	b.ok(b.store.RenewSelection(b.ctx, "e", ever.Name(), later), "renew what does not expire")
	b.saveUntil("e", 1, blobOf("ever", 8), "ann", later)
	expires(ever, time.Time{})

	over := b.saveUntil("e", 1, blobOf("over", 8), "bob", time.Now().Add(-time.Minute))
	_, err := b.store.Selection(b.ctx, "e", over.Name())
	b.fails(err, schema.ErrNotFound, "an expired selection")
	b.fails(b.store.RenewSelection(b.ctx, "e", over.Name(), later), schema.ErrNotFound, "renew an expired selection")
	again := b.saveUntil("e", 1, blobOf("over", 8), "ann", later)
	expires(again, later)
}

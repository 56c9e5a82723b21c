package readtest

import (
	"fmt"
	"sync/atomic"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// offered is a blob that counts how often it is released. A release wipes its bytes.
type offered struct {
	data     []byte
	released atomic.Int32
}

// Unpin implements schema.Owner.
func (o *offered) Unpin() {
	if o.released.Add(1) == 1 {
		clear(o.data)
	}
}

// offer offers a copy of the content, whose release is counted.
func (b *bench) offer(data []byte, at spill.Place) *offered {
	o := &offered{data: append([]byte(nil), data...)}
	ref := schema.RefOf(data)
	b.ends("Offer", func() error {
		b.caching.Offer(ref, at, time.Millisecond, schema.NewBlob(o.data, o))
		return nil
	})
	return o
}

// until waits for background work of the tier. There is no event for it, so that it
// polls.
func (b *bench) until(what string, done func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.failf("never: %s", what)
		}
	}
}

// releasedOnce requires that every offered blob is released exactly once. It waits for
// the first release of all, and then looks for second ones.
func (b *bench) releasedOnce(offers []*offered) {
	for _, o := range offers {
		b.until("an offered blob is released", func() bool { return o.released.Load() > 0 })
	}
	for _, o := range offers {
		n := o.released.Load()
		b.that(n == 1, "an offered blob was released %d times", n)
	}
}

// offersReleased offers blobs that are new, that exist, and that have no known place. All
// are released, also if the tier is closed meanwhile.
func offersReleased(b *bench) {
	if b.caching == nil {
		return
	}
	var offers []*offered
	var contents [][]byte
	for i := range 50 {
		contents = append(contents, blobOf(fmt.Sprint("offer", i), 500*i+1))
		offers = append(offers, b.offer(contents[i], b.At), b.offer(contents[i], b.At))
	}
	// Three offers that a tier may refuse: it must release them too.
	there := blobOf("there already", 1000)
	b.put(there)
	offers = append(offers,
		b.offer(there, b.At),
		b.offer(blobOf("at no place", 1000), spill.Place{}),
		b.offer(blobOf("at an unknown place", 1000), spill.Place{Dataset: 1 << 30, Position: 1 << 40}),
	)
	// A found blob stays valid when the offered ones are released.
	var blobs []schema.Blob
	var heldContents [][]byte
	for _, data := range contents {
		if blob, err := b.tryGet(b.ctx, schema.RefOf(data)); err == nil {
			blobs, heldContents = append(blobs, blob), append(heldContents, data)
		}
	}
	b.churn()
	b.close()
	for i := range blobs {
		b.right(&blobs[i], heldContents[i])
		blobs[i].Release()
	}
	b.releasedOnce(offers)
}

// offersFound checks that an offered blob that the tier has room for is found soon, and
// from then on.
func offersFound(b *bench) {
	if b.caching == nil {
		return
	}
	var offers []*offered
	for i := range 20 {
		data := blobOf(fmt.Sprint("kept", i), 1000*i+10)
		ref := schema.RefOf(data)
		offers = append(offers, b.offer(data, b.At))
		b.until("what was offered is there", func() bool { return b.Tier.Has(ref) })
		blob := b.get(data)
		blob.Release()
	}
	b.releasedOnce(offers) // the tier has copied the bytes by now
	for i := range 20 {
		blob := b.get(blobOf(fmt.Sprint("kept", i), 1000*i+10))
		blob.Release()
	}
}

// offersDoNotWait offers more blobs than the tier can queue, while it is blocked. Offers
// must return at once: a stream makes them.
func offersDoNotWait(b *bench) {
	if b.caching == nil {
		return
	}
	release := func() {}
	if b.Hang != nil {
		release = b.Hang()
	}
	defer release()
	var offers []*offered
	// More than any queue of a tier.
	for i := range 6000 {
		offers = append(offers, b.offer(blobOf(fmt.Sprint("flood", i), 64), b.At))
	}
	release()
	b.close()
	b.releasedOnce(offers)
}

// missed checks that reports of misses, also for unknown places, disturb nothing.
func missed(b *bench) {
	if b.caching == nil {
		return
	}
	data := blobOf("missed", 1000)
	b.put(data)
	for _, at := range []spill.Place{b.At, {}, {Dataset: 1 << 30, Position: 7}} {
		for _, size := range []int64{0, 1, 1 << 40} {
			b.ends("Missed", func() error { b.caching.Missed(at, size); return nil })
		}
	}
	blob := b.get(data)
	blob.Release()
	unknown := schema.RefOf(blobOf("not there", 1000))
	if _, err := b.tryGet(b.ctx, unknown); err == nil {
		b.failf("a blob is there that was missed")
	}
}

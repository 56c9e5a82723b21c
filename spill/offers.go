package spill

import (
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// maxOffers is how many blobs wait to be stored at most, however small they are.
const maxOffers = 4096

// offer is a blob that waits to be stored, and the owner of it for those who find it meanwhile.
type offer struct {
	ref   schema.BlobRef
	at    Place
	set   *dataset // of its place; guarded by Cache.mu
	cost  time.Duration
	blob  schema.Blob
	holds atomic.Int32 // grows under Cache.mu only while it is in offered
}

// Unpin implements schema.Owner.
func (o *offer) Unpin() {
	if o.holds.Add(-1) == 0 {
		o.blob.Release()
	}
}

// Extent implements schema.Locator: what was offered may lie in a file of whoever it came from.
func (o *offer) Extent([]byte) (schema.Extent, bool) { return o.blob.Extent() }

// Offer is Put without waiting: a goroutine of the cache stores the blob and releases it. Until then it is found in
// memory. What does not fit in the queue, as the disk is slower than the store, is not stored. The blob, which must be
// what ref names, is the cache's to release, whatever is returned.
func (c *Cache) Offer(ref schema.BlobRef, at Place, cost time.Duration, blob schema.Blob) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	c.mu.Lock()
	_, s := c.table.find(&ref.Key)
	if c.closed.Load() || s != nil || c.offered[ref.Key] != nil {
		c.mu.Unlock()
		blob.Release()
		return false
	}
	if c.queued.Add(ref.Size) <= c.opts.QueueBytes {
		o := &offer{ref: ref, at: at, cost: cost, blob: blob}
		o.holds.Store(1)
		select {
		case c.offers <- o:
			c.offered[ref.Key] = o
			o.set = c.set(at.Dataset)
			o.set.claims.Add(1)
			c.mu.Unlock()
			return true
		default:
		}
	}
	c.mu.Unlock()
	c.queued.Add(-ref.Size)
	c.count.busy.Add(1)
	blob.Release()
	return false
}

// Offers are gathered for gatherTime at most, and written in pieces of gatherBytes: large writes cost a tenth of what
// as many bytes in small ones do, and nobody has to be woken up for each blob. Until they are written they are found in
// memory.
const (
	gatherTime   = 20 * time.Millisecond
	gatherPauses = 4 // in which it passes
	gatherBytes  = 4 << 20
	gatherBlobs  = 128
)

// gathering is what the goroutines that write what is offered take turns in, so that what follows one another is
// written at once.
type gathering struct {
	// held while a batch is gathered, which may take as long as nothing is offered; guards what follows
	mu    sync.Mutex
	next  *offer // did not fit into the batch before
	pause *time.Timer
}

// writeOffers writes what is offered until there are no more offers.
func (c *Cache) writeOffers() {
	var w offerWriter
	for w.gather(c) {
		w.write(c)
	}
}

// offerWriter is the memory of a goroutine that writes what is offered.
type offerWriter struct {
	batch  []*offer
	begun  []pending
	writes []segment.Write
}

// gather waits for offers and makes a batch of them, for which it takes the space. It reports whether there are any.
func (w *offerWriter) gather(c *Cache) bool {
	g := &c.gathering
	g.mu.Lock()
	defer g.mu.Unlock()
	w.batch = w.batch[:0]
	if g.next == nil {
		g.next = <-c.offers
	}
	size, pauses := int64(0), 0
	for g.next != nil && len(w.batch) < gatherBlobs {
		size += c.space.set.Footprint(g.next.ref.Size)
		if size > gatherBytes && len(w.batch) > 0 {
			break
		}
		w.batch = append(w.batch, g.next)
		g.next = g.another(c.offers, &pauses)
	}
	w.begin(c)
	return len(w.batch) > 0
}

// another returns the next offer, or nil if gatherTime passes without one. It counts the pauses in which that passes.
func (g *gathering) another(offers <-chan *offer, pauses *int) *offer {
	for {
		select {
		case o := <-offers: // nil if there will be no more
			return o
		default:
		}
		if *pauses == gatherPauses {
			return nil
		}
		*pauses++
		g.pause.Reset(gatherTime / gatherPauses)
		<-g.pause.C
	}
}

// begin takes space for what is in the batch.
func (w *offerWriter) begin(c *Cache) {
	w.begun, w.writes = w.begun[:0], w.writes[:0]
	for _, o := range w.batch {
		if p, ok := c.beginOffer(o); ok {
			w.begun = append(w.begun, p)
			w.writes = append(w.writes, segment.Write{
				Reservation: p.space, Key: o.ref.Key, Sum: o.ref.Sum, Payload: o.blob.Bytes(), Frame: o.blob.Frame(),
			})
		}
	}
}

// write stores the batch.
func (w *offerWriter) write(c *Cache) {
	segment.WriteAll(w.writes)
	for i := range w.begun {
		c.finish(&w.begun[i], w.writes[i].Err)
	}
	c.mu.Lock()
	c.refused += int64(len(w.batch) - len(w.begun))
	for _, o := range w.batch {
		delete(c.offered, o.ref.Key)
		o.set.claims.Add(-1)
	}
	c.mu.Unlock()
	for _, o := range w.batch {
		o.Unpin()
		c.queued.Add(-o.ref.Size)
	}
	clear(w.batch)
	clear(w.writes) // they hold the blobs' memory
}

func (c *Cache) beginOffer(o *offer) (pending, bool) {
	if c.closed.Load() {
		return pending{}, false
	}
	return c.begin(o.ref, o.at, o.cost, int64(len(o.blob.Bytes())))
}

// Package spill is the node's cache of blobs on its disk, between the store and the streams.
//
// A [Policy] decides what the cache keeps. The standard one, [NextUse], evicts the blob whose next use is last. A
// [Future] knows the running jobs, and each job's order has an inverse that returns when it uses any sample next. The
// other policies exist for comparison, in package replay.
//
// The package knows blobs and jobs only in the abstract. Its caller decides what an order is, and where blobs come
// from. Begin reading at [Cache], [NextUse] and [Future].
package spill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Cache keeps blobs in a directory. It is safe for concurrent use.
//
// A disk fault is never an error of Get or Put: a blob that cannot be read is a miss, and one that cannot be written
// is not stored. Both are counted, and logged at most every ten seconds.
type Cache struct {
	opts  Options
	lock  *os.File
	index *index
	space space
	trouble
	spare atomic.Pointer[func(schema.BlobRef) bool] // nil: no blob is spare

	// life is read-locked by calls and locked by Close.
	life   sync.RWMutex
	closed atomic.Bool // set with life locked

	mu      sync.Mutex // guards what follows; never held during I/O, nor together with space.mu, which is
	table   table
	chooser *Chooser
	named   numbering
	payers  payers
	offered map[schema.Key]*offer // those that wait in offers
	refused int64                 // offers that were not stored
	notKept int64                 // blobs with a Place.Until that were not stored
	quiet   Time                  // nothing is stored before this time, because the disk has failed
	backoff Time                  // length of the next such pause

	offers    chan *offer
	queued    atomic.Int64
	gathering gathering
	reaper    reaper
	spent     spent
	elsewhere elsewhere
	workers   sync.WaitGroup

	count counters
}

// Open opens the cache in a directory. It returns a schema.ErrUnavailable that names the holder if another process
// has the directory, and a schema.ErrInvalid if the directory holds anything other than a cache. A cache of another
// format, or with a damaged index, starts empty. The caller closes the cache.
func Open(opts Options) (*Cache, error) {
	c, err := open(opts)
	if err != nil {
		return nil, fmt.Errorf("open the spill: %w", err)
	}
	return c, nil
}

// open is Open without the context of the error.
func open(opts Options) (_ *Cache, err error) {
	if opts.Dir == "" && opts.Model == nil {
		return nil, &schema.FieldError{Field: "dir", Got: `""`, Want: "a directory"}
	}
	if opts.Bytes < MinBytes {
		return nil, &schema.FieldError{Field: "bytes", Got: fmt.Sprint(opts.Bytes),
			Want: fmt.Sprintf("%d or more", MinBytes)}
	}
	opts.EnsureDefaults()
	c := &Cache{
		opts:    opts,
		table:   newTable(),
		chooser: NewChooser(opts.Policy, opts.Candidates, opts.Seed),
		named:   newNumbering(),
		offered: map[schema.Key]*offer{},
		offers:  make(chan *offer, maxOffers),
	}
	c.trouble = trouble{log: opts.Logger, clock: opts.Clock}
	c.reaper.wake = make(chan struct{}, 1)
	c.elsewhere.end, c.elsewhere.over = make(chan struct{}), make(chan struct{})
	c.elsewhere.pause = 100 * time.Millisecond
	c.gathering.pause = time.NewTimer(gatherTime)
	c.gathering.pause.Stop()
	if opts.Model != nil {
		c.index = &index{}
		if err := c.attach(nil, new(uint32), true); err != nil {
			return nil, err
		}
		c.start()
		return c, nil
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, err
	}
	if c.lock, err = lockDirectory(opts.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unlockDirectory(c.lock))
		}
	}()
	if err := prepareDirectory(opts.Dir, opts.Logger); err != nil {
		return nil, err
	}
	// If the index or a segment cannot be opened, the cache starts empty.
	if err := c.recover(); err != nil {
		opts.Logger.Warn("the spill cannot be read and begins anew", "directory", opts.Dir, "error", err)
		c.table = newTable()
		c.named.sets, c.named.numbers = newNumbering().sets, newNumbering().numbers
		c.elsewhere.segments, c.elsewhere.unswept = nil, false
		if err := emptyDirectory(opts.Dir); err != nil {
			return nil, err
		}
		if err := c.recover(); err != nil {
			return nil, err
		}
	}
	c.start()
	return c, nil
}

// start starts the goroutines, which Close waits for.
func (c *Cache) start() {
	c.workers.Go(c.reap)
	for range c.opts.Writers {
		c.workers.Go(c.writeOffers)
	}
	if len(c.elsewhere.segments) > 0 {
		c.workers.Go(c.watchElsewhere)
	}
	c.trim() // the budget or the free disk space may have shrunk
}

// Close waits for calls in flight, writes the queued offers, and releases the directory. Blobs handed out stay valid
// until released. Later calls find nothing.
func (c *Cache) Close() error {
	c.life.Lock()
	if c.closed.Load() {
		c.life.Unlock()
		return nil
	}
	c.closed.Store(true)
	close(c.offers)
	c.life.Unlock()

	c.reaper.stop()
	close(c.elsewhere.end)
	c.workers.Wait()
	if err := c.space.roll(); err != nil { // returns space that was allocated ahead
		c.notGivenBack(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := !c.elsewhere.unswept
	for i := range c.table.slots {
		switch s := c.table.at(uint32(i)); {
		case s.state == live && s.marks&changed != 0:
			c.index.note(setOf(s))
		case s.state == gone: // still pinned: the next start has to find its space
			clean = false
		}
	}
	c.space.set.Close()
	if c.opts.Model != nil {
		return nil
	}
	err := c.index.close(clean)
	return errors.Join(err, c.space.dir.Close(), unlockDirectory(c.lock))
}

// Has reports whether a blob is in the cache, or queued to be stored. It does not count as a use.
func (c *Cache) Has(ref schema.BlobRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, s := c.table.find(&ref.Key); s != nil {
		return int64(s.length) == ref.Size && s.sum == ref.Sum
	}
	o := c.offered[ref.Key]
	return o != nil && o.ref == ref
}

// Keep sets the time until which a blob in the cache or in the queue is kept, as [Place.Until], and reports whether
// the blob is there. It does not count as a use.
func (c *Cache) Keep(ref schema.BlobRef, until float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, s := c.table.find(&ref.Key); s != nil {
		s.until = float32(until)
		return int64(s.length) == ref.Size && s.sum == ref.Sum
	}
	o := c.offered[ref.Key]
	if o == nil || o.ref != ref {
		return false
	}
	o.at.Until = until
	return true
}

// NotKept counts the blobs with a [Place.Until] that were not stored for lack of room. Offers are stored, or not,
// some time later.
func (c *Cache) NotKept() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.notKept
}

// Capacity is roughly how many bytes of blobs the cache can hold: what it holds plus its free room.
func (c *Cache) Capacity() int64 {
	n := c.Room()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.named.sets {
		n += d.bytes.Load()
	}
	return n
}

// Removed counts blobs that Has may have reported and that are gone. While it does not change, every blob that was
// there still is.
func (c *Cache) Removed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.table.taken + c.refused
}

// Written is how many bytes were written since the cache was opened. While it does not change, few new blobs come.
func (c *Cache) Written() int64 { return c.count.written.Load() }

// Ref returns the reference of the blob with a key that is in the cache or queued; false if there is none.
func (c *Cache) Ref(key schema.Key) (schema.BlobRef, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.offered[key]; o != nil {
		return o.ref, true
	}
	_, s := c.table.find(&key)
	if s == nil || s.state != live {
		return schema.BlobRef{}, false
	}
	return schema.BlobRef{Key: key, Size: int64(s.length), Sum: s.sum}, true
}

// Missed counts a blob that a stream wanted and reads from elsewhere, because Has was false. at is where its
// reference was found, and size its size in bytes.
func (c *Cache) Missed(at Place, size int64) {
	c.mu.Lock()
	ds := c.set(at.Dataset)
	c.mu.Unlock()
	ds.misses.Add(1)
	ds.missBytes.Add(size)
}

// Room is roughly how many bytes of blobs can be stored now without an eviction.
func (c *Cache) Room() int64 { return max(c.space.room(), 0) }

// pin owns a blob that was handed out.
type pin struct {
	cache *Cache
	index uint32
	slot  *slot
	blob  schema.Blob
}

// Unpin implements schema.Owner.
func (p *pin) Unpin() {
	p.blob.Release()
	p.cache.unpin(p.index, p.slot)
}

// Extent implements schema.Locator.
func (p *pin) Extent([]byte) (schema.Extent, bool) { return p.blob.Extent() }

// unpin ends a use of a slot. The last one starts the release of an evicted blob, or
// notes that a live one may be evicted again.
func (c *Cache) unpin(i uint32, s *slot) {
	switch s.pins.Add(-1) {
	case dying:
		c.reaper.add(i)
	case 0:
		c.spent.add(i)
	}
}

// move records where a blob was last used. c.mu is held.
func (c *Cache) move(s *slot, at Place) {
	if s.dataset != at.Dataset {
		c.set(s.dataset).leave(s)
		s.dataset = at.Dataset
		c.set(s.dataset).enter(s)
	}
	s.position = at.Position
}

// lost removes a blob that could not be read.
func (c *Cache) lost(i uint32, s *slot, key schema.Key, err error) {
	if c.closed.Load() {
		return
	}
	c.mu.Lock()
	if s.state != live || s.key != key {
		c.mu.Unlock() // evicted, or removed by another reader, in the meantime
		return
	}
	c.evict(s)
	c.mu.Unlock()
	c.index.remove(key)
	if errors.Is(err, schema.ErrDataLoss) {
		c.count.damaged.Add(1)
	} else {
		c.count.readErrors.Add(1)
	}
	c.report("a blob cannot be read, and is taken out", err)
}

// path is a file of the cache's directory.
func (c *Cache) path(name string) string { return filepath.Join(c.opts.Dir, name) }

// Get returns a blob from the cache. Its bytes are a slice of a mapped file. They have been verified by the
// reference's checksum, and stay in place until the caller releases the blob, even after eviction or Close. at is
// where the caller found the reference. Get waits for pages that are not in memory.
func (c *Cache) Get(ref schema.BlobRef, at Place) (schema.Blob, bool) {
	b, _, ok := c.get(ref, at, true)
	return b, ok
}

// GetUnchecked is Get for a caller that verifies the bytes itself, as it copies them. unchecked says that it has to.
// If the bytes are wrong or cannot be read (schema.Guard), the caller calls Get, which finds that out and removes the
// blob.
func (c *Cache) GetUnchecked(ref schema.BlobRef, at Place) (b schema.Blob, unchecked, ok bool) {
	return c.get(ref, at, false)
}

// get is Get and GetUnchecked; check verifies the checksum.
func (c *Cache) get(ref schema.BlobRef, at Place, check bool) (_ schema.Blob, unchecked, ok bool) {
	c.life.RLock()
	defer c.life.RUnlock()
	isSpare := c.isSpare(ref)
	now := c.opts.Clock()
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if o := c.offered[ref.Key]; o != nil && o.ref == ref { // verified before it was offered, and in memory
		o.holds.Add(1)
		c.mu.Unlock()
		ds.hits.Add(1)
		ds.hitBytes.Add(ref.Size)
		data := bytes.Clone(o.blob.Bytes())
		o.release()
		return schema.NewBlob(data, nil), false, true
	}
	// The pin is taken under c.mu, so the blob cannot be evicted before it is read.
	i, s := c.table.find(&ref.Key)
	if s == nil || c.closed.Load() || s.state != live || int64(s.length) != ref.Size || s.sum != ref.Sum {
		c.mu.Unlock()
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false, false
	}
	s.pins.Add(1)
	s.uses++
	s.used = stampOf(now)
	if at.Dataset != 0 && (s.dataset != at.Dataset || s.position != at.Position) {
		c.move(s, at)
	}
	if at.Tenant != s.tenant {
		c.adopt(s, at.Tenant)
	}
	s.mark(changed, true)
	s.mark(spare, isSpare)
	loc := s.location()
	c.mu.Unlock()

	b, err := c.space.set.Get(loc)
	if err == nil && check {
		// A page that cannot be read is a miss, too.
		if err = ref.Check(b.Bytes()); err != nil {
			b.Release()
		}
	}
	if err != nil {
		c.lost(i, s, ref.Key, err)
		c.unpin(i, s)
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false, false
	}
	ds.hits.Add(1)
	ds.hitBytes.Add(ref.Size)
	if ref.Size == 0 {
		b.Release()
		c.unpin(i, s)
		return schema.Blob{}, false, true
	}
	return schema.NewBlob(b.Bytes(), &pin{c, i, s, b}), !check, true
}

// Put stores a blob if the policy admits it, and reports whether it did. at is where the reference was found, and
// cost the time that reading it from the store took. data must be the blob of ref; it is copied once, to the disk.
func (c *Cache) Put(ref schema.BlobRef, at Place, cost time.Duration, data []byte) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	return c.put(ref, at, cost, data)
}

// put is Put with life read-locked.
func (c *Cache) put(ref schema.BlobRef, at Place, cost time.Duration, data []byte) bool {
	p, ok := c.begin(ref, at, cost, int64(len(data)))
	if !ok {
		return false
	}
	err := p.space.Write(ref.Key, ref.Sum, data)
	c.finish(&p, err)
	return err == nil
}

// pending is a blob that is being stored.
type pending struct {
	index uint32
	slot  *slot
	set   *dataset
	space segment.Reservation
}

// begin reserves a slot and space for a blob of n bytes, if it is not there and the policy admits it. The caller has
// to write the blob and call finish.
func (c *Cache) begin(ref schema.BlobRef, at Place, cost time.Duration, n int64) (p pending, ok bool) {
	need := c.footprint(n)
	now := c.opts.Clock()
	isSpare := c.isSpare(ref)
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if _, s := c.table.find(&ref.Key); s != nil || n != ref.Size || c.closed.Load() {
		c.mu.Unlock()
		return p, false
	}
	// A blob of more than a quarter of the budget would evict too many others.
	if n > maxLength || need > c.space.budget.Load()/4 || now < c.quiet {
		c.mu.Unlock()
		ds.bypassed.Add(1)
		return p, false
	}
	i, s := c.table.add(&ref.Key, writing)
	ds.claims.Add(1)
	s.sum, s.dataset, s.tenant, s.position, s.length = ref.Sum, at.Dataset, at.Tenant, at.Position, uint32(n)
	c.payers.count(s.tenant, need)
	s.mark(spare, isSpare)
	s.until = float32(at.Until)
	s.cost, s.uses, s.added, s.used = float32(cost.Seconds()), 1, stampOf(now), stampOf(now)
	c.mu.Unlock()

	p = pending{index: i, slot: s, set: ds}
	var err error
	if p.space, err = c.take(n, &Entry{Place: at, Size: n, Cost: cost, Uses: 1, Added: now, Used: now,
		Spare: isSpare}); err != nil {
		c.abandon(p, err)
		return p, false
	}
	return p, true
}

// finish ends the storing of a blob; err is the error of its write.
func (c *Cache) finish(p *pending, err error) {
	loc := p.space.Location()
	if err != nil {
		c.giveBack(loc)
		c.abandon(*p, err)
		return
	}
	s, n := p.slot, loc.Length
	c.mu.Lock()
	s.setLocation(loc)
	c.mu.Unlock()
	c.index.note(setOf(s))
	c.mu.Lock()
	s.state = live
	c.set(s.dataset).enter(s)
	p.set.claims.Add(-1)
	c.backoff = 0
	c.mu.Unlock()
	p.set.stored.Add(1)
	p.set.storedBytes.Add(n)
	c.count.written.Add(c.space.set.Footprint(n))
	c.checkSegments()
}

// errBypassed says that the policy grants no room.
var errBypassed = errors.New("there is no room")

// take reserves space for a blob of n bytes, and evicts for it as reclaim does.
func (c *Cache) take(n int64, e *Entry) (segment.Reservation, error) {
	need := c.footprint(n)
	if !c.makeOwnRoom(e) || !c.reclaim(c.space.room(), need, e) {
		return segment.Reservation{}, errBypassed
	}
	r, err := c.space.reserve(n)
	// Evicted blobs may have shared blocks with others, and other writers may have taken their space.
	for try := 0; try < 8 && errors.Is(err, schema.ErrLimit); try++ {
		// Evict at least one more.
		if !c.reclaim(min(c.space.room(), 0), need, e) {
			return r, errBypassed
		}
		r, err = c.space.reserve(n)
	}
	return r, err
}

// write reserves space for a blob and writes it.
func (c *Cache) write(key schema.Key, sum schema.Sum, data []byte, e *Entry) (segment.Location, error) {
	r, err := c.take(int64(len(data)), e)
	if err != nil {
		return segment.Location{}, err
	}
	if err := r.Write(key, sum, data); err != nil {
		c.giveBack(r.Location())
		return segment.Location{}, err
	}
	return r.Location(), nil
}

// How long nothing is stored after a failure; it doubles with each further one.
const (
	firstQuiet = Time(100e6)
	lastQuiet  = Time(10e9)
)

// abandon removes a blob that could not be stored.
func (c *Cache) abandon(p pending, err error) {
	p.set.bypassed.Add(1)
	p.set.claims.Add(-1)
	failed := !errors.Is(err, errBypassed) && (!errors.Is(err, schema.ErrLimit) || errors.Is(err, unix.ENOSPC))
	c.mu.Lock()
	if p.slot.until > 0 {
		c.notKept++
	}
	c.payers.count(p.slot.tenant, -c.footprint(int64(p.slot.length)))
	c.table.take(p.slot)
	c.table.free(p.index)
	if now := c.opts.Clock(); failed && now >= c.quiet { // blobs that were written together fail together
		c.backoff = min(max(2*c.backoff, firstQuiet), lastQuiet)
		c.quiet = now + c.backoff
	}
	c.mu.Unlock()
	if failed {
		if errors.Is(err, unix.ENOSPC) {
			c.count.diskFull.Add(1)
		} else {
			c.count.writeErrors.Add(1)
		}
		c.report("a blob cannot be stored", err)
	}
}

// maxOffers is the most blobs in the queue, however small they are.
const maxOffers = 4096

// offer is a blob in the queue. A caller that finds it there gets a copy, because the offered blob may be a slice of
// a larger buffer, which is released when the blob is stored, and others may wait for that buffer.
type offer struct {
	ref   schema.BlobRef
	at    Place    // its Until is guarded by Cache.mu
	set   *dataset // of at; guarded by Cache.mu
	cost  time.Duration
	blob  schema.Blob
	holds atomic.Int32 // grows under Cache.mu only while the offer is in offered
}

// release ends a use of the offer's blob.
func (o *offer) release() {
	if o.holds.Add(-1) == 0 {
		o.blob.Release()
	}
}

// Offer is Put without waiting: a goroutine of the cache stores the blob and releases it. Until then the blob is
// found in memory. If the queue is full, because the disk is slower than the store, the blob is not stored. The blob
// must be the one of ref. The cache releases it in every case.
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

// Offers are gathered for at most gatherTime and written in pieces of gatherBytes: a large write costs a tenth of
// small ones with as many bytes, and no goroutine is woken for each blob. Until they are written they are found in
// memory.
const (
	gatherTime   = 20 * time.Millisecond
	gatherPauses = 4 // gatherTime is waited in this many pauses
	gatherBytes  = 4 << 20
	gatherBlobs  = 128
)

// gathering is shared by the goroutines that write offers. One of them gathers at a time, so that consecutive offers
// are written together.
type gathering struct {
	// Held while a batch is gathered, which may take until the next offer; guards what follows.
	mu    sync.Mutex
	next  *offer // did not fit into the previous batch
	pause *time.Timer
}

// writeOffers writes offers until the queue is closed.
func (c *Cache) writeOffers() {
	var w offerWriter
	for w.gather(c) {
		w.write(c)
	}
}

// offerWriter is the state of a goroutine that writes offers.
type offerWriter struct {
	batch  []*offer
	begun  []pending
	writes []segment.Write
}

// gather waits for offers, makes a batch of them, and reserves its space. It returns false if the queue is closed and
// empty.
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

// another returns the next offer, or nil if gatherTime passes without one. pauses counts the pauses so far.
func (g *gathering) another(offers <-chan *offer, pauses *int) *offer {
	for {
		select {
		case o := <-offers: // nil if the queue is closed
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

// begin reserves space for the batch.
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
		o.release()
		c.queued.Add(-o.ref.Size)
	}
	clear(w.batch)
	clear(w.writes) // they refer to the blobs' memory
}

// beginOffer is begin for an offer, with its current place.
func (c *Cache) beginOffer(o *offer) (pending, bool) {
	if c.closed.Load() {
		return pending{}, false
	}
	c.mu.Lock()
	at := o.at // Keep may change it
	c.mu.Unlock()
	return c.begin(o.ref, at, o.cost, int64(len(o.blob.Bytes())))
}

// evict removes a blob from the table. If it returns true, the caller releases the space; otherwise the reaper does
// when the last pin is gone. c.mu is held.
func (c *Cache) evict(s *slot) (unpinned bool) {
	c.set(s.dataset).leave(s)
	c.payers.count(s.tenant, -c.footprint(int64(s.length)))
	c.table.take(s)
	return s.pins.Add(dying) == dying
}

// release releases the space of a blob that is gone and not pinned.
func (c *Cache) release(i uint32) {
	c.mu.Lock()
	loc := c.table.at(i).location()
	c.mu.Unlock()
	c.giveBack(loc)
	c.mu.Lock()
	c.table.free(i)
	c.mu.Unlock()
}

// giveBack releases the space of a record.
func (c *Cache) giveBack(l segment.Location) {
	if err := c.space.release(l); err != nil {
		c.notGivenBack(err)
	}
}

// notGivenBack counts and logs a failed release of space, which stays counted as held.
func (c *Cache) notGivenBack(err error) {
	c.count.writeErrors.Add(1)
	c.report("space cannot be given back", err)
}

// Trim evicts until the cache is within its budget and the disk has its reserve of free space. Storing a blob does
// that too.
func (c *Cache) Trim() {
	c.life.RLock()
	defer c.life.RUnlock()
	if !c.closed.Load() {
		c.trim()
	}
}

// trim is Trim with life read-locked, or before the cache is in use.
func (c *Cache) trim() {
	for left := c.space.left(); left < 0; left = c.space.left() {
		evicted := c.count.evicted.Load()
		c.reclaim(left, 0, nil)
		if c.count.evicted.Load() == evicted {
			return // the rest is pinned, or not the cache's
		}
	}
}

// Resize changes the budget, to at least MinBytes, and evicts what is beyond it before it returns.
func (c *Cache) Resize(bytes int64) {
	c.life.RLock()
	defer c.life.RUnlock()
	if c.closed.Load() {
		return
	}
	c.space.budget.Store(max(bytes, MinBytes))
	c.trim()
}

// victim is a blob that is evicted.
type victim struct {
	index uint32
	key   schema.Key
}

// maxVictims bounds the evictions for one blob.
const maxVictims = 256

// reclaim evicts until about need bytes can be taken, and reports whether they can. room bytes are free now. If
// that is for a new blob (e is not nil), the policy has to admit it in place of each victim; otherwise nothing is
// evicted.
func (c *Cache) reclaim(room, need int64, e *Entry) bool {
	if room >= need {
		return true
	}
	if c.space.wholeOnly.Load() {
		return c.reclaimSegment(need-room, e)
	}
	c.mu.Lock()
	victims, ok := c.pick(c.chooser, &c.table, room, need, e)
	c.mu.Unlock()
	c.releaseAll(victims)
	return ok
}

// pick removes blobs from the cache's table, or from a part of it, until there is room for need bytes. c.mu is held.
func (c *Cache) pick(chooser *Chooser, of Table, room, need int64, e *Entry) (victims []victim, ok bool) {
	now := c.opts.Clock()
	var newcomer Worth
	if e != nil {
		newcomer = c.opts.Policy.Worth(e, now)
	}
	if chooser == c.chooser {
		c.spent.suggest(chooser, of, now)
	}
	var picked []uint32
	for room < need && len(picked) < maxVictims {
		i, worth, found := chooser.Victim(of, now)
		if !found || e != nil && !c.opts.Policy.Admit(newcomer, worth) {
			break
		}
		s := c.table.at(uint32(i))
		s.state = writing // no candidate any more
		picked = append(picked, uint32(i))
		room += c.footprint(int64(s.length))
	}
	ok = room >= need
	for _, i := range picked {
		s := c.table.at(i)
		s.state = live
		if ok || e == nil {
			victims = append(victims, victim{i, s.key})
			c.evicted(s)
			c.evict(s) // without pins, because it was a candidate
		}
	}
	return victims, ok
}

// reclaimSegment evicts a whole segment, for file systems that cannot release parts of a file: the sealed one with
// the fewest blobs. It does so if the policy would admit the new blob in place of a candidate.
func (c *Cache) reclaimSegment(need int64, e *Entry) bool {
	if e != nil {
		now := c.opts.Clock()
		c.mu.Lock()
		_, worth, found := c.chooser.Victim(&c.table, now)
		c.mu.Unlock()
		if !found || !c.opts.Policy.Admit(c.opts.Policy.Worth(e, now), worth) {
			return false
		}
	}
	id, _ := c.space.sparsest()
	if id == noSegment {
		if err := c.space.roll(); err != nil {
			c.notGivenBack(err)
		}
		if id, _ = c.space.sparsest(); id == noSegment {
			return false
		}
	}
	var victims []victim
	var pinned []schema.Key
	c.mu.Lock()
	for i := range c.table.slots {
		if s := c.table.at(uint32(i)); s.state == live && s.segment == id {
			key := s.key
			c.evicted(s)
			need -= c.footprint(int64(s.length))
			if c.evict(s) {
				victims = append(victims, victim{uint32(i), key})
			} else {
				pinned = append(pinned, key)
			}
		}
	}
	c.mu.Unlock()
	for _, key := range pinned {
		c.index.remove(key)
	}
	c.releaseAll(victims)
	return need <= 0 || len(victims) > 0
}

// evicted counts an eviction. c.mu is held.
func (c *Cache) evicted(s *slot) {
	c.count.evicted.Add(1)
	c.set(s.dataset).evicted.Add(1)
}

// releaseAll finishes the eviction of blobs without pins.
func (c *Cache) releaseAll(victims []victim) {
	for _, v := range victims {
		c.index.remove(v.key)
		c.release(v.index)
	}
}

// reaper does background work: it releases the space of blobs that were evicted while pinned, and moves the remaining
// blobs of nearly empty segments.
type reaper struct {
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	slots   []uint32 // evicted, and not pinned any more
	tidy    bool
	stopped bool
}

// add queues the slot of an evicted blob without pins.
func (r *reaper) add(i uint32) {
	r.mu.Lock()
	r.slots = append(r.slots, i)
	r.mu.Unlock()
	r.signal()
}

// signal wakes the reaper, unless it has been woken already.
func (r *reaper) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// stop makes the reaper end after the work that is queued.
func (r *reaper) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.signal()
}

// take returns the queued work.
func (r *reaper) take() (slots []uint32, tidy, stopped bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	slots, tidy = r.slots, r.tidy
	r.slots, r.tidy = nil, false
	return slots, tidy, r.stopped
}

// reap is the reaper's goroutine.
func (c *Cache) reap() {
	for range c.reaper.wake {
		slots, tidy, stopped := c.reaper.take()
		for _, i := range slots {
			c.release(i)
		}
		switch {
		case stopped:
			return
		case tidy:
			c.tidySegments()
		}
	}
}

// maxSegments bounds the segment files: twice as many as hold the budget, plus a few. A segment with few blobs costs
// an open file, a mapping, and a byte of memory per block.
func (c *Cache) maxSegments() int { return int(2*c.space.budget.Load()/c.opts.SegmentBytes) + 8 }

// checkSegments wakes the reaper if there are too many segments.
func (c *Cache) checkSegments() {
	if int(c.space.files.Load()) <= c.maxSegments() {
		return
	}
	c.reaper.mu.Lock()
	c.reaper.tidy = true
	c.reaper.mu.Unlock()
	c.reaper.signal()
}

// tidySegments empties the segments with the fewest blobs until there are few enough segments.
func (c *Cache) tidySegments() {
	for {
		id, n := c.space.sparsest()
		if id == noSegment || n <= c.maxSegments() {
			return
		}
		var left []uint32
		c.mu.Lock()
		for i := range c.table.slots {
			if s := c.table.at(uint32(i)); s.state == live && s.segment == id {
				left = append(left, uint32(i))
			}
		}
		c.mu.Unlock()
		for _, i := range left {
			c.rehome(i, id)
		}
		if next, _ := c.space.sparsest(); next == id {
			return // pinned blobs stay until the next round
		}
	}
}

// movedShare bounds the bytes that are rewritten, as a share of the bytes stored.
const movedShare = 0.1

// rehome moves a blob from a segment to the current one, or evicts it if movedShare is used up.
func (c *Cache) rehome(i, id uint32) {
	c.mu.Lock()
	s := c.table.at(i)
	if s.state != live || s.segment != id {
		c.mu.Unlock()
		return
	}
	size, key := c.space.set.Footprint(int64(s.length)), s.key
	if float64(c.count.moved.Load()+size) > movedShare*float64(c.count.written.Load()) {
		c.drop(i, s) // unlocks
		return
	}
	s.pins.Add(1)
	from := s.location()
	c.mu.Unlock()

	// Without c.mu: the pin keeps the blob in its place.
	to, err := c.copyOf(from, key, s.sum)
	c.mu.Lock()
	switch {
	case err != nil && s.state == live && !errors.Is(err, schema.ErrDataLoss):
		s.pins.Add(-1)
		c.drop(i, s) // unlocks; there is no room
		return
	case err != nil || s.state != live || s.pins.Load() != 1:
		c.mu.Unlock() // damaged, removed, or being read
		if err == nil {
			c.giveBack(to)
		} else {
			c.lost(i, s, key, err)
		}
		c.unpin(i, s)
		return
	}
	s.setLocation(to)
	change := setOf(s)
	s.pins.Add(-1)
	c.mu.Unlock()
	c.index.note(change)
	c.giveBack(from)
	c.count.moved.Add(size)
}

// drop evicts a blob. c.mu is held, and unlocked.
func (c *Cache) drop(i uint32, s *slot) {
	key := s.key
	c.evicted(s)
	unpinned := c.evict(s)
	c.mu.Unlock()
	c.index.remove(key)
	if unpinned {
		c.release(i)
	}
}

// copyOf writes a copy of a pinned blob.
func (c *Cache) copyOf(from segment.Location, key schema.Key, sum schema.Sum) (to segment.Location, err error) {
	b, err := c.space.set.Get(from)
	if err != nil {
		return to, err
	}
	defer b.Release()
	if err := (schema.BlobRef{Key: key, Size: from.Length, Sum: sum}).Check(b.Bytes()); err != nil {
		return to, err
	}
	err = schema.Guard(func() (err error) {
		to, err = c.write(key, sum, b.Bytes(), nil)
		return err
	})
	return to, err
}

// SetSpare sets the function that reports whether a near node owns a blob and caches a copy. Blobs that are not spare
// are kept in preference to spare ones, because losing one costs a read of the store. is must not block or allocate.
// It is called whenever a blob is stored or found; a cached blob keeps its last answer.
func (c *Cache) SetSpare(is func(schema.BlobRef) bool) { c.spare.Store(&is) }

// isSpare calls the function of SetSpare.
func (c *Cache) isSpare(ref schema.BlobRef) bool {
	is := c.spare.Load()
	return is != nil && (*is)(ref)
}

// Wants reports whether a blob at a place would be stored now, because there is room or in place of another one. A
// blob with a planned use is evicted only if displace is set.
func (c *Cache) Wants(at Place, size int64, displace bool) bool {
	return c.wants(&Entry{Place: at, Size: size, Uses: 1}, displace)
}

// WantsBlob is Wants for a blob that may be spare: see [Cache.SetSpare].
func (c *Cache) WantsBlob(ref schema.BlobRef, at Place, displace bool) bool {
	return c.wants(&Entry{Place: at, Size: ref.Size, Uses: 1, Spare: c.isSpare(ref)}, displace)
}

// wants is Wants for an entry whose times are not set.
func (c *Cache) wants(e *Entry, displace bool) bool {
	at, size := e.Place, e.Size
	c.life.RLock()
	defer c.life.RUnlock()
	now := c.opts.Clock()
	need := c.footprint(size)
	room := c.space.room()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed.Load(), size > maxLength, need > c.space.budget.Load()/4, now < c.quiet:
		return false
	}
	chooser, table := c.chooser, Table(&c.table)
	if p := c.payers.limited(at.Tenant); p != nil && p.bytes+need > p.ceiling(c) {
		if need > p.ceiling(c) {
			return false
		}
		chooser, table = p.chooser, &ownTable{&c.table, at.Tenant}
	} else if room >= need {
		return true
	}
	if chooser == c.chooser {
		c.spent.suggest(chooser, table, now)
	}
	_, worth, found := chooser.Victim(table, now)
	if !found || worth.Planned && !displace && (e.Spare || !worth.Spare) {
		return false
	}
	e.Added, e.Used = now, now
	return c.opts.Policy.Admit(c.opts.Policy.Worth(e, now), worth)
}

// Demand is what consumers needed, as counters that never decrease. Only differences between two times have a
// meaning.
type Demand struct {
	// Waited is how long consumers waited for a batch with a blob that came from the store, summed over all streams.
	Waited time.Duration `json:"waited_ns"`
	// Streamed is how long streams were open, including those still open, summed over all streams. Waited is a part
	// of it.
	Streamed time.Duration `json:"streamed_ns"`
	// StoreBytes is the size of blobs that streams got from the store, SpillBytes of those that they got from the
	// cache.
	StoreBytes int64 `json:"store_bytes"`
	SpillBytes int64 `json:"spill_bytes"`
}

// Sub returns the increase since an earlier time.
func (d Demand) Sub(earlier Demand) Demand {
	return Demand{
		Waited: d.Waited - earlier.Waited, Streamed: d.Streamed - earlier.Streamed,
		StoreBytes: d.StoreBytes - earlier.StoreBytes, SpillBytes: d.SpillBytes - earlier.SpillBytes,
	}
}

// elsewhere holds the segments that clients of an earlier process still have mapped: that process passed them file
// descriptors (schema.Extent), and has ended. It is not known which blobs they read. So all blobs of such a segment
// are pinned, and nothing is released until the last client has closed the file.
type elsewhere struct {
	segments map[*segment.Segment][]uint32 // by segment, the slots pinned for it
	bytes    atomic.Int64                  // size of the blobs in them
	end      chan struct{}                 // closed by Close
	over     chan struct{}                 // closed when watchElsewhere ends
	// unswept says that unused blocks were not released: the next start looks for them.
	unswept bool
	pause   time.Duration // between two checks
}

// pinElsewhere pins the blobs of a segment. It is called before the cache is in use.
func (c *Cache) pinElsewhere(g *segment.Segment, slots []uint64) {
	var pinned []uint32
	for _, k := range slots {
		i := uint32(k)
		if s := c.table.at(i); s.state == live && s.segment == g.ID() {
			s.pins.Add(1)
			c.elsewhere.bytes.Add(int64(s.length))
			pinned = append(pinned, i)
		}
	}
	if c.elsewhere.segments == nil {
		c.elsewhere.segments = map[*segment.Segment][]uint32{}
	}
	c.elsewhere.segments[g] = pinned
}

// watchElsewhere unpins segments that no client has open any more. It ends when there are none left, or with the
// cache.
func (c *Cache) watchElsewhere() {
	defer close(c.elsewhere.over)
	tick := time.NewTicker(c.elsewhere.pause)
	defer tick.Stop()
	for len(c.elsewhere.segments) > 0 {
		select {
		case <-c.elsewhere.end:
			return
		case <-tick.C:
		}
		for g, slots := range c.elsewhere.segments {
			if g.Elsewhere() {
				continue
			}
			delete(c.elsewhere.segments, g)
			for _, i := range slots {
				c.mu.Lock()
				s := c.table.at(i)
				length := int64(s.length)
				c.mu.Unlock()
				c.elsewhere.bytes.Add(-length)
				c.unpin(i, s)
			}
		}
	}
}

// Verification is the result of Verify.
type Verification struct {
	Blobs   int64 `json:"blobs"` // blobs read
	Bytes   int64 `json:"bytes"`
	Damaged int64 `json:"damaged"` // of Blobs: damaged, and removed
}

// Verify reads every blob in the cache and verifies its checksum. It removes damaged blobs, as Get does. It ends
// early with ctx.
func (c *Cache) Verify(ctx context.Context) Verification {
	c.life.RLock()
	defer c.life.RUnlock()
	var v Verification
	for i := uint32(0); ctx.Err() == nil && !c.closed.Load(); i++ {
		c.mu.Lock()
		if int(i) >= c.table.Slots() {
			c.mu.Unlock()
			break
		}
		s := c.table.at(i)
		if s.state != live {
			c.mu.Unlock()
			continue
		}
		s.pins.Add(1)
		loc, sum, key := s.location(), s.sum, s.key
		c.mu.Unlock()

		err := c.intact(loc, sum)
		if err != nil {
			c.lost(i, s, key, err)
			v.Damaged++
		}
		c.unpin(i, s)
		v.Blobs++
		v.Bytes += loc.Length
	}
	return v
}

// intact reads a blob and verifies its checksum; the caller has pinned it.
func (c *Cache) intact(loc segment.Location, sum schema.Sum) error {
	b, err := c.space.set.Get(loc)
	if err != nil {
		return err
	}
	defer b.Release()
	return schema.BlobRef{Size: loc.Length, Sum: sum}.Check(b.Bytes())
}

// counters are since the cache was opened.
type counters struct {
	written, moved                                            atomic.Int64 // bytes
	evicted, damaged, readErrors, writeErrors, diskFull, busy atomic.Int64
}

// dataset has the counters of one dataset since the cache was opened; entries and bytes are its current state.
type dataset struct {
	name                                   string
	asked                                  Time         // when its number was last requested; guarded by Cache.mu
	claims                                 atomic.Int64 // blobs being stored or queued
	hits, hitBytes, misses, missBytes      atomic.Int64
	stored, storedBytes, bypassed, evicted atomic.Int64
	entries, bytes                         atomic.Int64
}

// enter counts a blob that was added.
func (d *dataset) enter(s *slot) {
	d.entries.Add(1)
	d.bytes.Add(int64(s.length))
}

// leave counts a blob that was removed.
func (d *dataset) leave(s *slot) {
	d.entries.Add(-1)
	d.bytes.Add(-int64(s.length))
}

// Stats are counters since the cache was opened, and its current state.
type Stats struct {
	Policy      string `json:"policy"`
	BudgetBytes int64  `json:"budget_bytes"`
	HeldBytes   int64  `json:"held_bytes"` // on the disk, with dead space and an allowance for the index
	Segments    int    `json:"segments"`   // files
	// ElsewhereBytes is the size of blobs that cannot be evicted because clients of an earlier server still have
	// their files open.
	ElsewhereBytes int64 `json:"elsewhere_bytes"`

	DatasetStats // totals

	WrittenBytes int64 `json:"written_bytes"` // to segments, with headers and padding
	MovedBytes   int64 `json:"moved_bytes"`   // rewritten to release the space of other blobs
	Damaged      int64 `json:"damaged"`       // blobs with a wrong checksum
	ReadErrors   int64 `json:"read_errors"`
	WriteErrors  int64 `json:"write_errors"`
	DiskFull     int64 `json:"disk_full"` // blobs not stored because the disk was full
	Busy         int64 `json:"busy"`      // blobs not stored because the disk was too slow
	// Unnamed is how often a snapshot got no number because all are in use; its blobs are not stored.
	Unnamed   int64 `json:"unnamed"`
	IndexLost bool  `json:"index_lost"` // the index could not be written: the cache will be empty after a restart

	Datasets map[string]DatasetStats `json:"datasets"` // by name
}

// DatasetStats are the counters of a dataset.
type DatasetStats struct {
	Entries     int64 `json:"entries"` // current blobs
	Bytes       int64 `json:"bytes"`   // current size
	Hits        int64 `json:"hits"`
	HitBytes    int64 `json:"hit_bytes"`
	Misses      int64 `json:"misses"`
	MissBytes   int64 `json:"miss_bytes"`
	Stored      int64 `json:"stored"`
	StoredBytes int64 `json:"stored_bytes"`
	Bypassed    int64 `json:"bypassed"` // blobs not stored: others are worth more, or the disk failed
	Evicted     int64 `json:"evicted"`
}

// stats returns the counters. They are read one after another, so they need not be of the
// same moment.
func (d *dataset) stats() DatasetStats {
	return DatasetStats{
		Entries: d.entries.Load(), Bytes: d.bytes.Load(),
		Hits: d.hits.Load(), HitBytes: d.hitBytes.Load(), Misses: d.misses.Load(), MissBytes: d.missBytes.Load(),
		Stored: d.stored.Load(), StoredBytes: d.storedBytes.Load(), Bypassed: d.bypassed.Load(),
		Evicted: d.evicted.Load(),
	}
}

// take adds the counters of a dataset without blobs.
func (d *dataset) take(o *dataset) {
	for _, c := range []struct{ to, from *atomic.Int64 }{
		{&d.hits, &o.hits}, {&d.hitBytes, &o.hitBytes}, {&d.misses, &o.misses}, {&d.missBytes, &o.missBytes},
		{&d.stored, &o.stored}, {&d.storedBytes, &o.storedBytes}, {&d.bypassed, &o.bypassed}, {&d.evicted, &o.evicted},
	} {
		c.to.Add(c.from.Load())
	}
}

// add adds the counters of o.
func (d *DatasetStats) add(o DatasetStats) {
	d.Entries += o.Entries
	d.Bytes += o.Bytes
	d.Hits += o.Hits
	d.HitBytes += o.HitBytes
	d.Misses += o.Misses
	d.MissBytes += o.MissBytes
	d.Stored += o.Stored
	d.StoredBytes += o.StoredBytes
	d.Bypassed += o.Bypassed
	d.Evicted += o.Evicted
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	st := Stats{
		Policy: c.opts.Policy.Name(), BudgetBytes: c.space.budget.Load(), HeldBytes: c.space.held.Load(),
		WrittenBytes: c.count.written.Load(), MovedBytes: c.count.moved.Load(),
		Damaged: c.count.damaged.Load(), ReadErrors: c.count.readErrors.Load(), WriteErrors: c.count.writeErrors.Load(),
		DiskFull: c.count.diskFull.Load(), Busy: c.count.busy.Load(), IndexLost: c.index.lost(),
		Unnamed:  c.named.unnamed.Load(),
		Datasets: map[string]DatasetStats{},
	}
	st.Segments, st.ElsewhereBytes = int(c.space.files.Load()), c.elsewhere.bytes.Load()
	c.mu.Lock()
	sets := slices.Clone(c.named.sets)
	c.mu.Unlock()
	for _, d := range sets {
		one := d.stats()
		st.add(one)
		if d.name != "" && one != (DatasetStats{}) {
			st.Datasets[d.name] = one
		}
	}
	return st
}

// trouble logs disk faults, each kind at most every ten seconds.
type trouble struct {
	log   *slog.Logger
	clock func() Time

	mu    sync.Mutex
	kinds map[string]*reported
}

// reported is when a kind of fault was last logged, and how often it was not logged
// since.
type reported struct {
	at      Time
	skipped int64
}

// reportInterval is the minimum time between two logs of one kind.
const reportInterval = Time(10e9)

// report logs a fault of one kind, what, if it is due.
func (t *trouble) report(what string, err error) {
	if skipped, ok := t.due(what); ok {
		t.log.Warn("trouble with the disk of the spill; streams go on from the store", "what", what, "error", err,
			"not_logged_before", skipped)
	}
}

// full logs that a name got no number.
func (t *trouble) full(name string, numbers int) {
	if skipped, ok := t.due("numbers"); ok {
		t.log.Warn("all numbers of snapshots are in use: blobs of further snapshots are not kept in the spill",
			"snapshot", name, "numbers", numbers, "not_logged_before", skipped)
	}
}

// due reports whether to log now, and how many logs were skipped before.
func (t *trouble) due(what string) (skipped int64, ok bool) {
	now := t.clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds = map[string]*reported{}
	}
	r := t.kinds[what]
	if r == nil {
		r = &reported{at: now - reportInterval}
		t.kinds[what] = r
	}
	if now-r.at < reportInterval {
		r.skipped++
		return 0, false
	}
	skipped, r.at, r.skipped = r.skipped, now, 0
	return skipped, true
}

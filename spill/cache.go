package spill

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// Options describe a Cache. Dir and Bytes must be set; the zero value of each other field stands for its default.
type Options struct {
	// Dir is the directory, which belongs to the cache alone. It is made if it does not exist.
	Dir string
	// Bytes is the budget: what the cache may take of the disk at most, at any moment, its index and space that is dead but not
	// given back included. At least MinBytes.
	Bytes int64
	// KeepFree is the free space in bytes that is left on the disk, for others. Default 1 GiB.
	KeepFree int64
	// Policy says what to keep. Default: NextUse with Oracle if that is set, else Score.
	Policy Policy
	// Oracle knows the jobs that run, as a *Future does.
	Oracle Oracle
	// Candidates is how many blobs are compared at each eviction. Default DefaultCandidates.
	Candidates int
	// SegmentBytes is the size of segment files. Default: a 32nd of the budget, 1 MiB at least and 1 GiB at most.
	SegmentBytes int64
	// QueueBytes bounds what Offer takes and is not written yet. Default 64 MiB.
	QueueBytes int64
	// Writers is how many goroutines write what was offered. Default 2.
	Writers int
	// Clock is the clock that Oracle goes by, in nanoseconds since 1970; times are kept over restarts. Default: the system's.
	Clock func() Time
	// Logger receives what operators should know. Default slog.Default().
	Logger *slog.Logger

	// For tests: the file system of the index, faults of the segments, the free space there is.
	fs    vfs.FS
	fault func(op segment.Op, path string) error
	free  func(*os.File) (int64, error)
}

// MinBytes is the least budget.
const MinBytes = 2 * fixedOverhead

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	if o.KeepFree == 0 {
		o.KeepFree = 1 << 30
	}
	if o.Policy == nil && o.Oracle != nil {
		o.Policy = NextUse(o.Oracle)
	} else if o.Policy == nil {
		o.Policy = Score()
	}
	if o.Candidates == 0 {
		o.Candidates = DefaultCandidates
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = segment.Blocks(min(max(o.Bytes/32, 1<<20), 1<<30))
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	if o.Writers == 0 {
		o.Writers = 2
	}
	if o.Clock == nil {
		o.Clock = func() Time { return Time(time.Now().UnixNano()) }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.fs == nil {
		o.fs = vfs.Default
	}
	if o.free == nil {
		o.free = freeSpace
	}
}

func freeSpace(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Cache keeps blobs in a directory. It is safe for concurrent use.
//
// Nothing that goes wrong with the disk is an error of Get or Put: a blob that cannot be read is a miss, one that cannot be
// stored is not stored; both are counted and, at most every ten seconds, logged.
type Cache struct {
	opts  Options
	lock  *os.File
	index *index
	space space
	trouble

	// life is read-locked by calls and locked by Close.
	life   sync.RWMutex
	closed atomic.Bool // set with life locked

	mu      sync.Mutex // guards what follows; never held over I/O, nor together with space.mu, which is
	table   table
	chooser *Chooser
	sets    []*dataset // by number; [0] is that of no dataset
	numbers map[string]uint32
	payers  payers
	offered map[uint64]*offer // by hash, those that wait in offers
	quiet   Time              // nothing is stored before then, as the disk has failed
	backoff Time              // how long that is to be, if it fails again

	offers    chan *offer
	queued    atomic.Int64
	gathering gathering
	reaper    reaper
	workers   sync.WaitGroup

	count counters
}

// Open opens the cache in a directory. It is a schema.ErrUnavailable, which names the holder, if another process has it, and a
// schema.ErrInvalid if it holds anything but a cache. A cache of another format, or with a damaged index, begins anew.
func Open(opts Options) (*Cache, error) {
	c, err := open(opts)
	if err != nil {
		return nil, fmt.Errorf("open the spill: %w", err)
	}
	return c, nil
}

func open(opts Options) (_ *Cache, err error) {
	if opts.Dir == "" {
		return nil, &schema.FieldError{Field: "dir", Got: `""`, Want: "a directory"}
	}
	if opts.Bytes < MinBytes {
		return nil, &schema.FieldError{Field: "bytes", Got: fmt.Sprint(opts.Bytes), Want: fmt.Sprintf("%d or more", MinBytes)}
	}
	opts.EnsureDefaults()
	c := &Cache{
		opts:    opts,
		table:   table{byHash: map[uint64]uint32{}},
		chooser: NewChooser(opts.Policy, opts.Candidates, rand.Uint64()),
		sets:    []*dataset{{}},
		numbers: map[string]uint32{},
		offered: map[uint64]*offer{},
		offers:  make(chan *offer, maxOffers),
	}
	c.trouble = trouble{log: opts.Logger, clock: opts.Clock}
	c.reaper.wake = make(chan struct{}, 1)
	c.gathering.pause = time.NewTimer(gatherTime)
	c.gathering.pause.Stop()
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
	if err := c.recover(); err != nil {
		opts.Logger.Warn("the spill cannot be read and begins anew", "directory", opts.Dir, "error", err)
		c.table = table{byHash: map[uint64]uint32{}}
		c.sets, c.numbers = []*dataset{{}}, map[string]uint32{}
		if err := emptyDirectory(opts.Dir); err != nil {
			return nil, err
		}
		if err := c.recover(); err != nil {
			return nil, err
		}
	}
	c.workers.Go(c.reap)
	for range opts.Writers {
		c.workers.Go(c.writeOffers)
	}
	c.trim() // the budget or the disk may have become smaller
	return c, nil
}

// Close writes what waits and lets go of the directory. Blobs handed out stay valid until released. Calls under way are
// waited for; later ones find nothing.
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
	c.workers.Wait()
	if err := c.space.roll(); err != nil { // gives back what was taken ahead
		c.notGivenBack(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := true
	for i := range c.table.slots {
		switch s := c.table.at(uint32(i)); {
		case s.state == live && s.changed:
			c.index.changes <- setOf(s)
		case s.state == gone: // and pinned: the next start has to find its space
			clean = false
		}
	}
	err := c.index.close(clean)
	c.space.set.Close()
	return errors.Join(err, c.space.dir.Close(), unlockDirectory(c.lock))
}

// Dataset returns the number by which places name a dataset or snapshot. It stays the same as long as the cache does.
func (c *Cache) Dataset(name string) uint32 {
	c.life.RLock()
	defer c.life.RUnlock()
	c.mu.Lock()
	n, ok := c.numbers[name]
	if !ok && name != "" && !c.closed.Load() {
		n = uint32(len(c.sets))
		c.sets = append(c.sets, &dataset{name: name})
		c.numbers[name] = n
	}
	c.mu.Unlock()
	if !ok && n != 0 {
		c.index.changes <- change{number: n, name: name}
	}
	return n
}

// DatasetName returns the name of the dataset or snapshot that has a number; nothing if none has.
func (c *Cache) DatasetName(number uint32) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number == 0 || int(number) >= len(c.sets) {
		return ""
	}
	return c.sets[number].name
}

// set returns the counters of a place's dataset. c.mu is held.
func (c *Cache) set(number uint32) *dataset {
	if int(number) < len(c.sets) {
		return c.sets[number]
	}
	return c.sets[0]
}

// Get returns a blob that is in the cache. Its bytes point into a mapped file: they have been compared with the reference's
// checksum, and stay in place until the blob is released, whatever is evicted or closed meanwhile. at is where the caller
// found the reference. A page that is not in memory is waited for.
func (c *Cache) Get(ref schema.BlobRef, at Place) (schema.Blob, bool) {
	c.life.RLock()
	defer c.life.RUnlock()
	hash := hashOf(&ref.Key)
	now := c.opts.Clock()
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if o := c.offered[hash]; o != nil && o.ref == ref { // it was right when it was offered, and is in memory
		o.holds.Add(1)
		c.mu.Unlock()
		ds.hits.Add(1)
		ds.hitBytes.Add(ref.Size)
		return schema.NewBlob(o.blob.Bytes(), o), true
	}
	i, s := c.table.find(hash)
	if s == nil || c.closed.Load() || s.state != live || int64(s.length) != ref.Size || s.sum != ref.Sum {
		c.mu.Unlock()
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false
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
	s.changed = true
	loc := s.location()
	c.mu.Unlock()

	b, err := c.space.set.Get(loc)
	if err == nil {
		// A page that cannot be read is a miss, too.
		if err = ref.Check(b.Bytes()); err != nil {
			b.Release()
		}
	}
	if err != nil {
		c.lost(i, s, hash, err)
		c.unpin(i, s)
		ds.misses.Add(1)
		ds.missBytes.Add(ref.Size)
		return schema.Blob{}, false
	}
	ds.hits.Add(1)
	ds.hitBytes.Add(ref.Size)
	if ref.Size == 0 {
		b.Release()
		c.unpin(i, s)
		return schema.Blob{}, true
	}
	return schema.NewBlob(b.Bytes(), &pin{c, i, s, b}), true
}

// Has reports whether a blob is in the cache, or about to be. It counts for nothing.
func (c *Cache) Has(ref schema.BlobRef) bool {
	hash := hashOf(&ref.Key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, s := c.table.find(hash); s != nil {
		return int64(s.length) == ref.Size && s.sum == ref.Sum
	}
	o := c.offered[hash]
	return o != nil && o.ref == ref
}

// Missed counts a blob that a stream wanted and gets from elsewhere, as Has said that it is not there. at is where its reference
// was found, size what it has in bytes.
func (c *Cache) Missed(at Place, size int64) {
	c.mu.Lock()
	ds := c.set(at.Dataset)
	c.mu.Unlock()
	ds.misses.Add(1)
	ds.missBytes.Add(size)
}

// Room is about how many bytes of blobs can be stored now without displacing any.
func (c *Cache) Room() int64 { return max(c.space.room(), 0) }

// Wants reports whether a blob at a place would be stored now: because there is room, or in the place of another. What some job
// is going to use is displaced only if displace says so.
func (c *Cache) Wants(at Place, size int64, displace bool) bool {
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
	_, worth, found := chooser.Victim(table, now)
	if !found || worth.Planned && !displace {
		return false
	}
	return c.opts.Policy.Admit(c.opts.Policy.Worth(&Entry{Place: at, Size: size, Uses: 1, Added: now, Used: now}, now), worth)
}

// pin is the owner of a blob handed out.
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

func (c *Cache) unpin(i uint32, s *slot) {
	if s.pins.Add(-1) == dying {
		c.reaper.add(i)
	}
}

// move notes where a blob was wanted last. c.mu is held.
func (c *Cache) move(s *slot, at Place) {
	if s.dataset != at.Dataset {
		c.set(s.dataset).leave(s)
		s.dataset = at.Dataset
		c.set(s.dataset).enter(s)
	}
	s.position = at.Position
}

// lost takes a blob out that could not be read.
func (c *Cache) lost(i uint32, s *slot, hash uint64, err error) {
	if c.closed.Load() {
		return
	}
	c.mu.Lock()
	if s.state != live || s.hash != hash {
		c.mu.Unlock() // evicted meanwhile, or by another reader
		return
	}
	c.evict(s)
	c.mu.Unlock()
	c.index.remove(hash)
	if errors.Is(err, schema.ErrDataLoss) {
		c.count.damaged.Add(1)
	} else {
		c.count.readErrors.Add(1)
	}
	c.report("a blob cannot be read, and is taken out", err)
}

// evict takes a blob off the table. Its space is released by whoever finds it without pins: the caller, who looks, or the
// reaper. c.mu is held.
func (c *Cache) evict(s *slot) (unpinned bool) {
	c.set(s.dataset).leave(s)
	c.payers.count(s.tenant, -c.footprint(int64(s.length)))
	c.table.take(s)
	return s.pins.Add(dying) == dying
}

// release gives back the space of a blob that is gone and not pinned.
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

func (c *Cache) notGivenBack(err error) {
	c.count.writeErrors.Add(1)
	c.report("space cannot be given back", err)
}

// Trim evicts until the cache is within its budget and the disk has the free space that is to be left. Storing does that too.
func (c *Cache) Trim() {
	c.life.RLock()
	defer c.life.RUnlock()
	if !c.closed.Load() {
		c.trim()
	}
}

func (c *Cache) trim() {
	for left := c.space.left(); left < 0; left = c.space.left() {
		evicted := c.count.evicted.Load()
		c.reclaim(left, 0, nil)
		if c.count.evicted.Load() == evicted {
			return // the rest is pinned, or not the cache's
		}
	}
}

// Resize changes the budget, and evicts what is beyond it before it returns. The least is MinBytes.
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
	hash  uint64
}

// maxVictims bounds how much is evicted for one blob.
const maxVictims = 256

// reclaim evicts until about need bytes can be taken where room is now, and reports whether they can. If that is for a new blob (not
// nil), the policy has to admit it in the place of each; otherwise nothing is evicted.
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

// pick takes blobs of a table, which is the cache's or a part of it, off it until there is room for need bytes. c.mu is held.
func (c *Cache) pick(chooser *Chooser, of Table, room, need int64, e *Entry) (victims []victim, ok bool) {
	now := c.opts.Clock()
	var newcomer Worth
	if e != nil {
		newcomer = c.opts.Policy.Worth(e, now)
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
			victims = append(victims, victim{i, s.hash})
			c.evicted(s)
			c.evict(s) // it has no pins, or it would not have been a candidate
		}
	}
	return victims, ok
}

// reclaimSegment evicts all of a segment, where the file system cannot give back parts of it: of the sealed one with the
// fewest blobs. It does so if the policy would admit the new blob in the place of a candidate.
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
	var pinned []uint64
	c.mu.Lock()
	for i := range c.table.slots {
		if s := c.table.at(uint32(i)); s.state == live && s.segment == id {
			hash := s.hash
			c.evicted(s)
			need -= c.footprint(int64(s.length))
			if c.evict(s) {
				victims = append(victims, victim{uint32(i), hash})
			} else {
				pinned = append(pinned, hash)
			}
		}
	}
	c.mu.Unlock()
	for _, hash := range pinned {
		c.index.remove(hash)
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
		c.index.remove(v.hash)
		c.release(v.index)
	}
}

// Put stores a blob, if the policy admits it, and reports whether it did. at is where the reference was found, cost what it took to
// get it from the store. data, which must be what ref names, is copied once, to the disk.
func (c *Cache) Put(ref schema.BlobRef, at Place, cost time.Duration, data []byte) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	return c.put(ref, at, cost, data)
}

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

// begin takes a slot and space for a blob of n bytes, if the policy admits it and it is not there. What is begun has to be written and
// finished.
func (c *Cache) begin(ref schema.BlobRef, at Place, cost time.Duration, n int64) (p pending, ok bool) {
	need := c.footprint(n)
	now := c.opts.Clock()
	hash := hashOf(&ref.Key)
	c.mu.Lock()
	ds := c.set(at.Dataset)
	if _, s := c.table.find(hash); s != nil || n != ref.Size || c.closed.Load() {
		c.mu.Unlock()
		return p, false
	}
	if n > maxLength || need > c.space.budget.Load()/4 || now < c.quiet {
		c.mu.Unlock()
		ds.bypassed.Add(1)
		return p, false
	}
	i, s := c.table.add(hash, writing)
	s.sum, s.dataset, s.tenant, s.position, s.length = ref.Sum, at.Dataset, at.Tenant, at.Position, uint32(n)
	c.payers.count(s.tenant, need)
	s.cost, s.uses, s.added, s.used = float32(cost.Seconds()), 1, stampOf(now), stampOf(now)
	c.mu.Unlock()

	p = pending{index: i, slot: s, set: ds}
	var err error
	if p.space, err = c.take(n, &Entry{Place: at, Size: n, Cost: cost, Uses: 1, Added: now, Used: now}); err != nil {
		c.abandon(p, err)
		return p, false
	}
	return p, true
}

// finish ends the storing of a blob that was written, or not: err says why.
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
	c.index.changes <- setOf(s)
	c.mu.Lock()
	s.state = live
	c.set(s.dataset).enter(s)
	c.backoff = 0
	c.mu.Unlock()
	p.set.stored.Add(1)
	p.set.storedBytes.Add(n)
	c.count.written.Add(c.space.set.Footprint(n))
	c.checkSegments()
}

// errBypassed says that there is no room that the policy grants.
var errBypassed = errors.New("there is no room")

// take takes space for a blob of n bytes, for which it evicts as reclaim does.
func (c *Cache) take(n int64, e *Entry) (segment.Reservation, error) {
	need := c.footprint(n)
	if !c.makeOwnRoom(e) || !c.reclaim(c.space.room(), need, e) {
		return segment.Reservation{}, errBypassed
	}
	r, err := c.space.reserve(n)
	// What was evicted may have lain in blocks that others share, or its space be taken by others.
	for try := 0; try < 8 && errors.Is(err, schema.ErrLimit); try++ {
		// At least one more has to go.
		if !c.reclaim(min(c.space.room(), 0), need, e) {
			return r, errBypassed
		}
		r, err = c.space.reserve(n)
	}
	return r, err
}

// write takes space for a blob and fills it in.
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

// How long nothing is stored after a failure, doubling while it goes on.
const (
	firstQuiet = Time(100e6)
	lastQuiet  = Time(10e9)
)

// abandon takes back a blob that could not be stored.
func (c *Cache) abandon(p pending, err error) {
	p.set.bypassed.Add(1)
	failed := !errors.Is(err, errBypassed) && (!errors.Is(err, schema.ErrLimit) || errors.Is(err, unix.ENOSPC))
	c.mu.Lock()
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

// maxOffers is how many blobs wait to be stored at most, however small they are.
const maxOffers = 4096

// offer is a blob that waits to be stored, and the owner of it for those who find it meanwhile.
type offer struct {
	ref   schema.BlobRef
	at    Place
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

// Offer is Put without waiting: a goroutine of the cache stores the blob and releases it. Until then it is found in memory. What does not
// fit in the queue, as the disk is slower than the store, is not stored. The blob, which must be what ref names, is the cache's to release,
// whatever is returned.
func (c *Cache) Offer(ref schema.BlobRef, at Place, cost time.Duration, blob schema.Blob) bool {
	c.life.RLock()
	defer c.life.RUnlock()
	hash := hashOf(&ref.Key)
	c.mu.Lock()
	_, s := c.table.find(hash)
	if c.closed.Load() || s != nil || c.offered[hash] != nil {
		c.mu.Unlock()
		blob.Release()
		return false
	}
	if c.queued.Add(ref.Size) <= c.opts.QueueBytes {
		o := &offer{ref: ref, at: at, cost: cost, blob: blob}
		o.holds.Store(1)
		select {
		case c.offers <- o:
			c.offered[hash] = o
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

// Offers are gathered for gatherTime at most, and written in pieces of gatherBytes: large writes cost a tenth of what as many bytes in
// small ones do, and nobody has to be woken up for each blob. Until they are written they are found in memory.
const (
	gatherTime   = 20 * time.Millisecond
	gatherPauses = 4 // in which it passes
	gatherBytes  = 4 << 20
	gatherBlobs  = 128
)

// gathering is what the goroutines that write what is offered take turns in, so that what follows one another is written at once.
type gathering struct {
	mu    sync.Mutex // held while a batch is gathered, which may take as long as nothing is offered; guards what follows
	next  *offer     // did not fit into the batch before
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
	for _, o := range w.batch {
		delete(c.offered, hashOf(&o.ref.Key))
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

func (c *Cache) path(name string) string { return filepath.Join(c.opts.Dir, name) }

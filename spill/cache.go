package spill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
)

// Cache keeps blobs in a directory. It is safe for concurrent use.
//
// Nothing that goes wrong with the disk is an error of Get or Put: a blob that cannot be read is a miss, one that
// cannot be stored is not stored; both are counted and, at most every ten seconds, logged.
type Cache struct {
	opts  Options
	lock  *os.File
	index *index
	space space
	trouble
	spare atomic.Pointer[func(schema.Key) bool] // nil: none is

	// life is read-locked by calls and locked by Close.
	life   sync.RWMutex
	closed atomic.Bool // set with life locked

	mu      sync.Mutex // guards what follows; never held over I/O, nor together with space.mu, which is
	table   table
	chooser *Chooser
	named   numbering
	payers  payers
	offered map[schema.Key]*offer // those that wait in offers
	refused int64                 // offers that came to nothing
	quiet   Time                  // nothing is stored before then, as the disk has failed
	backoff Time                  // how long that is to be, if it fails again

	offers    chan *offer
	queued    atomic.Int64
	gathering gathering
	reaper    reaper
	elsewhere elsewhere
	workers   sync.WaitGroup

	count counters
}

// Open opens the cache in a directory. It is a schema.ErrUnavailable, which names the holder, if another process has
// it, and a schema.ErrInvalid if it holds anything but a cache. A cache of another format, or with a damaged index,
// begins anew.
func Open(opts Options) (*Cache, error) {
	c, err := open(opts)
	if err != nil {
		return nil, fmt.Errorf("open the spill: %w", err)
	}
	return c, nil
}

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

// start starts the goroutines that Close waits for.
func (c *Cache) start() {
	c.workers.Go(c.reap)
	for range c.opts.Writers {
		c.workers.Go(c.writeOffers)
	}
	if len(c.elsewhere.segments) > 0 {
		c.workers.Go(c.watchElsewhere)
	}
	c.trim() // the budget or the disk may have become smaller
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
	close(c.elsewhere.end)
	c.workers.Wait()
	if err := c.space.roll(); err != nil { // gives back what was taken ahead
		c.notGivenBack(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clean := !c.elsewhere.unswept
	for i := range c.table.slots {
		switch s := c.table.at(uint32(i)); {
		case s.state == live && s.marks&changed != 0:
			c.index.note(setOf(s))
		case s.state == gone: // and pinned: the next start has to find its space
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

// Has reports whether a blob is in the cache, or about to be. It counts for nothing.
func (c *Cache) Has(ref schema.BlobRef) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, s := c.table.find(&ref.Key); s != nil {
		return int64(s.length) == ref.Size && s.sum == ref.Sum
	}
	o := c.offered[ref.Key]
	return o != nil && o.ref == ref
}

// Removed counts what Has reported once and does no more: while it stays the same, what was there is there.
func (c *Cache) Removed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.table.taken + c.refused
}

// Ref is the reference of the blob that is in the cache under a key, or about to be; false if there is none.
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

// Missed counts a blob that a stream wanted and gets from elsewhere, as Has said that it is not there. at is where its
// reference was found, size what it has in bytes.
func (c *Cache) Missed(at Place, size int64) {
	c.mu.Lock()
	ds := c.set(at.Dataset)
	c.mu.Unlock()
	ds.misses.Add(1)
	ds.missBytes.Add(size)
}

// Room is about how many bytes of blobs can be stored now without displacing any.
func (c *Cache) Room() int64 { return max(c.space.room(), 0) }

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
func (c *Cache) lost(i uint32, s *slot, key schema.Key, err error) {
	if c.closed.Load() {
		return
	}
	c.mu.Lock()
	if s.state != live || s.key != key {
		c.mu.Unlock() // evicted meanwhile, or by another reader
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

func (c *Cache) path(name string) string { return filepath.Join(c.opts.Dir, name) }

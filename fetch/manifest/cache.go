package manifest

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"bowstring/fetch/admission"
	"bowstring/schema"
)

// ReadFunc reads a blob of a manifest, with retries. The cache releases the blob. The reader may
// cache it for its place.
type ReadFunc func(context.Context, schema.BlobRef, Place) (schema.Blob, error)

// Place is the position at which a page is read again in each epoch, for the spill, which keeps blobs
// by their next use. The zero value is for blobs that are read once.
type Place struct {
	Snapshot string // dataset@number
	Start    int64  // position of the page's first row
}

// Cache keeps pages and lists of pages that were read from manifests, at most as many
// bytes as the ledger has for admission.Manifests. It is safe for concurrent use.
//
// If several callers want an entry at once, it is read once. A read is cancelled when no
// caller waits for it any more. An unused entry stays until its memory is needed; the
// least recently used one is evicted first.
type Cache struct {
	read    ReadFunc
	ledger  *admission.Ledger
	whole   int64 // manifests up to this many bytes are read whole when they are opened
	most    int   // goroutines that read at once, each one page or list
	logger  *slog.Logger
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool                // guarded by mu
	entries  map[entryKey]*entry // guarded by mu: those that may be joined
	reads    int                 // running goroutines, at most most; guarded by mu
	queue    []*entry            // entries that wait for a goroutine, first come first; guarded by mu
	idle     list.List           // of unused *entry, most recently used in front; guarded by mu
	blocked  int                 // reads that wait for memory; guarded by mu
	resident int64               // bytes of manifests that were read whole; guarded by mu
}

// entryKey names what was read: equal keys have equal bytes.
type entryKey struct {
	schema.BlobRef
	rows  int64
	pages int // 0 of a page, which has no index
}

// entry is a page or the index of a chunk, or the read of one. The goroutine of its read
// writes page, index, err and memory before it closes done; afterwards they are
// immutable. An entry is freed once, by the goroutine that finds it without users and
// removes it.
type entry struct {
	cache *Cache
	key   entryKey
	// Set until the entry is ready, guarded by cache.mu. An entry may stay for days: these fields
	// would keep the context and snapshot of the call that wanted it first.
	cancel context.CancelCauseFunc
	ctx    context.Context // of its read, which is no single caller's
	form   *schema.Form
	want   schema.Chunk
	at     Place
	done   chan struct{} // closed when page, index or err is there
	page   *schema.Page  // with its own reference to the blob, until free
	index  *index        // valid after release: the garbage collector frees it
	err    error
	memory *admission.Hold // nil if none was reserved

	users  int           // callers that wait for it or use it; guarded by cache.mu
	ready  bool          // page or err is there; guarded by cache.mu
	notify []arrival     // notified when it is ready; guarded by cache.mu
	place  *list.Element // in cache.idle, nil if it has users; guarded by cache.mu
}

// errUnwanted ends a read that no caller waits for.
var errUnwanted = errors.New("no caller waits for it any more")

func errClosing() error { return fmt.Errorf("%w: the engine is closing", schema.ErrUnavailable) }

// NewCache returns an empty cache. A manifest of up to resident bytes is read whole when
// it is opened, and stays in memory. 0 means 16 MiB; with a negative number no manifest
// is read whole.
func NewCache(read ReadFunc, ledger *admission.Ledger, resident int64, logger *slog.Logger) *Cache {
	if resident == 0 {
		resident = 16 << 20
	}
	return &Cache{read: read, ledger: ledger, whole: resident, most: 512, logger: logger,
		entries: map[entryKey]*entry{}}
}

// acquire reads a page or an index, or shares it, and waits for it. It stays until release. If ctx
// ends, its cause is returned, and the read goes on for other callers.
func (c *Cache) acquire(ctx context.Context, form *schema.Form, want schema.Chunk) (*entry, error) {
	e, err := c.want(ctx, form, want, Place{}, nil)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		e.release()
		return nil, context.Cause(ctx)
	}
	if e.err != nil {
		defer e.release()
		return nil, e.err
	}
	return e, nil
}

// want starts reading a page or an index, unless it is in memory or being read. It does
// not wait. The caller has a use of the entry until it calls release. If notify is not
// nil, its number is sent when the entry is ready or has failed, perhaps at once.
func (c *Cache) want(ctx context.Context, form *schema.Form, want schema.Chunk, at Place,
	notify *arrival) (*entry, error) {
	key := entryKey{want.BlobRef, want.Rows, want.Pages}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	switch {
	case e != nil:
		e.users++
		if e.place != nil {
			c.idle.Remove(e.place)
			e.place = nil
		}
	case c.closed:
		return nil, errClosing()
	default:
		e = &entry{cache: c, key: key, form: form, want: want, at: at, done: make(chan struct{}), users: 1}
		e.ctx, e.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		c.entries[key] = e
		if c.reads == c.most {
			c.queue = append(c.queue, e)
		} else {
			c.reads++
			c.running.Go(func() { c.reading(e) })
		}
	}
	if notify != nil {
		if e.ready {
			notify.to <- notify.n
		} else {
			e.notify = append(e.notify, *notify)
		}
	}
	return e, nil
}

// peek returns a page or an index that is in memory, with a use until release; nil if it
// is not in memory. It starts no read.
func (c *Cache) peek(want schema.Chunk) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[entryKey{want.BlobRef, want.Rows, want.Pages}]
	if e == nil || !e.ready || e.err != nil {
		return nil
	}
	e.users++
	if e.place != nil {
		c.idle.Remove(e.place)
		e.place = nil
	}
	return e
}

// reading reads an entry, and then the entries that wait in the queue. Reads belong to no
// single caller: if the first caller leaves, others may still wait.
func (c *Cache) reading(e *entry) {
	for e != nil {
		err := e.open()
		c.mu.Lock()
		e.err, e.ready = err, true
		e.cancel(nil)
		e.cancel, e.ctx, e.form, e.want = nil, nil, nil, schema.Chunk{} // what is kept leads to no call
		close(e.done)
		for _, t := range e.notify {
			t.to <- t.n // there is room
		}
		e.notify = nil
		gone := e.leftLocked(err != nil) // the last user may have left while the blob was read
		read := e
		if e = nil; len(c.queue) > 0 {
			e = c.queue[0]
			c.queue[0] = nil
			c.queue = c.queue[1:]
		} else {
			c.reads--
		}
		c.mu.Unlock()
		if gone {
			read.free()
		}
	}
}

// open reserves memory for the entry, reads its blob and opens it. On an error the memory and page
// that it has are freed with the entry.
func (e *entry) open() (err error) {
	c, ctx, want := e.cache, e.ctx, e.want
	defer func() {
		if p := recover(); p != nil { // a defect must not end the process
			err = schema.Recovered(p).Log(ctx, c.logger, "panic while a manifest was read")
		}
	}()
	if ctx.Err() != nil { // every caller left while it was queued
		return context.Cause(ctx)
	}
	// Manifests that were read whole take up to half of the memory, and are not evicted.
	size := want.Size
	if want.Pages > 0 {
		size *= 2 // it is decoded
	}
	// A page that is larger, of a snapshot from when there was one for 65,536 rows, is read
	// all the same. It counts for so much: other such pages wait.
	if e.memory, err = c.reserve(ctx, min(size, c.ledger.Limit(admission.Manifests)/2)); err != nil {
		return err
	}
	blob, err := c.read(ctx, want.BlobRef, e.at)
	if err != nil {
		return err
	}
	if want.Pages == 0 {
		e.page, err = e.form.OpenPage(want, blob)
		return err
	}
	defer blob.Release()
	pages, err := want.OpenIndex(blob.Bytes())
	e.index = newIndex(pages)
	return err
}

// reserve reserves memory. It evicts unused entries first, and then waits for entries in
// use.
func (c *Cache) reserve(ctx context.Context, bytes int64) (*admission.Hold, error) {
	c.mu.Lock()
	for {
		if h, ok := c.ledger.Try(admission.Manifests, bytes); ok {
			c.mu.Unlock()
			return h, nil
		}
		last := c.idle.Back()
		if last == nil {
			break
		}
		c.dropLocked(last.Value.(*entry))
	}
	c.blocked++ // from now on an entry that falls unused is freed at once
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.blocked--
		c.mu.Unlock()
	}()
	return c.ledger.Reserve(ctx, admission.Manifests, bytes)
}

// release ends one use of the entry. The caller must not use anything from its page
// afterwards.
func (e *entry) release() {
	c := e.cache
	c.mu.Lock()
	e.users--
	gone := e.leftLocked(e.err != nil && e.ready)
	c.mu.Unlock()
	if gone {
		e.free()
	}
}

// leftLocked handles an entry whose last user may have left: it keeps the entry as idle,
// cancels its read, or removes it. It reports whether the caller has to free the entry,
// which the caller does without the lock.
func (e *entry) leftLocked(failed bool) bool {
	c := e.cache
	if failed && c.entries[e.key] == e {
		delete(c.entries, e.key) // the next caller reads it again
	}
	switch {
	case e.users > 0:
		return false
	case !e.ready:
		e.cancel(errUnwanted)
		if c.entries[e.key] == e {
			delete(c.entries, e.key)
		}
		return false // reading frees it
	case failed || c.closed || c.blocked > 0 || c.entries[e.key] != e:
		if c.entries[e.key] == e {
			delete(c.entries, e.key)
		}
		return true
	}
	e.place = c.idle.PushFront(e)
	return false
}

// dropLocked removes an unused entry from the cache and frees it.
func (c *Cache) dropLocked(e *entry) {
	c.idle.Remove(e.place)
	e.place = nil
	delete(c.entries, e.key)
	e.free()
}

// free releases the page and the memory of an entry that has no users.
func (e *entry) free() {
	if e.page != nil {
		e.page.Release()
	}
	e.memory.Release()
}

// Trim evicts all unused entries, so that the store that they were read from may be
// closed.
func (c *Cache) Trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.idle.Len() > 0 {
		c.dropLocked(c.idle.Back().Value.(*entry))
	}
}

// Close cancels running reads, waits for them, and evicts unused entries. Entries still
// in use are freed when they are released.
func (c *Cache) Close() {
	c.mu.Lock()
	c.closed = true
	for _, e := range c.entries {
		if !e.ready {
			e.cancel(errClosing())
		}
	}
	c.mu.Unlock()
	c.running.Wait()
	c.Trim()
}

// safely returns a function that runs work and returns a panic as an error: a defect, or a damaged
// page in mapped memory, must not end the process.
func (c *Cache) safely(work func() error) func() error {
	return func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = schema.Recovered(p).Log(context.Background(), c.logger,
					"panic while a manifest was gone through")
			}
		}()
		return work()
	}
}

// start runs a function in a goroutine that Close waits for. It returns false, and runs
// nothing, if the cache is closed.
func (c *Cache) start(run func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.running.Go(run)
	return true
}

// arrival notifies a caller that waits for several entries of one that is ready. The
// channel has room for all that may be sent, so sending never blocks.
type arrival struct {
	to chan<- int
	n  int // its number among them
}

// wants describes the pages, or lists of pages, that a call needs. The call visits each
// when it is ready, and releases it, so that it holds no memory of one page while it
// waits for others. A goroutine for each page would do the same at the cost of a stack.
type wants struct {
	n     int                          // how many there are; the functions below get a number in [0, n)
	chunk func(i int) schema.Chunk     // the page or list
	form  func(i int) *schema.Form     // the form of its snapshot; nil if all have the same
	place func(i int) Place            // where it is read again in each epoch; nil if nowhere
	visit func(i int, e *entry) error  // called while the entry is in use
	lost  func(i int, err error) error // adds to the error of a read what could not be read
}

// each visits all wants, in any order, in the caller's goroutine. At most pagesAtOnce are
// being read or waiting at a time. It returns after the first error, or with the cause of
// ctx when ctx ends, and releases the rest.
func (c *Cache) each(ctx context.Context, form *schema.Form, w wants) error {
	came := make(chan int, min(w.n, pagesAtOnce))
	open := make(map[int]*entry, cap(came))
	defer func() {
		for _, e := range open {
			e.release()
		}
	}()
	for next := 0; next < w.n || len(open) > 0; {
		for ; next < w.n && len(open) < cap(came); next++ {
			var at Place
			if w.place != nil {
				at = w.place(next)
			}
			if w.form != nil {
				form = w.form(next)
			}
			e, err := c.want(ctx, form, w.chunk(next), at, &arrival{came, next})
			if err != nil {
				return err
			}
			open[next] = e
		}
		select {
		case i := <-came:
			e := open[i]
			delete(open, i)
			err := e.visited(func() error { return w.visit(i, e) })
			if e.err != nil {
				err = w.lost(i, e.err)
			}
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// visited calls visit on an entry that is ready, unless it has failed, and releases the
// entry.
func (e *entry) visited(visit func() error) error {
	defer e.release()
	if e.err != nil {
		return e.err
	}
	return visit()
}

// keep adds a use of an entry that the caller already uses.
func (e *entry) keep() *entry {
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	e.users++
	return e
}

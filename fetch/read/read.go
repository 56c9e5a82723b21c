package read

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/schema"
	"bowstring/spill"
)

// read is one blob being read for all that want it, and afterwards the hold that they share. Several attempts may be
// in flight; the first that brings the right bytes ends the read.
//
// It owns the blob, and is the context of its attempts, so that a read usually costs 1/8 of an allocation. Reader.mu
// guards all fields except reader, ref, trace, late, refs, blob and unchecked.
type read struct {
	readContext
	reader *Reader
	ref    schema.BlobRef
	start  time.Time
	since  time.Time // when it was first requested; before start if it had to wait for its turn
	trace  *Trace    // of the first waiter, or nil; never changes

	account *Account // of the first waiter, or nil; never changes

	first  waiter   // receives the blob
	others []waiter // further waiters

	place   spill.Place // where the blob is used
	use     int64       // when the blob is used: see Cell.Use
	entry   int         // index of the first tier that was asked
	counted uint8       // lanes that count it, one bit each

	attempts int       // attempts begun
	running  int       // attempts in flight
	failed   int       // failed attempts at the last tier
	why      error     // the error of the last failed attempt
	latest   time.Time // when the last attempt began
	hedged   bool      // a hedge was started
	here     bool      // no other node is asked
	late     bool      // the waiters verify the blob; set before its first attempt, and never changed
	asked    bool      // another node was asked, and has not sent it
	fill     bool      // the first waiter caches the blob itself; set before its first attempt
	over     bool      // it has brought the blob, failed, or was cancelled
	overdue  bool      // it timed out

	older, newer *read // reads in flight, in the order they began
	nextFreed    *read // see Reader.abandon

	refs atomic.Int32 // holds of the blob
	blob schema.Blob  // set before there is a hold
	// unchecked says that the waiters have to verify blob; set with it.
	unchecked bool
}

// atOnce is how many reads are allocated together. A held blob keeps its whole group from being collected: a few
// hundred bytes per read, because an ended read refers to no call, and a released one to no blob.
const atOnce = 8

// newLocked returns memory for a read.
func (r *Reader) newLocked() *read {
	if len(r.fresh) == 0 {
		r.fresh = make([]read, atOnce)
	}
	rd := &r.fresh[0]
	r.fresh = r.fresh[1:]
	return rd
}

// readKey is the key of a read. Waiters that verify the blob themselves may share any read, but others must not share
// a read that is not verified.
type readKey struct {
	ref  schema.BlobRef
	late bool
}

// key is the read's key in Reader.reads. It changes only before the read is entered
// there.
func (r *read) key() readKey { return readKey{r.ref, r.late} }

// findLocked returns the read that w may share; nil if there is none.
func (r *Reader) findLocked(w *Want) *read {
	rd := r.reads[readKey{w.Ref, false}]
	if rd == nil && w.Late {
		rd = r.reads[readKey{w.Ref, true}]
	}
	return rd
}

// lateLocked reports whether a read that begins in a lane may leave the verification to its waiters. It may not if a
// tier above caches the blob.
func (r *Reader) lateLocked(l *lane, rd *read) bool {
	if !l.traits.Late {
		return false
	}
	for i := range r.lanes[:l.index] {
		if r.lanes[i].caching != nil && r.keeps(rd) {
			return false
		}
	}
	return true
}

// Unchecked implements schema.Unchecker.
func (r *read) Unchecked() bool { return r.unchecked }

// Unpin implements schema.Owner.
func (r *read) Unpin() {
	if r.refs.Add(-1) == 0 {
		r.reader.abandon(r)
		r.blob.Release()
	}
}

// Frame implements schema.Framer. Only one tier of all holders stores the blob.
func (r *read) Frame() []byte { return r.blob.Frame() }

// Extent implements schema.Locator: the extent is that of the tier that brought the blob.
func (r *read) Extent([]byte) (schema.Extent, bool) { return r.blob.Extent() }

// Share implements schema.Sharer.
func (r *read) Share() bool { return r.acquire() }

// acquire takes a hold of a blob that others hold; false if the last hold is gone.
func (r *read) acquire() bool {
	for {
		n := r.refs.Load()
		if n <= 0 {
			return false
		}
		if r.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// attemptLocked counts another attempt, which begins at then.
func (r *read) attemptLocked(then time.Time) {
	r.attempts++
	r.running++
	r.latest = then
}

// readContext is the context of a read. It ends when the read is over, whichever attempt brought the blob. Its values
// are those of the first waiter's context. It has an implementation of its own because there is one for every blob,
// and most are never used: then it takes no lock.
type readContext struct {
	state atomic.Uint32 // one of the states below

	mu     sync.Mutex      // used once the context has been used
	values context.Context //nolint:containedctx // only for its values; nil when the read is over
	done   chan struct{}   // made on demand; guarded by mu
	after  []*afterwards   // guarded by mu
}

// States of a readContext.
const (
	unasked uint32 = iota // mu is not in use
	asked
	over // if it was asked before, mu is held while this is set
)

// ask reports whether the context has not ended. If so, it returns with mu held, which guards all.
func (c *readContext) ask() bool {
	if c.state.CompareAndSwap(unasked, asked) || c.state.Load() == asked {
		c.mu.Lock()
		if c.state.Load() == asked {
			return true
		}
		c.mu.Unlock()
	}
	return false
}

// afterwards is a function that is called when a context ends.
type afterwards struct{ call func() }

// AfterFunc calls f in its own goroutine when c ends; stop reports whether it has prevented that. Package context
// looks for this method: with it, a context derived from this one needs no goroutine.
func (c *readContext) AfterFunc(f func()) (stop func() bool) {
	if !c.ask() {
		go f()
		return func() bool { return false }
	}
	defer c.mu.Unlock()
	a := &afterwards{f}
	c.after = append(c.after, a)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		at := slices.Index(c.after, a)
		if at >= 0 {
			c.after = slices.Delete(c.after, at, at+1)
		}
		return at >= 0
	}
}

// Deadline implements context.Context: there is none.
func (*readContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// endedBefore is the Done channel of a context that ended before its first use.
var endedBefore = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done implements context.Context.
func (c *readContext) Done() <-chan struct{} {
	if !c.ask() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.done != nil {
			return c.done
		}
		return endedBefore
	}
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
	}
	return c.done
}

// Err implements context.Context.
func (c *readContext) Err() error {
	if c.state.Load() == over {
		return context.Canceled
	}
	return nil
}

// Value implements context.Context.
func (c *readContext) Value(key any) any {
	if !c.ask() {
		return nil
	}
	values := c.values
	c.mu.Unlock()
	if values == nil {
		return nil
	}
	return values.Value(key)
}

// end ends the context.
func (c *readContext) end() {
	if !c.state.CompareAndSwap(unasked, over) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.state.Swap(over) == over {
			return
		}
		for _, a := range c.after {
			go a.call()
		}
		c.after = nil
		if c.done != nil {
			close(c.done)
		}
	}
	c.values = nil // a blob is held for long, and a call's context refers to all of its transport
}

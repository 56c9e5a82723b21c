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

// read is one blob being read for all who want it, and afterwards the one hold
// that they share. Several attempts may be under way at once, of which the first
// that brings the right bytes ends it.
//
// It is the owner of the blob that all get, and the context of its attempts, so
// that in the usual case a read costs an eighth of an allocation. All fields but reader, ref,
// trace, late, refs, blob and unchecked are guarded by Reader.mu.
type read struct {
	readContext
	reader *Reader
	ref    schema.BlobRef
	start  time.Time
	since  time.Time // when it was wanted first, before start where it had to wait for its turn
	trace  *Trace    // of who wanted it first, or nil; never changes

	account *Account // of who wanted it first, or nil; never changes

	first  waiter   // who wants it
	others []waiter // more who do

	place   spill.Place // where it was found to be wanted
	use     int64       // when it is used: see Cell.Use
	entry   int         // index of the tier that was asked first
	counted uint8       // in which lanes it is counted, a bit each

	attempts int       // begun
	running  int       // under way
	failed   int       // attempts at the last tier that ended badly
	why      error     // of the last of those
	latest   time.Time // when the last attempt began
	hedged   bool      // an attempt was begun because the first was slow
	here     bool      // no other node is asked
	late     bool      // who waits checks the blob; set before its first attempt is made, and never changed
	asked    bool      // another node was asked, and has not sent it
	fill     bool      // whoever wanted it first keeps it; set before its first attempt is made
	over     bool      // brought, failed for good, or no longer wanted
	overdue  bool      // it had its time and brought nothing

	older, newer *read // reads under way in the order they began
	nextFreed    *read // see Reader.letGo

	refs atomic.Int32 // holders of the blob
	blob schema.Blob  // theirs; set before there is a holder
	// unchecked says that they have to check it; set with blob.
	unchecked bool
}

// atOnce is how many reads are allocated together. Whoever holds the blob of one keeps the others from the collector:
// few hundred bytes each, as a read that is over leads to no call, and one that is let go to no blob.
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

// readKey is by what reads are found. Who checks late shares what others read, but these not what is not checked.
type readKey struct {
	ref  schema.BlobRef
	late bool
}

func (r *read) key() readKey { return readKey{r.ref, r.late} }

// findLocked returns the read that w may share; nil if there is none.
func (r *Reader) findLocked(w *Want) *read {
	rd := r.reads[readKey{w.Ref, false}]
	if rd == nil && w.Late {
		rd = r.reads[readKey{w.Ref, true}]
	}
	return rd
}

// lateLocked reports whether a read that is to begin in a lane may leave the check to who waits: not where a tier above
// keeps what it brings.
func (r *Reader) lateLocked(l *lane, rd *read) bool {
	if !l.traits.Late {
		return false
	}
	for i := range r.lanes[:l.index] {
		if r.lanes[i].keeper != nil && r.keeps(rd) {
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
		r.reader.letGo(r)
		r.blob.Release()
	}
}

// Frame implements schema.Framer. Of all who have the blob, one tier alone stores it.
func (r *read) Frame() []byte { return r.blob.Frame() }

// Extent implements schema.Locator: the blob lies where the tier had it that it came from.
func (r *read) Extent([]byte) (schema.Extent, bool) { return r.blob.Extent() }

// Share implements schema.Sharer.
func (r *read) Share() bool { return r.acquire() }

// acquire takes a hold of a blob that others hold; false if the last has let go.
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

// attemptLocked counts another attempt in, which begins then.
func (r *read) attemptLocked(then time.Time) {
	r.attempts++
	r.running++
	r.latest = then
}

// readContext is the context of a read: it ends when the read is over, whoever
// brought the blob. What it carries is what the one carries who wanted the blob
// first. It is a context of its own kind as there is one for every blob, and most
// are never asked for anything: then it costs no lock.
type readContext struct {
	state atomic.Uint32 // one of the states below

	mu     sync.Mutex      // taken once it was asked
	values context.Context //nolint:containedctx // its values alone are used; nil when it is over
	done   chan struct{}   // made when asked for; guarded by mu
	after  []*afterwards   // guarded by mu
}

// States of a readContext.
const (
	unasked uint32 = iota // nobody has a use for mu
	asked
	over // and was never asked, or else that is noted with mu held
)

// ask reports whether the context has not ended. Then mu guards all, and is held.
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

// afterwards is what is called when a context ends.
type afterwards struct{ call func() }

// AfterFunc has f called, in a goroutine of its own, when c ends; stop reports whether it has kept f from that. Package
// context looks for it: with it, a context that is made of this one takes no goroutine that waits for both.
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

// endedBefore is the Done of what has ended before it was asked for it.
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
	c.values = nil // a blob is held for long, and a call leads to all that its transport has
}

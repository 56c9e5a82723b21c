package read

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

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

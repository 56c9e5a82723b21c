package read

import (
	"context"
	"slices"
	"sync"
	"time"
)

// readContext is the context of a read: it ends when the read is over, whoever
// brought the blob. What it carries is what the one carries who wanted the blob
// first. It is a context of its own kind as there is one for every blob, and most
// are never asked for anything.
type readContext struct {
	mu     sync.Mutex
	values context.Context //nolint:containedctx // its values alone are used; nil when it is over; guarded by mu
	done   chan struct{}   // made when asked for; guarded by mu
	over   bool            // guarded by mu
	after  []*afterwards   // guarded by mu
}

// afterwards is what is called when a context ends.
type afterwards struct{ call func() }

// AfterFunc has f called, in a goroutine of its own, when c ends; stop reports whether it has kept f from that. Package
// context looks for it: with it, a context that is made of this one takes no goroutine that waits for both.
func (c *readContext) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		go f()
		return func() bool { return false }
	}
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

// Done implements context.Context.
func (c *readContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.over {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *readContext) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return context.Canceled
	}
	return nil
}

// Value implements context.Context.
func (c *readContext) Value(key any) any {
	c.mu.Lock()
	values := c.values
	c.mu.Unlock()
	if values == nil {
		return nil
	}
	return values.Value(key)
}

// end ends the context.
func (c *readContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values = nil // a blob is held for long, and a call leads to all that its transport has
	if !c.over {
		c.over = true
		for _, a := range c.after {
			go a.call()
		}
		c.after = nil
		if c.done != nil {
			close(c.done)
		}
	}
}

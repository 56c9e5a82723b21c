package tiers

import (
	"context"
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
		if c.done != nil {
			close(c.done)
		}
	}
}

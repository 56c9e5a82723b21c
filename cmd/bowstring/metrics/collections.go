package metrics

import (
	"sync/atomic"
	"time"
)

// Collections counts the collections of garbage that a server makes by itself. A
// nil Collections counts nothing. It is safe for concurrent use.
type Collections struct {
	every                   time.Duration
	last                    atomic.Int64 // Unix nanoseconds
	done, failed, elsewhere atomic.Int64
}

// NewCollections returns the account of a server that collects that often.
func NewCollections(every time.Duration) *Collections {
	c := &Collections{every: every}
	c.last.Store(time.Now().UnixNano())
	return c
}

// Done counts a collection that came to its end.
func (c *Collections) Done() {
	if c == nil {
		return
	}
	c.done.Add(1)
	c.last.Store(time.Now().UnixNano())
}

// Elsewhere counts one that was not made, as another server was at it, or the
// store was away. Who looks at all servers of a store sees which.
func (c *Collections) Elsewhere() {
	if c != nil {
		c.elsewhere.Add(1)
	}
}

// Failed counts one that failed.
func (c *Collections) Failed() {
	if c != nil {
		c.failed.Add(1)
	}
}

func (c *Collections) collect(ch sink) {
	if c == nil {
		ch.send(collectEvery, 0)
		return
	}
	ch.send(collectEvery, c.every.Seconds())
	ch.at(collectLast, time.Unix(0, c.last.Load()))
	for result, n := range map[string]int64{"done": c.done.Load(), "failed": c.failed.Load(),
		"elsewhere": c.elsewhere.Load()} {
		ch.send(collections, float64(n), result)
	}
}

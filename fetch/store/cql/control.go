package cql

import (
	"context"
	"sync"

	"github.com/gocql/gocql"
)

// control is a session for what must not wait behind blobs: leases, layouts and claims. Replies come one after the
// other on a connection, and a link of limited rate may have seconds of blobs under way: a node that is at work would
// seem gone. It is opened when it is first asked for: a process that is no node of a cluster has none.
type control struct {
	running sync.WaitGroup

	mu      sync.Mutex
	session *gocql.Session
	opening *opening // nil while nobody opens one
}

// opening is an attempt at a session, for all who wait for it.
type opening struct {
	ended   chan struct{} // closed when the others are there
	session *gocql.Session
	err     error
}

// controlled returns the session. The caller holds life, and so has it until it lets go. A caller whose context ends
// goes away; the session is opened all the same, for the next one.
func (s *Store) controlled(ctx context.Context) (*gocql.Session, error) {
	c := &s.control
	c.mu.Lock()
	if c.session != nil {
		defer c.mu.Unlock()
		return c.session, nil
	}
	o := c.opening
	if o == nil {
		o = &opening{ended: make(chan struct{})}
		c.opening = o
		c.running.Go(func() {
			o.session, _, o.err = s.session(s.ending, s.config.Keyspace, 1)
			c.mu.Lock()
			c.session, c.opening = o.session, nil
			c.mu.Unlock()
			close(o.ended)
		})
	}
	c.mu.Unlock()
	select {
	case <-o.ended:
		return o.session, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close ends the session. The store's context has ended, and its life is locked: nobody asks for it.
func (c *control) close() {
	c.running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.session.Close()
	}
}

// reader is the steering that sees reads of blobs, for a session of the same keyspace that makes none.
func (s *Store) reader(keyspace string) *steering {
	if keyspace != s.config.Keyspace {
		return nil // attached tables are read by the session itself
	}
	return s.steering // nil while the first session is opened, which is for reads
}

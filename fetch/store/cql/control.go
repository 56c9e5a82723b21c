package cql

import (
	"context"

	"github.com/gocql/gocql"
)

// control is a session for what must not wait behind blobs: leases, layouts and claims. Replies come one after the
// other on a connection, and a link of limited rate may have seconds of blobs under way: a node that is at work would
// seem gone. It is opened when it is first asked for: a process that is no node of a cluster has none.
type control struct {
	turn    chan struct{} // holds one token while nobody looks at session
	session *gocql.Session
}

func newControl() control {
	c := control{turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// controlled returns the session. The caller holds life, and so has it until it lets go.
func (s *Store) controlled(ctx context.Context) (*gocql.Session, error) {
	select {
	case <-s.control.turn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { s.control.turn <- struct{}{} }()
	if s.control.session != nil {
		return s.control.session, nil
	}
	session, _, err := s.session(ctx, s.config.Keyspace, 1)
	if err != nil {
		return nil, err
	}
	s.control.session = session
	return session, nil
}

// closeLocked ends the session. The store's life is locked: nobody asks for it.
func (c *control) closeLocked() {
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

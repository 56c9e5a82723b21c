package shm

import (
	"fmt"
	"net"

	"bowstring/schema"
)

// newRing makes a ring for a caller and registers it. uid is the user of the program at
// the other end of socket c. It returns schema.ErrLimit if the ring would exceed the
// memory of all clients or of this user.
func (s *Server) newRing(caller string, uid uint32, c *net.UnixConn) (*Ring, error) {
	n := s.opts.RingBytes
	if err := s.reserve(uid, n); err != nil {
		s.mu.Lock()
		s.gone.Refused++
		s.mu.Unlock()
		return nil, err
	}
	gone := func() { s.unreserve(uid, n) }
	m, err := newMemory(n, s.watch, gone)
	if err != nil {
		gone()
		return nil, err
	}
	r := newRing(newName(), m)
	r.caller = caller
	r.most, r.node, r.conn = s.opts.PinnedBytes, s.pinned, c
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rings[r.id] = r
	s.given++
	return r, nil
}

// reserve charges n bytes to a user. unreserve returns them when the kernel has freed the
// memory, not when the ring ends: a client that keeps its mapping would otherwise get a
// new ring each time, and the server's machine would run out of memory.
func (s *Server) reserve(uid uint32, n int64) error {
	s.counting.Lock()
	defer s.counting.Unlock()
	var err error
	if all, own := s.memory.Load(), s.users[uid]; all+n > s.opts.Memory {
		err = fmt.Errorf("%w: clients on this node have shared memory of %d bytes, that of ended rings included "+
			"which they have not released, and may have %d together",
			schema.ErrLimit, all, s.opts.Memory)
	} else if own+n > s.opts.UserMemory {
		err = fmt.Errorf("%w: user %d has shared memory of %d bytes, that of ended rings included which its "+
			"processes have not released, and may have %d", schema.ErrLimit, uid, own, s.opts.UserMemory)
	}
	if err != nil {
		return err
	}
	s.memory.Add(n)
	s.users[uid] += n
	return nil
}

func (s *Server) unreserve(uid uint32, n int64) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.memory.Add(-n)
	if s.users[uid] -= n; s.users[uid] == 0 {
		delete(s.users, uid)
	}
}

// forget removes a ring whose connection has ended. Its counters go into those of past
// rings. Held is not a counter, and is reset.
func (s *Server) forget(r *Ring) {
	s.mu.Lock()
	delete(s.rings, r.id)
	r.addTo(&s.gone)
	s.gone.Held = 0
	s.mu.Unlock()
	r.close()
}

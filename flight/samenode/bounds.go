package samenode

import (
	"fmt"
	"net"

	"bowstring/schema"
)

// newRing makes a ring for a user at the other end of a socket, within what all may have and what one may.
func (s *Server) newRing(uid uint32, c *net.UnixConn) (*Ring, error) {
	n := s.opts.RingBytes
	if err := s.reserve(uid, n); err != nil {
		s.mu.Lock()
		s.gone.Refused++
		s.mu.Unlock()
		return nil, err
	}
	freed := func() { s.unreserve(uid, n) }
	m, err := newMemory(n, freed)
	if err != nil {
		freed()
		return nil, err
	}
	r := newRing(newName(), m)
	r.most, r.node, r.conn = s.opts.PinnedBytes, s.pinned, c
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rings[r.id] = r
	s.given++
	return r, nil
}

// reserve counts a ring of a user.
func (s *Server) reserve(uid uint32, n int64) error {
	s.counting.Lock()
	defer s.counting.Unlock()
	var err error
	if all, own := s.memory.Load(), s.users[uid]; all+n > s.opts.Memory {
		err = fmt.Errorf("%w: clients on this node have shared memory of %d bytes, and may have %d together",
			schema.ErrLimit, all, s.opts.Memory)
	} else if own+n > s.opts.UserMemory {
		err = fmt.Errorf("%w: user %d has shared memory of %d bytes, and may have %d", schema.ErrLimit, uid, own,
			s.opts.UserMemory)
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

// forget ends a ring.
func (s *Server) forget(r *Ring) {
	s.mu.Lock()
	delete(s.rings, r.id)
	r.addTo(&s.gone)
	s.gone.Held = 0
	s.mu.Unlock()
	r.close()
}

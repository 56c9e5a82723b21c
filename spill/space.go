package spill

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// space is the disk space of the segments, in blocks of the file system, and the budget for it.
//
// held is what the cache holds of the disk: blocks that are allocated to segments, dead ones included, and an allowance
// for the index. It is raised before anything is taken, and lowered after it was given back, so it is at no time less
// than what the file system holds.
type space struct {
	set    *segment.Set
	dir    *os.File // to ask for free space
	free   func(*os.File) (int64, error)
	keep   int64       // free space of the disk that is left alone
	failed func(error) // told of what cannot be given back, where nobody is to wait for it
	budget atomic.Int64
	held   atomic.Int64

	mu        sync.Mutex // held over taking and giving back, also while the file system works on it
	blocks    map[uint32]*blocks
	current   uint32       // the segment that is appended to, if it is in blocks
	files     atomic.Int64 // len(blocks), to be had without waiting for mu
	wholeOnly atomic.Bool  // the file system cannot punch holes
}

// blocks says what of a segment is in use.
type blocks struct {
	live    int     // records
	users   []uint8 // records that lie in each block; the file's header is one. At most 64 records of 64 bytes fit in
	punched int64   // bytes given back
}

// overhead is what the index may take of the disk for each blob, and the file system for its extents; fixedOverhead is
// what it may take besides. TestBudget compares them with what is there.
const (
	overhead      = 192
	fixedOverhead = 8 * memTableSize
)

// Capacity is how many bytes of blobs a cache of a budget keeps at least, if they are not small: what its index may
// take and the segments that are being written are not for them.
func Capacity(budget int64) int64 {
	o := Options{Bytes: budget}
	o.EnsureDefaults()
	return max(budget-fixedOverhead-2*o.SegmentBytes, 0)
}

// grow takes n bytes of the budget, if they are there.
func (s *space) grow(n int64) bool {
	for {
		held := s.held.Load()
		if n > 0 && held+n > s.budget.Load() {
			return false
		}
		if s.held.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// left is how many bytes can still be taken, by the budget and by what is free on the disk. It is negative if too many
// are already.
func (s *space) left() int64 {
	left := s.budget.Load() - s.held.Load()
	if free, err := s.free(s.dir); err == nil {
		left = min(left, free-s.keep)
	}
	return left
}

// room is what is left, and what was taken ahead of what will be stored.
func (s *space) room() int64 {
	room := s.left()
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.set.Segment(s.current); g != nil && s.blocks[s.current] != nil {
		room += g.Room()
	}
	return room
}

// reserve takes the space of a blob of n bytes. A budget or a disk without room is a schema.ErrLimit.
func (s *space) reserve(n int64) (segment.Reservation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.grow(overhead) {
		return segment.Reservation{}, fmt.Errorf("%w: the budget of %d bytes", schema.ErrLimit, s.budget.Load())
	}
	r, err := s.set.Reserve(n)
	if err != nil {
		s.held.Add(-overhead)
		return r, err
	}
	l := r.Location()
	if l.Segment != s.current {
		previous := s.current
		s.current = l.Segment
		if err := s.sealed(previous); err != nil {
			s.failed(err) // which is no reason not to store
		}
	}
	s.use(l)
	return r, nil
}

// sealed gives back what was allocated ahead in a segment that is appended to no more. s.mu is held.
func (s *space) sealed(id uint32) error {
	b, g := s.blocks[id], s.set.Segment(id)
	if b == nil || g == nil {
		return nil
	}
	if b.live == 0 {
		return s.retire(id)
	}
	n, err := g.Trim()
	s.held.Add(-n)
	return err
}

// use counts a record in. s.mu is held.
func (s *space) use(l segment.Location) {
	b := s.blocks[l.Segment]
	if b == nil {
		b = &blocks{users: []uint8{1}}
		s.blocks[l.Segment] = b
		s.files.Store(int64(len(s.blocks)))
	}
	b.live++
	first, last := blocksOf(l)
	if more := int(last) + 1 - len(b.users); more > 0 {
		b.users = slices.Grow(b.users, more)[:len(b.users)+more]
	}
	for i := first; i <= last; i++ {
		b.users[i]++
	}
}

// blocksOf returns the first and last block that a record lies in.
func blocksOf(l segment.Location) (first, last int64) {
	from := l.Offset - segment.HeaderSize
	return from / segment.Block, (from + segment.Footprint(l.Length) - 1) / segment.Block
}

// release gives back the space of a record, as far as no other lies in the same blocks. Nobody reads it, or will. What
// cannot be given back now is when the whole segment is.
func (s *space) release(l segment.Location) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held.Add(-overhead)
	b := s.blocks[l.Segment]
	b.live--
	first, last := blocksOf(l)
	from, to := last+1, first
	for i := first; i <= last; i++ {
		b.users[i]--
		if b.users[i] == 0 {
			from, to = min(from, i), i+1
		}
	}
	switch {
	case b.live == 0 && l.Segment != s.current:
		return s.retire(l.Segment)
	case from < to && !s.wholeOnly.Load():
		return s.punch(l.Segment, b, from, to)
	}
	return nil
}

// punch gives back the blocks from one to another of a segment. s.mu is held.
func (s *space) punch(id uint32, b *blocks, from, to int64) error {
	g := s.set.Segment(id)
	if g == nil {
		return nil // closed
	}
	err := g.Punch(from*segment.Block, to*segment.Block)
	if errors.Is(err, errors.ErrUnsupported) {
		s.wholeOnly.Store(true)
		return nil
	}
	if err == nil {
		n := (to - from) * segment.Block
		b.punched += n
		s.held.Add(-n)
	}
	return err
}

// retire removes a segment without live records. s.mu is held.
func (s *space) retire(id uint32) error {
	b, g := s.blocks[id], s.set.Segment(id)
	delete(s.blocks, id)
	s.files.Store(int64(len(s.blocks)))
	if g == nil {
		return nil
	}
	n := g.Allocated() - b.punched
	if err := s.set.Retire(id); err != nil {
		return fmt.Errorf("remove segment %d: %w", id, err) // it keeps its space
	}
	s.held.Add(-n)
	return nil
}

// roll ends appending to the current segment.
func (s *space) roll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set.Roll()
	previous := s.current
	s.current = noSegment
	return s.sealed(previous)
}

// noSegment is a number that no segment has.
const noSegment = 1<<32 - 1

// sparsest returns the sealed segment with the fewest live records, and how many segments there are.
func (s *space) sparsest() (id uint32, segments int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, least := uint32(noSegment), 0
	for n, b := range s.blocks {
		if n != s.current && (id == noSegment || b.live < least) {
			id, least = n, b.live
		}
	}
	return id, len(s.blocks)
}

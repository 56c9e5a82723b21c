package spill

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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

// slot is what is in memory of a blob: 104 bytes, and about 35 more in the map that finds it by a hash of its key.
type slot struct {
	key      schema.Key
	sum      schema.Sum
	position int64
	dataset  uint32
	segment  uint32
	offset   uint32 // of the payload, in units of segment.Align
	length   uint32
	cost     float32 // seconds
	uses     uint32
	added    stamp
	used     stamp
	pins     atomic.Int32 // blobs handed out; plus dying once it is off the table
	tenant   uint16       // on whose account it is kept; not in the index
	state    state
	marks    marks
	until    float32 // Place.Until
	next     uint32  // the slot after it of those whose keys have the same hash, plus 1; 0 for none
}

// marks are what else is known of a blob; none is in the index.
type marks uint8

const (
	changed marks = 1 << iota // uses or place differ from the index
	spare                     // another node near owns the blob
)

// mark sets a mark, or takes it away.
func (s *slot) mark(m marks, on bool) {
	if s.marks &^= m; on {
		s.marks |= m
	}
}

type state uint8

const (
	free    state = iota
	writing       // its bytes are being written; not to be read or evicted
	live
	gone // off the table; its space is given back when the last pin is
)

// dying is added to the pins of a slot that is gone.
const dying = 1 << 30

// maxLength is the size of the largest blob that is kept: a length has to fit its slot.
const maxLength = 1<<32 - 1

func (s *slot) location() segment.Location {
	return segment.Location{Segment: s.segment, Offset: int64(s.offset) * segment.Align, Length: int64(s.length)}
}

func (s *slot) setLocation(l segment.Location) {
	s.segment, s.offset, s.length = l.Segment, uint32(l.Offset/segment.Align), uint32(l.Length)
}

func (s *slot) place() Place {
	return Place{Dataset: s.dataset, Tenant: s.tenant, Position: s.position, Until: float64(s.until)}
}

func (s *slot) entry(e *Entry) {
	*e = Entry{
		Place: s.place(), Size: int64(s.length), Cost: time.Duration(float64(s.cost) * 1e9),
		Uses: s.uses, Added: s.added.time(), Used: s.used.time(), Spare: s.marks&spare != 0,
	}
}

// stamp is a Time in 32 bits: eighths of a second since the beginning of 2025, for 17 years.
type stamp uint32

const (
	stampZero = Time(1735689600e9)
	stampUnit = Time(1e9 / 8)
)

func stampOf(t Time) stamp { return stamp(min(max((t-stampZero)/stampUnit, 0), 1<<32-1)) }

func (s stamp) time() Time { return stampZero + Time(s)*stampUnit }

// table is the blobs that there are. Slots lie in chunks, so that it grows without copying. It is guarded by Cache.mu,
// but for the pins.
type table struct {
	chunks [][]slot
	slots  int
	empty  []uint32
	// first is the first slot of those whose keys have a hash. A look-up compares whole keys: the hash has 64 bits, of
	// a map with the keys themselves each entry would take 30 bytes more.
	first map[uint64]uint32
	hash  func(key *schema.Key) uint64
	taken int64 // off it, since the cache was opened
}

// newTable returns an empty table. Its hash is another one in each process.
func newTable() table {
	seed := maphash.MakeSeed()
	return table{first: map[uint64]uint32{}, hash: func(key *schema.Key) uint64 { return maphash.Bytes(seed, key[:]) }}
}

const chunkSlots = 1 << 12

func (t *table) at(i uint32) *slot { return &t.chunks[i/chunkSlots][i%chunkSlots] }

// find returns the slot of a blob that is there or being written.
func (t *table) find(key *schema.Key) (uint32, *slot) {
	i, ok := t.first[t.hash(key)]
	if !ok {
		return 0, nil
	}
	for s := t.at(i); ; s = t.at(i) {
		switch {
		case s.key == *key:
			return i, s
		case s.next == 0:
			return 0, nil
		}
		i = s.next - 1
	}
}

// add takes an empty slot for a blob that is not there.
func (t *table) add(key *schema.Key, st state) (uint32, *slot) {
	var i uint32
	if n := len(t.empty); n > 0 {
		i, t.empty = t.empty[n-1], t.empty[:n-1]
	} else {
		if t.slots%chunkSlots == 0 {
			t.chunks = append(t.chunks, make([]slot, chunkSlots))
		}
		i = uint32(t.slots)
		t.slots++
	}
	s := t.at(i)
	hash := t.hash(key)
	s.key, s.state, s.next = *key, st, 0
	if first, ok := t.first[hash]; ok {
		s.next = first + 1
	}
	t.first[hash] = i
	return i, s
}

// take takes a blob off the table. Its slot is in use until it is freed.
func (t *table) take(s *slot) {
	hash := t.hash(&s.key)
	first := t.first[hash]
	switch before := t.at(first); {
	case before != s:
		for t.at(before.next-1) != s {
			before = t.at(before.next - 1)
		}
		before.next = s.next
	case s.next == 0:
		delete(t.first, hash)
	default:
		t.first[hash] = s.next - 1
	}
	t.taken++
	s.state = gone
}

// free empties the slot of a blob that is gone.
func (t *table) free(i uint32) {
	s := t.at(i)
	s.state, s.marks = free, 0
	s.pins.Store(0)
	t.empty = append(t.empty, i)
}

// Slots implements Table.
func (t *table) Slots() int { return t.slots }

// Entry implements Table: what is pinned is not evicted, as its space could not be given back.
func (t *table) Entry(i int, e *Entry) bool {
	s := t.at(uint32(i))
	if s.state != live || s.pins.Load() != 0 {
		return false
	}
	s.entry(e)
	return true
}

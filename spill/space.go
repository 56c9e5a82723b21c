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

// space is the disk space of the segments, in blocks of the file system, and its budget.
//
// held is what the cache holds of the disk: blocks allocated to segments, including dead ones, and an allowance for
// the index. It is raised before space is taken, and lowered after space was released, so it is never less than what
// the file system has allocated.
type space struct {
	set    *segment.Set
	dir    *os.File // to ask for free space
	free   func(*os.File) (int64, error)
	keep   int64       // free space of the disk that the cache leaves
	failed func(error) // called with errors of releasing space that no caller waits for
	budget atomic.Int64
	held   atomic.Int64

	mu        sync.Mutex // held while space is taken or released, including the file system's work
	blocks    map[uint32]*blocks
	current   uint32       // the segment that is appended to, if it is in blocks
	files     atomic.Int64 // len(blocks), readable without mu
	wholeOnly atomic.Bool  // the file system cannot punch holes
}

// blocks counts what is in use of a segment.
type blocks struct {
	live int // records
	// users counts the records in each block; the file's header counts as one. At most 64 records of 64 bytes fit in
	// a block.
	users   []uint8
	punched int64 // bytes released
}

// overhead is what the index may take of the disk per blob, and the file system for its extents. fixedOverhead is
// what the index may take in addition. TestBudget compares both with measurements.
const (
	overhead      = 192
	fixedOverhead = 8 * memTableSize
)

// Capacity is how many bytes of blobs a cache with a budget holds at least, if they are not small: the budget without
// its index and without the segments that are being written.
func Capacity(budget int64) int64 {
	o := Options{Bytes: budget}
	o.EnsureDefaults()
	return max(budget-fixedOverhead-2*o.SegmentBytes, 0)
}

// grow takes n bytes of the budget, if they are free.
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

// left is how many bytes can still be taken, by the budget and by the free disk space. It is negative if too many are
// taken.
func (s *space) left() int64 {
	left := s.budget.Load() - s.held.Load()
	if free, err := s.free(s.dir); err == nil {
		left = min(left, free-s.keep)
	}
	return left
}

// room is left, plus what is allocated ahead in the current segment.
func (s *space) room() int64 {
	room := s.left()
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.set.Segment(s.current); g != nil && s.blocks[s.current] != nil {
		room += g.Room()
	}
	return room
}

// reserve takes the space of a blob of n bytes. If the budget or the disk has no room, it returns a schema.ErrLimit.
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
			s.failed(err) // the new blob can still be stored
		}
	}
	s.use(l)
	return r, nil
}

// sealed releases what was allocated ahead in a segment that is no longer appended to. s.mu is held.
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

// use counts a record. s.mu is held.
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

// blocksOf returns the first and last block of a record.
func blocksOf(l segment.Location) (first, last int64) {
	from := l.Offset - segment.HeaderSize
	return from / segment.Block, (from + segment.Footprint(l.Length) - 1) / segment.Block
}

// release releases the space of a record, except blocks that it shares with others. The record has no readers, and
// will have none. The rest is released with the whole segment.
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

// punch releases a range of blocks of a segment. s.mu is held.
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

// sparsest returns the sealed segment with the fewest live records, and the number of segments.
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

// slot is the state of a blob in memory: 104 bytes, and about 35 more in the map that
// finds it by a hash of its key.
type slot struct {
	key      schema.Key
	sum      schema.Sum
	position int64 // of the last use, as Place.Position
	dataset  uint32
	segment  uint32
	offset   uint32 // of the payload, in units of segment.Align
	length   uint32
	cost     float32      // time to read it from the store, in seconds
	uses     uint32       // since it was stored
	added    stamp        // when it was stored
	used     stamp        // when it was last used
	pins     atomic.Int32 // blobs handed out; plus dying once it is off the table
	tenant   uint16       // on whose account it is cached; not in the index
	state    state
	marks    marks
	until    float32 // Place.Until
	next     uint32  // the next slot whose key has the same hash, plus 1; 0 for none
}

// marks are further flags of a blob; none is in the index.
type marks uint8

const (
	changed marks = 1 << iota // uses or place differ from the index
	spare                     // a near node owns the blob
)

// mark sets or clears a mark.
func (s *slot) mark(m marks, on bool) {
	if s.marks &^= m; on {
		s.marks |= m
	}
}

// state is the state of a slot. Cache.mu guards it.
type state uint8

const (
	free    state = iota // no blob
	writing              // its bytes are being written; it must not be read or evicted
	live                 // in the table; it may be read, and evicted if it has no pins
	gone                 // off the table; its space is released with the last pin
)

// dying is added to the pins of a slot that is gone.
const dying = 1 << 30

// maxLength is the size of the largest blob that is cached: a length has to fit its slot.
const maxLength = 1<<32 - 1

// location is the place of the blob in its segment.
func (s *slot) location() segment.Location {
	return segment.Location{Segment: s.segment, Offset: int64(s.offset) * segment.Align, Length: int64(s.length)}
}

// setLocation is the inverse of location. The offset is a multiple of segment.Align.
func (s *slot) setLocation(l segment.Location) {
	s.segment, s.offset, s.length = l.Segment, uint32(l.Offset/segment.Align), uint32(l.Length)
}

// place is where the blob was last used.
func (s *slot) place() Place {
	return Place{Dataset: s.dataset, Tenant: s.tenant, Position: s.position, Until: float64(s.until)}
}

// entry describes the blob to a policy.
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

// stampOf rounds down; times outside of the range are clipped.
func stampOf(t Time) stamp { return stamp(min(max((t-stampZero)/stampUnit, 0), 1<<32-1)) }

// time is the beginning of the eighth of a second.
func (s stamp) time() Time { return stampZero + Time(s)*stampUnit }

// table holds the blobs. Slots are allocated in chunks, so that it grows without copying. Cache.mu guards it, except
// the pins.
type table struct {
	chunks [][]slot
	slots  int      // number of slots in use so far, including free ones
	empty  []uint32 // free slots
	// first is the first slot whose key has a hash. A lookup compares whole keys, because the hash has only 64 bits.
	// A map by key would take 30 bytes more per entry.
	first map[uint64]uint32
	hash  func(key *schema.Key) uint64
	taken int64 // removed since the cache was opened
}

// newTable returns an empty table. Its hash function differs in each process.
func newTable() table {
	seed := maphash.MakeSeed()
	return table{first: map[uint64]uint32{}, hash: func(key *schema.Key) uint64 { return maphash.Bytes(seed, key[:]) }}
}

// chunkSlots is the number of slots of a chunk: 416 KiB.
const chunkSlots = 1 << 12

// at returns a slot, which never moves.
func (t *table) at(i uint32) *slot { return &t.chunks[i/chunkSlots][i%chunkSlots] }

// find returns the slot of a blob that is in the table or being written.
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

// add takes an empty slot for a blob that is not in the table.
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

// take removes a blob from the table. Its slot stays in use until it is freed.
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

// Entry implements Table. Pinned blobs are not evicted, because their space could not be released.
func (t *table) Entry(i int, e *Entry) bool {
	s := t.at(uint32(i))
	if s.state != live || s.pins.Load() != 0 {
		return false
	}
	s.entry(e)
	return true
}

package spill

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"bowstring/schema"
	"bowstring/spill/segment"
)

// slot is what is in memory of a blob: 96 bytes, and about 35 more in the map that finds it by a hash of its key.
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
	next     uint32 // the slot after it of those whose keys have the same hash, plus 1; 0 for none
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
	return Place{Dataset: s.dataset, Tenant: s.tenant, Position: s.position}
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

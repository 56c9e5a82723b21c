package cql

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// arena gives out the memory that blobs are read into. It lies outside of the
// Go heap: there it would count towards the collector's goal, by which a
// process grows to twice what it holds, and it would be given back and taken
// anew, while memory that is touched for the first time costs more than all
// else about a read.
//
// Memory is mapped in slabs of buffers of one size. A buffer belongs to who has
// it until Unpin, and so does its slab to the arena's holder until Close; what
// is pinned then stays valid, and is unmapped with the last Unpin.
//
// Slabs without a pinned buffer are kept as long as there are not more of them,
// together with those in use, than were in use at some time in the last two
// periods, and some to spare, for the shares of the sizes vary; or than were
// touched ahead of their use. The others are unmapped by a timer, which runs
// while there are any, and before new ones are mapped. One of the right size
// becomes what another class needs, and what was touched for small slabs
// makes room for large ones.
//
// What is pinned for long, by consumers that stand still, may be spread over many
// slabs. Where what lies free between pinned buffers is much, the pages of
// buffers that become free are given back at once.
type arena struct {
	period time.Duration
	spare  int64 // bytes

	mu      sync.Mutex
	classes [classes]class
	timer   *time.Timer // nil while nothing is idle
	closed  bool
	freed   int64 // counts slabs that have become idle, to tell which did first

	// In bytes of slabs: mapped, those with pinned buffers, and the most of
	// these in this period and in the one before.
	mapped, used, peak, before int64
	ready                      int64    // as much stays mapped, if it ever was
	touched                    [][]byte // mappings for small slabs that wait for their first use

	buffers int64 // pinned
	bytes   int64 // of them, as asked for
	between int64 // bytes of free buffers, whose pages are there, in slabs with pinned ones
	maps    int64 // slabs ever mapped
}

// class has the slabs of buffers of one size. The slabs without a free buffer
// are in no list.
type class struct {
	partial slabList // some buffers pinned
	idle    slabList // none pinned; the first became so last
}

const (
	// betweenShare is of which part of what is pinned as much, and half of what is
	// to spare, may lie free between it.
	betweenShare = 4

	arenaPeriod = 10 * time.Second
	arenaSpare  = 64 << 20
)

// buffer is the memory of a blob. It is a schema.Framer.
type buffer struct {
	arena  *arena
	slab   *slab
	memory []byte
	data   []byte // of the length asked for, in memory
	pinned bool   // guarded by arena.mu
	absent bool   // it is free, and its pages were given back; guarded by arena.mu
}

// leastFramed is the least length of blobs that lie in a frame. Their buffers are whole blocks, and pages, as all of
// such a size are.
const leastFramed = 16 << 10

// take returns a buffer of n bytes, n > 0, that nobody else has. What it holds is undefined.
func (a *arena) take(n int64) (*buffer, error) {
	whole, begin := n, int64(0)
	if n >= leastFramed {
		whole, begin = schema.FrameSize(n), schema.FrameMargin
	}
	c, size := classOf(whole)
	a.mu.Lock()
	s := a.available(c)
	if s == nil {
		z, count := slabOf(size)
		if mapping := a.unused(z); mapping != nil {
			s = newSlab(a, c, size, mapping, z, count)
		} else {
			doomed := a.surplus(a.keep(a.used+z) - z)
			a.mapped += z // also while it is being mapped
			a.mu.Unlock()
			err := unmap(doomed)
			if err == nil {
				mapping, err = mapSlab(z)
			}
			a.mu.Lock()
			if err != nil {
				a.mapped -= z
				a.mu.Unlock()
				return nil, err
			}
			a.maps++
			s = newSlab(a, c, size, mapping, z, count)
		}
		a.use(s)
		if count > 1 {
			a.classes[c].partial.push(s)
		}
	}
	last := len(s.free) - 1
	b := s.free[last]
	s.free = s.free[:last]
	if last == 0 && len(s.buffers) > 1 {
		a.classes[c].partial.remove(s)
	}
	a.countLocked(b, -1)
	b.pinned, b.absent = true, false
	b.data = b.memory[begin : begin+n : begin+n]
	a.buffers++
	a.bytes += n
	a.mu.Unlock()
	return b, nil
}

// available returns a slab with a free buffer, which is in no list if it has
// only one buffer and in partial otherwise; nil if there is none.
func (a *arena) available(c int) *slab {
	if c == alone {
		return nil
	}
	k := &a.classes[c]
	if k.partial.first != nil {
		return k.partial.first
	}
	s := k.idle.first
	if s == nil {
		return nil
	}
	k.idle.remove(s)
	a.use(s)
	if len(s.buffers) > 1 {
		k.partial.push(s)
	}
	return s
}

// use counts a slab as one with pinned buffers.
func (a *arena) use(s *slab) {
	for _, b := range s.free {
		a.countLocked(b, 1)
	}
	a.used += s.size
	a.peak = max(a.peak, a.used)
}

// Frame implements schema.Framer.
func (b *buffer) Frame() []byte {
	if len(b.data) < leastFramed {
		return nil
	}
	return b.memory[:schema.FrameSize(int64(len(b.data)))]
}

// Unpin implements schema.Owner: it gives the buffer back.
func (b *buffer) Unpin() {
	a, s := b.arena, b.slab
	a.mu.Lock()
	if !b.pinned {
		a.mu.Unlock()
		panic("cql: a blob was released twice")
	}
	b.pinned = false
	a.buffers--
	a.bytes -= int64(len(b.data))
	s.free = append(s.free, b)
	a.countLocked(b, 1)
	if a.between > a.bytes/betweenShare+a.spare/2 && len(b.memory) >= leastFramed && len(s.free) < len(s.buffers) {
		a.countLocked(b, -1)
		b.absent = true
		_ = unix.Madvise(b.memory, unix.MADV_DONTNEED) // it is mapped, and nobody's
	}
	var doomed *slab
	switch {
	case len(s.free) == len(s.buffers):
		doomed = a.retire(s)
	case len(s.free) == 1:
		a.classes[s.class].partial.push(s)
	}
	a.mu.Unlock()
	// An error would mean that it was not mapped, which nobody could mend.
	_ = unmap(doomed)
}

// countLocked counts a free buffer of a slab with pinned ones in, or out.
func (a *arena) countLocked(b *buffer, sign int64) {
	if !b.absent {
		a.between += sign * int64(len(b.memory))
	}
}

// retire puts a slab without pinned buffers aside, and returns it if it is not to be kept.
func (a *arena) retire(s *slab) *slab {
	if len(s.buffers) > 1 {
		a.classes[s.class].partial.remove(s)
	}
	a.used -= s.size
	for _, b := range s.free {
		a.countLocked(b, -1)
	}
	if a.closed || s.class == alone {
		a.mapped -= s.size
		return s
	}
	a.freed++
	s.order = a.freed
	a.classes[s.class].idle.push(s)
	if a.timer == nil {
		a.timer = time.AfterFunc(a.period, a.tick)
	}
	return nil
}

// keep is how much may stay mapped where least bytes are needed now.
func (a *arena) keep(least int64) int64 {
	n := max(a.peak, a.before, least)
	return max(n+min(n, a.spare), a.ready)
}

// unused returns the mapping of a slab of that size that nobody uses: one that was touched ahead of its use, or where as
// much is mapped as may be, that of another class that became idle first. It returns nil if there is none.
func (a *arena) unused(size int64) []byte {
	if last := len(a.touched) - 1; last >= 0 && size == smallSlab {
		mapping := a.touched[last]
		a.touched = a.touched[:last]
		return mapping
	}
	if size > largeSlab || a.mapped+size <= a.keep(a.used+size) {
		return nil
	}
	var oldest *slab
	for c := range a.classes {
		if s := a.classes[c].idle.last; s != nil && s.size == size && (oldest == nil || s.order < oldest.order) {
			oldest = s
		}
	}
	if oldest == nil {
		return nil
	}
	a.classes[oldest.class].idle.remove(oldest)
	return oldest.mapping
}

// surplus takes out what nobody uses and exceeds what is to stay mapped: first what was touched ahead of a use that has
// not come, or that would stay at the cost of what is used now and then, then the slabs that became idle first. It
// returns them as a list.
func (a *arena) surplus(stay int64) (doomed *slab) {
	for a.mapped > max(stay, a.used) {
		if last := len(a.touched) - 1; last >= 0 {
			doomed = &slab{mapping: a.touched[last], next: doomed}
			a.touched[last], a.touched = nil, a.touched[:last]
			a.mapped -= smallSlab
			continue
		}
		var oldest *slab
		for c := range a.classes {
			if s := a.classes[c].idle.last; s != nil && (oldest == nil || s.order < oldest.order) {
				oldest = s
			}
		}
		if oldest == nil { // others are being mapped just now
			break
		}
		a.classes[oldest.class].idle.remove(oldest)
		a.mapped -= oldest.size
		oldest.next, doomed = doomed, oldest
	}
	return doomed
}

// tick ends a period.
func (a *arena) tick() {
	a.mu.Lock()
	doomed := a.surplus(a.keep(0))
	a.before, a.peak = a.peak, a.used
	a.timer = nil
	if a.mapped > max(a.used, a.ready) && !a.closed {
		a.timer = time.AfterFunc(a.period, a.tick)
	}
	a.mu.Unlock()
	_ = unmap(doomed) // see Unpin
}

// close unmaps what nobody has pinned, and lets the rest follow as it is unpinned.
func (a *arena) close() error {
	a.mu.Lock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	doomed := a.surplus(0)
	a.mu.Unlock()
	return unmap(doomed)
}

// touch maps and touches memory for small slabs, some bytes in all, so that
// reads need not: the kernel clears it, and where it is a guest, its host
// finds it first. As much stays until close.
func (a *arena) touch(n int64) error {
	for ; n >= smallSlab; n -= smallSlab {
		mapping, err := mapSlab(smallSlab)
		if err != nil {
			return err
		}
		for i := 0; i < len(mapping); i += smallPage {
			mapping[i] = 0
		}
		a.mu.Lock()
		a.touched = append(a.touched, mapping)
		a.ready += smallSlab
		a.mapped += smallSlab
		a.mu.Unlock()
	}
	return nil
}

// Sizes of buffers grow by a quarter of a power of two, so that at most a
// fifth of one is wasted. Larger ones are mapped for their blob alone.
const (
	leastBits = 10 // smaller blobs share a class
	mostBits  = 26
	classes   = (mostBits-leastBits)*4 + 1
	alone     = -1 // the class of larger ones

	// hugePage is what the processor maps by one entry. Memory that is used
	// again after it was unmapped comes five times as fast in pages of this size.
	hugePage  = 2 << 20
	smallPage = 4 << 10
	// smallSlab and largeSlab hold buffers up to a quarter of them; larger buffers have
	// a slab each.
	smallSlab, largeSlab = hugePage, 4 * hugePage
)

// classOf returns the class of buffers that hold n bytes, and their size. The
// class is alone if there is none.
func classOf(n int64) (c int, size int64) {
	if n <= 1<<leastBits {
		return 0, 1 << leastBits
	}
	exp := bits.Len64(uint64(n-1)) - 1 // 2^exp < n <= 2^(exp+1)
	if exp >= mostBits {
		return alone, n
	}
	quarter := int64(1) << (exp - 2)
	steps := (n - int64(1)<<exp + quarter - 1) / quarter // 1 to 4
	return (exp-leastBits)*4 + int(steps), int64(1)<<exp + steps*quarter
}

// slabOf is the size of a slab of buffers of that size, and how many it holds.
func slabOf(size int64) (slab int64, n int) {
	switch {
	case size <= smallSlab/4:
		return smallSlab, int(smallSlab / size)
	case size <= largeSlab/4:
		return largeSlab, int(largeSlab / size)
	}
	return size, 1
}

// slab is one mapping.
type slab struct {
	class   int
	mapping []byte
	size    int64
	buffers []buffer
	free    []*buffer // the last was used last
	order   int64     // when it became idle

	prev, next *slab
}

// mapSlab maps a slab of that size, from the beginning of a huge page on. Neighbours have nothing between them, so that
// the kernel, which bounds how many mappings a process has, joins them.
func mapSlab(size int64) ([]byte, error) {
	memory, err := mapMemory(size)
	if err == nil && uintptr(memory)%hugePage != 0 {
		if err = unix.MunmapPtr(memory, uintptr(size)); err == nil {
			memory, err = mapAligned(size)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for blobs: %w", size, err)
	}
	mapping := unsafe.Slice((*byte)(memory), size)
	adviseHuge(mapping[:size/hugePage*hugePage])
	return mapping, nil
}

func mapMemory(size int64) (unsafe.Pointer, error) {
	return unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// mapAligned maps more than is asked for, and gives back what lies before a huge page and after the last one.
func mapAligned(size int64) (unsafe.Pointer, error) {
	size = (size + smallPage - 1) / smallPage * smallPage
	begin, err := mapMemory(size + hugePage)
	if err != nil {
		return nil, err
	}
	before := -uintptr(begin) % hugePage
	memory := unsafe.Add(begin, before)
	if before > 0 {
		err = unix.MunmapPtr(begin, before)
	}
	return memory, errors.Join(err, unix.MunmapPtr(unsafe.Add(memory, size), hugePage-before))
}

// newSlab makes n buffers of that size of a mapping.
func newSlab(a *arena, c int, size int64, mapping []byte, slabSize int64, n int) *slab {
	s := &slab{class: c, mapping: mapping, size: slabSize, buffers: make([]buffer, n), free: make([]*buffer, n)}
	for i := range s.buffers {
		at := int64(i) * size
		s.buffers[i] = buffer{arena: a, slab: s, memory: mapping[at : at+size : at+size]}
		s.free[n-1-i] = &s.buffers[i]
	}
	return s
}

// unmap returns a list of slabs to the operating system.
func unmap(list *slab) error {
	var first error
	for s := list; s != nil; s = s.next {
		if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(s.mapping)), uintptr(len(s.mapping))); err != nil &&
			first == nil {
			first = fmt.Errorf("unmap %d bytes of blobs: %w", len(s.mapping), err)
		}
	}
	return first
}

// slabList is a list from which any element can be taken.
type slabList struct{ first, last *slab }

func (l *slabList) push(s *slab) {
	s.prev, s.next = nil, l.first
	if l.first != nil {
		l.first.prev = s
	} else {
		l.last = s
	}
	l.first = s
}

func (l *slabList) remove(s *slab) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.last = s.prev
	}
	s.prev, s.next = nil, nil
}

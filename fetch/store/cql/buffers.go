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

// arena provides the memory that blobs are read into, outside the Go heap. On the heap it would raise the garbage
// collector's goal, which lets a process grow to twice what it holds. It would also be released and allocated again,
// and touching fresh memory costs more than everything else about a read.
//
// Memory is mapped in slabs of buffers of one size. The caller of take owns a buffer until Unpin, and the store owns
// the arena until Close. Buffers that are pinned at Close stay valid; each slab is unmapped with its last Unpin.
//
// Slabs without pinned buffers stay mapped as long as the total of slabs does not exceed the maximum in use in the
// last two periods, plus some spare, because the shares of the sizes vary; or the memory that was touched in advance.
// The others are unmapped by a timer, which runs while there are any, and before new slabs are mapped. An idle slab
// of the right size is reused for another class, and memory that was touched for small slabs makes room for large
// ones.
//
// Buffers that are pinned for long, by stalled consumers, may be spread over many slabs. If there is much free memory
// between pinned buffers, the pages of buffers that become free are released at once.
type arena struct {
	period time.Duration
	spare  int64 // bytes

	mu      sync.Mutex
	classes [classes]class
	timer   *time.Timer // nil while nothing is idle
	closed  bool
	freed   int64 // counts slabs that have become idle; orders them

	// In bytes of slabs: mapped, with pinned buffers, and the maximum of the latter in this period and in the one
	// before.
	mapped, used, peak, before int64
	ready                      int64    // once mapped, this much stays mapped
	touched                    [][]byte // mappings for small slabs, touched in advance and not yet used

	buffers int64 // pinned
	bytes   int64 // size requested for them
	between int64 // bytes of free buffers, with pages, in slabs with pinned ones
	maps    int64 // slabs mapped so far
}

// class is the slabs of buffers of one size. Slabs without a free buffer are in no list.
// arena.mu guards it.
type class struct {
	partial slabList // some buffers are pinned
	idle    slabList // no buffer is pinned; the most recent first
}

const (
	// betweenShare is the inverse of the share of the pinned bytes up to which, plus half of the spare, free memory
	// between pinned buffers is kept.
	betweenShare = 4

	arenaPeriod = 10 * time.Second
	arenaSpare  = 64 << 20
)

// buffer is the memory of a blob, and its owner (schema.Owner, schema.Framer). It belongs
// to its slab, and is reused after Unpin.
type buffer struct {
	arena  *arena
	slab   *slab
	memory []byte // all of the buffer
	data   []byte // the requested length of memory
	pinned bool   // guarded by arena.mu
	absent bool   // free, and its pages were released; guarded by arena.mu
}

// leastFramed is the length from which a blob has a frame. Buffers of that size are whole blocks and pages.
const leastFramed = 16 << 10

// take returns a buffer of n bytes, n > 0, that the caller owns until Unpin. Its content is undefined.
func (a *arena) take(n int64) (*buffer, error) {
	// Blobs from leastFramed on get room for their frame, in which they can be written to
	// a file without being copied.
	whole, begin := n, int64(0)
	if n >= leastFramed {
		whole, begin = schema.FrameSize(n), schema.FrameMargin
	}
	c, size := classOf(whole)
	a.mu.Lock()
	// The mapping itself is made without the lock, because the kernel may take long to
	// clear pages.
	s := a.available(c)
	if s == nil {
		z, count := slabOf(size)
		if mapping := a.unused(z); mapping != nil {
			s = newSlab(a, c, size, mapping, z, count)
		} else {
			doomed := a.surplus(a.keep(a.used+z) - z)
			a.mapped += z // counted while it is being mapped
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

// available returns a slab with a free buffer, nil if there is none. The slab is in no list if it has only one
// buffer, else in partial.
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

// Unpin implements schema.Owner: it releases the buffer.
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
		_ = unix.Madvise(b.memory, unix.MADV_DONTNEED) // the memory is mapped, and free
	}
	var doomed *slab
	switch {
	case len(s.free) == len(s.buffers):
		doomed = a.retire(s)
	case len(s.free) == 1:
		a.classes[s.class].partial.push(s)
	}
	a.mu.Unlock()
	// An error would mean that it was not mapped, and there is no way to handle that.
	_ = unmap(doomed)
}

// countLocked adds a free buffer of a slab with pinned ones to between, or subtracts it.
func (a *arena) countLocked(b *buffer, sign int64) {
	if !b.absent {
		a.between += sign * int64(len(b.memory))
	}
}

// retire makes a slab without pinned buffers idle. If the slab is to be unmapped instead,
// retire returns it, because unmapping takes too long for the lock.
func (a *arena) retire(s *slab) *slab {
	if len(s.buffers) > 1 {
		a.classes[s.class].partial.remove(s)
	}
	a.used -= s.size
	for _, b := range s.free {
		a.countLocked(b, -1)
	}
	// Slabs of one large buffer are not kept: their sizes differ, so they would seldom be
	// reused.
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

// keep is how much may stay mapped if least bytes are needed now.
func (a *arena) keep(least int64) int64 {
	n := max(a.peak, a.before, least)
	return max(n+min(n, a.spare), a.ready)
}

// unused returns the mapping of an unused slab of that size; nil if there is none. It
// prefers memory that was touched in advance. If the limit of mapped memory is reached,
// it takes the slab of another class that has been idle longest.
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

// surplus removes unused memory beyond stay: first what was touched in advance, then the slabs that have been idle
// longest. It returns them as a list.
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
		if oldest == nil { // others are being mapped at the moment
			break
		}
		a.classes[oldest.class].idle.remove(oldest)
		a.mapped -= oldest.size
		oldest.next, doomed = doomed, oldest
	}
	return doomed
}

// tick ends a period: it unmaps what was not needed in this period and the one before.
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

// close unmaps all slabs without pinned buffers. The others are unmapped with their last
// Unpin.
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

// touch maps and touches n bytes for small slabs in advance of reads: the kernel clears the pages and, in a virtual
// machine, the host allocates them first. That much memory stays mapped until close.
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

// Sizes of buffers grow by a quarter of a power of two, so that at most a fifth of a buffer is wasted. Larger buffers
// are mapped separately.
const (
	leastBits = 10 // smaller blobs share a class
	mostBits  = 26
	classes   = (mostBits-leastBits)*4 + 1
	alone     = -1 // the class of larger ones

	// hugePage is the memory of one page table entry for huge pages. Memory that is mapped again after it was
	// unmapped comes five times as fast in huge pages.
	hugePage  = 2 << 20
	smallPage = 4 << 10
	// smallSlab and largeSlab hold buffers of up to a quarter of their size; larger buffers have a slab each.
	smallSlab, largeSlab = hugePage, 4 * hugePage
)

// classOf returns the class of buffers for n bytes, and their size. The class is alone if there is none.
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

// slabOf returns the size of a slab for buffers of that size, and how many it holds.
func slabOf(size int64) (slab int64, n int) {
	switch {
	case size <= smallSlab/4:
		return smallSlab, int(smallSlab / size)
	case size <= largeSlab/4:
		return largeSlab, int(largeSlab / size)
	}
	return size, 1
}

// slab is one mapping, cut into buffers of one size. arena.mu guards its lists.
type slab struct {
	class   int
	mapping []byte
	size    int64
	buffers []buffer
	free    []*buffer // the most recently used last
	order   int64     // when it became idle: arena.freed at that time

	prev, next *slab // in a list of its class, or, after that, in a list of slabs to unmap
}

// mapSlab maps a slab of that size, aligned to a huge page. Neighbouring slabs have no gap between them, so that the
// kernel, which limits the number of mappings, joins them.
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

// mapMemory maps anonymous memory, without touching it.
func mapMemory(size int64) (unsafe.Pointer, error) {
	return unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// mapAligned maps more than needed, and unmaps what is before a huge page and after the slab.
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

// newSlab cuts a mapping into n buffers of a size. The buffer with the lowest address is
// used first.
func newSlab(a *arena, c int, size int64, mapping []byte, slabSize int64, n int) *slab {
	s := &slab{class: c, mapping: mapping, size: slabSize, buffers: make([]buffer, n), free: make([]*buffer, n)}
	for i := range s.buffers {
		at := int64(i) * size
		s.buffers[i] = buffer{arena: a, slab: s, memory: mapping[at : at+size : at+size]}
		s.free[n-1-i] = &s.buffers[i]
	}
	return s
}

// unmap returns a list of slabs to the operating system, and the first error.
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

// slabList is a doubly linked list of slabs. It allocates nothing.
type slabList struct{ first, last *slab }

// push puts a slab in front.
func (l *slabList) push(s *slab) {
	s.prev, s.next = nil, l.first
	if l.first != nil {
		l.first.prev = s
	} else {
		l.last = s
	}
	l.first = s
}

// remove takes a slab, which is in the list, out of it.
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

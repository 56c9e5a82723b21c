package cql

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

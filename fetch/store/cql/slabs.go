package cql

import (
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
	// smallSlab and largeSlab hold buffers up to a sixteenth and up to a quarter
	// of them; larger buffers have a slab each.
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
	case size <= smallSlab/16:
		return smallSlab, int(smallSlab / size)
	case size <= largeSlab/4:
		return largeSlab, int(largeSlab / size)
	}
	return size, 1
}

// slab is one mapping.
type slab struct {
	class   int
	mapping []byte // as the kernel gave it
	size    int64
	buffers []buffer
	free    []*buffer // the last was used last
	order   int64     // when it became idle

	prev, next *slab
}

// mapSlab maps a slab of that size, and as much more as aligned may need.
func mapSlab(size int64) ([]byte, error) {
	length := size + hugePage - 1
	mapping, err := unix.Mmap(-1, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes for blobs: %w", length, err)
	}
	memory := aligned(mapping, size)
	adviseHuge(memory[:size/hugePage*hugePage])
	return mapping, nil
}

// aligned is the part of a mapping that begins at a huge page.
func aligned(mapping []byte, size int64) []byte {
	begin := -uintptr(unsafe.Pointer(unsafe.SliceData(mapping))) % hugePage
	return mapping[begin:][:size]
}

// newSlab maps memory for n buffers of that size.
func newSlab(a *arena, c int, size, slabSize int64, n int) (*slab, error) {
	var mapping []byte
	var err error
	if slabSize == smallSlab {
		mapping, err = a.smallSlab()
	} else {
		mapping, err = mapSlab(slabSize)
	}
	if err != nil {
		return nil, err
	}
	s := &slab{class: c, mapping: mapping, size: slabSize, buffers: make([]buffer, n), free: make([]*buffer, n)}
	memory := aligned(mapping, slabSize)
	for i := range s.buffers {
		at := int64(i) * size
		s.buffers[i] = buffer{arena: a, slab: s, memory: memory[at : at+size : at+size]}
		s.free[n-1-i] = &s.buffers[i]
	}
	return s, nil
}

// unmap returns a list of slabs to the operating system.
func unmap(list *slab) error {
	var first error
	for s := list; s != nil; s = s.next {
		if err := unix.Munmap(s.mapping); err != nil && first == nil {
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

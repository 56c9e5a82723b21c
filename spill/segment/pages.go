package segment

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// pagesOf is the run of whole pages of a mapping that hold b.
func pagesOf(b []byte) []byte {
	head := uintptr(unsafe.Pointer(unsafe.SliceData(b))) & pageMask
	first := unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -int(head))
	return unsafe.Slice((*byte)(first), (uintptr(len(b))+head+pageMask)&^pageMask)
}

// offsetIn returns where in mem the piece b of it begins; false if b is no piece of it, or empty.
func offsetIn(mem, b []byte) (int64, bool) {
	first, at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if len(b) == 0 || at < first || at-first > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-(at-first) {
		return 0, false
	}
	return int64(at - first), true
}

// resident reports whether the pages that hold b are in memory. That costs a
// quarter of populating pages that are there.
func resident(b []byte) bool {
	var state [256]byte // one a page
	pages := pagesOf(b)
	size := int(pageMask) + 1
	for len(pages) > 0 {
		n := min(len(pages), len(state)*size)
		// It waits for no page: the scheduler need not be told.
		_, _, err := unix.RawSyscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(pages))), uintptr(n),
			uintptr(unsafe.Pointer(&state)))
		if err != 0 {
			return false
		}
		for _, s := range state[:n/size] {
			if s&1 == 0 {
				return false
			}
		}
		pages = pages[n:]
	}
	return true
}

// populate brings the pages that hold b into memory within a system call, so
// that the Go scheduler can run others meanwhile, which a page fault does not
// let it do.
func populate(b []byte) error {
	pages := pagesOf(b)
	// One read of just these pages, where each fault would read what lies
	// around it: more reads at once get half as much again from the disk. A
	// hint, so that its failing does not matter.
	_ = unix.Madvise(pages, unix.MADV_WILLNEED)
	for {
		err := unix.Madvise(pages, unix.MADV_POPULATE_READ)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

package schema

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Populate brings the pages that hold b into memory within a system call, so that the Go scheduler can run others
// meanwhile, which a page fault does not let it do. Bytes that cannot be read are an error.
func Populate(b []byte) error {
	pages := Pages(b)
	// One read of just these pages, where each fault would read what lies around it: more reads at once get half as
	// much again from the disk. A hint, so that its failing does not matter.
	_ = unix.Madvise(pages, unix.MADV_WILLNEED)
	for {
		err := unix.Madvise(pages, unix.MADV_POPULATE_READ)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

// Resident reports whether the pages that hold b are in memory, as of now. That costs a quarter of populating pages that
// are there (Populate).
func Resident(b []byte) bool {
	var state [256]byte // one a page
	pages := Pages(b)
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

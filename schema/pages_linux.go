package schema

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// pagesOf is where the run of whole pages begins that hold b, and how long it is. There are numbers and no slice of it, as
// b may be a piece of Go's heap, beyond which no pointer may point.
func pagesOf(b []byte) (at, n uintptr) {
	at = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	head := at & pageMask
	return at - head, (uintptr(len(b)) + head + pageMask) &^ pageMask
}

// Populate brings the pages that hold b into memory within a system call, so that the Go scheduler can run others
// meanwhile, which a page fault does not let it do. Bytes that cannot be read are an error.
func Populate(b []byte) error {
	defer runtime.KeepAlive(b)
	at, n := pagesOf(b)
	// One read of just these pages, where each fault would read what lies around it: more reads at once get half as
	// much again from the disk. A hint, so that its failing does not matter.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, at, n, unix.MADV_WILLNEED)
	for {
		switch _, _, err := unix.Syscall(unix.SYS_MADVISE, at, n, unix.MADV_POPULATE_READ); err {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
		default:
			return err
		}
	}
}

// Resident reports whether the pages that hold b are in memory, as of now. That costs a quarter of populating pages that
// are there (Populate).
func Resident(b []byte) bool {
	defer runtime.KeepAlive(b)
	var state [256]byte // one a page
	size := pageMask + 1
	for at, left := pagesOf(b); left > 0; {
		n := min(left, uintptr(len(state))*size)
		// It waits for no page: the scheduler need not be told.
		if _, _, err := unix.RawSyscall(unix.SYS_MINCORE, at, n, uintptr(unsafe.Pointer(&state))); err != 0 {
			return false
		}
		for _, s := range state[:n/size] {
			if s&1 == 0 {
				return false
			}
		}
		at, left = at+n, left-n
	}
	return true
}

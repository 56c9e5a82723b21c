package schema

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// pagesOf returns the address and the length of the run of whole pages that contain b.
// They are numbers and no slice, because b may be a part of Go's heap, beyond which no
// pointer may point.
func pagesOf(b []byte) (at, n uintptr) {
	at = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	head := at & pageMask
	return at - head, (uintptr(len(b)) + head + pageMask) &^ pageMask
}

// Populate brings the pages that contain b into memory within a system call, so that the
// Go scheduler can run other goroutines meanwhile. During a page fault it cannot. Bytes
// that cannot be read are an error.
func Populate(b []byte) error {
	defer runtime.KeepAlive(b)
	at, n := pagesOf(b)
	// One read of just these pages. A fault would read the surrounding pages as well;
	// with this hint, parallel reads get 1.5 times the throughput of the disk. It is only
	// a hint, so its failure does not matter.
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

// Resident reports whether the pages that contain b are in memory at the moment. It costs
// a quarter of a call of Populate for pages that are there.
func Resident(b []byte) bool {
	defer runtime.KeepAlive(b)
	var state [256]byte // one for each page
	size := pageMask + 1
	for at, left := pagesOf(b); left > 0; {
		n := min(left, uintptr(len(state))*size)
		// mincore does not block, so the scheduler need not be notified.
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

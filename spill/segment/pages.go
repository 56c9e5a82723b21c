package segment

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// offsetIn returns where in mem the piece b of it begins; false if b is no piece of it, or empty.
func offsetIn(mem, b []byte) (int64, bool) {
	first, at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if len(b) == 0 || at < first || at-first > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-(at-first) {
		return 0, false
	}
	return int64(at - first), true
}

// resident reports whether the pages that hold b are in memory. That costs a
// quarter of populating pages that are there (schema.Populate).
func resident(b []byte) bool {
	var state [256]byte // one a page
	pages := schema.Pages(b)
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

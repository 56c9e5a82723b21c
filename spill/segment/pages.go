package segment

import "unsafe"

// offsetIn returns where in mem the piece b of it begins; false if b is no piece of it, or empty.
func offsetIn(mem, b []byte) (int64, bool) {
	first, at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if len(b) == 0 || at < first || at-first > uintptr(len(mem)) || uintptr(len(b)) > uintptr(len(mem))-(at-first) {
		return 0, false
	}
	return int64(at - first), true
}

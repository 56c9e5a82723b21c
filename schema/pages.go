package schema

import (
	"os"
	"unsafe"
)

var pageMask = uintptr(os.Getpagesize() - 1)

// Pages is the run of whole pages of a mapping that hold b.
func Pages(b []byte) []byte {
	head := uintptr(unsafe.Pointer(unsafe.SliceData(b))) & pageMask
	first := unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), -int(head))
	return unsafe.Slice((*byte)(first), (uintptr(len(b))+head+pageMask)&^pageMask)
}

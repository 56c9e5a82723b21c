package schema

import "unsafe"

// fixed is a value without pointers: one that Arrow stores as its bytes in
// memory order, little-endian, or a run.
type fixed interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~[2]uint64 | ~[16]byte | ~[32]byte | run
}

// cast views b as values of T, without copying. b must be aligned for T;
// a rest shorter than a T is left out.
func cast[T fixed](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// asBytes views s as bytes, without copying.
func asBytes[T fixed](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// aligned reports whether b may be cast to any fixed type.
func aligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}

// alignedBytes allocates n bytes at a multiple of 64.
func alignedBytes(n int) []byte {
	b := make([]byte, n+64)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	return b[at : at+n : at+n]
}

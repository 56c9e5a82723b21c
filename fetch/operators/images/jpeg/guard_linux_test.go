//go:build amd64

package jpeg

import (
	"bytes"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded returns n bytes directly before or after a page that cannot be accessed.
func guarded(t *testing.T, n int, before bool) []byte {
	t.Helper()
	page := unix.Getpagesize()
	inner := (n + page - 1) / page * page
	m, err := unix.Mmap(-1, 0, inner+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(m); err != nil {
			t.Error(err)
		}
	})
	for _, p := range [][]byte{m[:page], m[page+inner:]} {
		if err := unix.Mprotect(p, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	if before {
		return m[page:][:n:n]
	}
	return m[page+inner-n:][:n:n]
}

// TestGuarded checks that the vector instructions access only their arguments: any other
// access would fault.
func TestGuarded(t *testing.T) {
	if !wide {
		t.Skip("the processor has no AVX2")
	}
	for _, before := range []bool{true, false} {
		for _, stride := range []int{8, 9, 24} {
			block := (*[blockSize]int32)(unsafe.Pointer(unsafe.SliceData(guarded(t, 4*blockSize, before))))
			out := guarded(t, 7*stride+8, before)
			block[0] = 1000
			inverse(block, 0, out, stride)
			if out[7*stride+7] != 253 {
				t.Errorf("the last sample is %d", out[7*stride+7])
			}
		}
		for n := 1; n < 60; n++ {
			in, out := guarded(t, n, before), guarded(t, 3*n, before)
			for i := range in {
				in[i] = byte(100 + i)
			}
			toRGB(in, in, in, out)
			want := make([]byte, 3*n)
			toRGBGo(in, in, in, want)
			if !bytes.Equal(out, want) {
				t.Errorf("other colours of %d pixels", n)
			}
		}
	}
}

//go:build amd64

package resample

import (
	"bytes"
	"testing"

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

// TestGuarded checks that the vector instructions access no more than documented: any other
// access would fault.
func TestGuarded(t *testing.T) {
	if !wide {
		t.Skip("the processor has no AVX2")
	}
	for _, before := range []bool{true, false} {
		for _, in := range []int{1, 2, 5, 33, 64} {
			for _, out := range []int{1, 3, 32, 70} {
				for f := range Lanczos + 1 {
					if f == Nearest {
						continue
					}
					across(t, in, out, f, before)
					down(t, in, out, f, before)
				}
			}
		}
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = byte(i * 37)
	}
}

// across makes the horizontal pass of a row, which has one byte more than its pixels.
func across(t *testing.T, in, out int, f Filter, before bool) {
	t.Helper()
	w := weights{even: true}
	w.set(in, out, 0, out, f, false)
	row, got, want := guarded(t, 3*in+1, before), guarded(t, 3*out+1, before), make([]byte, 3*out+1)
	fill(row)
	w.row(row[:3*in], got[:3*out], 3)
	w.rowGo(row[:3*in], want, 3)
	if !bytes.Equal(got[:3*out], want[:3*out]) {
		t.Errorf("%d pixels to %d, filter %d: other bytes", in, out, f)
	}
}

// down makes the vertical pass of rows, with up to 31 bytes after the last.
func down(t *testing.T, in, out int, f Filter, before bool) {
	t.Helper()
	var w weights
	w.set(in, out, 0, out, f, false)
	for _, width := range []int{1, 31, 32, 33} {
		lots := (width + 31) &^ 31
		n := int(w.count[out/2])
		pix, got, want := guarded(t, (n-1)*width+lots, before), guarded(t, lots, before), make([]byte, lots)
		fill(pix)
		values := w.values[out/2*w.size:][:n]
		column(pix, width, values, got, nil)
		columnGo(pix, width, values, want, make([]int32, width))
		if !bytes.Equal(got[:width], want[:width]) {
			t.Errorf("%d rows to %d of %d bytes, filter %d: other bytes", in, out, width, f)
		}
	}
}

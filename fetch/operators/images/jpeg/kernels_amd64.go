package jpeg

import "golang.org/x/sys/cpu"

// wide is set if the CPU supports AVX2, which kernels_amd64.s uses. Otherwise the Go code
// runs, with the same results.
var wide = cpu.X86.HasAVX2

// Wide reports whether the AVX2 code is used.
func Wide() bool { return wide }

// inverseWide is inverseGo for all columns. It writes 8 bytes in each of 8 rows.
//
//go:noescape
func inverseWide(block *[blockSize]int32, out *byte, stride int)

// toRGBWide converts n pixels, a multiple of 8. It writes up to 4 bytes after them.
//
//go:noescape
func toRGBWide(y, cb, cr, out *byte, n int)

// inverse writes the 8x8 samples of a block and clears the block. columns has a bit for
// each column with a coefficient other than its first.
func inverse(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	if !wide {
		inverseGo(b, columns, out, stride)
		return
	}
	_ = out[7*stride+7]
	inverseWide(b, &out[0], stride)
}

// toRGB converts a row of YCbCr to interleaved RGB.
func toRGB(y, cb, cr, out []byte) {
	// Bytes written after the last eight pixels must belong to this row.
	n := (len(y) - 2) &^ 7
	if !wide || n <= 0 {
		toRGBGo(y, cb, cr, out)
		return
	}
	_, _, _ = cb[:n], cr[:n], out[:3*n+4]
	toRGBWide(&y[0], &cb[0], &cr[0], &out[0], n)
	toRGBGo(y[n:], cb[n:], cr[n:], out[3*n:])
}

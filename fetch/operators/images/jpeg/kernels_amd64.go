package jpeg

import "golang.org/x/sys/cpu"

// wide says that the processor has the instructions of kernels_amd64.s. Without them
// the same is done in Go.
var wide = cpu.X86.HasAVX2

// Wide says whether the processor's wide instructions are used.
func Wide() bool { return wide }

//go:noescape
func inverseWide(block *[blockSize]int32, out *byte, stride int)

//go:noescape
func toRGBWide(y, cb, cr, out *byte, n int)

// inverse writes the samples of a block, and leaves it zero. columns has the bits of
// columns that have more than their first coefficient.
func inverse(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	if !wide {
		inverseGo(b, columns, out, stride)
		return
	}
	_ = out[7*stride+7]
	inverseWide(b, &out[0], stride)
}

func toRGB(y, cb, cr, out []byte) {
	// What is written beyond eight pixels has to be of this row.
	n := (len(y) - 2) &^ 7
	if !wide || n <= 0 {
		toRGBGo(y, cb, cr, out)
		return
	}
	_, _, _ = cb[:n], cr[:n], out[:3*n+4]
	toRGBWide(&y[0], &cb[0], &cr[0], &out[0], n)
	toRGBGo(y[n:], cb[n:], cr[n:], out[3*n:])
}

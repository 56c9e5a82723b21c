//go:build !amd64

package jpeg

// inverse writes the 8x8 samples of a block and clears the block.
func inverse(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	inverseGo(b, columns, out, stride)
}

// toRGB converts a row of YCbCr to interleaved RGB.
func toRGB(y, cb, cr, out []byte) { toRGBGo(y, cb, cr, out) }

// Wide reports whether the AVX2 code is used.
func Wide() bool { return false }

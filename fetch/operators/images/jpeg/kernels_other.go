//go:build !amd64

package jpeg

func inverse(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	inverseGo(b, columns, out, stride)
}

func toRGB(y, cb, cr, out []byte) { toRGBGo(y, cb, cr, out) }

// Wide reports whether the AVX2 code is used.
func Wide() bool { return false }

//go:build !amd64

package jpeg

func inverse(b *[blockSize]int32, columns uint8, out []byte, stride int) {
	inverseGo(b, columns, out, stride)
}

func toRGB(y, cb, cr, out []byte) { toRGBGo(y, cb, cr, out) }

// Wide says whether the processor's wide instructions are used.
func Wide() bool { return false }

//go:build !amd64

package resample

func (w *weights) row(in, out []byte, channels int) { w.rowGo(in, out, channels) }

func column(in []byte, width int, values []int32, out []byte, sums []int32) {
	columnGo(in, width, values, out, sums)
}

// Wide reports whether the AVX2 code is used.
func Wide() bool { return false }

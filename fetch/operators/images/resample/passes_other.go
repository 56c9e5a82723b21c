//go:build !amd64

package resample

// row makes the horizontal pass of a row.
func (w *weights) row(in, out []byte, channels int) { w.rowGo(in, out, channels) }

// column makes the vertical pass for one row.
func column(in []byte, width int, values []int32, out []byte, sums []int32) {
	columnGo(in, width, values, out, sums)
}

// Wide reports whether the AVX2 code is used.
func Wide() bool { return false }

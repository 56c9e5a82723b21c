package resample

import "golang.org/x/sys/cpu"

// wide is set if the CPU supports AVX2, which passes_amd64.s uses. Otherwise the Go code
// runs, with the same results.
var wide = cpu.X86.HasAVX2

// Wide reports whether the AVX2 code is used.
func Wide() bool { return wide }

// rowRGB makes the horizontal pass of n pixels of three channels, with taps weights each.
//
//go:noescape
func rowRGB(in, out *byte, first, values *int32, taps, size, n int)

// columns makes the vertical pass of width bytes, in units of 32.
//
//go:noescape
func columns(in *byte, stride, width int, values *int32, taps int, out *byte)

// row makes the horizontal pass of a row. in and out need a capacity of one byte more.
func (w *weights) row(in, out []byte, channels int) {
	if !wide || channels != 3 {
		w.rowGo(in, out, channels)
		return
	}
	n := len(w.first)
	last := int(w.first[0]+w.count[0]) * 3
	if end := int(w.first[n-1]+w.count[n-1]) * 3; end > last {
		last = end
	}
	_, _, _ = in[:last+1], out[:3*n+1], w.values[:n*w.size]
	rowRGB(&in[0], &out[0], &w.first[0], &w.values[0], int(w.count[0]), w.size, n)
}

// column makes the vertical pass for one row. in and out need a capacity of 31 bytes
// more.
func column(in []byte, width int, values []int32, out []byte, sums []int32) {
	if !wide {
		columnGo(in, width, values, out, sums)
		return
	}
	lots := (width + 31) &^ 31
	_, _ = in[:(len(values)-1)*width+lots], out[:lots]
	columns(&in[0], width, width, &values[0], len(values), &out[0])
}

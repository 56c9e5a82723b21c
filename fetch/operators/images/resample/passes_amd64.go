package resample

import "golang.org/x/sys/cpu"

// wide says that the processor has the instructions of passes_amd64.s. Without them
// the same sums are done in Go.
var wide = cpu.X86.HasAVX2

//go:noescape
func rowRGB(in, out *byte, first, values *int32, taps, size, n int)

//go:noescape
func columns(in *byte, stride, width int, values *int32, taps int, out *byte)

// row weighs the pixels of a row. in and out have capacity for a byte more.
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

// column weighs rows of width bytes. in and out have capacity for 31 bytes more.
func column(in []byte, width int, values []int32, out []byte, sums []int32) {
	if !wide {
		columnGo(in, width, values, out, sums)
		return
	}
	lots := (width + 31) &^ 31
	_, _ = in[:(len(values)-1)*width+lots], out[:lots]
	columns(&in[0], width, width, &values[0], len(values), &out[0])
}

// Package resample resizes images of eight bits per channel to the same bytes as Pillow
// 12.1 (libImaging/Resample.c, and Geometry.c for nearest): separable filters, widened by
// the scale when shrinking, so that there is no aliasing; fixed-point weights with 22
// bits of fraction; a horizontal pass, rounded to bytes, then a vertical one.
//
// The package knows neither files nor operators.
package resample

import (
	"image"
	"math"
)

// Source provides the rows of an image, of Job.Channels interleaved bytes per pixel. Each
// row is requested at most once: in ascending order, or in descending order if the result
// is mirrored without a filter.
type Source interface {
	// Row returns row y, in spare or in its own memory, valid until the next call. Its
	// capacity is at least one byte more than its pixels.
	Row(y int, spare []byte) []byte
}

// Sink takes the rows of a result in order, each once. It must not keep them.
type Sink interface {
	Row(y int, pixels []byte)
}

// Job is a resize.
type Job struct {
	// Width, Height and Channels are those of the source. Channels is 1, 3 or 4.
	Width, Height, Channels int
	// To is the size of the whole result in pixels.
	To image.Point
	// Window is the part of the result to compute.
	Window image.Rectangle
	// FlipX and FlipY mirror the window.
	FlipX, FlipY bool
	Filter       Filter
}

// Resizer resizes images and reuses its memory. It is not safe for concurrent use. It keeps
// the weights of the last job for a job with the same parameters.
type Resizer struct {
	across, down weights
	columns      []int32 // source columns and rows of each result pixel, for nearest
	rows         []int32
	spare        []byte
	middle       []byte // horizontally resized rows, of the window's width
	line         []byte
	sums         []int32
}

// Held is the number of bytes that the resizer keeps for its next use.
func (r *Resizer) Held() int {
	return cap(r.spare) + cap(r.middle) + cap(r.line) + 4*(cap(r.sums)+cap(r.columns)+cap(r.rows)) +
		r.across.held() + r.down.held()
}

// held is the number of bytes of the weights.
func (w *weights) held() int { return 4*(cap(w.first)+cap(w.count)+cap(w.values)) + 8*cap(w.line) }

// Reach is the part of the source that a job reads. It computes the weights, which Do then
// uses again.
func (r *Resizer) Reach(j *Job) image.Rectangle {
	r.across.even = true
	whole := image.Rect(0, 0, j.Width, j.Height)
	if j.To == whole.Max {
		return j.Window
	}
	if j.Filter == Nearest {
		return whole
	}
	if j.To.X != j.Width {
		r.across.set(j.Width, j.To.X, j.Window.Min.X, j.Window.Max.X, j.Filter, j.FlipX)
		whole.Min.X, whole.Max.X = r.across.reach()
	} else {
		whole.Min.X, whole.Max.X = j.Window.Min.X, j.Window.Max.X
	}
	if j.To.Y != j.Height {
		r.down.set(j.Height, j.To.Y, j.Window.Min.Y, j.Window.Max.Y, j.Filter, j.FlipY)
		whole.Min.Y, whole.Max.Y = r.down.reach()
	} else {
		whole.Min.Y, whole.Max.Y = j.Window.Min.Y, j.Window.Max.Y
	}
	return whole
}

// Do resizes. It reads rows of src within Reach only, and writes those of the window to
// sink.
func (r *Resizer) Do(j *Job, src Source, sink Sink) {
	r.spare = grow(r.spare, j.Width*j.Channels+4)
	switch {
	case j.To == image.Pt(j.Width, j.Height):
		r.copy(j, src, sink)
	case j.Filter == Nearest:
		r.nearest(j, src, sink)
	default:
		r.filter(j, src, sink)
	}
}

// copy writes the window without resizing.
func (r *Resizer) copy(j *Job, src Source, sink Sink) {
	n := j.Window.Dy()
	r.line = grow(r.line, j.Window.Dx()*j.Channels)
	for i := range n {
		y := j.Window.Min.Y + i
		if j.FlipY {
			y = j.Window.Max.Y - 1 - i
		}
		sink.Row(i, r.cut(j, src.Row(y, r.spare), r.line))
	}
}

// cut returns the window's part of a row: a part of row, or mirrored in line.
func (r *Resizer) cut(j *Job, row, line []byte) []byte {
	row = row[j.Window.Min.X*j.Channels : j.Window.Max.X*j.Channels]
	if j.FlipX {
		mirror(row, line[:len(row)], j.Channels)
		return line[:len(row)]
	}
	return row
}

// mirror reverses the pixels of a row. in and out must not overlap.
func mirror(in, out []byte, channels int) {
	to := len(out) - channels
	for at := 0; at < len(in); at += channels {
		for c := range channels {
			out[to+c] = in[at+c]
		}
		to -= channels
	}
}

// nearest uses the source pixel that contains the centre of each pixel. Coordinates are
// sums, like Pillow's, because their rounding matters.
func (r *Resizer) nearest(j *Job, src Source, sink Sink) {
	r.columns = nearestOf(r.columns, j.Width, j.To.X, j.Window.Min.X, j.Window.Max.X, j.FlipX)
	r.rows = nearestOf(r.rows, j.Height, j.To.Y, j.Window.Min.Y, j.Window.Max.Y, j.FlipY)
	r.line = grow(r.line, j.Window.Dx()*j.Channels)
	c := j.Channels
	for i, y := range r.rows {
		if i == 0 || r.rows[i-1] != y {
			row := src.Row(int(y), r.spare)
			for k, x := range r.columns {
				copy(r.line[k*c:(k+1)*c], row[int(x)*c:])
			}
		}
		sink.Row(i, r.line)
	}
}

// nearestOf returns the source pixel of each pixel in [from, to) of out pixels. Reversed,
// the last comes first.
func nearestOf(at []int32, in, out, from, to int, reversed bool) []int32 {
	at = grow(at, to-from)
	scale := float64(in) / float64(out)
	x := float64(scale * 0.5)
	for i := range to {
		if i >= from {
			k := i - from
			if reversed {
				k = to - 1 - i
			}
			at[k] = int32(min(int(x), in-1))
		}
		x += scale
	}
	return at
}

// filter makes the horizontal pass over the rows in reach, then the vertical pass. The
// horizontal pass comes first, as in Pillow: the order decides the rounding between the
// passes.
func (r *Resizer) filter(j *Job, src Source, sink Sink) {
	reach := r.Reach(j)
	width := j.Window.Dx() * j.Channels
	// Vector loads read up to 32 bytes past the end.
	r.middle = grow(r.middle, width*reach.Dy()+32)
	for y := reach.Min.Y; y < reach.Max.Y; y++ {
		row := src.Row(y, r.spare)
		out := r.middle[(y-reach.Min.Y)*width:][: width : width+32]
		if j.To.X == j.Width {
			if cut := r.cut(j, row, out); !j.FlipX {
				copy(out, cut)
			}
			continue
		}
		r.across.row(row, out, j.Channels)
	}
	if j.To.Y == j.Height {
		for i := range j.Window.Dy() {
			at := i
			if j.FlipY {
				at = j.Window.Dy() - 1 - i
			}
			sink.Row(i, r.middle[at*width:][:width])
		}
		return
	}
	r.line, r.sums = grow(r.line, width+32), grow(r.sums, width+32)
	for i := range j.Window.Dy() {
		w := &r.down
		first, n := int(w.first[i])-reach.Min.Y, int(w.count[i])
		column(r.middle[first*width:], width, w.values[i*w.size:][:n], r.line, r.sums)
		sink.Row(i, r.line[:width])
	}
}

// A weight has 22 bits of fraction: 32 bits less those of a pixel, and two for negative
// weights and overshoot.
const (
	precision = 32 - 8 - 2
	half      = 1 << (precision - 1)
)

// weights are the weights of one axis: pixel i of the result is the sum of count[i]
// source pixels from first[i] on, with the weights from values[i*size] on.
type weights struct {
	size         int
	first, count []int32
	values       []int32
	line         []float64

	// The parameters of the current weights.
	in, out, from, to int
	filter            Filter
	reversed          bool
	// even makes all counts equal, with weights of 0.
	even bool
}

// grow returns n elements, and reuses memory if it suffices. Contents are undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// set computes the weights of the pixels [from, to) of out pixels from in pixels, like
// precompute_coeffs of Resample.c. If reversed, the last pixel comes first. It does nothing
// if the parameters are unchanged. The sum of the weights of a pixel is 1 up to rounding,
// also at the borders, where source pixels are missing.
func (w *weights) set(in, out, from, to int, filter Filter, reversed bool) {
	if w.in == in && w.out == out && w.from == from && w.to == to && w.filter == filter && w.reversed == reversed {
		return
	}
	w.in, w.out, w.from, w.to, w.filter, w.reversed = in, out, from, to, filter, reversed
	scale := float64(in) / float64(out)
	// Shrinking widens the filter, enlarging does not.
	wide := max(scale, 1)
	support := filter.support() * wide
	w.size = filter.Taps(in, out)
	n := to - from
	w.first, w.count, w.values, w.line = grow(w.first, n), grow(w.count, n), grow(w.values, n*w.size),
		grow(w.line, w.size)
	clear(w.values)
	narrow := 1 / wide
	most := 0
	for i := range n {
		at := i
		if reversed {
			at = n - 1 - i
		}
		// The centre of the pixel in the source, and the source pixels within the
		// support, rounded like in Pillow.
		center := float64((float64(from+i) + 0.5) * scale)
		first := max(int(center-support+0.5), 0)
		line := w.line[:min(int(center+support+0.5), in)-first]
		sum := 0.0
		for x := range line {
			line[x] = filter.weight(float64((float64(x+first) - center + 0.5) * narrow))
			sum += line[x]
		}
		values := w.values[at*w.size:]
		for x, v := range line {
			if sum != 0 {
				v /= sum
			}
			if v = float64(v * (1 << precision)); v < 0 {
				values[x] = int32(v - 0.5)
			} else {
				values[x] = int32(v + 0.5)
			}
		}
		w.first[at], w.count[at] = int32(first), int32(len(line))
		most = max(most, len(line))
	}
	if w.even {
		w.level(int32(most))
	}
}

// level makes all counts equal: loops over them are then predicted better. A range that
// would leave the image is moved back, and its weights with it.
func (w *weights) level(count int32) {
	for i := range w.first {
		if back := w.first[i] + count - int32(w.in); back > 0 {
			w.first[i] -= back
			values := w.values[i*w.size : (i+1)*w.size]
			copy(values[back:], values[:w.count[i]])
			clear(values[:back])
		}
		w.count[i] = count
	}
}

// reach is the range of source pixels with a weight.
func (w *weights) reach() (first, end int) {
	last := len(w.first) - 1
	if w.reversed {
		return int(w.first[last]), int(w.first[0] + w.count[0])
	}
	return int(w.first[0]), int(w.first[last] + w.count[last])
}

// clip rounds a sum to a byte; half has been added already.
func clip(v int32) uint8 {
	v >>= precision
	if uint32(v) > 255 {
		v = ^v >> 31
	}
	return uint8(v)
}

// Filter is an interpolation filter.
type Filter uint8

// The filters, with Pillow's names.
const (
	Nearest Filter = iota
	Bilinear
	Box
	Hamming
	Bicubic
	Lanczos
)

// support is the radius of a filter, in pixels of the coarser grid. It is the distance from
// which weight is zero.
func (f Filter) support() float64 {
	switch f {
	case Box:
		return 0.5
	case Bicubic:
		return 2
	case Lanczos:
		return 3
	default:
		return 1
	}
}

// Taps is the maximum number of source pixels per result pixel along one axis.
func (f Filter) Taps(in, out int) int {
	if f == Nearest {
		return 1
	}
	return int(math.Ceil(f.support()*max(float64(in)/float64(out), 1)))*2 + 1
}

// The conversions to float64 prevent the compiler from fusing products with sums, which
// would round differently on some CPUs.

// weight is the filter's value at distance x, by bilinear_filter and so on of Resample.c.
func (f Filter) weight(x float64) float64 {
	switch f {
	case Box:
		if x > -0.5 && x <= 0.5 {
			return 1
		}
		return 0
	case Hamming:
		x = math.Abs(x)
		if x == 0 {
			return 1
		}
		if x >= 1 {
			return 0
		}
		x *= math.Pi
		// Pillow has these constants in single precision.
		return float64(math.Sin(x)/x) * (float64(float32(0.54)) + float64(float64(float32(0.46))*math.Cos(x)))
	case Bicubic:
		// Keys' parameter.
		const a = -0.5
		x = math.Abs(x)
		if x < 1 {
			return float64(float64(float64(float64((a+2)*x)-(a+3))*x)*x) + 1
		}
		if x < 2 {
			return float64(float64(float64(float64(float64(x-5)*x)+8)*x)-4) * a
		}
		return 0
	case Lanczos:
		if x >= -3 && x < 3 {
			return sinc(x) * sinc(x/3)
		}
		return 0
	default:
		if x = math.Abs(x); x < 1 {
			return 1 - x
		}
		return 0
	}
}

// sinc is the normalised sinc function.
func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

// rowGo makes the horizontal pass of a row. It is the reference for the assembly. Its cases
// of one and three channels have no inner loop over channels.
func (w *weights) rowGo(in, out []byte, channels int) {
	switch channels {
	case 1:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[first:][:n]
			sum := int32(half)
			for i, v := range values {
				sum += int32(pixels[i]) * v
			}
			out[x] = clip(sum)
		}
	case 3:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[3*int(first):][:3*n]
			a, b, c := int32(half), int32(half), int32(half)
			for len(values) > 0 && len(pixels) >= 3 {
				v := values[0]
				a += int32(pixels[0]) * v
				b += int32(pixels[1]) * v
				c += int32(pixels[2]) * v
				values, pixels = values[1:], pixels[3:]
			}
			to := out[3*x : 3*x+3]
			to[0], to[1], to[2] = clip(a), clip(b), clip(c)
		}
	default:
		for x, first := range w.first {
			n := int(w.count[x])
			values, pixels := w.values[x*w.size:][:n], in[channels*int(first):]
			for c := range channels {
				sum := int32(half)
				for i, v := range values {
					sum += int32(pixels[i*channels+c]) * v
				}
				out[x*channels+c] = clip(sum)
			}
		}
	}
}

// columnGo makes the vertical pass for one row of the result. in has consecutive rows of
// width bytes, one per weight. The weights are the outer loop, so that memory is read in
// order.
func columnGo(in []byte, width int, values []int32, out []byte, sums []int32) {
	sums, out = sums[:width], out[:width]
	for i := range sums {
		sums[i] = half
	}
	for k, v := range values {
		row := in[k*width:][:width]
		for i := range sums {
			sums[i] += int32(row[i]) * v
		}
	}
	for i, v := range sums {
		out[i] = clip(v)
	}
}

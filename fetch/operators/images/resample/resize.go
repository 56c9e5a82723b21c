// Package resample changes the size of images of eight bits a channel, to the bytes of
// Pillow 12.1 (libImaging/Resample.c and, for nearest, Geometry.c): separable filters
// that are as wide as a pixel of the result, so that there is no aliasing; fixed-point
// weights of 22 bits; rows first, rounded to bytes, then columns.
//
// The package knows neither files nor operators.
package resample

import (
	"image"
	"math"
)

// Source gives the pixels of an image by rows, of as many channels as Job says.
type Source interface {
	// Row gives row y, in spare or in memory of its own, valid until the next call.
	// Behind its pixels there is at least a byte more of capacity.
	Row(y int, spare []byte) []byte
}

// Sink takes the rows of a result, each once, from the first on. It does not keep them.
type Sink interface {
	Row(y int, pixels []byte)
}

// Job is what is to become of an image.
type Job struct {
	// Width, Height and Channels are the source's. There are 1, 3 or 4 channels.
	Width, Height, Channels int
	// To is the size of the whole result.
	To image.Point
	// Window is the part of the result that is wanted.
	Window image.Rectangle
	// FlipX and FlipY mirror the window.
	FlipX, FlipY bool
	Filter       Filter
}

// Resizer holds the memory that resizing needs, to be used again. It is not safe for
// concurrent use.
type Resizer struct {
	across, down weights
	columns      []int32 // of the source, for nearest
	rows         []int32
	spare        []byte
	middle       []byte // rows of the source, of the window's width
	line         []byte
	sums         []int32
}

// Held is how many bytes it keeps for its next use.
func (r *Resizer) Held() int {
	return cap(r.spare) + cap(r.middle) + cap(r.line) + 4*(cap(r.sums)+cap(r.columns)+cap(r.rows)) +
		r.across.held() + r.down.held()
}

func (w *weights) held() int { return 4*(cap(w.first)+cap(w.count)+cap(w.values)) + 8*cap(w.line) }

// Reach says which rows and columns of the source are read for a job.
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

// Do reads rows of src, and gives those of the result to sink. A source may have read
// no more than the part that Reach says.
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

// copy gives the window as it is.
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

// cut gives the window's part of a row, mirrored in line or in place.
func (r *Resizer) cut(j *Job, row, line []byte) []byte {
	row = row[j.Window.Min.X*j.Channels : j.Window.Max.X*j.Channels]
	if j.FlipX {
		mirror(row, line[:len(row)], j.Channels)
		return line[:len(row)]
	}
	return row
}

func mirror(in, out []byte, channels int) {
	to := len(out) - channels
	for at := 0; at < len(in); at += channels {
		for c := range channels {
			out[to+c] = in[at+c]
		}
		to -= channels
	}
}

// nearest takes the pixels whose centres are nearest. The sums are Pillow's, with their rounding.
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

// filter makes rows of the window's width, then the window of them.
func (r *Resizer) filter(j *Job, src Source, sink Sink) {
	reach := r.Reach(j)
	width := j.Window.Dx() * j.Channels
	// A row that is read in larger units than bytes may be read beyond its end.
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

const (
	precision = 32 - 8 - 2
	half      = 1 << (precision - 1)
)

// weights are those of one axis: pixel i of the result is made of count[i] pixels from
// first[i] on, by the weights from i*size on.
type weights struct {
	size         int
	first, count []int32
	values       []int32
	line         []float64

	// What they were made for.
	in, out, from, to int
	filter            Filter
	reversed          bool
	// even says that all pixels are made of as many, some of them of no weight.
	even bool
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// set computes the weights of the pixels [from, to) of a result of out pixels, of in
// pixels. Reversed, the last comes first. It does nothing where they are those already.
func (w *weights) set(in, out, from, to int, filter Filter, reversed bool) {
	if w.in == in && w.out == out && w.from == from && w.to == to && w.filter == filter && w.reversed == reversed {
		return
	}
	w.in, w.out, w.from, w.to, w.filter, w.reversed = in, out, from, to, filter, reversed
	scale := float64(in) / float64(out)
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

// level gives all pixels the same count, so that loops over them are predicted.
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

// reach is the range of pixels that are weighed at all.
func (w *weights) reach() (first, end int) {
	last := len(w.first) - 1
	if w.reversed {
		return int(w.first[last]), int(w.first[0] + w.count[0])
	}
	return int(w.first[0]), int(w.first[last] + w.count[last])
}

func clip(v int32) uint8 {
	v >>= precision
	if uint32(v) > 255 {
		v = ^v >> 31
	}
	return uint8(v)
}

// Filter is how pixels are weighed.
type Filter uint8

// The filters, by Pillow's names.
const (
	Nearest Filter = iota
	Bilinear
	Box
	Hamming
	Bicubic
	Lanczos
)

// support is how far a filter reaches, in pixels of the larger grid.
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

// Taps is the most pixels of one axis that one of the result is made of.
func (f Filter) Taps(in, out int) int {
	if f == Nearest {
		return 1
	}
	return int(math.Ceil(f.support()*max(float64(in)/float64(out), 1)))*2 + 1
}

// The conversions to float64 below keep compilers from fusing products with sums,
// which would round otherwise on some processors.

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
		// Pillow has these two in single precision.
		return float64(math.Sin(x)/x) * (float64(float32(0.54)) + float64(float64(float32(0.46))*math.Cos(x)))
	case Bicubic:
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

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

// rowGo weighs the pixels of a row.
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

// columnGo weighs rows of width bytes, one after another in in.
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

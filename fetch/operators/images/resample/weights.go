package resample

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

package resample

import "image"

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

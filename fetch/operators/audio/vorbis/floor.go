package vorbis

import (
	"math/bits"
	"slices"

	"bowstring/fetch/operators/audio/dsp"
)

// floor is a curve over the spectrum. Packets have its parameters before their residues.
type floor interface {
	// read takes the parameters of a channel from a packet. It is false where the channel is silent.
	read(r *bitReader, into *curve) bool
	// multiply multiplies a spectrum by the curve. The block is short or long: 0 or 1.
	multiply(spectrum []float32, by *curve, long int)
}

// curve is what a floor read of a channel.
type curve struct {
	silent    bool
	heights   [maxPosts]int
	amplitude float64
	cosines   []float64
}

// floor1 is section 7: lines between posts.
type floor1 struct {
	classes    []floorClass
	partitions []int // their classes
	multiplier int
	high       int // the greatest height
	posts      []post
	order      []int // posts from left to right
}

type floorClass struct {
	dims, subs int
	master     *codebook
	books      []*codebook // of each subclass, or nil
}

// post is a place with its neighbours among the posts before it.
type post struct{ x, low, high int }

const maxPosts = 65

func (s *setup) readFloor1(r *bitReader) (floor, string) {
	f := &floor1{}
	count := 0
	for range r.read(5) {
		class := int(r.read(4))
		f.partitions = append(f.partitions, class)
		count = max(count, class+1)
	}
	for range count {
		c := floorClass{dims: int(r.read(3)) + 1, subs: int(r.read(2))}
		if c.subs > 0 {
			if c.master = s.book(r.read(8), false); c.master == nil {
				return nil, "a floor has a codebook that there is not"
			}
		}
		for range 1 << c.subs {
			n := r.read(8)
			if n > uint32(len(s.books)) {
				return nil, "a floor has a codebook that there is not"
			}
			c.books = append(c.books, s.book(n-1, false))
		}
		f.classes = append(f.classes, c)
	}
	f.multiplier = int(r.read(2)) + 1
	f.high = [...]int{256, 128, 86, 64}[f.multiplier-1]
	width := int(r.read(4))
	f.posts = []post{{x: 0}, {x: 1 << width}}
	for _, class := range f.partitions {
		for range f.classes[class].dims {
			f.posts = append(f.posts, post{x: int(r.read(width))})
		}
		if len(f.posts) > maxPosts {
			return nil, "a floor has too many posts"
		}
	}
	for i, p := range f.posts {
		low, high := 0, 1
		for j, q := range f.posts[:i] {
			switch {
			case q.x == p.x:
				return nil, "a floor has two posts at one place"
			case q.x < p.x && q.x > f.posts[low].x:
				low = j
			case q.x > p.x && q.x < f.posts[high].x:
				high = j
			}
		}
		f.posts[i].low, f.posts[i].high = low, high
		f.order = append(f.order, i)
	}
	slices.SortFunc(f.order, func(a, b int) int { return f.posts[a].x - f.posts[b].x })
	return f, ""
}

// read implements floor. Heights of posts that lie on the line between their neighbours become -1.
func (f *floor1) read(r *bitReader, into *curve) bool {
	if !r.flag() {
		return false
	}
	y := into.heights[:len(f.posts)]
	width := bits.Len(uint(f.high - 1))
	y[0], y[1] = int(r.read(width)), int(r.read(width))
	at := 2
	for _, class := range f.partitions {
		c := &f.classes[class]
		chosen := 0
		if c.subs > 0 {
			if chosen = c.master.decode(r); chosen < 0 {
				return false
			}
		}
		for range c.dims {
			book := c.books[chosen&(1<<c.subs-1)]
			chosen >>= c.subs
			y[at] = 0
			if book != nil {
				if y[at] = book.decode(r); y[at] < 0 {
					return false
				}
			}
			at++
		}
	}
	if r.over() {
		return false
	}
	f.unfold(y)
	return true
}

// unfold makes heights of what is coded: differences from the line between neighbours.
func (f *floor1) unfold(y []int) {
	var used [maxPosts]bool
	used[0], used[1] = true, true
	for i := 2; i < len(y); i++ {
		p := &f.posts[i]
		line := between(f.posts[p.low].x, y[p.low], f.posts[p.high].x, y[p.high], p.x)
		above, below, v := f.high-line, line, y[i]
		if v == 0 {
			y[i] = line
			continue
		}
		used[p.low], used[p.high], used[i] = true, true, true
		switch room := 2 * min(above, below); {
		case v >= room && above > below:
			y[i] = v
		case v >= room:
			y[i] = line - (v - above) - 1
		case v&1 != 0:
			y[i] = line - (v+1)/2
		default:
			y[i] = line + v/2
		}
		// Only damaged bytes have heights beyond these, which later ones would go by.
		y[i] = min(max(y[i], 0), f.high-1)
	}
	for i := range y {
		if !used[i] {
			y[i] = -1
		}
	}
}

// between is the height of a line at x, rounded towards that of its beginning.
func between(x0, y0, x1, y1, x int) int {
	if y1 < y0 {
		return y0 - (y0-y1)*(x-x0)/(x1-x0)
	}
	return y0 + (y1-y0)*(x-x0)/(x1-x0)
}

func (f *floor1) multiply(spectrum []float32, by *curve, _ int) {
	x0, y0 := 0, by.heights[0]*f.multiplier
	for _, i := range f.order[1:] {
		if by.heights[i] < 0 {
			continue
		}
		x1, y1 := f.posts[i].x, by.heights[i]*f.multiplier
		if x0 < len(spectrum) {
			line(spectrum, x0, min(y0, 255), x1, min(y1, 255))
		}
		x0, y0 = x1, y1
	}
	if x0 < len(spectrum) {
		v := decibels[min(y0, 255)]
		for i := x0; i < len(spectrum); i++ {
			spectrum[i] *= v
		}
	}
}

// line multiplies by the heights of a line from x0 to before x1, which are whole numbers, by Bresenham's algorithm.
func line(spectrum []float32, x0, y0, x1, y1 int) {
	width, rise, sign := x1-x0, y1-y0, 1
	if rise < 0 {
		rise, sign = -rise, -1
	}
	step, rest := sign*(rise/width), rise%width
	y, e := y0, 0
	part := spectrum[x0:min(x1, len(spectrum))]
	for i := range part {
		part[i] *= decibels[y&255]
		y += step
		if e += rest; e >= width {
			e -= width
			y += sign
		}
	}
}

// decibels is the table of section 10.1: 256 steps from -140 dB, the last of which is 0 dB.
var decibels = func() (t [256]float32) {
	for i := range t {
		t[i] = float32(dsp.Exp10(float64(i-255) * 7 / 256))
	}
	return t
}()

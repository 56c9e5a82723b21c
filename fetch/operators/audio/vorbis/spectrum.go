package vorbis

import (
	"math"
	"math/bits"
	"slices"

	"bowstring/fetch/operators/audio/dsp"
)

// floor is a curve over the spectrum. A packet has its parameters before the residues.
type floor interface {
	// read reads the parameters of a channel from a packet. It returns false if the
	// channel is silent.
	read(r *bitReader, into *curve) bool
	// multiply multiplies a spectrum by the curve. long is 0 for a short block and 1 for
	// a long one.
	multiply(spectrum []float32, by *curve, long int)
}

// curve is the parameters of a floor for one channel.
type curve struct {
	silent    bool
	heights   [maxPosts]int
	amplitude float64
	cosines   []float64
}

// floor1 (section 7) is a polyline between posts.
type floor1 struct {
	classes    []floorClass
	partitions []int // class of each partition
	multiplier int
	high       int // number of heights
	posts      []post
	order      []int // indexes of posts from left to right
}

// floorClass describes the coding of a partition's posts.
type floorClass struct {
	dims, subs int
	master     *codebook   // of each subclass; nil: zeros
	books      []*codebook // of each subclass, or nil
}

// post is a position with its nearest neighbours among the posts before it.
type post struct{ x, low, high int }

// maxPosts is the maximum number of posts of a floor 1 (section 7.2.2).
const maxPosts = 65

// readFloor1 reads the configuration of a floor 1 (section 7.2.2). The string is a
// reason, or "".
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

// read implements floor. Posts on the line between their neighbours get the height -1.
// Heights are written to into; the floor itself is immutable and shared by all packets.
func (f *floor1) read(r *bitReader, into *curve) bool {
	if !r.flag() {
		return false
	}
	// The two ends have plain heights. All other posts are coded by classes.
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

// unfold computes heights from the coded differences to the line between neighbours
// (section 7.2.4). Posts are visited in the order of the header, so both neighbours are
// known.
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
		// Only damaged files have other heights, which would spread to later posts.
		y[i] = min(max(y[i], 0), f.high-1)
	}
	for i := range y {
		if !used[i] {
			y[i] = -1
		}
	}
}

// between is the height of a line at x, rounded towards its beginning. Integer division
// makes it equal on all machines.
func between(x0, y0, x1, y1, x int) int {
	if y1 < y0 {
		return y0 - (y0-y1)*(x-x0)/(x1-x0)
	}
	return y0 + (y1-y0)*(x-x0)/(x1-x0)
}

// multiply implements floor: it renders the curve as line segments between the posts
// (section 7.2.4). Posts are visited by place and not in the order of the header. The last
// height is continued to the end.
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

// line multiplies by the heights of a line from x0 to before x1, which are integers, with
// Bresenham's algorithm. The error term avoids a division for each frequency.
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

// decibels is the table of section 10.1: 256 steps from -140 dB to 0 dB. Adjacent steps
// differ by 0.547 dB.
var decibels = func() (t [256]float32) {
	for i := range t {
		t[i] = float32(dsp.Exp10(float64(i-255) * 7 / 256))
	}
	return t
}()

// floor0 (section 6) is a filter given by its line spectral pairs, over the Bark scale.
// Encoders of today do not write it; old files have it.
type floor0 struct {
	order                int
	amplitudeBits, decib int
	books                []*codebook
	cosines              []float64   // at each place of the scale
	places               [2][]uint16 // place of each frequency, for short and long blocks
}

// maxPlaces bounds the places of the scale. Encoders use some hundreds. It bounds the
// tables, whose size comes from the file.
const maxPlaces = 4096

// readFloor0 reads the configuration of a floor 0 (section 6.2.1). The string is a reason,
// or "". The tables by frequency are made here: each packet needs them.
func (s *setup) readFloor0(r *bitReader) (floor, string) {
	f := &floor0{order: int(r.read(8))}
	rate, size := float64(r.read(16)), int(r.read(16))
	f.amplitudeBits, f.decib = int(r.read(6)), int(r.read(8))
	for range r.read(4) + 1 {
		b := s.book(r.read(8), true)
		if b == nil {
			return nil, "a floor has a codebook that there is not"
		}
		f.books = append(f.books, b)
	}
	if f.order == 0 || rate == 0 || size == 0 || size > maxPlaces || r.over() || f.amplitudeBits > 32 {
		return nil, "a floor of kind 0 is wrong"
	}
	for i, n := range s.half {
		f.places[i] = make([]uint16, n)
		for k := range n {
			v := bark(float64(k)*rate/2/float64(n)) * float64(size) / bark(rate/2)
			f.places[i][k] = uint16(min(int(v), size-1))
		}
	}
	f.cosines = make([]float64, size)
	for i := range f.cosines {
		f.cosines[i] = 2 * dsp.CosPi(float64(i)/float64(size))
	}
	return f, ""
}

// bark is the Bark scale of section 6.2.3.
func bark(x float64) float64 {
	return float64(13.1*atan(float64(0.00074*x))) + float64(2.24*atan(float64(float64(x*x)*1.85e-8))) + float64(1e-4*x)
}

// atan is the arctangent of a non-negative number: halved twice, then by its series. It
// is the same on all machines, which math.Atan is not.
func atan(x float64) float64 {
	for range 2 {
		x = x / (1 + math.Sqrt(1+float64(x*x)))
	}
	z, sum := float64(x*x), 0.0
	for k := 31; k > 0; k -= 2 {
		sum = 1/float64(k) - float64(z*sum)
	}
	return 4 * float64(x*sum)
}

// read implements floor: it reads the amplitude and the coefficients of a curve (section
// 6.2.2). Each vector is an offset to the last value of the one before.
func (f *floor0) read(r *bitReader, into *curve) bool {
	amplitude := float64(r.read(f.amplitudeBits))
	if amplitude == 0 {
		return false
	}
	into.amplitude = amplitude * float64(f.decib) / float64(uint64(1)<<f.amplitudeBits-1)
	n := r.read(bits.Len(uint(len(f.books))))
	if int(n) >= len(f.books) {
		return false
	}
	book := f.books[n]
	into.cosines = into.cosines[:0]
	for last := 0.0; len(into.cosines) < f.order; {
		e := book.decode(r)
		if e < 0 {
			return false
		}
		v := book.vectors[e*book.dims:][:book.dims]
		for _, x := range v[:min(len(v), f.order-len(into.cosines))] {
			into.cosines = append(into.cosines, 2*dsp.CosPi(float64((last+float64(x))/math.Pi)))
		}
		last += float64(v[len(v)-1])
	}
	return true
}

// multiply implements floor: it computes the curve once for each place of the bark scale
// (section 6.2.3).
func (f *floor0) multiply(spectrum []float32, by *curve, long int) {
	places := f.places[long]
	for i := 0; i < len(spectrum); {
		at := places[i]
		v := f.at(f.cosines[at], by)
		for ; i < len(spectrum) && places[i] == at; i++ {
			spectrum[i] *= v
		}
	}
}

// at is the curve at a frequency; w is twice the cosine of the frequency. The clamp keeps
// the exponential finite for damaged coefficients.
func (f *floor0) at(w float64, by *curve) float32 {
	// p and q are the two halves of the filter's polynomial.
	p, q := 0.5, 0.5
	c := by.cosines
	for ; len(c) >= 2; c = c[2:] {
		q = float64(q * (w - c[0]))
		p = float64(p * (w - c[1]))
	}
	if len(c) == 1 {
		q = float64(q * (w - c[0]))
		p, q = float64(float64(p*p)*(4-float64(w*w))), float64(q*q)
	} else {
		p, q = float64(float64(p*p)*(2-w)), float64(float64(q*q)*(2+w))
	}
	exponent := by.amplitude/math.Sqrt(p+q) - float64(f.decib)
	return float32(dsp.Exp10(float64(min(max(exponent, -1000), 1000) / 20)))
}

// residue (section 8) is the spectrum without the floor, in partitions that are coded in up
// to eight passes. It is immutable. books has the codebook of each pass for each class, nil
// for none.
type residue struct {
	kind       int
	begin, end int
	size       int // size of a partition
	classes    int
	class      *codebook // each word has the classes of several partitions
	books      [][8]*codebook
}

// readResidue reads the configuration of a residue (section 8.6.1). The string is a reason,
// or "". The number of classes must fit the words of the class codebook.
func (s *setup) readResidue(r *bitReader) (*residue, string) {
	res := &residue{kind: int(r.read(16)), begin: int(r.read(24)), end: int(r.read(24)), size: int(r.read(24)) + 1,
		classes: int(r.read(6)) + 1}
	if res.kind > 2 {
		return nil, "a residue is of no known kind"
	}
	if res.class = s.book(r.read(8), false); res.class == nil {
		return nil, "a residue has a codebook that there is not"
	}
	// A word of the class codebook is a number with dims digits, one for each partition.
	words := 1
	for range res.class.dims {
		if words *= res.classes; words > len(res.class.lengths) {
			return nil, "a residue has more classes than its codebook"
		}
		if res.classes == 1 {
			break
		}
	}
	passes := make([]uint32, res.classes)
	for i := range passes {
		passes[i] = r.read(3)
		if r.flag() {
			passes[i] |= r.read(5) << 3
		}
	}
	res.books = make([][8]*codebook, res.classes)
	for i, mask := range passes {
		for pass := range 8 {
			if mask>>pass&1 == 0 {
				continue
			}
			if res.books[i][pass] = s.book(r.read(8), true); res.books[i][pass] == nil {
				return nil, "a residue has a codebook that there is not, or has no vectors"
			}
		}
	}
	return res, ""
}

// residueRoom is scratch memory for decoding residues. It belongs to the decoder and is
// reused for each packet.
type residueRoom struct {
	classes []uint8 // of the partitions of all channels
	entries []int32 // of a partition
}

// decode adds the residue to vectors, each as long as half a block; for kind 2 there is one
// vector for all channels. It stops at the end of the packet. The end of the packet is
// legal: what is missing is zero. In the first pass each partition gets its class; later
// passes add finer values.
func (res *residue) decode(r *bitReader, vectors [][]float32, room *residueRoom) {
	if len(vectors) == 0 {
		return
	}
	// The range is limited to the block: short blocks have fewer frequencies.
	n := len(vectors[0])
	begin, end := min(res.begin, n), min(res.end, n)
	parts := max(end-begin, 0) / res.size
	words, classes := res.class.dims, room.classes
	for pass := range 8 {
		for at := 0; at < parts; at += words {
			if pass == 0 {
				for v := range vectors {
					word := res.class.decode(r)
					if word < 0 {
						return
					}
					last := words - 1
					if res.classes == 1 { // all digits are 0, and there may be many more than partitions
						last = min(last, parts-at-1)
					}
					for k := last; k >= 0; k-- {
						if at+k < parts {
							classes[v*parts+at+k] = uint8(word % res.classes)
						}
						word /= res.classes
					}
				}
			}
			for k := at; k < min(at+words, parts); k++ {
				for v, out := range vectors {
					book := res.books[classes[v*parts+k]][pass]
					if book == nil {
						continue
					}
					from := begin + k*res.size
					part := out[from : from+res.size]
					var more bool
					if res.kind == 0 {
						more = book.addInterleaved(r, part, room.entries)
					} else {
						more = book.add(r, part)
					}
					if !more {
						return
					}
				}
			}
		}
	}
}

// add adds consecutive vectors of a codebook to a partition. It returns false at the end of
// the packet. Values that were added before remain.
func (b *codebook) add(r *bitReader, out []float32) bool {
	dims := b.dims
	for len(out) > 0 {
		e := b.decode(r)
		if e < 0 {
			return false
		}
		v := b.vectors[e*dims:][:dims]
		if len(v) > len(out) {
			v = v[:len(out)]
		}
		to := out[:len(v)]
		for k, x := range v {
			to[k] += x
		}
		out = out[len(v):]
	}
	return true
}

// addInterleaved is add for kind 0. If the packet ends within a partition, libvorbis
// drops the partition, and so does this. entries is scratch.
func (b *codebook) addInterleaved(r *bitReader, out []float32, entries []int32) bool {
	step := len(out) / b.dims
	entries = entries[:step]
	for i := range entries {
		e := b.decode(r)
		if e < 0 {
			return false
		}
		entries[i] = int32(e)
	}
	for i, e := range entries {
		for k, v := range b.vectors[int(e)*b.dims:][:b.dims] {
			out[i+k*step] += v
		}
	}
	return true
}

// transform is the inverse MDCT of a block of 2m samples, computed as a cosine transform
// of kind IV of m numbers: its second half and its first one, each followed by its mirror
// image, are the block. It uses a complex Fourier transform of m/2 points with a rotation
// before and after (J. P. Princen, A. W. Johnson and A. B. Bradley, "Subband/transform
// coding using filter bank designs based on time domain aliasing cancellation", ICASSP
// 1987; P. Duhamel, Y. Mahieux and J. P. Petit, "A fast algorithm for the implementation
// of filter banks based on time domain aliasing cancellation", ICASSP 1991). It is
// immutable.
type transform struct {
	m       int
	rotate  []point // (8k+1)/16m of a turn
	twiddle []point // of the Fourier transform: k/(m/2) of a turn
	reverse []uint16
	window  []float32 // rising slope over m samples, section 4.3.1
}

// point is a complex number.
type point struct{ re, im float32 }

// turn is exp(-2πix).
func turn(x float64) point { return point{float32(dsp.CosPi(2 * x)), float32(-dsp.SinPi(2 * x))} }

// newTransform makes the tables of the inverse MDCT of m coefficients, a power of 2. The
// tables cost sines and cosines in double precision; they are made once for each size.
func newTransform(m int) *transform {
	n := m / 2
	t := &transform{m: m, rotate: make([]point, n), twiddle: make([]point, n), reverse: make([]uint16, n),
		window: make([]float32, m)}
	for k := range n {
		t.rotate[k] = turn(float64(8*k+1) / float64(16*m))
		if k > 0 {
			t.reverse[k] = t.reverse[k/2]/2 | uint16(k&1*n/2)
		}
	}
	// The factors of a pass are contiguous: those for 2h points begin at h.
	for h := 1; h < n; h *= 2 {
		for k := range h {
			t.twiddle[h+k] = turn(float64(k) / float64(2*h))
		}
	}
	for i := range t.window {
		s := dsp.SinPi((float64(i) + 0.5) / float64(m) / 2)
		t.window[i] = float32(dsp.SinPi(float64(s*s) / 2))
	}
	return t
}

// run replaces the m numbers of x by their cosine transform: sums of x[k] times cos(π/m
// (i+½)(k+½)). room has m/2 points. Products are rounded before they are added, on every
// machine. The rotations before and after turn the real transform into a complex one of a
// quarter of the block.
func (t *transform) run(x []float32, room []point) {
	n := t.m / 2
	x, room = x[:2*n], room[:n]
	for k, w := range t.rotate {
		re, im := x[2*k], x[2*n-1-2*k]
		room[t.reverse[k]] = point{float32(re*w.re) - float32(im*w.im), float32(re*w.im) + float32(im*w.re)}
	}
	t.fourier(room)
	for k, w := range t.rotate {
		z := room[k]
		x[2*k] = float32(z.re*w.re) - float32(z.im*w.im)
		x[2*n-1-2*k] = -(float32(z.re*w.im) + float32(z.im*w.re))
	}
}

// fourier transforms points in bit-reversed order: passes of radix 2, two at a time. Two
// passes at a time halve the traffic to memory.
func (t *transform) fourier(z []point) {
	n, h := len(z), 1
	for ; 4*h <= n; h *= 4 {
		w, v := t.twiddle[h:2*h], t.twiddle[2*h:4*h]
		for at := 0; at < n; at += 4 * h {
			a, b, c, d := z[at:][:h], z[at+h:][:h], z[at+2*h:][:h], z[at+3*h:][:h]
			for k := range a {
				wb, w1, w2 := w[k], v[k], v[h+k]
				br, bi := times(b[k], wb)
				dr, di := times(d[k], wb)
				pr, pi, qr, qi := a[k].re+br, a[k].im+bi, a[k].re-br, a[k].im-bi
				er, ei := times(point{c[k].re + dr, c[k].im + di}, w1)
				fr, fi := times(point{c[k].re - dr, c[k].im - di}, w2)
				a[k], c[k] = point{pr + er, pi + ei}, point{pr - er, pi - ei}
				b[k], d[k] = point{qr + fr, qi + fi}, point{qr - fr, qi - fi}
			}
		}
	}
	if h < n {
		w := t.twiddle[h:]
		a, b := z[:h], z[h:][:h]
		for k := range a {
			br, bi := times(b[k], w[k])
			a[k], b[k] = point{a[k].re + br, a[k].im + bi}, point{a[k].re - br, a[k].im - bi}
		}
	}
}

// times is the complex product. Its real products are rounded before they are added.
func times(z, w point) (re, im float32) {
	return float32(z.re*w.re) - float32(z.im*w.im), float32(z.re*w.im) + float32(z.im*w.re)
}

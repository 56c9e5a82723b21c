package jpeg

// filter is how samples become as many as pixels.
type filter uint8

const (
	repeat  filter = iota
	wider2         // h2v1: a triangle along rows
	higher2        // h1v2: a triangle along columns
	both2          // h2v2
)

func filterOf(wider, higher, width int) filter {
	switch {
	case wider == 2 && higher == 1 && width > 2:
		return wider2
	case wider == 1 && higher == 2:
		return higher2
	case wider == 2 && higher == 2 && width > 2:
		return both2
	}
	return repeat
}

// line is the samples of a row that are there, from column c.left*8 on.
func (c *component) line(y int) []byte {
	y = min(max(y, 0), c.height-1) - c.top*8
	return c.samples[y*c.stride : (y+1)*c.stride]
}

// row gives the samples of row y for the pixels [x0, x1), in spare or in place.
func (c *component) row(y, x0, x1 int, spare []byte) []byte {
	origin := c.left * 8
	if c.wider == 1 && c.higher == 1 {
		return c.line(y)[x0-origin : x1-origin]
	}
	at := y / c.higher
	beside := at + 1
	if y&1 == 0 {
		beside = at - 1
	}
	out := spare[:x1-x0]
	switch c.filter {
	case wider2:
		triangle(c.line(at), origin, c.width, x0, x1, out)
	case higher2:
		near, far := c.line(at)[x0-origin:x1-origin], c.line(beside)[x0-origin:x1-origin]
		bias := uint(1 + y&1)
		for i := range out {
			out[i] = byte((uint(near[i])*3 + uint(far[i]) + bias) >> 2)
		}
	case both2:
		triangle2(c.line(at), c.line(beside), origin, c.width, x0, x1, out)
	default:
		line := c.line(at)
		for i := range out {
			out[i] = line[(x0+i)/c.wider-origin]
		}
	}
	return out
}

// triangle doubles samples: three parts of the nearer, one of the farther. The first
// and the last of the image's row have nothing beside them.
func triangle(in []byte, origin, width, x0, x1 int, out []byte) {
	one := func(x int) byte {
		i := x / 2
		v := uint(in[i-origin])
		switch {
		case x == 0 || x == 2*width-1:
			return byte(v)
		case x&1 == 0:
			return byte((v*3 + uint(in[i-1-origin]) + 1) >> 2)
		default:
			return byte((v*3 + uint(in[i+1-origin]) + 2) >> 2)
		}
	}
	x := x0
	for x < x1 && (x == 0 || x&1 == 1) {
		out[x-x0] = one(x)
		x++
	}
	end := min(x1, 2*width-1)
	if n := (end - x) / 2; n > 0 {
		i := x/2 - origin
		src, dst := in[i-1:i+n+1], out[x-x0:x-x0+2*n]
		last, this := uint(src[0]), uint(src[1])
		for _, b := range src[2:] {
			next := uint(b)
			dst[0], dst[1] = byte((this*3+last+1)>>2), byte((this*3+next+2)>>2)
			dst = dst[2:]
			last, this = this, next
		}
		x += 2 * n
	}
	for ; x < x1; x++ {
		out[x-x0] = one(x)
	}
}

// triangle2 is triangle of rows that were mixed three to one themselves, rounded once.
func triangle2(near, far []byte, origin, width, x0, x1 int, out []byte) {
	sum := func(i int) uint { return uint(near[i-origin])*3 + uint(far[i-origin]) }
	one := func(x int) byte {
		i := x / 2
		switch v := sum(i); {
		case x == 0:
			return byte((v*4 + 8) >> 4)
		case x == 2*width-1:
			return byte((v*4 + 7) >> 4)
		case x&1 == 0:
			return byte((v*3 + sum(i-1) + 8) >> 4)
		default:
			return byte((v*3 + sum(i+1) + 7) >> 4)
		}
	}
	x := x0
	for x < x1 && (x == 0 || x&1 == 1) {
		out[x-x0] = one(x)
		x++
	}
	end := min(x1, 2*width-1)
	if n := (end - x) / 2; n > 0 {
		i := x/2 - origin
		a, b, dst := near[i-1:i+n+1], far[i-1:i+n+1], out[x-x0:x-x0+2*n]
		b = b[:len(a)]
		last, this := uint(a[0])*3+uint(b[0]), uint(a[1])*3+uint(b[1])
		for j := 2; j < len(a); j++ {
			next := uint(a[j])*3 + uint(b[j])
			dst[0], dst[1] = byte((this*3+last+8)>>4), byte((this*3+next+7)>>4)
			dst = dst[2:]
			last, this = this, next
		}
		x += 2 * n
	}
	for ; x < x1; x++ {
		out[x-x0] = one(x)
	}
}

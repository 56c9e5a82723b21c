package images

import (
	"math"
	"strconv"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/program"
)

// affine maps a pixel of the result to the source: x = a*x + b*y + c, y = d*x + e*y + f.
type affine [6]float64

// at maps a point. The conversions keep compilers from fusing products with sums.
func (m *affine) at(x, y float64) (float64, float64) {
	return float64(float64(m[0]*x)+float64(m[1]*y)) + m[2], float64(float64(m[3]*x)+float64(m[4]*y)) + m[5]
}

// transform draws the image anew, of size w x h, as libImaging's Geometry.c does.
// Outside of the source is fill.
func (c *canvas) transform(m affine, w, h int, bilinear bool, fill []byte) {
	pix := c.raster()
	n := c.channels
	to := c.s.buffer(w * h * n)
	colour := [4]byte{}
	for i := range colour {
		if len(fill) > 0 {
			colour[i] = fill[min(i, len(fill)-1)]
		}
	}
	for y := range h {
		c.spend(w * fillSteps)
		fillRow(to[y*w*n:][:w*n], colour[:n])
	}
	t := warp{s: c.s, m: m, in: pix, width: c.width, height: c.height, channels: n, out: to, w: w, h: h}
	switch {
	case bilinear:
		t.bilinear()
	case m[1] == 0 && m[3] == 0:
		t.scale()
	case t.small():
		t.fixed()
	default:
		t.nearest()
	}
	c.replace(to, w, h, n)
}

// warp is one transformation.
type warp struct {
	s                       *scratch
	m                       affine
	in, out                 []byte
	width, height, channels int
	w, h                    int
}

func (t *warp) put(x, y, fromX, fromY int) {
	if fromX >= 0 && fromX < t.width && fromY >= 0 && fromY < t.height {
		n := t.channels
		copy(t.out[(y*t.w+x)*n:][:n], t.in[(fromY*t.width+fromX)*n:])
	}
}

// coordinate is the pixel that a position lies in.
func coordinate(v float64) int {
	if v < 0 {
		return -1
	}
	return int(min(v, 1<<30))
}

func (t *warp) scale() {
	y := t.m[5] + float64(t.m[4]*0.5)
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x := t.m[2] + float64(t.m[0]*0.5)
		for j := range t.w {
			t.put(j, i, coordinate(x), coordinate(y))
			x += t.m[0]
		}
		y += t.m[4]
	}
}

// small says that fixed point has room for all positions.
func (t *warp) small() bool {
	for _, p := range [4][2]int{{0, 0}, {t.w, t.h}, {0, t.h}, {t.w, 0}} {
		x, y := t.m.at(float64(p[0]), float64(p[1]))
		if math.Abs(x) >= 32768 || math.Abs(y) >= 32768 {
			return false
		}
	}
	return true
}

func (t *warp) fixed() {
	fix := func(v float64) int32 { return int32(math.Floor(float64(v*65536) + 0.5)) }
	m := &t.m
	a, b, d, e := fix(m[0]), fix(m[1]), fix(m[3]), fix(m[4])
	x0 := fix(float64(m[2]+float64(m[0]*0.5)) + float64(m[1]*0.5))
	y0 := fix(float64(m[5]+float64(m[3]*0.5)) + float64(m[4]*0.5))
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x, y := x0, y0
		for j := range t.w {
			t.put(j, i, int(x>>16), int(y>>16))
			x += a
			y += d
		}
		x0 += b
		y0 += e
	}
}

func (t *warp) nearest() {
	m := &t.m
	x0 := float64(m[2]+float64(m[1]*0.5)) + float64(m[0]*0.5)
	y0 := float64(m[5]+float64(m[4]*0.5)) + float64(m[3]*0.5)
	for i := range t.h {
		t.s.spend(t.w * warpSteps)
		x, y := x0, y0
		for j := range t.w {
			t.put(j, i, coordinate(x), coordinate(y))
			x += m[0]
			y += m[3]
		}
		x0 += m[1]
		y0 += m[4]
	}
}

func (t *warp) bilinear() {
	n := t.channels
	for i := range t.h {
		t.s.spend(t.w * mixedSteps)
		for j := range t.w {
			x, y := t.m.at(float64(j)+0.5, float64(i)+0.5)
			if !(x >= 0 && x < float64(t.width) && y >= 0 && y < float64(t.height)) {
				continue
			}
			x -= 0.5
			y -= 0.5
			fx, fy := math.Floor(x), math.Floor(y)
			dx, dy := x-fx, y-fy
			x0, x1 := max(int(fx), 0)*n, min(int(fx)+1, t.width-1)*n
			row := t.in[max(int(fy), 0)*t.width*n:]
			below := row
			if int(fy)+1 < t.height {
				below = t.in[(int(fy)+1)*t.width*n:]
			}
			out := t.out[(i*t.w+j)*n:][:n]
			for k := range out {
				v := mix(float64(row[x0+k]), float64(row[x1+k]), dx)
				out[k] = uint8(mix(v, mix(float64(below[x0+k]), float64(below[x1+k]), dx), dy))
			}
		}
	}
}

func mix(a, b, part float64) float64 { return a + float64(float64(b-a)*part) }

// decimals rounds to 15 places, as Pillow does: so that a right angle is one.
func decimals(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'f', 15, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// rotate turns counter-clockwise by degrees, around centre or the middle.
func (c *canvas) rotate(degrees float64, bilinear, expand bool, centre []float64, fill []byte) {
	w, h := c.size()
	turn := math.Mod(degrees, 360)
	if turn < 0 {
		turn += 360
	}
	if centre == nil {
		switch {
		case turn == 0:
			return
		case turn == 180:
			c.flipX, c.flipY = !c.flipX, !c.flipY
			return
		case (turn == 90 || turn == 270) && (expand || w == h):
			c.raster()
			c.orient(map[float64]int{90: 8, 270: 6}[turn])
			return
		}
		centre = []float64{float64(w) / 2, float64(h) / 2}
	}
	angle := -radians(turn)
	sin, cos := math.Sincos(angle)
	m := affine{decimals(cos), decimals(sin), 0, decimals(-sin), decimals(cos), 0}
	x, y := m.at(-centre[0], -centre[1])
	m[2], m[5] = x+centre[0], y+centre[1]
	if expand {
		w, h = m.expand(w, h)
	}
	c.transform(m, w, h, bilinear, fill)
}

// expand moves the matrix so that a result of the size that it gives has the whole image.
func (m *affine) expand(w, h int) (int, int) {
	var low, high [2]float64
	for i, p := range [4][2]int{{0, 0}, {w, 0}, {w, h}, {0, h}} {
		x, y := m.at(float64(p[0]), float64(p[1]))
		if i == 0 {
			low, high = [2]float64{x, y}, [2]float64{x, y}
		}
		low, high = [2]float64{min(low[0], x), min(low[1], y)}, [2]float64{max(high[0], x), max(high[1], y)}
	}
	nw, nh := int(math.Ceil(high[0])-math.Floor(low[0])), int(math.Ceil(high[1])-math.Floor(low[1]))
	m[2], m[5] = m.at(-float64(nw-w)/2, -float64(nh-h)/2)
	return nw, nh
}

// rotation turns by an angle that is drawn.
type rotation struct {
	low, high        float64
	bilinear, expand bool
	centre           []float64
	fill             []byte
}

func newRandomRotation(b *builder, p *params) *program.StepError {
	o := &rotation{}
	takes := "a number of degrees that is not negative, or [low, high]"
	switch list := p.numbers("degrees", takes, 1, 2); {
	case list == nil:
		p.fail("degrees", "it has to be given: %s", takes)
	case len(list) == 1 && list[0] < 0, len(list) == 2 && list[0] > list[1], math.Abs(list[0]) > 1e6,
		math.Abs(list[len(list)-1]) > 1e6:
		p.fail("degrees", "got %v, takes %s", list, takes)
	case len(list) == 1:
		o.low, o.high = -list[0], list[0]
	default:
		o.low, o.high = list[0], list[1]
	}
	p.put("degrees", []float64{o.low, o.high})
	o.bilinear = p.word("interpolation", "nearest", "nearest", "bilinear") == "bilinear" && !b.mask
	o.expand = p.boolean("expand", false)
	if o.centre = p.numbers("center", "[x, y] in pixels, or null", 2); o.centre != nil {
		if max(math.Abs(o.centre[0]), math.Abs(o.centre[1])) > maxSide {
			p.fail("center", "got %v, takes pixels up to %d", o.centre, maxSide)
		}
		if o.expand {
			p.fail("center", "with expand it takes null")
		}
		p.put("center", o.centre)
	}
	o.fill = p.fill(b, "fill")
	if o.expand {
		b.width, b.height, b.shapeless = program.Unknown, program.Unknown, true
	}
	return b.pixels(o, true)
}

func (o *rotation) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	angle := numbers.Uniform(o.low, o.high)
	c.rotate(angle, o.bilinear, o.expand, o.centre, o.fill)
	return []program.Value{{Name: "angle", Number: angle}}, nil
}

func (o *rotation) bound(e extent) (extent, program.Cost) {
	if o.expand {
		side := int(math.Hypot(float64(e.w), float64(e.h))) + 3
		e = e.of(side, side)
	}
	return e, e.each(warped(o.bilinear))
}

// warped is what a pixel of a transformed image takes, and more than one that is turned by a quarter.
func warped(bilinear bool) int {
	if bilinear {
		return fillSteps + mixedSteps
	}
	return fillSteps + warpSteps
}

package images

import (
	"fmt"
	"image"
	"math"
	"slices"

	"bowstring/fetch/operators/draw"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// randomResizedCrop is the crop of most training recipes.
type randomResizedCrop struct {
	h, w                      int
	least, most, narrow, wide float64
	filter                    resample.Filter
}

func newRandomResizedCrop(b *builder, p *params) *program.StepError {
	o := &randomResizedCrop{}
	o.h, o.w = p.size("size")
	o.least, o.most = p.interval("scale", 0.08, 1, 0, 1)
	o.narrow, o.wide = p.interval("ratio", 3.0/4, 4.0/3, 1e-3, 1e3)
	o.filter = p.interpolation(b, "bilinear")
	p.antialias()
	b.height, b.width = o.h, o.w
	return b.pixels(o, true)
}

// box is torchvision's get_params: up to ten tries, and then the centre.
func (o *randomResizedCrop) box(w, h int, numbers *draw.Source) image.Rectangle {
	area := float64(w) * float64(h)
	for range 10 {
		target := area * numbers.Uniform(o.least, o.most)
		ratio := numbers.LogUniform(o.narrow, o.wide)
		cw, ch := round(math.Sqrt(float64(target*ratio))), round(math.Sqrt(target/ratio))
		if cw > 0 && cw <= w && ch > 0 && ch <= h {
			top := numbers.IntN(h - ch + 1)
			left := numbers.IntN(w - cw + 1)
			return image.Rect(left, top, left+cw, top+ch)
		}
	}
	cw, ch := w, h
	switch in := float64(w) / float64(h); {
	case in < o.narrow:
		ch = min(max(round(float64(w)/o.narrow), 1), h)
	case in > o.wide:
		cw = min(max(round(float64(h)*o.wide), 1), w)
	}
	top, left := (h-ch)/2, (w-cw)/2
	return image.Rect(left, top, left+cw, top+ch)
}

func (o *randomResizedCrop) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	w, h := c.size()
	box := o.box(w, h, numbers)
	// A window of a resized image is an image of its own before it is resized again; crop keeps it so.
	c.crop(box)
	c.resize(o.w, o.h, o.filter)
	return boxValues(box), nil
}

func (o *randomResizedCrop) bound(e extent) (extent, program.Cost) {
	return e.of(o.w, o.h), passes(e, o.w, o.h, o.filter)
}

// centerCrop takes the middle; around what is smaller come zeros.
type centerCrop struct{ h, w int }

func newCenterCrop(b *builder, p *params) *program.StepError {
	o := &centerCrop{}
	o.h, o.w = p.size("size")
	b.height, b.width = o.h, o.w
	return b.pixels(o, false)
}

func (o *centerCrop) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	w, h := c.size()
	if o.w > w || o.h > h {
		dx, dy := max(o.w-w, 0), max(o.h-h, 0)
		c.pad(margins{left: dx / 2, top: dy / 2, right: (dx + 1) / 2, bottom: (dy + 1) / 2})
		w, h = c.size()
	}
	left, top := round(float64(w-o.w)/2), round(float64(h-o.h)/2)
	c.crop(image.Rect(left, top, left+o.w, top+o.h))
	return nil, nil
}

func (o *centerCrop) bound(e extent) (extent, program.Cost) {
	return e.of(o.w, o.h), e.of(max(e.w, o.w), max(e.h, o.h)).padded()
}

// randomCrop takes a part of the size given.
type randomCrop struct {
	h, w    int
	padding *margins
	fit     bool
}

func newRandomCrop(b *builder, p *params) *program.StepError {
	o := &randomCrop{}
	o.h, o.w = p.size("size")
	o.padding = p.margins("padding")
	o.fit = p.boolean("pad_if_needed", false)
	around := p.padding(b)
	if o.padding == nil {
		o.padding = &margins{}
	}
	o.padding.mode, o.padding.fill = around.mode, around.fill
	b.height, b.width = o.h, o.w
	return b.pixels(o, true)
}

func (o *randomCrop) apply(c *canvas, numbers *draw.Source) ([]program.Value, error) {
	m := *o.padding
	w, h := c.size()
	if o.fit {
		dx, dy := max(o.w-(w+m.left+m.right), 0), max(o.h-(h+m.top+m.bottom), 0)
		m.left, m.right, m.top, m.bottom = m.left+dx, m.right+dx, m.top+dy, m.bottom+dy
	}
	if err := m.fits(w, h); err != nil {
		return nil, err
	}
	c.pad(m)
	w, h = c.size()
	if o.w > w || o.h > h {
		return nil, fmt.Errorf("a crop of %d x %d is larger than the image, %d x %d; pad_if_needed pads it", o.w, o.h,
			w, h)
	}
	top := numbers.IntN(h - o.h + 1)
	left := numbers.IntN(w - o.w + 1)
	box := image.Rect(left, top, left+o.w, top+o.h)
	c.crop(box)
	return boxValues(box), nil
}

func (o *randomCrop) bound(e extent) (extent, program.Cost) {
	m := o.padding
	w, h := e.w+m.left+m.right, e.h+m.top+m.bottom
	if o.fit {
		w, h = w+2*o.w, h+2*o.h
	}
	return e.of(o.w, o.h), e.of(w, h).padded()
}

// padded is what it takes to pad an image to this size, before a part of it is taken.
func (e extent) padded() program.Cost {
	takes := e.each(padSteps)
	takes.Working = e.bytes().Times(2)
	takes.Steps = takes.Steps.Plus(e.bytes().Times(rowSteps))
	return takes
}

// pad puts a margin around.
type pad struct{ margins }

func newPad(b *builder, p *params) *program.StepError {
	o := &pad{}
	m := p.margins("padding")
	if m == nil {
		p.fail("padding", "it has to be given: pixels, or [left and right, top and bottom], or [left, top, "+
			"right, bottom]")
		m = &margins{}
	}
	around := p.padding(b)
	m.mode, m.fill = around.mode, around.fill
	o.margins = *m
	if b.width != program.Unknown && b.height != program.Unknown {
		b.width, b.height = b.width+m.left+m.right, b.height+m.top+m.bottom
	}
	return b.pixels(o, false)
}

func (o *pad) apply(c *canvas, _ *draw.Source) ([]program.Value, error) {
	if err := o.fits(c.size()); err != nil {
		return nil, err
	}
	c.pad(o.margins)
	return nil, nil
}

func (o *pad) bound(e extent) (extent, program.Cost) {
	next := e.of(e.w+o.left+o.right, e.h+o.top+o.bottom)
	return next, next.each(padSteps)
}

// margins says what comes around an image.
type margins struct {
	left, top, right, bottom int
	mode                     string
	fill                     []byte // one for all channels, or one for each
}

// maxMargin bounds padding, as maxSide does sizes.
const maxMargin = 1 << 12

func (p *params) margins(name string) *margins {
	takes := fmt.Sprintf("pixels, or [left and right, top and bottom], or [left, top, right, bottom], of 0 to %d",
		maxMargin)
	list := p.integers(name, takes, 0, maxMargin, 1, 2, 4)
	switch len(list) {
	case 0:
		p.put(name, nil)
		return nil
	case 1:
		list = []int{list[0], list[0], list[0], list[0]}
	case 2:
		list = []int{list[0], list[1], list[0], list[1]}
	}
	p.put(name, list)
	return &margins{left: list[0], top: list[1], right: list[2], bottom: list[3]}
}

// padding reads how a margin is filled.
func (p *params) padding(b *builder) margins {
	m := margins{fill: p.fill(b, "fill")}
	m.mode = p.word("padding_mode", "constant", "constant", "edge", "reflect", "symmetric")
	return m
}

// fill reads a colour of bytes: one number, or one for each channel. For masks it is 0.
func (p *params) fill(b *builder, name string) []byte {
	takes := "a number from 0 to 255, or one for each channel"
	list := p.integers(name, takes, 0, 255, 1, 2, 3, 4)
	if list == nil {
		list = []int{0}
	}
	p.put(name, list)
	if b.mask {
		return []byte{0}
	}
	if len(list) > 1 && len(list) != b.channels {
		p.fail(name, "it has %d numbers, and the image has %s channels", len(list), known(b.channels))
	}
	colour := make([]byte, len(list))
	for i, v := range list {
		colour[i] = byte(v)
	}
	return colour
}

// empty says that what is filled is zeros.
func (m *margins) empty() bool {
	return m.mode != "constant" || !slices.ContainsFunc(m.fill, func(v byte) bool { return v != 0 })
}

// fits says whether the image is large enough to be mirrored into its margin.
func (m *margins) fits(w, h int) error {
	across, down := max(m.left, m.right), max(m.top, m.bottom)
	if m.mode == "reflect" && (across >= w || down >= h) || m.mode == "symmetric" && (across > w || down > h) {
		return fmt.Errorf("an image of %d x %d is too small to be mirrored into a margin of %d, %d, %d, %d", w, h,
			m.left, m.top, m.right, m.bottom)
	}
	return nil
}

// pad lays the image into a larger one.
func (c *canvas) pad(m margins) {
	if m.left|m.top|m.right|m.bottom == 0 {
		return
	}
	pix := c.raster()
	w, h, n := c.width, c.height, c.channels
	tw, th := w+m.left+m.right, h+m.top+m.bottom
	to := c.s.buffer(tw * th * n)
	fill := make([]byte, 8) // more than a pixel has bytes
	for i := range fill {
		if len(m.fill) > 0 {
			fill[i] = m.fill[min(i, len(m.fill)-1)]
		}
	}
	for y := range th {
		c.spend(tw * padSteps)
		row := to[y*tw*n:][:tw*n]
		from := beyond(y-m.top, h, m.mode)
		if from < 0 {
			fillRow(row, fill[:n])
			continue
		}
		in := pix[from*w*n:][:w*n]
		copy(row[m.left*n:], in)
		for x := range tw {
			if x >= m.left && x < m.left+w {
				continue
			}
			px := row[x*n:][:n]
			if at := beyond(x-m.left, w, m.mode); at >= 0 {
				copy(px, in[at*n:])
			} else {
				copy(px, fill)
			}
		}
	}
	c.replace(to, tw, th, n)
}

func fillRow(row, colour []byte) {
	for at := 0; at < len(row); at += len(colour) {
		copy(row[at:], colour)
	}
}

// beyond says which pixel stands in for one outside of n, or that none does.
func beyond(i, n int, mode string) int {
	if i >= 0 && i < n {
		return i
	}
	switch mode {
	case "edge":
		return min(max(i, 0), n-1)
	case "reflect":
		if i < 0 {
			return -i
		}
		return 2*n - 2 - i
	case "symmetric":
		if i < 0 {
			return -i - 1
		}
		return 2*n - 1 - i
	}
	return -1
}

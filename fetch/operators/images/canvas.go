package images

import (
	"cmp"
	"image"

	"bowstring/fetch/operators/images/codec"
	"bowstring/fetch/operators/images/icc"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/images/resample"
	"bowstring/fetch/operators/program"
)

// scratch is the memory of one run, used again by later ones.
type scratch struct {
	meter   *program.Meter
	decoder codec.Decoder
	resizer resample.Resizer
	pixels  [2][]byte
	charged [2]int // bytes of pixels that the run has counted
	used    int    // which of pixels the canvas is on
	// The step that is under way.
	step    int
	name    string
	canvas  canvas
	output  output
	encoder jpeg.Encoder
	middle  []uint16 // of a blur
}

// keep is the most that a scratch may hold to be used again.
const keep = 64 << 20

func (s *scratch) held() int {
	return cap(s.pixels[0]) + cap(s.pixels[1]) + s.encoder.Held() + 2*cap(s.middle) + s.resizer.Held() + s.decoder.Held()
}

// spend counts steps that are about to be taken. It does not return where the run may not take them.
func (s *scratch) spend(steps int) {
	if err := s.meter.Spend(int64(steps)); err != nil {
		panic(stopped{err})
	}
}

// hold counts memory, whether it is allocated now or was kept of an earlier run. It does not return where the run may
// not have it.
func (s *scratch) hold(bytes int64) {
	if err := s.meter.Hold(bytes); err != nil {
		panic(stopped{err})
	}
}

// buffer gives n bytes, beside those that the canvas is on.
func (s *scratch) buffer(n int) []byte {
	s.used = 1 - s.used
	need := n + 32 // rows are read in larger units than bytes
	if more := need - s.charged[s.used]; more > 0 {
		s.hold(int64(more))
		s.charged[s.used] = need
	}
	if cap(s.pixels[s.used]) < need {
		s.pixels[s.used] = make([]byte, need)
	}
	return s.pixels[s.used][:n]
}

// canvas is an image that operators work on. Geometry is kept as long as it can be: a
// box of the source, one resize of it, a window of that, mirrored.
type canvas struct {
	s *scratch
	// A file that is yet to be decoded.
	file     []byte
	header   codec.Header
	mode     codec.Mode
	colours  *icc.Transform // of the file's pixels; nil: none
	pix      []byte
	shared bool // pix is the input's, and only read
	width    int  // of the source, as are height and channels
	height   int
	channels int

	box          image.Rectangle
	to           image.Point
	filter       resample.Filter
	window       image.Rectangle
	flipX, flipY bool
	err          error

	perRow, perLine int // steps of a row of the source, and of the result, while it is finished
}

func (c *canvas) spend(steps int) { c.s.spend(steps) }

// reset begins with pixels.
func (c *canvas) reset(pix []byte, w, h, channels int) {
	c.file, c.pix, c.width, c.height, c.channels = nil, pix, w, h, channels
	c.view(w, h)
}

func (c *canvas) view(w, h int) {
	c.box = image.Rect(0, 0, w, h)
	c.to, c.window, c.flipX, c.flipY, c.filter = c.box.Max, c.box, false, false, resample.Bilinear
}

// size is that of the image as it is now.
func (c *canvas) size() (w, h int) { return c.window.Dx(), c.window.Dy() }

func (c *canvas) resized() bool { return c.to != c.box.Size() }

// crop takes a part of the image, which must lie in it.
func (c *canvas) crop(r image.Rectangle) {
	w, h := c.size()
	if c.flipX {
		r.Min.X, r.Max.X = w-r.Max.X, w-r.Min.X
	}
	if c.flipY {
		r.Min.Y, r.Max.Y = h-r.Max.Y, h-r.Min.Y
	}
	if c.resized() {
		c.window = r.Add(c.window.Min)
		return
	}
	c.box = r.Add(c.box.Min)
	c.to = c.box.Size()
	c.window = image.Rectangle{Max: c.to}
}

// resize changes the size to w x h.
func (c *canvas) resize(w, h int, f resample.Filter) {
	if cw, ch := c.size(); cw == w && ch == h {
		return
	}
	// A mirrored image is not resized as its mirror image is, to the bit.
	if c.resized() || c.flipX || c.flipY {
		c.raster()
	}
	c.to, c.filter = image.Pt(w, h), f
	c.window = image.Rectangle{Max: c.to}
}

// plain says that pix is the image.
func (c *canvas) plain() bool {
	return c.file == nil && !c.resized() && !c.flipX && !c.flipY && c.box == image.Rect(0, 0, c.width, c.height)
}

// raster carries out what was kept, and gives the pixels for reading.
func (c *canvas) raster() []byte {
	if c.plain() {
		return c.pix
	}
	w, h := c.size()
	// Channels are known when the file is read.
	t := toRaster{c: c, w: w, h: h}
	c.finish(&t)
	if c.err != nil { // the run ends after this step, which may yet look at pixels
		c.channels = max(c.channels, 1)
		t.pix = c.s.buffer(w * h * c.channels)
	}
	c.reset(t.pix, w, h, c.channels)
	c.shared = false
	return c.pix
}

// own gives the pixels for writing.
func (c *canvas) own() []byte {
	pix := c.raster()
	if c.shared {
		to := c.s.buffer(len(pix))
		c.spend(len(pix))
		copy(to, pix)
		c.pix, c.shared = to, false
	}
	return c.pix
}

// replace puts new pixels, of a buffer, in the place of the image.
func (c *canvas) replace(pix []byte, w, h, channels int) {
	c.reset(pix, w, h, channels)
	c.shared = false
}

// toRaster collects rows in a buffer.
type toRaster struct {
	c    *canvas
	w, h int
	pix  []byte
}

func (t *toRaster) Row(y int, pixels []byte) {
	t.c.spend(t.c.perLine)
	if t.pix == nil {
		t.pix = t.c.s.buffer(t.w * t.h * t.c.channels)
	}
	n := t.w * t.c.channels
	copy(t.pix[y*n:], pixels[:n])
}

// finish carries out what was kept, row by row into sink.
func (c *canvas) finish(sink resample.Sink) {
	j := resample.Job{
		Width: c.box.Dx(), Height: c.box.Dy(), To: c.to, Window: c.window, FlipX: c.flipX, FlipY: c.flipY,
		Filter: c.filter,
	}
	held := c.room(&j)
	c.decode(&j)
	if c.err != nil {
		return
	}
	j.Channels = c.channels
	c.plan(&j)
	c.s.resizer.Do(&j, c, sink)
	c.s.meter.Free(held)
}

// room counts the memory of a job, and says how much that is.
func (c *canvas) room(j *resample.Job) int64 {
	channels := cmp.Or(c.channels, 4) // they may not be known before the file is decoded
	// Rows that are read, and one of the result.
	bytes := rowBytes(max(j.Width, j.To.X), channels)
	if c.resized() {
		bytes = bytes.Plus(passes(extent{j.Width, j.Height, channels}, j.To.X, j.To.Y, j.Filter).Working)
	}
	c.s.hold(bytes.Int64())
	return bytes.Int64()
}

// plan counts what the rows of a job take.
func (c *canvas) plan(j *resample.Job) {
	width := j.Window.Dx() * j.Channels
	c.perRow, c.perLine = (j.Width*j.Channels)*rowSteps, width*rowSteps
	if c.file != nil {
		c.perRow += j.Width * j.Channels * fileSteps
	}
	if c.file != nil && c.colours != nil {
		c.perRow += j.Width * profileSteps
	}
	if !c.resized() {
		return
	}
	across, down := j.Filter.Taps(j.Width, j.To.X), j.Filter.Taps(j.Height, j.To.Y)
	c.perRow += width * ceil(across, weighed)
	c.perLine += width * ceil(down, weighed)
	c.spend((j.To.X*(across+4) + j.To.Y*(down+4)) * weightSteps)
}

// decode reads what of the file a job needs.
func (c *canvas) decode(j *resample.Job) {
	if c.file == nil {
		return
	}
	region := c.s.resizer.Reach(j).Add(c.box.Min)
	if c.err = c.s.decoder.Decode(c.file, c.header, c.mode, region, c.s.meter); c.err != nil {
		return
	}
	c.channels = c.s.decoder.Channels()
}

// Row gives row y of the box.
func (c *canvas) Row(y int, spare []byte) []byte {
	c.spend(c.perRow)
	y += c.box.Min.Y
	if c.file != nil {
		left := (c.s.decoder.Region().Min.X - c.box.Min.X) * c.channels
		c.s.decoder.Row(y, spare[left:])
		if c.colours != nil {
			c.colours.Convert(spare[left:][:c.s.decoder.Region().Dx()*c.channels])
		}
		return spare
	}
	at := (y*c.width + c.box.Min.X) * c.channels
	row := c.pix[at : at+c.box.Dx()*c.channels]
	if c.shared { // behind the input's last pixel is nothing to read
		return spare[:copy(spare, row)]
	}
	return row
}

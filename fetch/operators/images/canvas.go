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

// scratch is the working memory of one run. Runs return it to a pool.
type scratch struct {
	meter   *program.Meter
	decoder codec.Decoder
	resizer resample.Resizer
	pixels  [2][]byte // two buffers: an operator reads one and writes the other
	charged [2]int    // bytes of pixels that the run has counted
	used    int       // index of the buffer with the canvas
	// The current step, for errors.
	step    int
	name    string
	canvas  canvas
	output  output
	encoder jpeg.Encoder
	middle  []uint16 // rows of a blur between its two passes, with 8 bits of fraction
}

// keep is the maximum size in bytes of a pooled scratch.
const keep = 64 << 20

// held is the number of bytes that the scratch keeps allocated.
func (s *scratch) held() int {
	return cap(s.pixels[0]) + cap(s.pixels[1]) + s.encoder.Held() + 2*cap(s.middle) + s.resizer.Held() + s.decoder.Held()
}

// spend counts work before it is done. If the meter refuses, it panics with stopped,
// which withScratch turns into the run's error.
func (s *scratch) spend(steps int) {
	if err := s.meter.Spend(int64(steps)); err != nil {
		panic(stopped{err})
	}
}

// hold counts memory, both newly allocated memory and memory that an earlier run left. If
// the meter refuses, it panics with stopped.
func (s *scratch) hold(bytes int64) {
	if err := s.meter.Hold(bytes); err != nil {
		panic(stopped{err})
	}
}

// buffer returns n bytes of the buffer that does not have the canvas, and makes it
// current. They are not zeroed.
func (s *scratch) buffer(n int) []byte {
	s.used = 1 - s.used
	need := n + 32 // vector loads read up to 32 bytes past a row's end
	if more := need - s.charged[s.used]; more > 0 {
		s.hold(int64(more))
		s.charged[s.used] = need
	}
	if cap(s.pixels[s.used]) < need {
		s.pixels[s.used] = make([]byte, need)
	}
	return s.pixels[s.used][:n]
}

// canvas is an image during a run. Geometry is applied as late as possible: one crop of
// the source (box), one resize of it (to), one crop of that (window), and mirroring. An
// operator that needs pixels calls raster, which applies all of these in one pass.
type canvas struct {
	s *scratch
	// Set until the file is decoded; then pix has the image.
	file     []byte
	header   codec.Header
	mode     codec.Mode
	colours  *icc.Transform // applied to the file's pixels; nil: none
	pix      []byte
	shared   bool // pix belongs to the input and is read-only
	width    int  // width, height and channels are those of the source
	height   int
	channels int

	box          image.Rectangle // part of the source that is used
	to           image.Point     // size to which box is resized
	filter       resample.Filter
	window       image.Rectangle // part of the resized image that remains
	flipX, flipY bool
	err          error

	perRow, perLine int // work of a row of the source and of a row of the result, in steps
}

// spend counts work for the run. It panics with stopped if the run must end.
func (c *canvas) spend(steps int) { c.s.spend(steps) }

// reset makes pix the image: w by h pixels of that many interleaved bytes.
func (c *canvas) reset(pix []byte, w, h, channels int) {
	c.file, c.pix, c.width, c.height, c.channels = nil, pix, w, h, channels
	c.view(w, h)
}

// view makes the whole source the image, without resizing and mirroring.
func (c *canvas) view(w, h int) {
	c.box = image.Rect(0, 0, w, h)
	c.to, c.window, c.flipX, c.flipY, c.filter = c.box.Max, c.box, false, false, resample.Bilinear
}

// size returns the current size of the image in pixels.
func (c *canvas) size() (w, h int) { return c.window.Dx(), c.window.Dy() }

// resized reports whether a resize is pending.
func (c *canvas) resized() bool { return c.to != c.box.Size() }

// crop keeps only r, in pixels of the current image. r must be inside the image.
func (c *canvas) crop(r image.Rectangle) {
	w, h := c.size()
	// r is in mirrored coordinates; box and window are not.
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

// resize resamples the image to w by h pixels. Only one resize is pending at a time, so
// an earlier one is applied first.
func (c *canvas) resize(w, h int, f resample.Filter) {
	if cw, ch := c.size(); cw == w && ch == h {
		return
	}
	// Resampling rounds asymmetrically: to resize a mirrored image is not the same as to
	// mirror a resized one. torchvision mirrors first.
	if c.resized() || c.flipX || c.flipY {
		c.raster()
	}
	c.to, c.filter = image.Pt(w, h), f
	c.window = image.Rectangle{Max: c.to}
}

// plain reports whether pix is the image: nothing is pending.
func (c *canvas) plain() bool {
	return c.file == nil && !c.resized() && !c.flipX && !c.flipY && c.box == image.Rect(0, 0, c.width, c.height)
}

// raster applies everything that is pending and returns the pixels, which the caller must
// not write. On failure c.err is set, and the pixels are undefined.
func (c *canvas) raster() []byte {
	if c.plain() {
		return c.pix
	}
	w, h := c.size()
	// The number of channels is known after decoding.
	t := toRaster{c: c, w: w, h: h}
	c.finish(&t)
	if c.err != nil { // the run ends after this step, but the step may still read the pixels
		c.channels = max(c.channels, 1)
		t.pix = c.s.buffer(w * h * c.channels)
	}
	c.reset(t.pix, w, h, c.channels)
	c.shared = false
	return c.pix
}

// own returns the pixels for writing. It copies pixels that belong to the input.
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

// replace makes pix, which must come from buffer, the image.
func (c *canvas) replace(pix []byte, w, h, channels int) {
	c.reset(pix, w, h, channels)
	c.shared = false
}

// toRaster is a resample.Sink that collects the rows in a buffer. It allocates when the
// first row comes, because the number of channels is known only after decoding has begun.
type toRaster struct {
	c    *canvas
	w, h int
	pix  []byte
}

// Row implements resample.Sink.
func (t *toRaster) Row(y int, pixels []byte) {
	t.c.spend(t.c.perLine)
	if t.pix == nil {
		t.pix = t.c.s.buffer(t.w * t.h * t.c.channels)
	}
	n := t.w * t.c.channels
	copy(t.pix[y*n:], pixels[:n])
}

// finish applies everything that is pending and writes the rows of the result to sink,
// from top to bottom. Errors of decoding are in c.err.
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
	// Decoding determines the number of channels.
	j.Channels = c.channels
	c.plan(&j)
	c.s.resizer.Do(&j, c, sink)
	c.s.meter.Free(held)
}

// room counts the memory of a resize and returns the number of bytes, which the caller
// frees.
func (c *canvas) room(j *resample.Job) int64 {
	channels := cmp.Or(c.channels, 4) // maximum, if the file is not decoded yet
	// One row of the source and one of the result.
	bytes := rowBytes(max(j.Width, j.To.X), channels)
	if c.resized() {
		bytes = bytes.Plus(passes(extent{j.Width, j.Height, channels}, j.To.X, j.To.Y, j.Filter).Working)
	}
	c.s.hold(bytes.Int64())
	return bytes.Int64()
}

// plan computes the work of each row, and counts that of computing the filter weights.
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
	// Horizontal weights for each row of the source, vertical ones for each row of the
	// result.
	across, down := j.Filter.Taps(j.Width, j.To.X), j.Filter.Taps(j.Height, j.To.Y)
	c.perRow += width * ceil(across, weighed)
	c.perLine += width * ceil(down, weighed)
	c.spend((j.To.X*(across+4) + j.To.Y*(down+4)) * weightSteps)
}

// decode decodes the part of the file that the job reads. Nothing happens if the image is
// already decoded. Errors are in c.err.
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

// Row implements resample.Source. y counts from the top of the box.
func (c *canvas) Row(y int, spare []byte) []byte {
	c.spend(c.perRow)
	y += c.box.Min.Y
	if c.file != nil {
		// The decoder returns only the columns in reach.
		left := (c.s.decoder.Region().Min.X - c.box.Min.X) * c.channels
		c.s.decoder.Row(y, spare[left:])
		if c.colours != nil {
			c.colours.Convert(spare[left:][:c.s.decoder.Region().Dx()*c.channels])
		}
		return spare
	}
	at := (y*c.width + c.box.Min.X) * c.channels
	row := c.pix[at : at+c.box.Dx()*c.channels]
	if c.shared { // the input may end after its last pixel, so vector loads could fault
		return spare[:copy(spare, row)]
	}
	return row
}

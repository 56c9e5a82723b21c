package resample

import (
	"bytes"
	"image"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raster is rows of memory that has no byte more than it needs.
type raster struct {
	pix   []byte
	width int
}

func (r *raster) Row(y int, spare []byte) []byte {
	return spare[:copy(spare, r.pix[y*r.width:(y+1)*r.width])]
}

type collected struct{ pix []byte }

func (c *collected) Row(_ int, pixels []byte) { c.pix = append(c.pix, pixels...) }

// TestWide checks that the vector instructions give the bytes of the Go code.
func TestWide(t *testing.T) {
	if !wide {
		t.Skip("the processor has no AVX2")
	}
	defer func() { wide = true }()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var resizer Resizer
	for range 300 {
		j := Job{Width: 1 + r.IntN(90), Height: 1 + r.IntN(90), Channels: 1 + 2*r.IntN(2),
			To: image.Pt(1+r.IntN(60), 1+r.IntN(60))}
		x, y := r.IntN(j.To.X), r.IntN(j.To.Y)
		j.Window = image.Rect(x, y, x+1+r.IntN(j.To.X-x), y+1+r.IntN(j.To.Y-y))
		j.FlipX, j.FlipY, j.Filter = r.IntN(2) == 0, r.IntN(2) == 0, Filter(r.IntN(int(Lanczos)+1))
		src := &raster{pix: make([]byte, j.Width*j.Height*j.Channels), width: j.Width * j.Channels}
		for i := range src.pix {
			src.pix[i] = byte(r.Uint32())
		}
		var a, b collected
		wide = false
		resizer.Do(&j, src, &a)
		wide = true
		resizer.Do(&j, src, &b)
		if !bytes.Equal(a.pix, b.pix) || len(a.pix) != j.Window.Dx()*j.Window.Dy()*j.Channels {
			t.Fatalf("other bytes of %+v", j)
		}
		// A window equals the part of the whole result, mirrored.
		whole, want := j, collected{}
		whole.Window, whole.FlipX, whole.FlipY = image.Rectangle{Max: j.To}, false, false
		resizer.Do(&whole, src, &want)
		if !bytes.Equal(b.pix, cut(want.pix, &j)) {
			t.Fatalf("the window is not the whole's, of %+v", j)
		}
	}
}

func cut(whole []byte, j *Job) []byte {
	var out []byte
	for i := range j.Window.Dy() {
		y := j.Window.Min.Y + i
		if j.FlipY {
			y = j.Window.Max.Y - 1 - i
		}
		for k := range j.Window.Dx() {
			x := j.Window.Min.X + k
			if j.FlipX {
				x = j.Window.Max.X - 1 - k
			}
			at := (y*j.To.X + x) * j.Channels
			out = append(out, whole[at:at+j.Channels]...)
		}
	}
	return out
}

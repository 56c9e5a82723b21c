package codec

import "image"

// rowDeep gives a row of an image of 16 bits a channel. The libraries have the higher byte first. Whether the
// image is grey where one channel is wanted, its header has told.
func (d *Decoder) rowDeep(y int, out []byte) {
	n := d.region.Dx()
	x, y := d.other.Bounds().Min.X+d.region.Min.X, d.other.Bounds().Min.Y+y
	var in []byte
	from := 8 // bytes of a pixel
	switch m := d.other.(type) {
	case *image.Gray16:
		in, from = m.Pix[m.PixOffset(x, y):], 2
	case *image.RGBA64:
		in = m.Pix[m.PixOffset(x, y):]
	case *image.NRGBA64:
		in = m.Pix[m.PixOffset(x, y):]
	default: // a file whose header said so has none
		clear(out[:n*d.channels])
		return
	}
	step := 2 // from one channel to the next
	if from == 2 {
		step = 0
	}
	for i := range n {
		px, to := in[i*from:], out[i*d.channels:][:d.channels]
		for c := 0; c < len(to); c += 2 {
			at := c / 2 * step
			to[c], to[c+1] = px[at+1], px[at]
		}
	}
}

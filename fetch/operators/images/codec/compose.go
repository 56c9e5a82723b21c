package codec

import (
	"image"

	"bowstring/fetch/operators/images/codec/webp"
	"bowstring/fetch/operators/program"
)

// decodeWebP decodes a WebP. The first frame of one that moves is laid on its canvas, as Pillow has it: the rest is
// transparent, or black where there is no alpha.
func (d *Decoder) decodeWebP(h *webp.Header, meter *program.Meter) (image.Image, error) {
	m, err := webp.Decode(h, meter)
	if err != nil || !h.Composed() {
		return m, err
	}
	pixels := int64(h.Canvas.X) * int64(h.Canvas.Y)
	if err := meter.Hold(4 * pixels); err != nil {
		return nil, err
	}
	if err := meter.Spend(10 * pixels); err != nil {
		return nil, err
	}
	canvas := image.NewNRGBA(image.Rectangle{Max: h.Canvas})
	if !h.Clear {
		for i := 3; i < len(canvas.Pix); i += 4 {
			canvas.Pix[i] = 255
		}
	}
	// The frame's rows, as they would be of a file of its own.
	frame := Decoder{header: Header{Format: WebP}, mode: Unchanged, region: image.Rect(0, 0, h.Width, h.Height), other: m,
		channels: channelsIn(m, WebP)}
	row := make([]byte, h.Width*frame.channels)
	for y := range h.Height {
		frame.Row(y, row)
		to := canvas.Pix[canvas.PixOffset(h.At.X, h.At.Y+y):]
		for x := range h.Width {
			copy(to[4*x:4*x+frame.channels], row[x*frame.channels:])
			if frame.channels == 3 || !h.Clear {
				to[4*x+3] = 255
			}
		}
	}
	return canvas, nil
}

package codec

import (
	"bytes"
	"image"
	"image/color"
	"image/gif"

	"bowstring/fetch/operators/program"
)

// firstFrame lays the first frame of a GIF on its screen, which is of the transparent
// colour, or of the first.
func firstFrame(cell []byte, meter *program.Meter) (image.Image, error) {
	config, err := gif.DecodeConfig(bytes.NewReader(cell))
	if err != nil {
		return nil, err
	}
	m, err := gif.Decode(meter.Reader(bytes.NewReader(cell)))
	if err != nil {
		return nil, err
	}
	screen := image.Rect(0, 0, config.Width, config.Height)
	frame, ok := m.(*image.Paletted)
	if !ok {
		return m, nil
	}
	ground, colours := uint8(0), firstColours(cell)
	for i, c := range frame.Palette {
		if _, _, _, a := c.RGBA(); a == 0 {
			ground = uint8(i)
			if 3*i+2 < len(colours) { // the library leaves out what colour it is that is transparent
				frame.Palette[i] = color.NRGBA{R: colours[3*i], G: colours[3*i+1], B: colours[3*i+2]}
			}
		}
	}
	if frame.Rect == screen {
		return frame, nil
	}
	whole := image.NewPaletted(screen, frame.Palette)
	for i := range whole.Pix {
		whole.Pix[i] = ground
	}
	for y := frame.Rect.Min.Y; y < frame.Rect.Max.Y; y++ {
		copy(whole.Pix[whole.PixOffset(frame.Rect.Min.X, y):],
			frame.Pix[frame.PixOffset(frame.Rect.Min.X, y):][:frame.Rect.Dx()])
	}
	return whole, nil
}

// firstColours is the table of colours of the first frame, or nil.
func firstColours(cell []byte) []byte {
	if len(cell) < 13 {
		return nil
	}
	var table []byte
	rest := cell[13:]
	take := func(flags byte) bool {
		if flags&0x80 == 0 {
			return true
		}
		n := 3 << (flags&7 + 1)
		if n > len(rest) {
			return false
		}
		table, rest = rest[:n], rest[n:]
		return true
	}
	if !take(cell[10]) {
		return nil
	}
	for len(rest) > 0 {
		switch rest[0] {
		case 0x2C:
			if len(rest) < 10 {
				return nil
			}
			flags := rest[9]
			rest = rest[10:]
			if !take(flags) {
				return nil
			}
			return table
		case 0x21:
			rest = rest[min(2, len(rest)):]
			for len(rest) > 0 && rest[0] != 0 {
				rest = rest[min(1+int(rest[0]), len(rest)):]
			}
			rest = rest[min(1, len(rest)):]
		default:
			return nil
		}
	}
	return nil
}

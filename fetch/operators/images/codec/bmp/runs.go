package bmp

import (
	"image"

	"bowstring/fetch/operators/program"
)

// runs decodes run lengths. Pixels that the file leaves out are of the first colour.
func (h *Header) runs(m *image.Paletted, meter *program.Meter) error {
	if err := meter.Spend(int64(h.Width) * int64(h.Height) * pixelSteps); err != nil {
		return err
	}
	const end, delta = 1, 2
	x, y, rest := 0, 0, h.data
	for y < h.Height {
		if len(rest) < 2 {
			return damaged("its run lengths end in row %d of %d", y, h.Height)
		}
		n, v := int(rest[0]), rest[1]
		rest = rest[2:]
		switch {
		case n > 0:
			out := h.line(m, x, y, n)
			for i := range out {
				out[i] = h.nibble(v, i)
			}
			x += n
		case v == 0:
			x, y = 0, y+1
		case v == end:
			return nil
		case v == delta:
			if len(rest) < 2 {
				return damaged("its run lengths end in row %d of %d", y, h.Height)
			}
			x, y, rest = x+int(rest[0]), y+int(rest[1]), rest[2:]
		default:
			n = int(v)
			size := n
			if h.compression == rle4 {
				size = (n + 1) / 2
			}
			if len(rest) < size {
				return damaged("its run lengths end in row %d of %d", y, h.Height)
			}
			out := h.line(m, x, y, n)
			for i := range out {
				if h.compression == rle4 {
					out[i] = h.nibble(rest[i/2], i)
				} else {
					out[i] = rest[i]
				}
			}
			x += n
			rest = rest[min(size+size&1, len(rest)):]
		}
	}
	return nil
}

// line is n pixels from x on, as far as the row has them.
func (h *Header) line(m *image.Paletted, x, y, n int) []byte {
	x = min(x, h.Width)
	return m.Pix[h.at(y)*m.Stride+x:][:min(n, h.Width-x)]
}

// nibble is pixel i of a byte that has one, or two in turn.
func (h *Header) nibble(v byte, i int) byte {
	switch {
	case h.compression == rle8:
		return v
	case i&1 == 0:
		return v >> 4
	}
	return v & 15
}

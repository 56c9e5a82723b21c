package codec

import (
	"bytes"
	"errors"
	"image"
	"image/png"

	"bowstring/fetch/operators/images/codec/bmp"
	"bowstring/fetch/operators/images/codec/tiff"
	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// Decoder holds the memory that decoding needs, to be used again. It is not safe for
// concurrent use.
type Decoder struct {
	header   Header
	mode     Mode
	region   image.Rectangle
	channels int
	jpeg     jpeg.Decoder
	other    image.Image
	row      []byte
}

// Decode reads a file for a region of its image. Row gives the pixels afterwards, and
// the cell must not change until then. Decode takes no more of the meter than the header's Bytes and Steps.
func (d *Decoder) Decode(cell []byte, h Header, mode Mode, region image.Rectangle, meter *program.Meter) error {
	d.header, d.mode, d.region, d.other = h, mode, region, nil
	if err := h.gives(mode); err != nil {
		return wrong(h.Format, err)
	}
	if h.Format == JPEG {
		if err := meter.Hold(h.Bytes); err != nil {
			return err
		}
		if err := d.jpeg.Decode(cell, region, meter); err != nil {
			return wrong(JPEG, err)
		}
		d.channels = channelsOf(mode, h.jpeg.Components)
		return nil
	}
	m, err := d.decodeOther(cell, &h, meter)
	if err != nil {
		return wrong(h.Format, err)
	}
	if !region.Add(m.Bounds().Min).In(m.Bounds()) {
		return wrong(h.Format, errSize)
	}
	d.other = m
	d.channels = channelsOf(mode, channelsIn(m, h.Format))
	return nil
}

// decodeOther decodes a file that is no JPEG. The standard library knows no meter: what it takes is counted beforehand,
// and what it reads looks at the context.
func (d *Decoder) decodeOther(cell []byte, h *Header, meter *program.Meter) (image.Image, error) {
	switch h.Format {
	case WebP:
		return d.decodeWebP(&h.webp, meter)
	case TIFF:
		return tiff.Decode(&h.tiff, meter)
	case BMP:
		return bmp.Decode(&h.bmp, meter)
	}
	if err := meter.Hold(h.Bytes); err != nil {
		return nil, err
	}
	if err := meter.Spend(h.Steps); err != nil {
		return nil, err
	}
	if h.Format == PNG {
		return png.Decode(meter.Reader(bytes.NewReader(cell)))
	}
	return firstFrame(cell, meter)
}

func channelsOf(mode Mode, natural int) int {
	switch mode {
	case RGB:
		return 3
	case L:
		return 1
	case Grey16:
		return 2
	case RGB16:
		return 6
	case Float:
		return 4
	default:
		return natural
	}
}

// gives fails if a mode of 16 bits is wanted of a file that has none, or of colours.
func (h *Header) gives(mode Mode) error {
	switch {
	case mode == Float && !h.Number:
		return errors.New("its pixels have 8 or 16 bits a channel, and the mode takes grey of floating-point numbers, or " +
			"of signed or 32-bit whole ones")
	case !mode.Deep():
		return nil
	case !h.Deep:
		return errors.New("it has 8 bits a channel, and a mode of 16 takes files that have 16")
	case mode == Grey16 && h.Space != SpaceGrey:
		return errors.New("its pixels are colours, and the mode takes grey")
	}
	return nil
}

// Channels is how many bytes a pixel has.
func (d *Decoder) Channels() int { return d.channels }

// Row writes the pixels of row y of the image, of the region's columns.
func (d *Decoder) Row(y int, out []byte) {
	n := d.region.Dx()
	if d.other != nil {
		d.rowOther(y, out[:n*d.channels])
		return
	}
	natural := d.header.jpeg.Components
	if natural == d.channels && natural != 4 {
		d.jpeg.Row(y, out)
		return
	}
	if cap(d.row) < 4*n {
		d.row = make([]byte, 4*n)
	}
	row := d.row[:natural*n]
	d.jpeg.Row(y, row)
	if natural == 4 {
		for i, v := range row { // Pillow takes all CMYK for Adobe's, which is stored as complements
			row[i] = 255 - v
		}
	}
	recode(row, natural, out, d.channels)
}

// recode makes pixels of one number of channels from those of another, as Pillow does.
func recode(in []byte, from int, out []byte, to int) {
	switch {
	case from == to:
		copy(out, in)
	case from == 1 && to == 3:
		for i, v := range in {
			out[3*i], out[3*i+1], out[3*i+2] = v, v, v
		}
	case from == 3 && to == 1:
		for i := range len(in) / 3 {
			out[i] = Luma(in[3*i], in[3*i+1], in[3*i+2])
		}
	case from == 4:
		for i := range len(in) / 4 {
			r, g, b := fromCMYK(in[4*i], in[4*i+1], in[4*i+2], in[4*i+3])
			if to == 3 {
				out[3*i], out[3*i+1], out[3*i+2] = r, g, b
			} else {
				out[i] = Luma(r, g, b)
			}
		}
	}
}

// Luma is Pillow's conversion to L.
func Luma(r, g, b uint8) uint8 {
	return uint8((uint32(r)*19595 + uint32(g)*38470 + uint32(b)*7471 + 0x8000) >> 16)
}

func fromCMYK(c, m, y, k uint8) (r, g, b uint8) {
	white := int(255 - k)
	one := func(ink uint8) uint8 {
		t := int(ink)*white + 128
		return uint8(max(white-(t>>8+t)>>8, 0))
	}
	return one(c), one(m), one(y)
}

// Region is what was decoded last.
func (d *Decoder) Region() image.Rectangle { return d.region }

// Held is how many bytes it keeps for its next use.
func (d *Decoder) Held() int { return cap(d.row) + d.jpeg.Held() }

// Release lets go of what was decoded last.
func (d *Decoder) Release() {
	d.other = nil
	d.jpeg.Release()
}

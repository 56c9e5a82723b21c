package tiff

import (
	"image"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// frameBytes is what headers of a block take.
const frameBytes = 2 << 10

// jpegBound bounds what decoding a block takes: all memory, which is used again, and the steps of each.
func (h *Header) jpegBound() (bytes program.Amount, steps int64) {
	components := h.samples
	if h.planar {
		components = 1
	}
	g := &h.grid
	held, steps := jpeg.Bound(g.across, g.down, components, h.tables)
	most := int64(0)
	for i := range min(g.n(h), g.counts.n) {
		most = max(most, g.counts.at(i, 0))
	}
	data := min(most, int64(len(h.dir.cell))) + int64(len(h.tables))
	return program.Count(held).Plus(program.Count(2 * data)).Plus(program.Count(g.n(h)).Times(frameBytes)), steps
}

// placeJPEG decodes a block that is a JPEG. Its tables may be in a tag.
func (d *decoder) placeJPEG(src []byte, plane, x, y int) error {
	header, err := jpeg.ReadHeader(src)
	if err != nil {
		return err
	}
	g, down, across := &d.grid, min(d.grid.down, d.Height-y), min(d.grid.across, d.Width-x)
	components, space := d.samples, jpeg.RGB
	switch {
	case d.planar:
		components, space = 1, jpeg.Grey
	case d.Layout == Grey:
		space = jpeg.Grey
	case d.Layout == CMYK:
		space = jpeg.CMYK
	case d.photometric == photoYCbCr:
		space = jpeg.YCbCr
	}
	switch {
	case header.Progressive:
		return unsupported("progressive JPEG compression")
	case header.Components != components:
		return damaged("its JPEG has %d components of %d", header.Components, components)
	case header.Width < across || header.Width > g.across || header.Height < down || header.Height > g.down:
		return damaged("its JPEG is %d x %d pixels of %d x %d", header.Width, header.Height, g.across, g.down)
	}
	data := src
	if len(d.tables) > 4 {
		// Both begin with a start of an image, and the tables have an end.
		data = append(append(d.data[:0], d.tables[:len(d.tables)-2]...), src[2:]...)
		d.data = data
	}
	if err := d.jpeg.DecodeAs(space, data, image.Rect(0, 0, across, down), d.meter); err != nil {
		return err
	}
	row := d.block[:across*components]
	for k := range down {
		d.jpeg.Row(k, row)
		d.put(row, plane, x, y+k, across)
	}
	return nil
}

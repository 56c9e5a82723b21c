package tiff

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"image"
	"io"
	"math/bits"

	"golang.org/x/image/ccitt"

	"bowstring/fetch/operators/images/jpeg"
	"bowstring/fetch/operators/program"
)

// decoder decodes one image.
type decoder struct {
	*Header
	meter *program.Meter
	block []byte
	whole []byte // all samples of a planar image
	lzw   *lzw
	zlib  io.ReadCloser
	in    input
	jpeg  jpeg.Decoder
	data  []byte // tables of JPEG and a block
	to    target
}

// input is what is inflated: reads end with the run.
type input struct {
	bytes.Reader
	meter *program.Meter
	bytes int
}

// ReadByte implements io.ByteReader: inflating reads byte by byte.
func (r *input) ReadByte() (byte, error) {
	if r.bytes++; r.bytes&(1<<16-1) == 0 {
		if err := r.meter.Look(); err != nil {
			return 0, err
		}
	}
	return r.Reader.ReadByte()
}

// Decode gives the pixels of a file whose header this is. It takes no more of the meter than the header says.
func Decode(h *Header, meter *program.Meter) (image.Image, error) {
	if err := meter.Hold(h.Bytes); err != nil {
		return nil, err
	}
	d := &decoder{Header: h, meter: meter}
	if err := d.to.begin(h); err != nil {
		return nil, err
	}
	if h.planar {
		d.whole = make([]byte, h.Width*h.Height*h.samples*h.bits/8)
	}
	if h.compression != none || h.reversed {
		d.block = make([]byte, h.grid.size)
	}
	if h.compression == lzwCode {
		d.lzw = new(lzw)
	}
	g, i := &h.grid, int64(0)
	planes := 1
	if h.planar {
		planes = h.samples
	}
	for plane := range planes {
		for row := range g.rows {
			for column := range g.columns {
				if err := d.place(i, plane, column*g.across, row*g.down); err != nil {
					return nil, fmt.Errorf("strip or tile %d: %w", i, err)
				}
				i++
			}
		}
	}
	if h.planar {
		if err := meter.Spend(int64(len(d.whole))); err != nil {
			return nil, err
		}
		n := h.Width * h.samples * h.bits / 8
		for y := range h.Height {
			d.to.row(h, d.whole[y*n:][:n], 0, y, h.Width)
		}
	}
	return d.to.image(), nil
}

// place decodes a block, and puts its pixels where they belong.
func (d *decoder) place(i int64, plane, x, y int) error {
	g := &d.grid
	down, across := min(g.down, d.Height-y), min(g.across, d.Width-x)
	steps := blockSteps + g.row*int64(g.down)*madeSteps + int64(down)*int64(across)*pixelSteps
	if err := d.meter.Spend(steps); err != nil {
		return err
	}
	from, n := g.offsets.at(i, 0), g.counts.at(i, g.size)
	if from > int64(len(d.dir.cell)) {
		return damaged("it lies beyond the end of the file")
	}
	src := d.dir.cell[from:]
	if src = src[:min(n, int64(len(src)))]; n > int64(len(src)) && d.compression != none {
		return damaged("it has %d bytes, and the file has %d of them", n, len(src))
	}
	if err := d.meter.Spend(int64(len(src)) * readSteps); err != nil {
		return err
	}
	if d.compression == jpegCode {
		return d.placeJPEG(src, plane, x, y)
	}
	rows := g.down
	if !g.tiled {
		rows = down // of the last strip there may be fewer
	}
	block, err := d.expand(src, rows)
	if err != nil {
		return err
	}
	if len(block) < rows*int(g.row) {
		return damaged("it has %d bytes of pixels of %d", len(block), rows*int(g.row))
	}
	for k := range down {
		row := block[k*int(g.row):][:g.row]
		d.predicted(row, across)
		d.put(row, plane, x, y+k, across)
	}
	return nil
}

// put puts a row of a block into the image, or its samples among those of the other planes.
func (d *decoder) put(row []byte, plane, x, y, n int) {
	if !d.planar {
		d.to.row(d.Header, row, x, y, n)
		return
	}
	wide := d.bits / 8
	to := d.whole[((y*d.Width+x)*d.samples+plane)*wide:]
	for i := range n {
		copy(to[i*d.samples*wide:][:wide], row[i*wide:])
	}
}

// expand decompresses a block of so many rows.
func (d *decoder) expand(src []byte, rows int) ([]byte, error) {
	size := rows * int(d.grid.row)
	if d.compression == none {
		src = src[:min(len(src), size)]
		if d.reversed {
			for i, b := range src {
				d.block[i] = bits.Reverse8(b)
			}
			return d.block[:len(src)], nil
		}
		return src, nil
	}
	dst := d.block[:size]
	switch d.compression {
	case packBits:
		return dst[:unpack(dst, src)], nil
	case lzwCode:
		if len(src) > 1 && src[0] == 0 && src[1]&1 != 0 {
			return nil, unsupported("old-style LZW compression")
		}
		return dst[:d.lzw.expand(dst, src)], nil
	case fax3, fax4:
		order, kind := ccitt.MSB, ccitt.Group4
		if d.reversed {
			order = ccitt.LSB
		}
		if d.compression == fax3 {
			kind = ccitt.Group3
		}
		// Raw bits of a TIFF are 0 for white.
		r := ccitt.NewReader(d.meter.Reader(bytes.NewReader(src)), order, kind, d.grid.across, rows,
			&ccitt.Options{Invert: true})
		n, err := io.ReadFull(r, dst)
		return dst[:n], err
	}
	d.in.Reset(src)
	var err error
	if d.zlib == nil {
		d.in.meter = d.meter
		d.zlib, err = zlib.NewReader(&d.in)
	} else {
		err = d.zlib.(zlib.Resetter).Reset(&d.in, nil)
	}
	if err != nil {
		return nil, err
	}
	n, err := io.ReadFull(d.zlib, dst)
	return dst[:n], err
}

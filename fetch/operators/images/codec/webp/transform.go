// Copyright 2014 The Go Authors. All rights reserved.
// Use of this source code is governed by a BSD-style
// license that can be found in the LICENSE file.

package webp

import "bowstring/fetch/operators/program"

// over is how many tiles cover so many pixels, where each tile's side is 1<<bits pixels long.
func over(size int, bits uint32) int { return (size + 1<<bits - 1) >> bits }

const (
	predictor = iota
	crossColour
	subtractGreen
	colourIndexing
	transforms

	// undoSteps are those of a pixel whose transform is undone.
	undoSteps = 12
)

// transform is one that can be undone.
type transform struct {
	kind uint32
	// width is that of the image before it was transformed: indices of colours may lie two to eight in a pixel.
	width int
	// bits is the log-2 size of a tile, of predictor and cross-colour. 8>>bits is the number of bits of an index.
	bits uint32
	// pix has the tiles' values, or the colours.
	pix []byte
}

// transform reads one, and says how wide the image is that it gives.
func (d *decoder) transform(t *transform, h int) (width int, err error) {
	width = t.width
	switch t.kind {
	case predictor, crossColour:
		if t.bits, err = d.read(3); err != nil {
			return 0, err
		}
		t.bits += 2
		t.pix, err = d.pixels(over(width, t.bits), over(h, t.bits), 0, false)
	case colourIndexing:
		n, err := d.read(8)
		if err != nil {
			return 0, err
		}
		switch n++; {
		case n <= 2:
			t.bits = 3
		case n <= 4:
			t.bits = 2
		case n <= 16:
			t.bits = 1
		}
		width = over(width, t.bits)
		pix, err := d.pixels(int(n), 1, 4*256, false)
		if err != nil {
			return 0, err
		}
		for p := 4; p < len(pix); p++ {
			pix[p] += pix[p-4]
		}
		t.pix = pix[:4*256] // an index beyond the colours is transparent black
	}
	return width, err
}

// undo gives the pixels from before the transform.
func (t *transform) undo(pix []byte, h int, meter *program.Meter) ([]byte, error) {
	if t.kind == colourIndexing && t.bits > 0 {
		return t.unpack(pix, h, meter)
	}
	row := 4 * t.width
	for y := range h {
		if err := meter.Spend(int64(t.width) * undoSteps); err != nil {
			return nil, err
		}
		line := pix[y*row:][:row]
		switch t.kind {
		case predictor:
			if y == 0 {
				t.firstRow(line)
			} else {
				t.predict(pix[(y-1)*row:], y)
			}
		case crossColour:
			t.cross(line, y)
		case subtractGreen:
			for p := 0; p < len(line); p += 4 {
				line[p] += line[p+1]
				line[p+2] += line[p+1]
			}
		case colourIndexing:
			for p := 0; p < len(line); p += 4 {
				copy(line[p:p+4], t.pix[4*int(line[p+1]):])
			}
		}
	}
	return pix, nil
}

// firstRow predicts by opaque black, and by what is left.
func (t *transform) firstRow(pix []byte) {
	pix[3] += 0xff
	for p := 4; p < len(pix); p++ {
		pix[p] += pix[p-4]
	}
}

// predict undoes the prediction of row y, the second one in pix, which has the row above first.
func (t *transform) predict(pix []byte, y int) {
	// The first column's predictor is mode 2 (T).
	mask, top, p := 1<<t.bits-1, 0, 4*t.width
	pix[p+0] += pix[top+0]
	pix[p+1] += pix[top+1]
	pix[p+2] += pix[top+2]
	pix[p+3] += pix[top+3]
	p, top = p+4, top+4

	q := 4 * (y >> t.bits) * over(t.width, t.bits)
	mode := t.pix[q+1] & 0x0f
	q += 4
	for x := 1; x < t.width; x++ {
		if x&mask == 0 {
			mode = t.pix[q+1] & 0x0f
			q += 4
		}
		switch mode {
		case 0: // Opaque black.
			pix[p+3] += 0xff

		case 1: // L.
			pix[p+0] += pix[p-4]
			pix[p+1] += pix[p-3]
			pix[p+2] += pix[p-2]
			pix[p+3] += pix[p-1]

		case 2: // T.
			pix[p+0] += pix[top+0]
			pix[p+1] += pix[top+1]
			pix[p+2] += pix[top+2]
			pix[p+3] += pix[top+3]

		case 3: // TR.
			pix[p+0] += pix[top+4]
			pix[p+1] += pix[top+5]
			pix[p+2] += pix[top+6]
			pix[p+3] += pix[top+7]

		case 4: // TL.
			pix[p+0] += pix[top-4]
			pix[p+1] += pix[top-3]
			pix[p+2] += pix[top-2]
			pix[p+3] += pix[top-1]

		case 5: // Average2(Average2(L, TR), T).
			pix[p+0] += avg2(avg2(pix[p-4], pix[top+4]), pix[top+0])
			pix[p+1] += avg2(avg2(pix[p-3], pix[top+5]), pix[top+1])
			pix[p+2] += avg2(avg2(pix[p-2], pix[top+6]), pix[top+2])
			pix[p+3] += avg2(avg2(pix[p-1], pix[top+7]), pix[top+3])

		case 6: // Average2(L, TL).
			pix[p+0] += avg2(pix[p-4], pix[top-4])
			pix[p+1] += avg2(pix[p-3], pix[top-3])
			pix[p+2] += avg2(pix[p-2], pix[top-2])
			pix[p+3] += avg2(pix[p-1], pix[top-1])

		case 7: // Average2(L, T).
			pix[p+0] += avg2(pix[p-4], pix[top+0])
			pix[p+1] += avg2(pix[p-3], pix[top+1])
			pix[p+2] += avg2(pix[p-2], pix[top+2])
			pix[p+3] += avg2(pix[p-1], pix[top+3])

		case 8: // Average2(TL, T).
			pix[p+0] += avg2(pix[top-4], pix[top+0])
			pix[p+1] += avg2(pix[top-3], pix[top+1])
			pix[p+2] += avg2(pix[top-2], pix[top+2])
			pix[p+3] += avg2(pix[top-1], pix[top+3])

		case 9: // Average2(T, TR).
			pix[p+0] += avg2(pix[top+0], pix[top+4])
			pix[p+1] += avg2(pix[top+1], pix[top+5])
			pix[p+2] += avg2(pix[top+2], pix[top+6])
			pix[p+3] += avg2(pix[top+3], pix[top+7])

		case 10: // Average2(Average2(L, TL), Average2(T, TR)).
			pix[p+0] += avg2(avg2(pix[p-4], pix[top-4]), avg2(pix[top+0], pix[top+4]))
			pix[p+1] += avg2(avg2(pix[p-3], pix[top-3]), avg2(pix[top+1], pix[top+5]))
			pix[p+2] += avg2(avg2(pix[p-2], pix[top-2]), avg2(pix[top+2], pix[top+6]))
			pix[p+3] += avg2(avg2(pix[p-1], pix[top-1]), avg2(pix[top+3], pix[top+7]))

		case 11: // Select(L, T, TL).
			l0 := int32(pix[p-4])
			l1 := int32(pix[p-3])
			l2 := int32(pix[p-2])
			l3 := int32(pix[p-1])
			c0 := int32(pix[top-4])
			c1 := int32(pix[top-3])
			c2 := int32(pix[top-2])
			c3 := int32(pix[top-1])
			t0 := int32(pix[top+0])
			t1 := int32(pix[top+1])
			t2 := int32(pix[top+2])
			t3 := int32(pix[top+3])
			l := abs(c0-t0) + abs(c1-t1) + abs(c2-t2) + abs(c3-t3)
			t := abs(c0-l0) + abs(c1-l1) + abs(c2-l2) + abs(c3-l3)
			if l < t {
				pix[p+0] += uint8(l0)
				pix[p+1] += uint8(l1)
				pix[p+2] += uint8(l2)
				pix[p+3] += uint8(l3)
			} else {
				pix[p+0] += uint8(t0)
				pix[p+1] += uint8(t1)
				pix[p+2] += uint8(t2)
				pix[p+3] += uint8(t3)
			}

		case 12: // ClampAddSubtractFull(L, T, TL).
			pix[p+0] += clampAddSubtractFull(pix[p-4], pix[top+0], pix[top-4])
			pix[p+1] += clampAddSubtractFull(pix[p-3], pix[top+1], pix[top-3])
			pix[p+2] += clampAddSubtractFull(pix[p-2], pix[top+2], pix[top-2])
			pix[p+3] += clampAddSubtractFull(pix[p-1], pix[top+3], pix[top-1])

		case 13: // ClampAddSubtractHalf(Average2(L, T), TL).
			pix[p+0] += clampAddSubtractHalf(avg2(pix[p-4], pix[top+0]), pix[top-4])
			pix[p+1] += clampAddSubtractHalf(avg2(pix[p-3], pix[top+1]), pix[top-3])
			pix[p+2] += clampAddSubtractHalf(avg2(pix[p-2], pix[top+2]), pix[top-2])
			pix[p+3] += clampAddSubtractHalf(avg2(pix[p-1], pix[top+3]), pix[top-1])
		}
		p, top = p+4, top+4
	}
}

// cross undoes what red and blue have of other colours, in row y.
func (t *transform) cross(pix []byte, y int) {
	var greenToRed, greenToBlue, redToBlue int32
	q, mask := 4*(y>>t.bits)*over(t.width, t.bits), 1<<t.bits-1
	for x := range t.width {
		if x&mask == 0 {
			redToBlue, greenToBlue, greenToRed = int32(int8(t.pix[q])), int32(int8(t.pix[q+1])), int32(int8(t.pix[q+2]))
			q += 4
		}
		px := pix[4*x:][:4:4]
		green := int32(int8(px[1]))
		px[0] += uint8(uint32(greenToRed*green) >> 5)
		px[2] += uint8(uint32(greenToBlue*green) >> 5)
		px[2] += uint8(uint32(redToBlue*int32(int8(px[0]))) >> 5)
	}
}

// unpack gives the colours of indices that lie several in a pixel.
func (t *transform) unpack(pix []byte, h int, meter *program.Meter) ([]byte, error) {
	if err := meter.Hold(int64(4 * t.width * h)); err != nil {
		return nil, err
	}
	indices, bits := 1<<t.bits, uint32(8>>t.bits)
	out, p, v := make([]byte, 0, 4*t.width*h), 0, uint32(0)
	for range h {
		if err := meter.Spend(int64(t.width) * undoSteps); err != nil {
			return nil, err
		}
		for x := range t.width {
			if x%indices == 0 {
				v = uint32(pix[p+1])
				p += 4
			}
			i := 4 * (v & (1<<bits - 1))
			out = append(out, t.pix[i:i+4]...)
			v >>= bits
		}
	}
	return out, nil
}

func abs(x int32) int32 {
	if x < 0 {
		return -x
	}
	return x
}

func avg2(a, b uint8) uint8 {
	return uint8((int32(a) + int32(b)) / 2)
}

func clampAddSubtractFull(a, b, c uint8) uint8 {
	x := int32(a) + int32(b) - int32(c)
	if x < 0 {
		return 0
	}
	if x > 255 {
		return 255
	}
	return uint8(x)
}

func clampAddSubtractHalf(a, b uint8) uint8 {
	x := int32(a) + (int32(a)-int32(b))/2
	if x < 0 {
		return 0
	}
	if x > 255 {
		return 255
	}
	return uint8(x)
}

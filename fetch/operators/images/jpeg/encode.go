package jpeg

import "math/bits"

// Encoder writes baseline streams with the tables of T.81 annex K and chroma subsampled
// 2x2: the same bytes as libjpeg's defaults. It is not safe for concurrent use. Planes of
// the whole image are in memory.
type Encoder struct {
	out    []byte
	acc    uint64 // bits that are not in out yet: the lower n
	n      uint
	planes [3][]byte           // samples of Y, Cb and Cr, or of grey
	stride [3]int              // bytes of a row of samples
	rows   []byte              // chroma before subsampling
	quant  [2][blockSize]int32 // of luma and chroma, in natural order
	last   [3]int32            // last DC coefficient of each component
}

// code is the Huffman code of a symbol.
type code struct {
	bits   uint32
	length uint8
}

// standardCodes are the codes of standardTables: by class, by table and by symbol (T.81
// annex C).
var standardCodes = func() (all [2][2][256]code) {
	for class := range all {
		for n := range all[class] {
			t := &standardTables[class][n]
			value, at := uint32(0), 0
			for length, count := range t.counts {
				for range count {
					all[class][n][t.symbols[at]] = code{bits: value, length: uint8(length + 1)}
					value, at = value+1, at+1
				}
				value <<= 1
			}
		}
	}
	return all
}()

// standardQuant is tables K.1 and K.2 of T.81, in natural order.
var standardQuant = [2][blockSize]uint8{
	{
		16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
		14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
		18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
		49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
	},
	{
		17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99,
		24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
		99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
		99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
	},
}

// MaxEncoded is the maximum size in bytes of an encoded image. It is a bound and not an
// estimate: Encode never exceeds it.
func MaxEncoded(width, height int) int64 {
	// A coefficient has at most 16 bits of code and 11 of value, and stuffing may double
	// them. Chroma has half as many samples as luma.
	return int64(ceil(width, 16))*int64(ceil(height, 16))*6*blockSize*7 + 1024
}

// Encode encodes interleaved pixels of 1 or 3 channels with a quality from 1 to 100, scaled
// like libjpeg's. The result is valid until the next call. It calls spend before every few
// rows of the image, and returns its error. The width and height must be at most 65535, and
// the image not empty.
func (e *Encoder) Encode(pix []byte, width, height, channels, quality int,
	spend func(rows int) error) ([]byte, error) {
	e.out, e.acc, e.n, e.last = e.out[:0], 0, 0, [3]int32{}
	// jpeg_quality_scaling of jcparam.c.
	scale := 200 - 2*quality
	if quality < 50 {
		scale = 5000 / quality
	}
	for t := range e.quant {
		for i, q := range standardQuant[t] {
			e.quant[t][i] = int32(min(max((int(q)*scale+50)/100, 1), 255))
		}
	}
	e.header(width, height, channels)
	encode := e.colour
	if channels == 1 {
		encode = e.grey
	}
	if err := encode(pix, width, height, spend); err != nil {
		return nil, err
	}
	if e.n > 0 {
		e.put(0x7F, 7) // the last byte is padded with ones
	}
	return append(e.out, 0xFF, markEOI), nil
}

// segment writes a marker and its segment. data must be shorter than 65534 bytes.
func (e *Encoder) segment(m byte, data ...byte) {
	n := len(data) + 2
	e.out = append(e.out, 0xFF, m, byte(n>>8), byte(n))
	e.out = append(e.out, data...)
}

// header writes everything before the entropy-coded data: JFIF 1.01, tables, frame and scan
// headers. The tables of chroma are omitted for grey images, as libjpeg does.
func (e *Encoder) header(width, height, channels int) {
	e.out = append(e.out, 0xFF, markSOI)
	e.segment(markAPP0, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0)
	tables := min(channels, 2)
	for t := range tables {
		data := []byte{byte(t)}
		for k := range blockSize {
			data = append(data, byte(e.quant[t][zigzag[k]]))
		}
		e.segment(markDQT, data...)
	}
	frame := []byte{8, byte(height >> 8), byte(height), byte(width >> 8), byte(width), byte(channels)}
	scan := []byte{byte(channels)}
	for c := range channels {
		sampling, table := byte(0x11), byte(min(c, 1))
		if c == 0 && channels == 3 {
			sampling = 0x22
		}
		frame = append(frame, byte(c+1), sampling, table)
		scan = append(scan, byte(c+1), table<<4|table)
	}
	e.segment(markSOF0, frame...)
	for t := range tables {
		for class := range 2 {
			s := &standardTables[class][t]
			e.segment(markDHT, append(append([]byte{byte(class<<4 | t)}, s.counts[:]...), s.symbols...)...)
		}
	}
	e.segment(markSOS, append(scan, 0, blockSize-1, 0)...)
}

// plane returns the samples of component i, with room for width * height. Its contents are
// those of an earlier image; the caller overwrites all of it.
func (e *Encoder) plane(i, width, height int) []byte {
	e.stride[i] = width
	if cap(e.planes[i]) < width*height {
		e.planes[i] = make([]byte, width*height)
	}
	e.planes[i] = e.planes[i][:width*height]
	return e.planes[i]
}

// grey encodes one component, in blocks of 8x8. The last row is repeated to complete a
// block.
func (e *Encoder) grey(pix []byte, width, height int, spend func(rows int) error) error {
	across, down := ceil(width, 8), ceil(height, 8)
	y := e.plane(0, across*8, down*8)
	for i := range down * 8 {
		row := y[i*across*8:][:across*8]
		copy(row, pix[min(i, height-1)*width:][:width])
		extendRow(row, width)
	}
	for by := range down {
		if err := spend(8); err != nil {
			return err
		}
		for bx := range across {
			e.block(0, bx, by)
		}
	}
	return nil
}

// extendRow repeats the last pixel to the end of the row. It is expand_right_edge of
// libjpeg.
func extendRow(row []byte, width int) {
	for i := width; i < len(row); i++ {
		row[i] = row[width-1]
	}
}

// colour converts to YCbCr, subsamples chroma, and writes MCUs of four blocks of luma and
// one of each chroma.
func (e *Encoder) colour(pix []byte, width, height int, spend func(rows int) error) error {
	across, down := ceil(width, 8), ceil(height, 8)
	ux, uy := ceil(width, 16), ceil(height, 16)
	luma := e.plane(0, ux*16, uy*16)
	// Full chroma of two rows is in e.rows.
	chroma := [2][]byte{e.plane(1, ux*8, uy*8), e.plane(2, ux*8, uy*8)}
	w := ux * 16
	if cap(e.rows) < 4*w {
		e.rows = make([]byte, 4*w)
	}
	for y := range uy * 8 {
		if err := spend(1); err != nil { // half the work of two rows
			return err
		}
		if 2*y >= height { // libjpeg repeats subsampled rows
			for c := range chroma {
				copy(chroma[c][y*w/2:][:w/2], chroma[c][(y-1)*w/2:])
			}
			for k := range 2 {
				copy(luma[(2*y+k)*w:][:w], luma[(2*y-1)*w:])
			}
			continue
		}
		for k := range 2 {
			at := min(2*y+k, height-1)
			l, cb, cr := luma[(2*y+k)*w:][:w], e.rows[2*k*w:][:w], e.rows[(2*k+1)*w:][:w]
			fromRGB(pix[at*width*3:][:width*3], l, cb, cr)
			extendRow(l, width)
			extendRow(cb, width)
			extendRow(cr, width)
		}
		for c := range chroma {
			a, b, out := e.rows[c*w:][:w], e.rows[(2+c)*w:][:w], chroma[c][y*w/2:][:w/2]
			for x := range out {
				// The bias alternates between 1 and 2 by column: h2v2_downsample of
				// jcsample.c.
				out[x] = byte((int(a[2*x]) + int(a[2*x+1]) + int(b[2*x]) + int(b[2*x+1]) + 1 + x&1) >> 2)
			}
		}
	}
	for y := range uy {
		if err := spend(8); err != nil {
			return err
		}
		for x := range ux {
			for k := range 4 {
				bx, by := 2*x+k&1, 2*y+k>>1
				if bx >= across || by >= down {
					e.empty()
					continue
				}
				e.block(0, bx, by)
			}
			e.block(1, x, y)
			e.block(2, x, y)
		}
	}
	return nil
}

// fromRGB is rgb_ycc_convert of jccolor.c, with 16 bits of fraction.
func fromRGB(rgb, y, cb, cr []byte) {
	fix := func(x float64) int32 { return int32(x*65536 + 0.5) }
	const middle, half = 128 << 16, 1 << 15
	for i := range len(rgb) / 3 {
		r, g, b := int32(rgb[3*i]), int32(rgb[3*i+1]), int32(rgb[3*i+2])
		y[i] = byte((fix(0.29900)*r + fix(0.58700)*g + fix(0.11400)*b + half) >> 16)
		cb[i] = byte((-fix(0.16874)*r - fix(0.33126)*g + fix(0.5)*b + middle + half - 1) >> 16)
		cr[i] = byte((fix(0.5)*r - fix(0.41869)*g - fix(0.08131)*b + middle + half - 1) >> 16)
	}
}

// put writes the lower n bits of v, and stuffs a zero byte after 0xFF. v may have more
// bits. n is at most 16.
func (e *Encoder) put(v uint32, n uint) {
	e.acc = e.acc<<n | uint64(v&(1<<n-1))
	for e.n += n; e.n >= 8; e.n -= 8 {
		b := byte(e.acc >> (e.n - 8))
		e.out = append(e.out, b)
		if b == 0xFF {
			e.out = append(e.out, 0)
		}
	}
}

// symbol writes the code of a symbol.
func (e *Encoder) symbol(c *code) { e.put(c.bits, uint(c.length)) }

// empty writes a block of luma outside of the image: no difference in DC, no AC
// coefficients.
func (e *Encoder) empty() {
	e.symbol(&standardCodes[0][0][0])
	e.symbol(&standardCodes[1][0][0])
}

// block transforms, quantises and writes block (bx, by) of component c. The coefficients of
// b are in natural order until the entropy coding.
func (e *Encoder) block(c, bx, by int) {
	var b [blockSize]int32
	for y := range 8 {
		row := e.planes[c][(by*8+y)*e.stride[c]+bx*8:][:8]
		for x, v := range row {
			b[y*8+x] = int32(v) - 128
		}
	}
	forward(&b)
	table := min(c, 1)
	// The transform's output is scaled by 8. Rounding is that of jcdctmgr.c. Division
	// rounds half away from zero.
	for i, q := range e.quant[table] {
		v, q := b[i], q<<3
		if v < 0 {
			b[i] = -((q/2 - v) / q)
		} else {
			b[i] = (v + q/2) / q
		}
	}
	dc, ac := &standardCodes[0][table], &standardCodes[1][table]
	diff := b[0] - e.last[c]
	e.last[c] = b[0]
	// DC: the difference to the block before, T.81 F.1.2.1.
	e.value(&dc[size(diff)], diff)
	// AC: run of zeros and size, T.81 F.1.2.2. 0xF0 is 16 zeros, 0 the end of the block.
	// run counts the zeros since the last coefficient.
	run := 0
	for k := 1; k < blockSize; k++ {
		v := b[zigzag[k]]
		if v == 0 {
			run++
			continue
		}
		for ; run > 15; run -= 16 {
			e.symbol(&ac[0xF0])
		}
		e.value(&ac[run<<4|int(size(v))], v)
		run = 0
	}
	if run > 0 {
		e.symbol(&ac[0])
	}
}

// size is the number of bits of the magnitude of v: SSSS of T.81.
func size(v int32) uint { return uint(bits.Len32(uint32(max(v, -v)))) }

// value writes the symbol's code and the bits of the value, as many as its size. A negative
// value is written as its ones' complement: T.81 F.1.2.1.
func (e *Encoder) value(c *code, v int32) {
	e.symbol(c)
	n := size(v)
	if v < 0 {
		v--
	}
	e.put(uint32(v), n)
}

// forward is the DCT of libjpeg's jfdctint.c: rows, then columns. Its output is scaled by
// 8. It is the inverse of the decoder's transform up to rounding.
func forward(b *[blockSize]int32) {
	for y := 0; y < blockSize; y += 8 {
		forward8(b[y:y+8], 1, constBits-passBits, func(v int32) int32 { return v << passBits })
	}
	for x := range 8 {
		forward8(b[x:], 8, constBits+passBits, func(v int32) int32 { return (v + 1<<(passBits-1)) >> passBits })
	}
}

// forward8 transforms eight values at distance step, and removes down bits of fraction.
// plain scales the two outputs that need no multiplication.
func forward8(d []int32, step int, down uint, plain func(int32) int32) {
	at := func(i int) *int32 { return &d[i*step] }
	t0, t7 := *at(0)+*at(7), *at(0)-*at(7)
	t1, t6 := *at(1)+*at(6), *at(1)-*at(6)
	t2, t5 := *at(2)+*at(5), *at(2)-*at(5)
	t3, t4 := *at(3)+*at(4), *at(3)-*at(4)
	t10, t13, t11, t12 := t0+t3, t0-t3, t1+t2, t1-t2
	*at(0), *at(4) = plain(t10+t11), plain(t10-t11)
	descale := func(v int32) int32 { return (v + 1<<(down-1)) >> down }
	z1 := (t12 + t13) * fix0541
	*at(2), *at(6) = descale(z1+t13*fix0765), descale(z1-t12*fix1847)
	o7, o5, o3, o1 := odd(t4, t5, t6, t7)
	*at(7), *at(5), *at(3), *at(1) = descale(o7), descale(o5), descale(o3), descale(o1)
}

// Held is the number of bytes that the encoder keeps for its next use.
func (e *Encoder) Held() int {
	return cap(e.out) + cap(e.rows) + cap(e.planes[0]) + cap(e.planes[1]) + cap(e.planes[2])
}

package codec

import (
	"encoding/binary"
	"image"
	"image/color"

	"bowstring/fetch/operators/program"
)

// Tags of a TIFF, of its specification's version 6.0 and of ICC's.
const (
	tiffCompression  = 259
	tiffRowsPerStrip = 278
	tiffStripCounts  = 279
	tiffTileWidth    = 322
	tiffTileLength   = 323
	tiffTileCounts   = 325
	tiffProfile      = 34675
)

const (
	// tiffReads is how much of a file the library reads at once, at most.
	tiffReads = 10 << 20
	// tiffPixels are more than anybody has memory for. Sums of fewer do not overflow.
	tiffPixels = 1 << 34
)

// tiffBytes bounds what the library allocates for the first image of a TIFF that it takes for one: the pixels, where
// the strips or tiles lie, and the bytes of these, with the buffers that were outgrown. The state of a decompressor
// comes and goes with each of them and is in what is added for small things.
//
// The library checks that a strip is no larger than eight bytes a pixel, whatever its pixels are. So a compressed one
// may become as large, and its buffer has up to twice that, and half of it as much again before.
func tiffBytes(cell []byte, c image.Config) int64 {
	width, height := int64(c.Width), int64(c.Height)
	total := width*height*tiffPixel(c.ColorModel) + tiffEntries(cell)*12 + roomBytes
	b := tiffBlocksOf(cell, width, height)
	if b.refused {
		return total
	}
	// Where each begins and how long it is: as numbers, and as they are in the file.
	total += 2*8*b.n + 2*read(8*b.n)
	switch b.compression {
	case 0, 1: // none: each has a buffer of its own
		for i := range min(b.n, b.counts.n) {
			if n := b.counts.at(i); n <= b.most { // or the library refuses it
				total += read(n)
			}
		}
	case 3, 4: // fax: it has one bit a pixel, and two rows of bytes besides
		total += doubled(b.rows*((b.across+7)/8)) + 2*b.across
	case 32773: // PackBits
		total += grown(1024, b.most+128)
	default: // all share a buffer
		total += doubled(b.most)
	}
	return total
}

// tiffSteps bounds the work. A strip may become as large as the library allows, and each is read as often as it is named.
func tiffSteps(cell []byte, c image.Config) int64 {
	width, height := int64(c.Width), int64(c.Height)
	b := tiffBlocksOf(cell, width, height)
	if b.refused {
		return roomSteps
	}
	read := program.Count(0)
	for i := range min(b.n, b.counts.n) {
		read = read.Plus(program.Count(min(b.counts.at(i), int64(len(cell)))))
	}
	steps := read.Times(byteSteps).Plus(program.Count(b.n).Times(stripSteps))
	steps = steps.Plus(program.Count(b.n).Times(b.most).Times(inflatedSteps))
	return steps.Plus(program.Count(width * height).Times(pixelSteps)).Plus(program.Count(roomSteps)).Int64()
}

// tiffBlocks are the strips or tiles of an image.
type tiffBlocks struct {
	across, rows int64 // of each
	n            int64
	most         int64 // bytes of each, decompressed
	counts       tiffNumbers
	compression  int64
	refused      bool // the library refuses tiles like these
}

func tiffBlocksOf(cell []byte, width, height int64) tiffBlocks {
	b := tiffBlocks{across: width, rows: height, compression: tiffValue(cell, tiffCompression)}
	counts := uint16(tiffStripCounts)
	if w := tiffValue(cell, tiffTileWidth); w != 0 {
		b.across, b.rows, counts = w, tiffValue(cell, tiffTileLength), tiffTileCounts
		if b.across < 8 || b.rows < 8 || b.across > max(width+16, 1024) || b.rows > max(height+16, 1024) {
			b.refused = true
			return b
		}
	} else if n := tiffValue(cell, tiffRowsPerStrip); n > 0 {
		b.rows = min(b.rows, n)
	}
	b.n = (width + b.across - 1) / b.across * ((height + b.rows - 1) / b.rows)
	b.most = 8 * b.across * b.rows
	b.counts = tiffValues(cell, counts)
	return b
}

// tiffPixel is how many bytes a pixel has in the library's images.
func tiffPixel(m color.Model) int64 {
	switch m {
	case color.GrayModel:
		return 1
	case color.Gray16Model:
		return 2
	case color.RGBAModel, color.NRGBAModel:
		return 4
	case color.RGBA64Model, color.NRGBA64Model:
		return 8
	default: // a palette
		return 1
	}
}

// doubled is the sum of the buffers of a bytes.Buffer that n bytes are read into: it wants room for 512 more, and
// takes twice what it had.
func doubled(n int64) int64 {
	size := int64(512)
	for size < n+512 {
		size *= 2
	}
	return 2 * size
}

// grown is the sum of the buffers of a slice that n bytes are appended to, a few at a time: each has a quarter more
// than the one before.
func grown(size, n int64) int64 {
	total := size
	for size < n {
		size += size/4 + 1024
		total += size
	}
	return total
}

// read is what the library allocates to read n bytes of the file.
func read(n int64) int64 {
	if n < tiffReads {
		return n
	}
	return tiffReads + grown(tiffReads, n)
}

// tiffField is the entry of a tag of the first image of a TIFF, of 12 bytes; nil if there is none.
func tiffField(cell []byte, tag uint16) (entry []byte, order binary.ByteOrder) {
	if len(cell) < 8 {
		return nil, nil
	}
	order = binary.LittleEndian
	if cell[0] == 'M' {
		order = binary.BigEndian
	}
	at := uint64(order.Uint32(cell[4:]))
	if at+2 > uint64(len(cell)) {
		return nil, order
	}
	entries := cell[at+2:]
	for range order.Uint16(cell[at:]) {
		if len(entries) < 12 {
			return nil, order
		}
		if order.Uint16(entries) == tag {
			return entries[:12], order
		}
		entries = entries[12:]
	}
	return nil, order
}

// tiffEntries is how many tags the first image of a TIFF says that it has.
func tiffEntries(cell []byte) int64 {
	if len(cell) < 8 {
		return 0
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if cell[0] == 'M' {
		order = binary.BigEndian
	}
	at := int64(order.Uint32(cell[4:]))
	if at+2 > int64(len(cell)) {
		return 0
	}
	return int64(order.Uint16(cell[at:]))
}

// tiffNumbers are the values of a tag.
type tiffNumbers struct {
	values []byte
	order  binary.ByteOrder
	size   int64 // of each; 0 if there are none
	n      int64
}

// tiffValues finds the values of a tag, which are whole numbers. What the file does not have is left out.
func tiffValues(cell []byte, tag uint16) (v tiffNumbers) {
	entry, order := tiffField(cell, tag)
	if entry == nil {
		return v
	}
	v.order = order
	switch order.Uint16(entry[2:]) {
	case 1:
		v.size = 1
	case 3:
		v.size = 2
	case 4:
		v.size = 4
	default:
		return v
	}
	v.values, v.n = entry[8:], int64(order.Uint32(entry[4:]))
	if v.n*v.size > 4 {
		v.values = cell[min(int64(order.Uint32(v.values)), int64(len(cell))):]
	}
	v.n = min(v.n, int64(len(v.values))/v.size)
	return v
}

// at is value i, or 0.
func (v *tiffNumbers) at(i int64) int64 {
	if i >= v.n {
		return 0
	}
	switch value := v.values[i*v.size:]; v.size {
	case 1:
		return int64(value[0])
	case 2:
		return int64(v.order.Uint16(value))
	default:
		return int64(v.order.Uint32(value))
	}
}

// tiffValue is the first value of a tag, or 0.
func tiffValue(cell []byte, tag uint16) int64 {
	v := tiffValues(cell, tag)
	return v.at(0)
}

// tiffEntry is the bytes of a tag.
func tiffEntry(cell []byte, tag uint16) (data []byte, ok bool) {
	entry, order := tiffField(cell, tag)
	if entry == nil {
		return nil, false
	}
	from, n := uint64(order.Uint32(entry[8:])), uint64(order.Uint32(entry[4:]))
	if n <= 4 || from+n > uint64(len(cell)) { // of bytes; a profile has more than four
		return nil, true
	}
	return cell[from:][:n], true
}

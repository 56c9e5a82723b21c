// Copyright 2014 The Go Authors. All rights reserved.
// Use of this source code is governed by a BSD-style
// license that can be found in the LICENSE file.

package webp

import (
	"errors"
	"image"

	"bowstring/fetch/operators/program"
)

var (
	errLengths = errors.New("invalid code lengths")
	errTree    = errors.New("invalid Huffman tree")
	errEnd     = errors.New("the data ends early")
	errCache   = errors.New("invalid colour cache")
	errCopy    = errors.New("invalid copy of earlier pixels")
)

// cacheMultiplier is the multiplier of the colour cache's hash, WebP Lossless
// specification, section 5.2.3.
const cacheMultiplier = 0x1e35a7bd

// nearby maps distance codes up to 120 to offsets by rows and columns, section 5.2.2. Most
// copies come from a pixel close by, which these codes express in one byte.
var nearby = [120]uint8{
	0x18, 0x07, 0x17, 0x19, 0x28, 0x06, 0x27, 0x29, 0x16, 0x1a,
	0x26, 0x2a, 0x38, 0x05, 0x37, 0x39, 0x15, 0x1b, 0x36, 0x3a,
	0x25, 0x2b, 0x48, 0x04, 0x47, 0x49, 0x14, 0x1c, 0x35, 0x3b,
	0x46, 0x4a, 0x24, 0x2c, 0x58, 0x45, 0x4b, 0x34, 0x3c, 0x03,
	0x57, 0x59, 0x13, 0x1d, 0x56, 0x5a, 0x23, 0x2d, 0x44, 0x4c,
	0x55, 0x5b, 0x33, 0x3d, 0x68, 0x02, 0x67, 0x69, 0x12, 0x1e,
	0x66, 0x6a, 0x22, 0x2e, 0x54, 0x5c, 0x43, 0x4d, 0x65, 0x6b,
	0x32, 0x3e, 0x78, 0x01, 0x77, 0x79, 0x53, 0x5d, 0x11, 0x1f,
	0x64, 0x6c, 0x42, 0x4e, 0x76, 0x7a, 0x21, 0x2f, 0x75, 0x7b,
	0x31, 0x3f, 0x63, 0x6d, 0x52, 0x5e, 0x00, 0x74, 0x7c, 0x41,
	0x4f, 0x10, 0x20, 0x62, 0x6e, 0x30, 0x73, 0x7d, 0x51, 0x5f,
	0x40, 0x72, 0x7e, 0x61, 0x6f, 0x50, 0x71, 0x7f, 0x60, 0x70,
}

// distance is the distance in pixels of a code, for an image of width w. code and the
// result are at least 1.
func distance(w int, code uint32) int {
	if int(code) > len(nearby) {
		return int(code) - len(nearby)
	}
	at := int(nearby[code-1])
	return max((at>>4)*w+8-at&0xf, 1)
}

// decoder reads the bit stream of a lossless image, lowest bits first. It lives for one
// file. lengths and nodes are scratch memory for the code that describes a tree.
type decoder struct {
	data  []byte
	at    int
	bits  uint32
	nBits uint32

	meter   *program.Meter // charged for trees and pixels
	lengths [literals + lengthCodes + 1<<maxCache]uint8
	nodes   [2*len(lengthOrder) - 1]node
}

// read returns the next n bits, n <= 24. Bits after the end of the data are an error, not
// zeros.
func (d *decoder) read(n uint32) (uint32, error) {
	for d.nBits < n {
		if d.at >= len(d.data) {
			return 0, errEnd
		}
		d.bits |= uint32(d.data[d.at]) << d.nBits
		d.at++
		d.nBits += 8
	}
	u := d.bits & (1<<n - 1)
	d.bits >>= n
	d.nBits -= n
	return u, nil
}

// Sizes of the alphabets, and the trees of a group in their order.
const (
	literals      = 256
	lengthCodes   = 24
	distanceCodes = 40
	maxCache      = 11

	green        = 0
	red          = 1
	blue         = 2
	alpha        = 3
	distanceTree = 4
	trees        = 5
)

// alphabets are the sizes of the alphabets of a group's trees, without the colour cache,
// section 6.2.
var alphabets = [trees]int{literals + lengthCodes, literals, literals, literals, distanceCodes}

// group is the five trees with which the pixels of some tiles are coded.
type group [trees]tree

// Codes from this one on repeat: the last length, or zero.
const repeats = 16

var (
	lengthOrder   = [19]uint8{17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	repeatBits    = [3]uint32{2, 3, 7}
	repeatOffsets = [3]uint32{3, 3, 11}
)

// codeLengths reads the code lengths of a tree, which are coded with another tree, section
// 6.2.1. own has the lengths of that one. All of to must be zero before. The number of
// symbols may be limited; the others have no code.
func (d *decoder) codeLengths(to, own []uint8) error {
	h := tree{nodes: d.nodes[:]}
	if err := h.build(own, nil); err != nil {
		return err
	}
	most := len(to)
	// The number of symbols with a length may be given, so that the rest of a large
	// alphabet costs nothing.
	short, err := d.read(1)
	if err != nil {
		return err
	}
	if short != 0 {
		n, err := d.read(3)
		if err != nil {
			return err
		}
		n, err = d.read(2 + 2*n)
		if err != nil {
			return err
		}
		if most = int(n) + 2; most > len(to) {
			return errLengths
		}
	}
	last := uint8(8) // the length to repeat if none has been read
	for symbol := 0; symbol < len(to) && most > 0; most-- {
		l, err := h.next(d)
		if err != nil {
			return err
		}
		if l < repeats {
			to[symbol] = uint8(l)
			symbol++
			if l != 0 {
				last = uint8(l)
			}
			continue
		}
		n, err := d.read(repeatBits[l-repeats])
		if err != nil {
			return err
		}
		n += repeatOffsets[l-repeats]
		if symbol+int(n) > len(to) {
			return errLengths
		}
		// Codes 17 and 18 are runs of zeros, which to has already.
		if l == repeats {
			for i := range int(n) {
				to[symbol+i] = last
			}
		}
		symbol += int(n)
	}
	return nil
}

// tree reads a tree. If h is nil it only skips it. A skipped tree is still parsed: the next
// one begins after it.
func (d *decoder) tree(h *tree, alphabet int) error {
	if err := d.meter.Spend(treeSteps); err != nil {
		return err
	}
	// One bit selects the form of the tree.
	simple, err := d.read(1)
	if err != nil {
		return err
	}
	if simple != 0 {
		return d.simpleTree(h, alphabet)
	}
	if err := d.meter.Spend(int64(alphabet) * alphabetSteps); err != nil {
		return err
	}
	n, err := d.read(4)
	if err != nil {
		return err
	}
	if n += 4; int(n) > len(lengthOrder) {
		return errTree
	}
	var own [len(lengthOrder)]uint8
	for _, at := range lengthOrder[:n] {
		l, err := d.read(3)
		if err != nil {
			return err
		}
		own[at] = uint8(l)
	}
	lengths := d.lengths[:alphabet]
	clear(lengths)
	if err := d.codeLengths(lengths, own[:]); err != nil || h == nil {
		return err
	}
	return h.build(lengths, d.meter)
}

// simpleTree reads a tree of one or two symbols. Its codes have one bit, or none if there
// is one symbol.
func (d *decoder) simpleTree(h *tree, alphabet int) error {
	n, err := d.read(1)
	if err != nil {
		return err
	}
	wide, err := d.read(1)
	if err != nil {
		return err
	}
	var symbols [2]uint32
	if symbols[0], err = d.read(7*wide + 1); err != nil {
		return err
	}
	if n == 1 {
		if symbols[1], err = d.read(8); err != nil {
			return err
		}
	}
	if h == nil {
		return nil
	}
	return h.buildSimple(n+1, symbols, alphabet, d.meter)
}

// maxGroups is the maximum number of groups: that of libwebp. Each group has five tables,
// so an image could otherwise demand much more memory than it has pixels.
const maxGroups = 2600

// tiles maps a tile to the group of its pixels: the entropy image. Without an entropy
// image, groups has one element and bits is 0.
type tiles struct {
	pix    []byte // four bytes per tile; the first two are the group's index
	bits   uint32 // log2 of the side of a tile in pixels
	across int    // number of tiles in a row
	groups []group
}

// groups reads the groups of an image. Only the top-level image may have several. Memory is
// counted before it is allocated: the number comes from the file.
func (d *decoder) groups(w, h int, topLevel bool, cacheBits uint32) (t tiles, err error) {
	n, last, mapping := 1, 0, []int16(nil)
	if topLevel {
		several, err := d.read(1)
		if err != nil {
			return t, err
		}
		if several != 0 {
			if t.bits, err = d.read(3); err != nil {
				return t, err
			}
			t.bits += 2
			t.across = over(w, t.bits)
			if t.pix, err = d.pixels(t.across, over(h, t.bits), 0, false); err != nil {
				return t, err
			}
			if n, last, mapping, err = t.number(); err != nil {
				return t, err
			}
		}
	}
	if err := d.meter.Hold(int64(n) * trees * treeBytes); err != nil {
		return t, err
	}
	t.groups = make([]group, n)
	for i := range last + 1 {
		g := (*group)(nil) // nil: no tile uses the group
		if mapping == nil {
			g = &t.groups[i]
		} else if mapping[i] >= 0 {
			g = &t.groups[mapping[i]]
		}
		for k, alphabet := range alphabets {
			if k == green && cacheBits > 0 {
				alphabet += 1 << cacheBits
			}
			to := (*tree)(nil)
			if g != nil {
				to = &g[k]
			}
			if err := d.tree(to, alphabet); err != nil {
				return t, err
			}
		}
	}
	return t, nil
}

// number returns the number of groups and the last index. If many indices are unused, the
// tiles are renumbered: mapping has the new index of each group, or -1. A file may use
// index 2000 and no other; unused groups are skipped in the data.
func (t *tiles) number() (n, last int, mapping []int16, err error) {
	for p := 0; p < len(t.pix); p += 4 {
		last = max(last, int(t.pix[p])<<8|int(t.pix[p+1]))
	}
	if last >= maxGroups {
		return 0, 0, nil, errors.New("it has too many Huffman trees")
	}
	if last < 1000 && last < len(t.pix)/4 {
		return last + 1, last, nil, nil
	}
	// Indices are renumbered in the order in which tiles use them.
	mapping = make([]int16, last+1)
	for i := range mapping {
		mapping[i] = -1
	}
	for p := 0; p < len(t.pix); p += 4 {
		i := int(t.pix[p])<<8 | int(t.pix[p+1])
		if mapping[i] < 0 {
			mapping[i] = int16(n)
			n++
		}
		t.pix[p], t.pix[p+1] = byte(mapping[i]>>8), byte(mapping[i])
	}
	return n, last, mapping, nil
}

// lossless decodes the data of a VP8L chunk after its header: transforms, then pixels, then
// the inverse transforms in reverse order. Each kind of transform may occur once. That
// bounds the work.
func (d *decoder) lossless(width, height int) (*image.NRGBA, error) {
	var all []transform
	// Colour indexing packs pixels, so the width of later images can be smaller.
	seen, w := [transforms]bool{}, width
	for {
		more, err := d.read(1)
		if err != nil {
			return nil, err
		}
		if more == 0 {
			break
		}
		kind, err := d.read(2)
		if err != nil {
			return nil, err
		}
		if seen[kind] {
			return nil, errors.New("repeated transform")
		}
		seen[kind] = true
		t := transform{kind: kind, width: w}
		if w, err = d.transform(&t, height); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	pix, err := d.pixels(w, height, 0, true)
	if err != nil {
		return nil, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if pix, err = all[i].undo(pix, height, d.meter); err != nil {
			return nil, err
		}
	}
	return &image.NRGBA{Pix: pix, Stride: 4 * width, Rect: image.Rect(0, 0, width, height)}, nil
}

// reverseBits reverses the bits in a byte.
var reverseBits = func() (t [256]uint8) {
	for i := range t {
		for bit := range 8 {
			t[i] |= uint8(i) >> bit & 1 << (7 - bit)
		}
	}
	return t
}()

// node is a node in a tree of codes. Indices instead of pointers halve the memory and need
// no scan by the garbage collector.
type node struct {
	// symbol is the symbol held by a leaf.
	symbol uint16
	// children is the index of the first of this node's two children. Zero means an uninitialized node.
	children uint16
}

const (
	leaf = 0xFFFF // for children
	// lutSize is the log-2 size of a tree's look-up table.
	lutSize, lutMask = 7, 1<<7 - 1
	maxCodeLength    = 15

	// Memory in bytes and work of a tree, and of each of its symbols.
	treeBytes   = 24 + 4<<lutSize + 16
	symbolBytes = 2 * 4
	treeSteps   = 400
	symbolSteps = 30
	// alphabetSteps is the work per symbol of the alphabet.
	alphabetSteps = 4
)

// tree is a Huffman tree. Its size depends on the number of symbols with a code, not on the
// alphabet.
type tree struct {
	// nodes are the nodes of the tree. During construction, their number grows from 1 up to the capacity by
	// steps of two. After it both are twice the number of symbols less 1.
	nodes []node
	// lut is a look-up table for walking the nodes. The x in lut[x] is the next lutSize bits in the bit-stream.
	// The low 8 bits of lut[x] equal 1 plus the number of bits in the next code, or 0 if the next code requires
	// more than lutSize bits. The high 24 bits are the symbol, or the index of the node to go on from.
	lut [1 << lutSize]uint32
}

// insert inserts a symbol whose encoding is the least significant length bits of code.
// Codes that are prefixes of each other are refused.
func (h *tree) insert(symbol, code, length uint32) error {
	// base is the code's first bits in the order of the stream, which is the index into the
	// table.
	var base uint32
	if length > lutSize {
		base = uint32(reverseBits[(code>>(length-lutSize))&0xff]) >> (8 - lutSize)
	} else {
		base = uint32(reverseBits[code&0xff]) >> (8 - length)
		for i := range uint32(1) << (lutSize - length) {
			h.lut[base|i<<length] = symbol<<8 | (length + 1)
		}
	}
	// The tree is walked from the root; nodes are added where the path ends.
	n := uint32(0)
	for jump := lutSize; length > 0; {
		length--
		switch h.nodes[n].children {
		case leaf:
			return errTree
		case 0:
			if len(h.nodes)+2 > cap(h.nodes) {
				return errTree
			}
			h.nodes[n].children = uint16(len(h.nodes))
			h.nodes = h.nodes[:len(h.nodes)+2]
		}
		n = uint32(h.nodes[n].children) + 1&(code>>length)
		jump--
		if jump == 0 && h.lut[base] == 0 {
			h.lut[base] = n << 8
		}
	}
	switch h.nodes[n].children {
	case leaf:
	case 0:
		h.nodes[n].children = leaf
	default:
		return errTree
	}
	h.nodes[n].symbol = uint16(symbol)
	return nil
}

// room allocates the nodes of the tree. A tree of the last use is cleared and used again if
// it is large enough.
func (h *tree) room(symbols int, meter *program.Meter) error {
	if err := meter.Spend(int64(symbols) * symbolSteps); err != nil {
		return err
	}
	n := 2*symbols - 1
	if cap(h.nodes) >= n {
		clear(h.nodes[:n])
		h.nodes = h.nodes[:1:n]
		return nil
	}
	if err := meter.Hold(int64(symbols) * symbolBytes); err != nil {
		return err
	}
	h.nodes = make([]node, 1, n)
	return nil
}

// build makes a canonical tree from code lengths.
func (h *tree) build(lengths []uint8, meter *program.Meter) error {
	var histogram [maxCodeLength + 1]uint32
	symbols, last := 0, 0
	for symbol, l := range lengths {
		if l > maxCodeLength {
			return errTree
		}
		if histogram[l]++; l != 0 {
			symbols++
			last = symbol
		}
	}
	if symbols == 0 {
		return errTree
	}
	if err := h.room(symbols, meter); err != nil {
		return err
	}
	if symbols == 1 {
		return h.insert(uint32(last), 0, 0)
	}
	histogram[0] = 0
	// Codes of one length are consecutive, in the order of their symbols.
	code, next := uint32(0), [maxCodeLength + 1]uint32{}
	for l := 1; l < len(next); l++ {
		code = (code + histogram[l-1]) << 1
		next[l] = code
	}
	for symbol, l := range lengths {
		if l == 0 {
			continue
		}
		if err := h.insert(uint32(symbol), next[l], uint32(l)); err != nil {
			return err
		}
		next[l]++
	}
	return nil
}

// buildSimple makes a tree of one or two symbols.
func (h *tree) buildSimple(n uint32, symbols [2]uint32, alphabet int, meter *program.Meter) error {
	if err := h.room(int(n), meter); err != nil {
		return err
	}
	for i := range n {
		if symbols[i] >= uint32(alphabet) {
			return errTree
		}
		if err := h.insert(symbols[i], i, n-1); err != nil {
			return err
		}
	}
	return nil
}

// next returns the next symbol of the bit-stream. The table resolves codes of up to seven
// bits in one step; longer ones are walked bit by bit from the node that it names.
func (h *tree) next(d *decoder) (uint32, error) {
	// Bits are loaded so that the table can be indexed, if the data has as many.
	n := uint32(0)
	more := true
	if d.nBits < lutSize { // read enough bits so that the look-up table can be used
		if more = d.at < len(d.data); more {
			d.bits |= uint32(d.data[d.at]) << d.nBits
			d.at++
			d.nBits += 8
		}
	}
	if more {
		n = h.lut[d.bits&lutMask]
		if b := n & 0xff; b != 0 {
			b--
			d.bits >>= b
			d.nBits -= b
			return n >> 8, nil
		}
		n >>= 8
		d.bits >>= lutSize
		d.nBits -= lutSize
	}
	for h.nodes[n].children != leaf {
		if d.nBits == 0 {
			if d.at >= len(d.data) {
				return 0, errEnd
			}
			d.bits = uint32(d.data[d.at])
			d.at++
			d.nBits = 8
		}
		n = uint32(h.nodes[n].children) + 1&d.bits
		d.bits >>= 1
		d.nBits--
	}
	return uint32(h.nodes[n].symbol), nil
}

// over is the number of tiles with a side of 1<<bits pixels that cover size pixels.
func over(size int, bits uint32) int { return (size + 1<<bits - 1) >> bits }

const (
	predictor = iota
	crossColour
	subtractGreen
	colourIndexing
	transforms

	// undoSteps is the work per pixel of an inverse transform.
	undoSteps = 12
)

// transform is a transform of the WebP Lossless specification, section 4. It is read before
// the pixels and undone after them.
type transform struct {
	kind uint32
	// width is that of the image before the transform. After colour indexing, a pixel may
	// contain two to eight indices.
	width int
	// bits is the log-2 size of a tile, of predictor and cross-colour. 8>>bits is the number of bits of an index.
	bits uint32
	// pix has the parameters of each tile, or the colours.
	pix []byte
}

// transform reads the parameters of t, and returns the width of the image after it. Its
// parameters are images of their own, coded like the main one.
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
		// Up to 16 colours are packed: 8, 4 or 2 indices in the green byte of a pixel.
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
		// Colours are stored as differences to the one before.
		for p := 4; p < len(pix); p++ {
			pix[p] += pix[p-4]
		}
		t.pix = pix[:4*256] // an index beyond the colours is transparent black
	}
	return width, err
}

// undo applies the inverse transform to the pixels, in place if possible. Rows are undone
// from top to bottom, because prediction uses the row above.
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

// firstRow predicts the first pixel by opaque black, and the others by the pixel to their
// left. There is no row above it.
func (t *transform) firstRow(pix []byte) {
	pix[3] += 0xff
	for p := 4; p < len(pix); p++ {
		pix[p] += pix[p-4]
	}
}

// predict undoes the prediction of row y, which is the second row in pix. The right
// neighbour above the last pixel of a row is the first pixel of the row itself, as the
// specification requires: memory is contiguous.
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

		// L is the pixel to the left, T the one above, TL and TR are its neighbours. Sums
		// are modulo 256 in each channel.
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

// cross undoes the colour transform of row y: parts of green were subtracted from red and
// blue, and parts of red from blue. Red is restored first, because blue depends on it.
func (t *transform) cross(pix []byte, y int) {
	var greenToRed, greenToBlue, redToBlue int32
	q, mask := 4*(y>>t.bits)*over(t.width, t.bits), 1<<t.bits-1
	for x := range t.width {
		if x&mask == 0 {
			redToBlue, greenToBlue, greenToRed = int32(int8(t.pix[q])), int32(int8(t.pix[q+1])), int32(int8(t.pix[q+2]))
			q += 4
		}
		// ColorTransformDelta: products of signed bytes with 5 bits of fraction.
		px := pix[4*x:][:4:4]
		green := int32(int8(px[1]))
		px[0] += uint8(uint32(greenToRed*green) >> 5)
		px[2] += uint8(uint32(greenToBlue*green) >> 5)
		px[2] += uint8(uint32(redToBlue*int32(int8(px[0]))) >> 5)
	}
}

// unpack replaces indices, several in a pixel, by colours. Each row begins with a new pixel
// of indices.
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

// abs is the absolute value.
func abs(x int32) int32 {
	if x < 0 {
		return -x
	}
	return x
}

// avg2 is Average2 of the specification, rounded down.
func avg2(a, b uint8) uint8 {
	return uint8((int32(a) + int32(b)) / 2)
}

// clampAddSubtractFull is a + b - c, clipped to a byte.
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

// clampAddSubtractHalf is a + (a - b) / 2, clipped to a byte.
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

// pixelSteps is the work per decoded pixel.
const pixelSteps = 30

// cache is the colour cache: recent colours by their hash. It is filled lazily, when a
// symbol refers to it: most pixels are copied or literal.
type cache struct {
	colours []uint32
	shift   uint32
	at      int // bytes of pixels that are in it
}

// see adds the pixels up to byte p.
func (c *cache) see(pix []byte, p int) {
	for ; c.at < p; c.at += 4 {
		argb := uint32(pix[c.at])<<16 | uint32(pix[c.at+1])<<8 | uint32(pix[c.at+2]) | uint32(pix[c.at+3])<<24
		c.colours[(argb*cacheMultiplier)>>c.shift] = argb
	}
}

// cache reads the size of the colour cache. bits is 0 if there is none. Each image of the
// file, also those of parameters, may have one.
func (d *decoder) cache() (c cache, bits uint32, err error) {
	some, err := d.read(1)
	if err != nil || some == 0 {
		return c, 0, err
	}
	if bits, err = d.read(4); err != nil {
		return c, 0, err
	}
	if bits < 1 || bits > maxCache {
		return c, 0, errCache
	}
	if err := d.meter.Hold(4 << bits); err != nil {
		return c, 0, err
	}
	return cache{colours: make([]uint32, 1<<bits), shift: 32 - bits}, bits, nil
}

// pixels decodes an image of w by h pixels, RGBA. The result has a capacity of at least
// room bytes.
func (d *decoder) pixels(w, h, room int, topLevel bool) ([]byte, error) {
	c, cacheBits, err := d.cache()
	if err != nil {
		return nil, err
	}
	t, err := d.groups(w, h, topLevel, cacheBits)
	if err != nil {
		return nil, err
	}
	room = max(room, 4*w*h)
	if err := d.meter.Hold(int64(room)); err != nil {
		return nil, err
	}
	pix := make([]byte, 4*w*h, room)
	mask := 0
	if t.bits != 0 {
		mask = 1<<t.bits - 1
	}
	// p is the byte of the next pixel, x and y its place; paid is the byte up to which work
	// was counted.
	g, p, x, y := &t.groups[0], 0, 0, 0
	for changed, paid := mask != 0, 0; p < len(pix); {
		if p >= paid { // a row, or the rest of a copy
			n := max(4*w, p-paid)
			if err := d.meter.Spend(int64(min(n, len(pix)-paid)) / 4 * pixelSteps); err != nil {
				return nil, err
			}
			paid += n
		}
		// The group is looked up only at the borders of tiles.
		if changed {
			i := 4 * (t.across*(y>>t.bits) + x>>t.bits)
			g = &t.groups[int(t.pix[i])<<8|int(t.pix[i+1])]
		}
		v, err := g[green].next(d)
		if err != nil {
			return nil, err
		}
		// Green's alphabet is literals, lengths of copies, and entries of the cache.
		if v >= literals && v < literals+lengthCodes {
			n, err := d.copy(g, pix, p, w, v-literals)
			if err != nil {
				return nil, err
			}
			p += 4 * n
			x += n
			y, x = y+x/w, x%w
			changed = mask != 0
			continue
		}
		if px := pix[p : p+4 : p+4]; v < literals {
			err = d.literal(g, px, v)
		} else {
			c.see(pix, p)
			err = c.get(px, int(v-literals-lengthCodes))
		}
		if err != nil {
			return nil, err
		}
		p += 4
		if x++; x == w {
			x, y = 0, y+1
		}
		changed = mask != 0 && x&mask == 0
	}
	return pix, nil
}

// literal reads red, blue and alpha of a pixel with green v.
func (d *decoder) literal(g *group, px []byte, v uint32) error {
	r, err := g[red].next(d)
	if err != nil {
		return err
	}
	b, err := g[blue].next(d)
	if err != nil {
		return err
	}
	a, err := g[alpha].next(d)
	if err != nil {
		return err
	}
	px[0], px[1], px[2], px[3] = uint8(r), uint8(v), uint8(b), uint8(a)
	return nil
}

// get writes colour i of the cache to px.
func (c *cache) get(px []byte, i int) error {
	if i >= len(c.colours) {
		return errCache
	}
	argb := c.colours[i]
	px[0], px[1], px[2], px[3] = uint8(argb>>16), uint8(argb>>8), uint8(argb), uint8(argb>>24)
	return nil
}

// copy repeats earlier pixels, and returns their number. It may cross the end of a row.
func (d *decoder) copy(g *group, pix []byte, p, w int, symbol uint32) (int, error) {
	// A copy has a length and a distance, each as a prefix code with extra bits.
	length, err := d.parameter(symbol)
	if err != nil {
		return 0, err
	}
	code, err := g[distanceTree].next(d)
	if err != nil {
		return 0, err
	}
	if code, err = d.parameter(code); err != nil {
		return 0, err
	}
	// The source may overlap the destination, so it is copied bytewise.
	end, q := p+4*int(length), p-4*distance(w, code)
	if end > len(pix) || q < 0 {
		return 0, errCopy
	}
	for ; p < end; p, q = p+1, q+1 {
		pix[p] = pix[q]
	}
	return int(length), nil
}

// parameter reads a length or a distance code: prefix code and extra bits, section 5.2.2.
func (d *decoder) parameter(symbol uint32) (uint32, error) {
	if symbol < 4 {
		return symbol + 1, nil
	}
	extra := (symbol - 2) >> 1
	n, err := d.read(extra)
	return (2+symbol&1)<<extra + n + 1, err
}

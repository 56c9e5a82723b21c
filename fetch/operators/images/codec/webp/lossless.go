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

// cacheMultiplier is that of the hash of the colour cache, of section 5.2.3.
const cacheMultiplier = 0x1e35a7bd

// nearby maps codes of distances to offsets in two dimensions, of section 5.2.2.
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

// distance is how many pixels back a code leads.
func distance(w int, code uint32) int {
	if int(code) > len(nearby) {
		return int(code) - len(nearby)
	}
	at := int(nearby[code-1])
	return max((at>>4)*w+8-at&0xf, 1)
}

// decoder holds the bit-stream of an image without losses.
type decoder struct {
	data  []byte
	at    int
	bits  uint32
	nBits uint32

	meter   *program.Meter
	lengths [literals + lengthCodes + 1<<maxCache]uint8
	nodes   [2*len(lengthOrder) - 1]node
}

// read reads the next n bits, up to 24.
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

var alphabets = [trees]int{literals + lengthCodes, literals, literals, literals, distanceCodes}

// group is the trees that the pixels of some tiles are coded with.
type group [trees]tree

// Codes of lengths beyond these repeat: the length before, or none.
const repeats = 16

var (
	lengthOrder   = [19]uint8{17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	repeatBits    = [3]uint32{2, 3, 7}
	repeatOffsets = [3]uint32{3, 3, 11}
)

// codeLengths reads the lengths of a tree's codes, which are coded with a tree themselves.
func (d *decoder) codeLengths(to, own []uint8) error {
	h := tree{nodes: d.nodes[:]}
	if err := h.build(own, nil); err != nil {
		return err
	}
	most := len(to)
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
	last := uint8(8) // what is repeated before there was a length
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
		if l == repeats {
			for i := range int(n) {
				to[symbol+i] = last
			}
		}
		symbol += int(n)
	}
	return nil
}

// tree reads a tree; where h is nil it is passed over.
func (d *decoder) tree(h *tree, alphabet int) error {
	if err := d.meter.Spend(treeSteps); err != nil {
		return err
	}
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

// maxGroups is how many groups a file may have: libwebp makes no more.
const maxGroups = 2600

// tiles say which group the pixels of a tile are coded with.
type tiles struct {
	pix    []byte // two bytes of four are the group's index
	bits   uint32 // of a tile's side
	across int
	groups []group
}

// groups reads the groups of an image.
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
		g := (*group)(nil) // one that no tile has
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

// number says how many groups tiles have, and which is the last one. Where many have no tile, those that do are
// numbered anew: mapping has the new number, or -1.
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

// lossless decodes the data of a VP8L chunk behind its header.
func (d *decoder) lossless(width, height int) (*image.NRGBA, error) {
	var all []transform
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

// Copyright 2014 The Go Authors. All rights reserved.
// Use of this source code is governed by a BSD-style
// license that can be found in the LICENSE file.

package webp

import "bowstring/fetch/operators/program"

// reverseBits reverses the bits in a byte.
var reverseBits = func() (t [256]uint8) {
	for i := range t {
		for bit := range 8 {
			t[i] |= uint8(i) >> bit & 1 << (7 - bit)
		}
	}
	return t
}()

// node is a node in a tree of codes.
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

	// What a tree takes: by itself, and for each of its symbols.
	treeBytes   = 24 + 4<<lutSize + 16
	symbolBytes = 2 * 4
	treeSteps   = 400
	symbolSteps = 30
	// alphabetSteps are those of a symbol that a tree might have.
	alphabetSteps = 4
)

// tree is a Huffman tree.
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
func (h *tree) insert(symbol, code, length uint32) error {
	var base uint32
	if length > lutSize {
		base = uint32(reverseBits[(code>>(length-lutSize))&0xff]) >> (8 - lutSize)
	} else {
		base = uint32(reverseBits[code&0xff]) >> (8 - length)
		for i := range uint32(1) << (lutSize - length) {
			h.lut[base|i<<length] = symbol<<8 | (length + 1)
		}
	}
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

// room gives the tree its nodes.
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

// build makes a canonical tree of the lengths of codes.
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

// next returns the next symbol of the bit-stream.
func (h *tree) next(d *decoder) (uint32, error) {
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

package jpeg

import (
	"bytes"
	"encoding/binary"
)

const (
	fastBits = 10
	whole    = 0x80 // of a fast entry: the value's bits are in it, too
)

// huffman is a table of codes. An entry of fast is for the next ten bits. Its lowest
// byte is how many bits it takes, the next is run and size, and with the flag whole its
// upper half is the value. It is 0 where a code is longer.
type huffman struct {
	defined bool
	kept    bool // the tables below are of counts and symbols
	fast    [1 << fastBits]uint32
	// What passing over takes, values with their codes: of one symbol, and of two where the ten bits have the
	// second's code.
	// The lowest byte is the bits, the next how many coefficients; 0 is a longer code. The end of a block
	// counts as all there are.
	one, two [1 << fastBits]uint16
	// For longer codes, by length: the largest code, and what to add for its symbol's index.
	most    [18]int32
	offset  [17]int32
	symbols [256]byte
	counts  [16]byte
}

// build makes the tables of counts by length and of symbols.
func (h *huffman) build(counts []byte, symbols []byte, dc bool) error {
	if h.kept && bytes.Equal(counts, h.counts[:]) && bytes.Equal(symbols, h.symbols[:len(symbols)]) {
		h.defined = true // many files have the tables of the file before
		return nil
	}
	*h = huffman{}
	copy(h.symbols[:], symbols)
	copy(h.counts[:], counts)
	code, index := int32(0), int32(0)
	for length := 1; length <= 16; length++ {
		n := int32(counts[length-1])
		h.offset[length] = index - code
		for range n {
			if code >= 1<<length {
				return damaged("a table of codes has too many of %d bits", length)
			}
			symbol := symbols[index]
			if dc && symbol > 15 {
				return damaged("a difference of %d bits", symbol)
			}
			if length <= fastBits {
				h.fill(code, length, symbol, dc)
			}
			code, index = code+1, index+1
		}
		h.most[length] = -1
		if n > 0 {
			h.most[length] = code - 1
		}
		code <<= 1
	}
	if !dc {
		h.passOver()
	}
	h.defined, h.kept = true, true
	return nil
}

// passOver makes the tables of skip.
func (h *huffman) passOver() {
	for i, e := range h.fast {
		if e == 0 {
			continue
		}
		symbol := byte(e >> 8)
		length, size := e&31, uint32(symbol&15)
		if e&whole != 0 {
			length -= size
		}
		steps := uint16(symbol>>4) + 1
		if size == 0 && symbol != 0xF0 {
			steps = blockSize
		}
		h.one[i] = uint16(length+size) | steps<<8
	}
	for i, first := range h.one {
		h.two[i] = first
		used := first & 0xFF
		if first == 0 || first>>8 >= blockSize || used >= fastBits {
			continue
		}
		next := h.fast[i<<used&(1<<fastBits-1)]
		if next == 0 {
			continue
		}
		second := h.one[i<<used&(1<<fastBits-1)]
		length := uint16(next & 31)
		if next&whole != 0 {
			length -= uint16(next>>8) & 15
		}
		if used+length <= fastBits {
			h.two[i] = first + second
		}
	}
}

func (h *huffman) fill(code int32, length int, symbol byte, dc bool) {
	size := int(symbol & 15)
	if dc {
		size = int(symbol)
	}
	rest := fastBits - length
	for low := range int32(1) << rest {
		entry := uint32(symbol)<<8 | uint32(length)
		if size > 0 && size <= rest {
			value := low >> (rest - size)
			if value < 1<<(size-1) {
				value -= 1<<size - 1
			}
			entry = uint32(value)<<16 | uint32(symbol)<<8 | whole | uint32(length+size)
		}
		h.fast[code<<rest|low] = entry
	}
}

// define takes the segments that define tables. Others are not its business.
func (t *tables) define(m byte, s []byte) error {
	switch m {
	case markDQT:
		return t.defineQuant(s)
	case markDHT:
		return t.defineHuffman(s)
	case markDRI:
		if len(s) != 2 {
			return damaged("the restart interval's segment has %d bytes", len(s))
		}
		t.restart = int(binary.BigEndian.Uint16(s))
	}
	return nil
}

func (t *tables) defineQuant(s []byte) error {
	for len(s) > 0 {
		wide, n := int(s[0]>>4), int(s[0]&15)
		size := blockSize << min(wide, 1)
		if n > 3 || wide > 1 || len(s) < 1+size {
			return damaged("a quantisation table is cut off, or has the number %d", n)
		}
		for i := range blockSize {
			q := int32(s[1+i])
			if wide == 1 {
				q = int32(binary.BigEndian.Uint16(s[1+2*i:]))
			}
			t.quant[n][zigzag[i]] = q
		}
		t.hasQuant[n] = true
		s = s[1+size:]
	}
	return nil
}

func (t *tables) defineHuffman(s []byte) error {
	for len(s) > 0 {
		if len(s) < 17 {
			return damaged("a table of codes is cut off")
		}
		class, n := s[0]>>4, s[0]&15
		total := 0
		for _, c := range s[1:17] {
			total += int(c)
		}
		if class > 1 || n > 3 || total > 256 || len(s) < 17+total {
			return damaged("a table of codes is cut off, or has the number %d of class %d", n, class)
		}
		table := &t.dc[n]
		if class == 1 {
			table = &t.ac[n]
		}
		if err := t.meter.Spend(tableSteps); err != nil {
			return err
		}
		if err := table.build(s[1:17], s[17:17+total], class == 0); err != nil {
			return err
		}
		s = s[17+total:]
	}
	return nil
}

package prefetch

import (
	"encoding/binary"
	"math/bits"
)

// bitmap is a set of a stream's rows, over those from base on.
type bitmap struct {
	base  int64 // a multiple of 64
	words []uint64
}

// bitmapOf returns the set that a ticket has: bit i of b is the stream's row i.
func bitmapOf(b []byte) bitmap {
	padded := make([]byte, (len(b)+7)/8*8)
	copy(padded, b)
	m := bitmap{words: make([]uint64, len(padded)/8)}
	for i := range m.words {
		m.words[i] = binary.LittleEndian.Uint64(padded[8*i:])
	}
	return m
}

// has reports whether a row from base on is in the set.
func (m *bitmap) has(row int64) bool {
	i := (row - m.base) >> 6
	return i >= 0 && i < int64(len(m.words)) && m.words[i]>>(row&63)&1 == 1
}

// add puts a row from base on into the set.
func (m *bitmap) add(row int64) {
	i := (row - m.base) >> 6
	for i >= int64(len(m.words)) {
		m.words = append(m.words, 0)
	}
	m.words[i] |= 1 << (row & 63)
}

// remove takes a row out.
func (m *bitmap) remove(row int64) {
	if i := (row - m.base) >> 6; i >= 0 && i < int64(len(m.words)) {
		m.words[i] &^= 1 << (row & 63)
	}
}

// nextIn returns the first row from a row on that is in the set; -1 if none is.
func (m *bitmap) nextIn(row int64) int64 {
	row = max(row, m.base)
	for i := (row - m.base) >> 6; i < int64(len(m.words)); i++ {
		if w := m.words[i] >> (row & 63); w != 0 {
			return row + int64(bits.TrailingZeros64(w))
		}
		row = row&^63 + 64
	}
	return -1
}

// nextOut returns the first row from a row on that is not in the set.
func (m *bitmap) nextOut(row int64) int64 {
	for i := (row - m.base) >> 6; i < int64(len(m.words)); i++ {
		if w := ^m.words[i] >> (row & 63); w != 0 {
			return row + int64(bits.TrailingZeros64(w))
		}
		row = row&^63 + 64
	}
	return row
}

// forget drops what is before a row.
func (m *bitmap) forget(row int64) {
	n := (row - m.base) >> 6
	if n <= 0 {
		return
	}
	m.base += 64 * n
	m.words = append(m.words[:0], m.words[min(n, int64(len(m.words))):]...)
}

// from returns the set of the rows from a row on, as tickets have it; nil if there
// is none.
func (m *bitmap) from(row int64) []byte {
	last := int64(len(m.words)) - 1
	for last >= 0 && m.words[last] == 0 {
		last--
	}
	if last < 0 {
		return nil
	}
	n := m.base + 64*last + int64(bits.Len64(m.words[last])) - row // bits
	if n <= 0 {
		return nil
	}
	b := make([]byte, (n+63)/64*8)
	shift := row & 63
	for i := range int64(len(b) / 8) {
		at := (row-m.base)>>6 + i
		w := m.words[at] >> shift
		if at < last {
			w |= m.words[at+1] << (64 - shift) // nothing, if shift is 0
		}
		binary.LittleEndian.PutUint64(b[8*i:], w)
	}
	return b[:(n+7)/8]
}

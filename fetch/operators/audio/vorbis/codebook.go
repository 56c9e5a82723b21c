package vorbis

import (
	"math"
	"math/bits"
)

// What all codebooks of a file may have together. Encoders stay below a quarter of it.
const (
	maxEntries = 1 << 17
	maxValues  = 1 << 18
)

// codebook is section 3 of the specification: a prefix code, and a vector for each of its words.
type codebook struct {
	dims    int
	lengths []uint8 // of each entry's word; 0 for those that are not used
	used    int

	lookup     int
	low, delta float32
	sequence   bool
	factors    []uint16 // multiplicands

	// The tables below are made by build.
	first   [1 << firstBits]int32 // by the next bits: a word's entry and length, a node, or none
	nodes   [][2]int32            // of words that are longer; below zero the complement of an entry
	vectors []float32
}

// firstBits is how many bits of a word are looked up at once.
const firstBits = 9

// readCodebook reads one. What all have together is counted in entries and values.
func readCodebook(r *bitReader, entries, values *int) (*codebook, string) {
	if r.read(24) != 0x564342 {
		return nil, "no codebook begins where one should"
	}
	b := &codebook{dims: int(r.read(16))}
	n := int(r.read(24))
	ordered := r.flag()
	if *entries += n; *entries > maxEntries {
		return nil, "codebooks have too many entries"
	}
	if !ordered && n > r.left() || n == 0 || b.dims == 0 {
		return nil, "a codebook's size is wrong"
	}
	b.lengths = make([]uint8, n)
	if why := b.readLengths(r, ordered); why != "" {
		return nil, why
	}
	for _, l := range b.lengths {
		if l > 0 {
			b.used++
		}
	}
	b.lookup = int(r.read(4))
	if b.lookup == 0 {
		return b, ""
	}
	if b.lookup > 2 {
		return nil, "a codebook's lookup is of no known kind"
	}
	if *values += n * b.dims; *values > maxValues {
		return nil, "codebooks have too many values"
	}
	b.low, b.delta = unpack(r.read(32)), unpack(r.read(32))
	width := int(r.read(4)) + 1
	b.sequence = r.flag()
	count := n * b.dims
	if b.lookup == 1 {
		count = root(n, b.dims)
	}
	if count*width > r.left() {
		return nil, "a codebook's values end too early"
	}
	b.factors = make([]uint16, count)
	for i := range b.factors {
		b.factors[i] = uint16(r.read(width))
	}
	return b, ""
}

func (b *codebook) readLengths(r *bitReader, ordered bool) string {
	if ordered {
		length := int(r.read(5)) + 1
		for at := 0; at < len(b.lengths); length++ {
			n := int(r.read(bits.Len(uint(len(b.lengths) - at))))
			if n > len(b.lengths)-at || length > 32 || r.over() {
				return "a codebook's ordered lengths are wrong"
			}
			for i := range n {
				b.lengths[at+i] = uint8(length)
			}
			at += n
		}
		return ""
	}
	sparse := r.flag()
	for i := range b.lengths {
		if !sparse || r.flag() {
			b.lengths[i] = uint8(r.read(5)) + 1
		}
	}
	return ""
}

// unpack is section 9.2.2's floating-point number. Exponents are kept where numbers stay finite.
func unpack(v uint32) float32 {
	m := float64(v & 0x1fffff)
	if v>>31 != 0 {
		m = -m
	}
	return float32(math.Ldexp(m, min(max(int(v>>21&0x3ff)-788, -63), 63)))
}

// root is the greatest number whose power of so many dims is at most n.
func root(n, dims int) int {
	most := 1
	for v := 2; ; v++ {
		p := 1
		for range dims {
			if p *= v; p > n {
				return most
			}
		}
		most = v
	}
}

// build makes the tables that decoding takes.
func (b *codebook) build() string {
	if why := b.words(); why != "" || b.lookup == 0 {
		return why
	}
	b.vectors = make([]float32, len(b.lengths)*b.dims)
	for e, length := range b.lengths {
		if length == 0 {
			continue
		}
		last, place := float32(0), 1
		for d := range b.dims {
			i := e*b.dims + d
			if b.lookup == 1 {
				i = e / place % len(b.factors)
				if place <= len(b.lengths) {
					place *= len(b.factors)
				}
			}
			v := float32(float64(float64(b.factors[i])*float64(b.delta)) + float64(b.low) + float64(last))
			if b.sequence {
				last = v
			}
			b.vectors[e*b.dims+d] = v
		}
	}
	return ""
}

// words gives each entry, in turn, the lowest word of its length that no word before begins with. At most one free
// place of the tree is of a depth.
func (b *codebook) words() string {
	if b.used == 1 {
		// A code of one word has no second one to tell it from. It takes a bit, whatever that is.
		for e, l := range b.lengths {
			if l > 1 {
				return "a codebook's one word is longer than a bit"
			}
			for i := range b.first {
				if l == 1 {
					b.first[i] = leaf(e, 1)
				}
			}
		}
		return ""
	}
	var places [33]uint32 // the word that leads to a depth's free place, from its highest bit on
	free := uint64(1)
	for e, l := range b.lengths {
		if l == 0 {
			continue
		}
		depth := bits.Len64(free&(2<<l-1)) - 1
		if depth < 0 {
			return "a codebook has more words than its lengths allow"
		}
		word := places[depth]
		free &^= 1 << depth
		for depth++; depth <= int(l); depth++ {
			places[depth] = word | 1<<(32-depth)
			free |= 1 << depth
		}
		b.insert(e, bits.Reverse32(word), int(l))
	}
	if b.used > 0 && free != 0 {
		return "a codebook has fewer words than its lengths allow"
	}
	return ""
}

// leaf is what first has for a word: its entry and length. A node's has no length.
func leaf(entry, length int) int32 { return int32(entry<<5 | length) }

func (b *codebook) insert(e int, word uint32, length int) {
	if length <= firstBits {
		for i := int(word); i < len(b.first); i += 1 << length {
			b.first[i] = leaf(e, length)
		}
		return
	}
	node := &b.first[word&(1<<firstBits-1)]
	if *node == 0 {
		*node = b.node() << 5
	}
	at := *node >> 5
	word >>= firstBits
	for length -= firstBits; length > 1; length-- {
		next := b.nodes[at][word&1]
		if next == 0 {
			next = b.node()
			b.nodes[at][word&1] = next
		}
		at, word = next, word>>1
	}
	b.nodes[at][word&1] = ^int32(e)
}

// node makes one. Number 0 is none.
func (b *codebook) node() int32 {
	if len(b.nodes) == 0 {
		b.nodes = make([][2]int32, 1, 64)
	}
	b.nodes = append(b.nodes, [2]int32{})
	return int32(len(b.nodes) - 1)
}

// decode gives the entry of the next word, or -1 where the packet has ended.
func (b *codebook) decode(r *bitReader) int {
	r.refill()
	v := b.first[r.acc&(1<<firstBits-1)]
	if length := int(v & 31); length != 0 {
		if r.skip(length); r.n < 0 {
			return -1
		}
		return int(v >> 5)
	}
	if v == 0 {
		return -1 // no word at all
	}
	r.skip(firstBits)
	for at := v >> 5; r.n > 0; {
		at = b.nodes[at][r.acc&1]
		r.skip(1)
		if at < 0 {
			return int(^at)
		}
	}
	r.n = -1
	return -1
}

package vorbis

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// setup is the content of a stream's headers: sections 4.2.2 and 4.2.4 of the
// specification. It belongs to one file and is immutable after readSetup.
type setup struct {
	rate, channels int
	half           [2]int // half the samples of a short and of a long block
	books          []*codebook
	floors         []floor
	residues       []*residue
	mappings       []*mapping
	modes          []mode
}

// mode selects a block size and a mapping for a packet. The packet names it by its index.
type mode struct {
	long    int // 0 or 1
	mapping *mapping
}

// mapping (section 4.2.4) assigns floors and residues to channels, and couples channels. It
// is immutable.
type mapping struct {
	coupled [][2]int // pairs of magnitude and angle channels
	of      []int    // submap of each channel
	submaps []submap
}

// submap is the floor and the residue of some channels.
type submap struct {
	floor   floor
	residue *residue
}

// readFirst parses the identification header (section 4.2.2). It checks what later code
// assumes: at least one channel, and blocks of 2^6 to 2^13 samples.
func readFirst(b []byte) (*setup, error) {
	if len(b) < 30 || string(b[:7]) != "\x01vorbis" {
		return nil, damaged("the first header is none")
	}
	s := &setup{channels: int(b[11]), rate: int(binary.LittleEndian.Uint32(b[12:]))}
	short, long := int(b[28]&15), int(b[28]>>4)
	if binary.LittleEndian.Uint32(b[7:]) != 0 || s.channels == 0 || s.rate == 0 ||
		short < 6 || long > 13 || short > long || b[29]&1 == 0 {
		return nil, damaged("the first header has version %d, %d channels, and blocks of 2^%d and 2^%d samples",
			binary.LittleEndian.Uint32(b[7:]), s.channels, short, long)
	}
	s.half = [2]int{1 << short >> 1, 1 << long >> 1}
	return s, nil
}

// steps bounds the steps for a sample of a channel: of residues, the transform and
// overlapping, and of a floor that is a filter. It is an upper bound and not an estimate:
// the meter ends a run that exceeds it.
func (s *setup) steps() int64 {
	most := 0
	for _, f := range s.floors {
		if f, ok := f.(*floor0); ok {
			most = max(most, f.order)
		}
	}
	return 60 + 2*int64(most)
}

// work bounds the steps for a packet. A packet without sound costs its bytes.
func (s *setup) work(packet []byte) int64 {
	m := s.mode(packet)
	if m == nil {
		return int64(len(packet))
	}
	return int64(s.half[m.long]) * int64(s.channels) * s.steps()
}

// readSetup parses the third header (section 4.2.4). Codebooks are built only if build is
// set, that is if something will be decoded. Its length is in the stream only, so each part
// is checked while it is read.
func (s *setup) readSetup(b []byte, build bool) error {
	if len(b) < 7 || string(b[:7]) != "\x05vorbis" {
		return damaged("the third header is none")
	}
	r := &bitReader{data: b[7:]}
	why := s.read(r)
	if why == "" && r.over() {
		why = "it ends too early"
	}
	for _, book := range s.books {
		if why == "" && build {
			why = book.build()
		}
	}
	if why != "" {
		return damaged("the third header: %s", why)
	}
	return nil
}

// read parses the parts of the setup header in their order. It returns a description of
// what is wrong, or "". Counts are stored less 1. A later part refers to earlier ones by
// index, which is checked where it is read.
func (s *setup) read(r *bitReader) (why string) {
	entries, values := 0, 0
	for range r.read(8) + 1 {
		b, why := readCodebook(r, &entries, &values)
		if why != "" {
			return why
		}
		s.books = append(s.books, b)
	}
	// Transforms in time are reserved: all must be 0.
	for range r.read(6) + 1 {
		if r.read(16) != 0 {
			return "a transform in time is not 0"
		}
	}
	for range r.read(6) + 1 {
		var f floor
		switch r.read(16) {
		case 0:
			f, why = s.readFloor0(r)
		case 1:
			f, why = s.readFloor1(r)
		default:
			why = "a floor is of no known kind"
		}
		if why != "" {
			return why
		}
		s.floors = append(s.floors, f)
	}
	for range r.read(6) + 1 {
		res, why := s.readResidue(r)
		if why != "" {
			return why
		}
		s.residues = append(s.residues, res)
	}
	for range r.read(6) + 1 {
		m, why := s.readMapping(r)
		if why != "" {
			return why
		}
		s.mappings = append(s.mappings, m)
	}
	for range r.read(6) + 1 {
		long, kinds, at := int(r.read(1)), r.read(32), int(r.read(8))
		if kinds != 0 || at >= len(s.mappings) {
			return "a mode is wrong"
		}
		s.modes = append(s.modes, mode{long, s.mappings[at]})
	}
	if !r.flag() {
		return "it does not end where it should"
	}
	return ""
}

// readMapping parses a mapping of kind 0, the only one. The number of bits of a channel
// depends on the number of channels.
func (s *setup) readMapping(r *bitReader) (*mapping, string) {
	if r.read(16) != 0 {
		return nil, "a mapping is of no known kind"
	}
	// Flags say whether there are submaps and couplings.
	m := &mapping{of: make([]int, s.channels)}
	count := 1
	if r.flag() {
		count += int(r.read(4))
	}
	if r.flag() {
		width := bits.Len(uint(s.channels - 1))
		for range r.read(8) + 1 {
			pair := [2]int{int(r.read(width)), int(r.read(width))}
			if pair[0] == pair[1] || max(pair[0], pair[1]) >= s.channels {
				return nil, "a mapping couples channels that there are not"
			}
			m.coupled = append(m.coupled, pair)
		}
	}
	if r.read(2) != 0 {
		return nil, "a mapping has bits that it should not"
	}
	for c := range m.of {
		if count > 1 {
			m.of[c] = int(r.read(4))
		}
		if m.of[c] >= count {
			return nil, "a mapping has a channel of no submap"
		}
	}
	for range count {
		r.read(8)
		f, res := int(r.read(8)), int(r.read(8))
		if f >= len(s.floors) || res >= len(s.residues) {
			return nil, "a mapping has a floor or residue that there is not"
		}
		m.submaps = append(m.submaps, submap{s.floors[f], s.residues[res]})
	}
	return m, ""
}

// book is a codebook by number, nil if there is none. With vectors it must have a lookup.
// The caller makes an error of nil.
func (s *setup) book(n uint32, vectors bool) *codebook {
	if int(n) >= len(s.books) || vectors && s.books[n].lookup == 0 {
		return nil
	}
	return s.books[n]
}

// begin is where the samples of a file begin. packets stands behind the page of the first
// known position.
type begin struct {
	packets packets
	audio   int   // offset of the first page with sound
	start   int64 // position of the first decodable sample: negative if some are to be dropped
}

// open parses the headers of a file. The three headers are packets of their own. build is
// false if only the length is wanted.
func open(file []byte, build bool) (*setup, *begin, error) {
	if len(file) < 27 {
		return nil, nil, damaged("it ends in its first page")
	}
	b := &begin{packets: packets{file: file, serial: file[14:18]}}
	p := &b.packets
	var s *setup
	for i := range 3 {
		packet, err := p.next()
		switch {
		case err != nil:
			return nil, nil, err
		case packet == nil:
			return nil, nil, damaged("it ends in its headers")
		case i == 0:
			s, err = readFirst(packet)
		case i == 2:
			err = s.readSetup(packet, build)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if p.segment < len(p.page.segments) {
		return nil, nil, damaged("the page at byte %d has sound besides headers", p.page.at)
	}
	b.audio = p.page.end
	return s, b, b.findStart(s)
}

// findStart counts the samples up to the first known position, and so finds the position of
// the first sample. A packet completes half of its block and half of the one before:
// section 4.3.8. The first packet completes nothing.
func (b *begin) findStart(s *setup) error {
	count, before := int64(0), 0
	p := &b.packets
	for {
		packet, err := p.next()
		if packet == nil {
			return err
		}
		if m := s.mode(packet); m != nil {
			half := s.half[m.long]
			if before > 0 {
				count += int64(before+half) / 2
			}
			before = half
		}
		if p.done() {
			b.start = p.page.position - count
			if p.page.last {
				b.start = max(b.start, 0) // on the last page, surplus samples are at the end
			}
			return nil
		}
	}
}

// mode is the mode of an audio packet, nil for other packets. Other packets have their
// first bit set, or name a mode that does not exist.
func (s *setup) mode(packet []byte) *mode {
	if len(packet) == 0 || packet[0]&1 != 0 {
		return nil
	}
	n := int(packet[0]>>1) & (1<<bits.Len(uint(len(s.modes)-1)) - 1)
	if n >= len(s.modes) {
		return nil
	}
	return &s.modes[n]
}

// Limits for all codebooks of a file together, which bound memory. Encoders use less than
// a quarter.
const (
	maxEntries = 1 << 17
	maxValues  = 1 << 18
)

// codebook (section 3) is a prefix code with a vector for each of its words. It is
// immutable after build. Words are read bit by bit from the low end.
type codebook struct {
	dims    int
	lengths []uint8 // length of each entry's word; 0 for unused entries
	used    int

	lookup     int
	low, delta float32
	sequence   bool
	factors    []uint16 // multiplicands of the lookup

	// build makes the tables below.
	first   [1 << firstBits]int32 // by the next bits: entry and length of a word, a node, or none
	nodes   [][2]int32            // for longer words; negative: complement of an entry
	vectors []float32
}

// firstBits is how many bits one table lookup decodes.
const firstBits = 9

// readCodebook parses a codebook. entries and values are the sums over all codebooks. The
// sums bound the memory of the file: each size is checked before its allocation.
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
	// Values are low plus a multiple of delta.
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

// readLengths reads the lengths of the words (section 3.2.1). It returns a reason if they
// are invalid, or "". Ordered lengths are runs; otherwise each entry has its own length or
// a flag that it is unused.
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

// unpack is a floating-point number of section 9.2.2. Exponents are limited so that
// numbers stay finite.
func unpack(v uint32) float32 {
	m := float64(v & 0x1fffff)
	if v>>31 != 0 {
		m = -m
	}
	return float32(math.Ldexp(m, min(max(int(v>>21&0x3ff)-788, -63), 63)))
}

// root is the largest integer whose dims-th power is at most n (section 9.2.3).
// Floating-point powers would be wrong by one for some pairs.
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

// build makes the tables for decoding. Kind 1 combines a few multiplicands in all ways;
// kind 2 has its own for each value.
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

// words assigns to each entry, in order, the lowest free word of its length (section
// 3.2.1). At most one free place of the tree exists at each depth. free has a bit for each
// depth with a free place. A complete tree has none at the end, as the specification
// requires.
func (b *codebook) words() string {
	if b.used == 1 {
		// A code with a single word decodes any bit as that word.
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
	var places [33]uint32 // word of the free place at each depth, from its highest bit on
	// At first the whole tree is free: a place at depth 0.
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

// leaf is the table entry of a word: its entry and length. Those of nodes have no length.
// Lengths have 5 bits.
func leaf(entry, length int) int32 { return int32(entry<<5 | length) }

// insert adds a word to the tables. Words arrive with their first bit lowest. A short word
// fills all entries of first that begin with it. A longer one continues in a tree of nodes.
func (b *codebook) insert(e int, word uint32, length int) {
	if length <= firstBits {
		for i := int(word); i < len(b.first); i += 1 << length {
			b.first[i] = leaf(e, length)
		}
		return
	}
	// The first nine bits lead to a node, the others from node to node.
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

// node adds a node. Number 0 means none.
func (b *codebook) node() int32 {
	if len(b.nodes) == 0 {
		b.nodes = make([][2]int32, 1, 64)
	}
	b.nodes = append(b.nodes, [2]int32{})
	return int32(len(b.nodes) - 1)
}

// decode is the entry of the next word, or -1 at the end of the packet. One lookup resolves
// words of up to nine bits.
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

// bitReader reads bits from the lowest of each byte on. Beyond the end it reads zeros,
// which over reports. The end of a packet is no error in Vorbis: it means zeros, or the end
// of a residue.
type bitReader struct {
	data []byte
	pos  int    // next byte that is not in acc
	acc  uint64 // next n bits, the first one lowest
	n    int    // negative if more was read than exists
}

// refill makes at least 32 bits available, if there are as many.
func (r *bitReader) refill() {
	if r.n >= 32 || r.pos >= len(r.data) {
		return
	}
	if r.pos+4 <= len(r.data) {
		r.acc |= uint64(binary.LittleEndian.Uint32(r.data[r.pos:])) << max(r.n, 0)
		r.pos, r.n = r.pos+4, r.n+32
		return
	}
	for ; r.pos < len(r.data); r.pos++ {
		r.acc |= uint64(r.data[r.pos]) << max(r.n, 0)
		r.n += 8
	}
}

// skip drops bits that refill has loaded, or bits beyond the end.
func (r *bitReader) skip(bits int) {
	r.acc >>= uint(bits)
	r.n -= bits
}

// read is a number of up to 32 bits.
func (r *bitReader) read(bits int) uint32 {
	r.refill()
	v := uint32(r.acc & (1<<uint(bits) - 1))
	r.skip(bits)
	return v
}

// flag reads one bit.
func (r *bitReader) flag() bool { return r.read(1) != 0 }

// over reports whether more was read than exists.
func (r *bitReader) over() bool { return r.n < 0 }

// left is the number of remaining bits.
func (r *bitReader) left() int { return max(r.n, 0) + 8*(len(r.data)-r.pos) }

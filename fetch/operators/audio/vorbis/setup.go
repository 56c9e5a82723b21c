package vorbis

import (
	"encoding/binary"
	"math/bits"
)

// setup is what the headers of a stream say: sections 4.2.2 and 4.2.4 of the specification.
type setup struct {
	rate, channels int
	half           [2]int // samples of half a short block, and of half a long one
	books          []*codebook
	floors         []floor
	residues       []*residue
	mappings       []*mapping
	modes          []mode
}

type mode struct {
	long    int // 0 or 1
	mapping *mapping
}

// mapping is section 4.2.4's: which floor and residue a channel has, and which channels are coupled.
type mapping struct {
	coupled [][2]int // magnitude and angle
	of      []int    // each channel's submap
	submaps []submap
}

type submap struct {
	floor   floor
	residue *residue
}

// readFirst reads the identification header.
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

// steps is how many steps a sample of a channel takes at most: those of residues, of the transform and of overlapping, and
// of a floor that is a filter.
func (s *setup) steps() int64 {
	most := 0
	for _, f := range s.floors {
		if f, ok := f.(*floor0); ok {
			most = max(most, f.order)
		}
	}
	return 60 + 2*int64(most)
}

// work is how many steps a packet takes at most.
func (s *setup) work(packet []byte) int64 {
	m := s.mode(packet)
	if m == nil {
		return int64(len(packet))
	}
	return int64(s.half[m.long]) * int64(s.channels) * s.steps()
}

// readSetup reads the third header. Codebooks are built only where something is to be decoded.
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

func (s *setup) read(r *bitReader) (why string) {
	entries, values := 0, 0
	for range r.read(8) + 1 {
		b, why := readCodebook(r, &entries, &values)
		if why != "" {
			return why
		}
		s.books = append(s.books, b)
	}
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

func (s *setup) readMapping(r *bitReader) (*mapping, string) {
	if r.read(16) != 0 {
		return nil, "a mapping is of no known kind"
	}
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

// book is a codebook by number, or nil. One that gives vectors has a lookup.
func (s *setup) book(n uint32, vectors bool) *codebook {
	if int(n) >= len(s.books) || vectors && s.books[n].lookup == 0 {
		return nil
	}
	return s.books[n]
}

// begin is where the samples of a file are.
type begin struct {
	packets packets
	audio   int   // the byte that the first page of sound is at
	start   int64 // the position of the first sample that can be decoded: below zero where some are too many
}

// open reads the headers of a file.
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

// findStart counts the samples up to the first position.
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
				b.start = max(b.start, 0) // what is too much is too much at the end
			}
			return nil
		}
	}
}

// mode is that of a packet of sound, or nil for what is none.
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

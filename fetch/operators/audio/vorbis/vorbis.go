// Package vorbis decodes Ogg Vorbis I: the pages of a file, its headers, and any range of
// its samples.
//
// It follows the Vorbis I specification (Xiph.Org Foundation,
// https://xiph.org/vorbis/doc/Vorbis_I_spec.html), and RFC 3533 for Ogg's pages. It
// decodes codebooks with all kinds of lookup, floors 0 and 1, residues 0 to 2 and
// coupling. Samples are float32 and equal bit for bit on every machine. Section numbers
// in comments are those of the specification.
//
// Samples are counted as libsndfile counts them: the first page's position says where the
// stream begins, samples before position 0 are dropped, and the last page's position is
// the end. Pages of other streams are skipped, and so is a stream that follows: of a
// chain, the first link is read.
//
// Files are untrusted. For any bytes, nothing panics, and each requested sample costs a
// bounded amount of work. [Working] bounds the memory. Errors are program.ErrDamaged, and
// say where. Decoded pages must have a correct checksum, be consecutive, and end at the
// position that they state. The package does no I/O and starts no goroutine.
package vorbis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"

	"bowstring/fetch/operators/program"
)

// transforms are made once for each size.
var transforms = func() (t [13]func() *transform) {
	for i := range t {
		t[i] = sync.OnceValue(func() *transform { return newTransform(1 << i) })
	}
	return t
}()

// transformOf is the transform for blocks of 2 * half samples.
func transformOf(half int) *transform {
	i := 0
	for 1<<i < half {
		i++
	}
	return transforms[i]()
}

// decoder decodes the packets of one stream, in order. One goroutine uses it. Its buffers
// have the size of the long block.
type decoder struct {
	*setup
	transform [2]*transform
	spectra   [][]float32 // of each channel, current block
	before    [][]float32 // of each channel, the block before
	previous  int         // half the samples of the block before; 0: none
	curves    []curve
	flat      []float32 // all channels, interleaved, for residues of kind 2
	room      residueRoom
	points    []point
	vectors   [][]float32
}

// newDecoder allocates the memory of a stream. The samples of all channels are one
// allocation.
func newDecoder(s *setup) *decoder {
	d := &decoder{setup: s, curves: make([]curve, s.channels)}
	for i, half := range s.half {
		d.transform[i] = transformOf(half)
	}
	n := s.half[1]
	room := make([]float32, 3*n*s.channels)
	for range s.channels {
		d.spectra, room = append(d.spectra, room[:n:n]), room[n:]
		d.before, room = append(d.before, room[:n:n]), room[n:]
	}
	d.flat = room
	d.room = residueRoom{classes: make([]uint8, n*s.channels), entries: make([]int32, n)}
	d.points = make([]point, n/2)
	return d
}

// block decodes a packet's spectra and transforms them (section 4.3). It returns half the
// samples of the block, or 0 for a packet without sound. The order is that of the packet:
// floors of all channels, then residues by submap.
func (d *decoder) block(packet []byte) int {
	mode := d.mode(packet)
	if mode == nil {
		return 0
	}
	r := &bitReader{data: packet}
	r.read(1 + bits.Len(uint(len(d.modes)-1)))
	if mode.long == 1 {
		r.read(2) // window shapes, which follow from the neighbouring blocks
	}
	m, half := mode.mapping, d.half[mode.long]
	for c := range d.curves {
		d.curves[c].silent = !m.submaps[m.of[c]].floor.read(r, &d.curves[c])
		clear(d.spectra[c][:half])
	}
	// If one of two coupled channels has sound, both have a residue.
	var sounds [256]bool
	for c := range d.curves {
		sounds[c] = !d.curves[c].silent
	}
	for _, pair := range m.coupled {
		if sounds[pair[0]] || sounds[pair[1]] {
			sounds[pair[0]], sounds[pair[1]] = true, true
		}
	}
	for i := range m.submaps {
		d.residues(r, m, i, half, &sounds)
	}
	for i := len(m.coupled) - 1; i >= 0; i-- {
		decouple(d.spectra[m.coupled[i][0]][:half], d.spectra[m.coupled[i][1]][:half])
	}
	for c := range d.curves {
		x := d.spectra[c][:half]
		if d.curves[c].silent {
			clear(x)
			continue
		}
		m.submaps[m.of[c]].floor.multiply(x, &d.curves[c], mode.long)
		d.transform[mode.long].run(x, d.points)
	}
	return half
}

// residues decodes the residues of one submap's channels. Channels without sound are left
// out, except in kind 2, which codes all channels of a submap in one vector.
func (d *decoder) residues(r *bitReader, m *mapping, number, half int, sounds *[256]bool) {
	res := m.submaps[number].residue
	d.vectors = d.vectors[:0]
	any, count := false, 0
	for c, of := range m.of {
		if of != number {
			continue
		}
		any = any || sounds[c]
		count++
		if sounds[c] && res.kind != 2 {
			d.vectors = append(d.vectors, d.spectra[c][:half])
		}
	}
	if res.kind != 2 {
		res.decode(r, d.vectors, &d.room)
		return
	}
	if !any {
		return
	}
	flat := d.flat[:count*half]
	clear(flat)
	res.decode(r, append(d.vectors, flat), &d.room)
	at := 0
	for c, of := range m.of {
		if of == number {
			x := d.spectra[c][:half]
			for i, k := 0, at; i < len(x); i, k = i+1, k+count {
				x[i] = flat[k]
			}
			at++
		}
	}
}

// decouple converts magnitudes and angles to two channels (section 4.3.5).
func decouple(magnitude, angle []float32) {
	angle = angle[:len(magnitude)]
	for i, m := range magnitude {
		a := angle[i]
		switch {
		case m > 0 && a > 0:
			angle[i] = m - a
		case m > 0:
			magnitude[i], angle[i] = m+a, m
		case a > 0:
			angle[i] = m + a
		default:
			magnitude[i], angle[i] = m-a, m
		}
	}
}

// overlap adds two blocks into out, from the middle of one to the middle of the other
// (section 4.3.8). The transform returns half of each block; the other half is its mirror
// image, so indices run backwards.
func (t *transform) overlap(out, before, now []float32) {
	p, c, s := len(before), len(now), t.m
	lead := (p - s) / 2
	for j := range lead {
		out[j] = -before[p/2-1-j]
	}
	h, w := s/2, t.window[:s]
	cross := out[lead:][:s]
	for i := range h {
		a, b := -before[h-1-i], now[c-h+i]
		up, down := w[i], w[s-1-i]
		cross[i] = float32(a*down) + float32(b*up)
		cross[s-1-i] = float32(a*up) - float32(b*down)
	}
	trail := out[lead+s:]
	for k := range (c - s) / 2 {
		trail[k] = -now[c-1-h-k]
	}
}

// swap makes the current block the one before.
func (d *decoder) swap() { d.spectra, d.before = d.before, d.spectra }

// sound decodes a packet whose samples begin at a position, and stores its samples from
// sample first on in each channel's out. It returns how many samples the packet completes.
// Samples are written directly to out if all of the packet is wanted.
func (d *decoder) sound(packet []byte, position, first int64, out [][]float32) (int, error) {
	half := d.block(packet)
	if half == 0 {
		return 0, nil
	}
	before := d.previous
	d.previous = half
	defer d.swap()
	if before == 0 {
		return 0, nil
	}
	// Only two neighbouring long blocks overlap with the long window.
	t := d.transform[0]
	if before == half && half == d.half[1] {
		t = d.transform[1]
	}
	n := (before + half) / 2
	from, to := max(first-position, 0), min(first-position+int64(len(out[0])), int64(n))
	for c := range out {
		if from >= to {
			break
		}
		whole, direct := d.flat[:n], from == 0 && to == int64(n)
		if direct {
			whole = out[c][position-first:][:n]
		}
		t.overlap(whole, d.before[c][:before], d.spectra[c][:half])
		part := whole[from:to]
		if !finite(part) {
			return n, damaged("the samples from %d on are no finite numbers", position+from)
		}
		if !direct {
			copy(out[c][position+from-first:], part)
		}
	}
	return n, nil
}

// finite reports whether no number is infinite or NaN: 0 times such a number is NaN.
func finite(x []float32) bool {
	sum := float32(0)
	for _, v := range x {
		sum += float32(v * 0)
	}
	return sum == 0
}

// Working bounds the memory of decoding besides the result and a packet of the file, in
// bytes.
func Working(channels int) int64 {
	const half = 1 << 12
	tables := int64(maxEntries*(1+16) + maxValues*6 + 256*(4<<firstBits) + 4<<20)
	return tables + int64(channels)*half*4*4
}

// SetupSteps bounds the work of parsing a stream's headers and making its tables.
const SetupSteps = 1 << 26

// LongestBlock is the maximum of samples of each channel that a packet completes.
const LongestBlock = 1 << 12

// Length is the number of samples in each channel, if the last page's position is known,
// and a bound of the steps for each of them.
func Length(file []byte, last int64) (samples, steps int64, err error) {
	s, b, err := open(file, false)
	if err != nil {
		return 0, 0, err
	}
	return max(last-max(b.start, 0), 0), s.steps(), nil
}

// seek finds the last page with a position of at most first, and the page where the last
// packet on it begins. Decoding begins there, and the samples after that packet have known
// positions. It reads only page headers. Without such a page it returns the first page with
// sound, and 0. A packet may span pages, so the page where it begins can be an earlier one.
func (b *begin) seek(first int64) (from, sought int, err error) {
	from = b.audio
	at, opened := b.audio, b.audio
	var p page
	for {
		more, err := readPage(b.packets.file, at, b.packets.serial, &p)
		if err != nil || !more || p.position > first {
			return from, sought, err
		}
		at = p.end
		ends := p.ends()
		if ends > 1 || ends == 1 && !p.continued {
			opened = p.at
		}
		if ends > 0 && p.position >= 0 {
			from, sought = opened, p.at
		}
		if n := len(p.segments); n > 0 && p.segments[n-1] == 255 && (ends > 0 || !p.continued) {
			opened = p.at
		}
	}
}

// Decode decodes samples from frame offset (0 or more) on, one slice of out for each
// channel, all of one length. It returns how many there were: the file may have fewer
// than its last page says. It spends steps of m before it takes them.
func Decode(m *program.Meter, file []byte, offset int, out [][]float32) (int, error) {
	if err := m.Spend(SetupSteps); err != nil {
		return 0, err
	}
	s, b, err := open(file, true)
	if err != nil {
		return 0, err
	}
	if s.channels != len(out) {
		return 0, damaged("it has %d channels where %d are asked for", s.channels, len(out))
	}
	first := int64(offset) + max(b.start, 0)
	from, sought, err := b.seek(first)
	if err != nil {
		return 0, err
	}
	// While sought is not 0, packets are skipped up to the last one of that page. Only its
	// block is decoded, because the next one overlaps with it.
	d := newDecoder(s)
	p := &b.packets
	p.from(from)
	done, position := 0, b.start
	for done < len(out[0]) {
		packet, err := p.next()
		if err != nil || packet == nil {
			return done, err
		}
		// The cost is spent before the packet is decoded.
		if err := m.Spend(s.work(packet)); err != nil {
			return done, err
		}
		if sought > 0 {
			if p.page.at < sought || !p.done() {
				continue
			}
			// The next packet overlaps with the last packet of this page.
			sought, position = 0, p.page.position
			if d.previous = d.block(packet); d.previous == 0 {
				// It is no audio packet. From the beginning no search is needed.
				p.from(b.audio)
				position = b.start
				continue
			}
			d.swap()
			continue
		}
		n, err := d.sound(packet, position, first, out)
		if err != nil {
			return done, err
		}
		done = min(max(int(position+int64(n)-first), done), len(out[0]))
		position += int64(n)
		// Positions in the file detect lost or damaged packets.
		if p.done() && position != p.page.position && done < len(out[0]) {
			if p.page.last {
				return done, nil
			}
			return done, damaged("the page at byte %d ends at sample %d, and says it is %d", p.page.at, position,
				p.page.position)
		}
	}
	return done, nil
}

// damaged is a program.ErrDamaged.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: Ogg Vorbis: %s", program.ErrDamaged, fmt.Sprintf(format, args...))
}

// page is a page of Ogg (RFC 3533, section 6). Slices refer to the file.
type page struct {
	at, end   int // in the file
	continued bool
	first     bool // of its stream
	last      bool
	position  int64 // at the end of the last packet that ends on it, or -1
	number    uint32
	segments  []byte // their sizes
	body      []byte
}

// readPage reads the next page of a stream from byte at on, and skips those of other
// streams. It does not check the checksum. It returns false at the end of the file. The
// checksum is left to turn, because seek only reads headers.
func readPage(file []byte, at int, serial []byte, p *page) (bool, error) {
	for {
		b := file[at:]
		if len(b) < 27 || string(b[:4]) != "OggS" || b[4] != 0 {
			// Bytes between pages are skipped, as libogg does.
			next := bytes.Index(b[min(len(b), 1):], []byte("OggS\x00"))
			if next < 0 || len(b) < 27 {
				return false, nil
			}
			at += next + 1
			continue
		}
		head := 27 + int(b[26])
		size := head
		if head <= len(b) {
			for _, n := range b[27:head] {
				size += int(n)
			}
		}
		if size > len(b) {
			return false, damaged("the page at byte %d is cut off", at)
		}
		if bytes.Equal(b[14:18], serial) {
			*p = page{at: at, end: at + size, continued: b[5]&1 != 0, first: b[5]&2 != 0, last: b[5]&4 != 0,
				position: int64(binary.LittleEndian.Uint64(b[6:])), number: binary.LittleEndian.Uint32(b[18:]),
				segments: b[27:head], body: b[head:size]}
			if p.ends() == 0 {
				p.position = -1
			}
			return true, nil
		}
		at += size
	}
}

// ends is how many packets end on the page.
func (p *page) ends() int {
	n := 0
	for _, s := range p.segments {
		if s < 255 {
			n++
		}
	}
	return n
}

// crcTable is the table of Ogg's CRC-32, with polynomial 0x04c11db7, not reflected.
var crcTable = func() (t [256]uint32) {
	for i := range t {
		v := uint32(i) << 24
		for range 8 {
			v = v<<1 ^ v>>31*0x04c11db7
		}
		t[i] = v
	}
	return t
}()

// sealed reports whether a page's checksum is correct. The checksum field counts as zeros.
// The field is part of the page that it protects.
func sealed(b []byte) bool {
	crc := uint32(0)
	for i, v := range b {
		if i >= 22 && i < 26 {
			v = 0
		}
		crc = crc<<8 ^ crcTable[byte(crc>>24)^v]
	}
	return crc == binary.LittleEndian.Uint32(b[22:])
}

// packets iterates over the packets of a stream, from a page on. One goroutine uses it.
type packets struct {
	file, serial []byte
	page         page
	at, segment  int    // next in the page's body and segments
	open         bool   // a packet continues on the next page
	begun        bool   // a page was read: the next one must follow it
	joined       []byte // packet of several pages
}

// from continues at the page at a byte. The rest of a packet that began before is
// skipped.
func (p *packets) from(at int) {
	*p = packets{file: p.file, serial: p.serial, joined: p.joined[:0]}
	p.page.end = at
}

// next returns a packet, nil at the end of the stream. It is valid until the next call. A
// packet within one page is not copied.
func (p *packets) next() ([]byte, error) {
	p.joined = p.joined[:0]
	for {
		for p.segment == len(p.page.segments) {
			if more, err := p.turn(); !more {
				return nil, err
			}
		}
		size, ends := 0, false
		for p.segment < len(p.page.segments) && !ends {
			n := p.page.segments[p.segment]
			size, ends = size+int(n), n < 255
			p.segment++
		}
		part := p.page.body[p.at : p.at+size : p.at+size]
		p.at += size
		if ends && !p.open {
			return part, nil
		}
		p.joined = append(p.joined, part...)
		if p.open = !ends; ends {
			return p.joined, nil
		}
	}
}

// turn moves to the next page, and checks that it follows the last one.
func (p *packets) turn() (bool, error) {
	before := p.page.number
	more, err := readPage(p.file, p.page.end, p.serial, &p.page)
	if !more {
		return false, err
	}
	q := &p.page
	p.at, p.segment = 0, 0
	switch {
	case !sealed(p.file[q.at:q.end]):
		return false, damaged("the page at byte %d has not its checksum", q.at)
	case p.begun && q.first:
		return false, damaged("the page at byte %d begins another stream of the same number", q.at)
	case p.begun && q.number != before+1:
		return false, damaged("the page at byte %d has number %d; %d comes next", q.at, q.number, before+1)
	case p.begun && q.continued != p.open:
		return false, damaged("the page at byte %d does not go on as the one before ended", q.at)
	case q.position < 0 && q.ends() > 0:
		return false, damaged("the page at byte %d, on which %d packets end, has no position", q.at, q.ends())
	}
	if q.continued && !p.begun {
		for ended := false; p.segment < len(q.segments) && !ended; p.segment++ {
			n := q.segments[p.segment]
			p.at, ended = p.at+int(n), n < 255
		}
	}
	p.begun = true
	return true, nil
}

// done reports whether the last packet of next is the last one that ends on its page.
func (p *packets) done() bool {
	for _, n := range p.page.segments[p.segment:] {
		if n < 255 {
			return false
		}
	}
	return true
}

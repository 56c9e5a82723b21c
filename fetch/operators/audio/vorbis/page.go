package vorbis

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"bowstring/fetch/operators/program"
)

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: Ogg Vorbis: %s", program.ErrDamaged, fmt.Sprintf(format, args...))
}

// page is one of Ogg, by RFC 3533.
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

// readPage reads the next page of a stream from byte at on, and skips those of others. Its checksum is not looked at.
// It gives false where the file ends.
func readPage(file []byte, at int, serial []byte, p *page) (bool, error) {
	for {
		b := file[at:]
		if len(b) < 27 || string(b[:4]) != "OggS" || b[4] != 0 {
			// What lies between pages is skipped, as by libogg.
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

// ends says how many packets end on the page.
func (p *page) ends() int {
	n := 0
	for _, s := range p.segments {
		if s < 255 {
			n++
		}
	}
	return n
}

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

// sealed says whether a page has its checksum, which counts itself as zeros.
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

// packets gives the packets of a stream, from a page on.
type packets struct {
	file, serial []byte
	page         page
	at, segment  int    // next in the page's body and segments
	open         bool   // a packet goes on, on the next page
	begun        bool   // a page was read: the next has to follow it
	joined       []byte // a packet of several pages
}

// from reads from the page at a byte on. What is left there of a packet that began before is skipped.
func (p *packets) from(at int) {
	*p = packets{file: p.file, serial: p.serial, joined: p.joined[:0]}
	p.page.end = at
}

// next gives a packet, or nil where the stream ends. It is valid until the next call.
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

// turn goes to the next page.
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

// done says that the packet that next gave is the last that ends on its page.
func (p *packets) done() bool {
	for _, n := range p.page.segments[p.segment:] {
		if n < 255 {
			return false
		}
	}
	return true
}

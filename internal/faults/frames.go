package faults

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// greeting is the message with which a node of Cassandra 4 or 5 begins a connection to
// another one. Its format is that of HandshakeProtocol.Initiate in Cassandra's source. A
// connection carries messages in one direction. The other direction only answers the
// greeting.
type greeting struct {
	raw    []byte // the message itself; nil after it was forwarded
	from   string // the address by which other nodes know the node
	framed bool   // frames with checksums and without compression follow
}

// The layout of the greeting: a magic number of 4 bytes, flags of 4 bytes, the length of
// the address with its port in 1 byte, the address, and a checksum of 4 bytes.
const (
	greetingMagic = 0xCA552DFA
	flagStreaming = 1 << 3
	// The kind of frames takes two separate bits.
	framingLow, framingHigh = 1 << 2, 1 << 4
)

// readGreeting reads a node's first message. It returns an error for any other message:
// the gate would otherwise not know whose connection it is, and apply no fault.
func readGreeting(r io.Reader) (g greeting, err error) {
	g.raw = make([]byte, 9, 64)
	if _, err := io.ReadFull(r, g.raw); err != nil {
		return g, err
	}
	if magic := binary.BigEndian.Uint32(g.raw); magic != greetingMagic {
		return g, fmt.Errorf("a node's greeting begins with %08x, want %08x", magic, uint32(greetingMagic))
	}
	flags := binary.BigEndian.Uint32(g.raw[4:])
	size := int(g.raw[8])
	if size != 4+2 && size != 16+2 {
		return g, fmt.Errorf("a node's greeting has an address of %d bytes", size)
	}
	rest := make([]byte, size+4) // and a checksum
	if _, err := io.ReadFull(r, rest); err != nil {
		return g, err
	}
	g.raw = append(g.raw, rest...)
	addr, _ := netip.AddrFromSlice(rest[:size-2]) // of 4 or 16 bytes
	g.from = addr.String()
	g.framed = flags&flagStreaming == 0 && flags&framingLow == 0 && flags&framingHigh != 0
	return g, nil
}

// then returns the data to forward: the greeting, and what follows it. If a piece is whole, it may be lost, and the
// receiver still understands the next one.
func (g *greeting) then(r io.Reader) func() (data []byte, whole bool, err error) {
	next := chunks(r)
	if g.framed {
		next = frames(r)
	}
	return func() ([]byte, bool, error) {
		if raw := g.raw; raw != nil {
			g.raw = nil
			return raw, false, nil
		}
		return next()
	}
}

const (
	frameHeader  = 6       // 17 bits of length, one bit that is set if it is self-contained, a checksum
	frameTrailer = 4       // a checksum
	frameWhole   = 1 << 17 // the frame holds whole messages, not a part of a large one
)

// frames returns the data frame by frame. The format is that of Cassandra's FrameEncoder.
// The header begins with 17 bits of length, little endian. Checksums are forwarded and
// not checked.
func frames(r io.Reader) func() ([]byte, bool, error) {
	return func() ([]byte, bool, error) {
		var head [frameHeader]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return nil, false, err
		}
		bits := uint32(head[0]) | uint32(head[1])<<8 | uint32(head[2])<<16
		frame := make([]byte, frameHeader+int(bits&(frameWhole-1))+frameTrailer)
		copy(frame, head[:])
		_, err := io.ReadFull(r, frame[frameHeader:])
		return frame, bits&frameWhole != 0, err
	}
}

package segment

import (
	"errors"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Records of directMin bytes and more may be written past the page cache
// (O_DIRECT): from the frames that the blobs lie in, or from an aligned buffer,
// in whole blocks that no other record lies in. What is written for later then
// costs no memory that others could use, and the kernel neither fills pages nor
// writes them back. The price is the rest of the record's last block, which is a
// void record.
const (
	directMin  = 32 << 10
	directSize = 4 << 20 // of the buffers: records that follow one another go together
	// A buffer is kept for each of so many writes at once. Memory that was used before costs a
	// fraction of what fresh memory does.
	directKept = 4
)

// directIO is what the segments of a set share for writes past the page cache.
type directIO struct {
	buffers directBuffers
	writers asyncWriters
}

// directBuffers are buffers that begin at a multiple of Block.
type directBuffers chan []byte

func newDirectBuffers() directBuffers { return make(directBuffers, directKept) }

func (d directBuffers) take() []byte {
	select {
	case b := <-d:
		return b
	default:
	}
	b := make([]byte, directSize+Block)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % Block)
	return b[skip : skip+directSize]
}

func (d directBuffers) give(b []byte) {
	select {
	case d <- b:
	default:
	}
}

// openDirect opens a segment's file once more, for writes past the page cache. A file
// system that has none of them gives nil.
func openDirect(path string) *os.File {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// isDirect reports whether a record with a payload of n bytes is written past the page cache.
func (s *Segment) isDirect(n int64) bool {
	return (s.direct != nil || s.model != nil) && n >= directMin
}

// span is where a record with a payload of n bytes begins and ends if it is the next of a segment whose data ends at
// end.
func (s *Segment) span(end, n int64) (at, next int64) {
	if s.isDirect(n) {
		at = Blocks(end)
		return at, at + Blocks(Footprint(n))
	}
	return end, end + Footprint(n)
}

// writeDirect writes records that follow one another, and what is left of their last blocks.
func (s *Segment) writeDirect(run []Write) error {
	if !slices.ContainsFunc(run, func(w Write) bool { return !w.framed() }) {
		return s.writeFrames(run)
	}
	return s.writeCopies(run)
}

// A record in its blocks is laid out as a frame is.
var (
	_ [HeaderSize]byte = [schema.FrameMargin]byte{}
	_ [Block]byte      = [schema.FrameBlock]byte{}
)

// framed reports whether the payload lies in a frame.
func (w *Write) framed() bool {
	return int64(len(w.Frame)) == schema.FrameSize(w.n) && &w.Frame[HeaderSize] == &w.Payload[0] &&
		uintptr(unsafe.Pointer(&w.Frame[0]))%Block == 0
}

// writeFrames writes records from where their payloads lie.
func (s *Segment) writeFrames(run []Write) error {
	iovs := make([][]byte, len(run))
	for i := range run {
		w := &run[i]
		h := encodeRecordHeader(s.id, w.record())
		copy(w.Frame, h[:])
		clear(w.Frame[HeaderSize+w.n:])
		if used := Footprint(w.n); used < int64(len(w.Frame)) {
			void := s.voidHeader(int64(len(w.Frame)) - used)
			copy(w.Frame[used:], void[:])
		}
		iovs[i] = w.Frame
	}
	return s.pwriteDirect(iovs, run[0].at)
}

// voidHeader is the header of a void record that takes n bytes.
func (s *Segment) voidHeader(n int64) [HeaderSize]byte {
	return encodeRecordHeader(s.id, Record{Length: n - HeaderSize, Void: true})
}

// writeCopies writes records through a buffer: as many as fit in it, or one that does not, in pieces.
func (s *Segment) writeCopies(run []Write) error {
	buf := s.io.buffers.take()
	defer s.io.buffers.give(buf)
	at, n := run[0].at, 0
	for i := range run {
		w := &run[i]
		length := int64(len(w.Payload))
		h := encodeRecordHeader(s.id, w.record())
		pad := Footprint(length) - HeaderSize - length
		rest := Blocks(Footprint(length)) - Footprint(length)
		var void []byte
		if rest > 0 {
			v := s.voidHeader(rest)
			void = v[:]
		}
		for _, part := range [][]byte{h[:], w.Payload, padding[:pad], void} {
			for len(part) > 0 {
				if n == len(buf) {
					if err := s.pwriteDirect([][]byte{buf}, at); err != nil {
						return err
					}
					at, n = at+int64(n), 0
				}
				m := copy(buf[n:], part)
				n, part = n+m, part[m:]
			}
		}
		next := int(Blocks(int64(n)))
		clear(buf[n:next])
		n = next
	}
	return s.pwriteDirect([][]byte{buf[:n]}, at)
}

// pwriteDirect writes whole blocks. What the file system refuses to write past the page cache goes through it. iovs is
// used up.
func (s *Segment) pwriteDirect(iovs [][]byte, at int64) error {
	write := unix.Pwritev
	if w := s.io.writers.take(); w != nil {
		defer s.io.writers.give(w)
		write = w.pwritev
	}
	for len(iovs) > 0 {
		n, err := write(int(s.direct.Fd()), iovs, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL), err == nil && n%Block != 0:
			return pwritev(int(s.file.Fd()), iovs, at)
		case err != nil:
			return err
		}
		iovs, at = advance(iovs, n), at+int64(n)
	}
	return nil
}

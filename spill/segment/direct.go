package segment

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Records of directMin bytes and more may be written past the page cache
// (O_DIRECT): from an aligned buffer, in whole blocks that no other record
// lies in. What is written for later then costs no memory that others could
// use, and the kernel neither fills pages nor writes them back. The price is the
// rest of the record's last block, which is a void record.
const (
	directMin  = 32 << 10
	directSize = 4 << 20 // of the buffers: records that follow one another go together
	// A buffer is kept for each of so many writes at once. Memory that was used before costs a
	// fraction of what fresh memory does.
	directKept = 4
)

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
func (s *Segment) isDirect(n int64) bool { return s.direct != nil && n >= directMin }

// span is where a record with a payload of n bytes begins and ends if it is the next of a segment whose data ends at end.
func (s *Segment) span(end, n int64) (at, next int64) {
	if s.isDirect(n) {
		at = Blocks(end)
		return at, at + Blocks(Footprint(n))
	}
	return end, end + Footprint(n)
}

// writeDirect writes records that follow one another, and what is left of their last blocks, through a buffer: as many as fit in it, or
// one that does not, in pieces.
func (s *Segment) writeDirect(run []Write) error {
	buf := s.buffers.take()
	defer s.buffers.give(buf)
	at, n := run[0].at, 0
	for i := range run {
		w := &run[i]
		length := int64(len(w.Payload))
		h := encodeRecordHeader(s.id, w.record())
		pad := Footprint(length) - HeaderSize - length
		rest := Blocks(Footprint(length)) - Footprint(length)
		var void []byte
		if rest > 0 {
			v := encodeRecordHeader(s.id, Record{Length: rest - HeaderSize, Void: true})
			void = v[:]
		}
		for _, part := range [][]byte{h[:], w.Payload, padding[:pad], void} {
			for len(part) > 0 {
				if n == len(buf) {
					if err := s.pwriteDirect(buf, at); err != nil {
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
	return s.pwriteDirect(buf[:n], at)
}

// pwriteDirect writes whole blocks. What the file system refuses to write past the page cache goes through it.
func (s *Segment) pwriteDirect(b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(int(s.direct.Fd()), b, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL), err == nil && n%Block != 0:
			return pwritev(int(s.file.Fd()), [][]byte{b}, at)
		case err != nil:
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

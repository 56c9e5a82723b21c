package segment

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// writeback is how much is written before the kernel is told to start storing
// it, so that little is left for the sync at the end of an import.
const writeback = 8 << 20

// reserve takes space for a payload of n bytes and returns the offset of its
// record, or false if the segment is sealed or has no room. The caller, who
// holds a pin, must call write with it.
func (s *Segment) reserve(n int64, alloc allocator) (at int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.end.Load()
	at, next := s.span(end, n)
	if s.sealed || next > s.capacity {
		return 0, false, nil
	}
	if next > s.reserved {
		s.reserved, err = alloc.allocate(s.file, s.reserved, next, s.capacity)
		if err != nil {
			return 0, false, err
		}
		if s.direct != nil {
			// Where the file need not grow for it, a direct write does not wait for the one before. A failure costs no
			// more than that.
			_ = s.file.Truncate(min(s.reserved, s.capacity))
		}
	}
	if at > end && !s.noSync { // the rest of a block that others lie in
		s.voids = append(s.voids, Record{Offset: end + HeaderSize, Length: at - end - HeaderSize, Void: true})
	}
	s.writing = append(s.writing, at)
	s.end.Store(next)
	return at, true, nil
}

var padding [Align]byte

// write fills in reserved space: that of one record, or of several that are written directly and follow one another.
func (s *Segment) write(run []Write) {
	err := s.failing(OpWrite)
	switch {
	case err != nil:
	case s.model != nil:
		s.model.write(run)
	case s.isDirect(run[0].n):
		err = s.writeDirect(run)
	default:
		err = s.writeBuffered(&run[0])
	}
	for i := range run {
		w := &run[i]
		s.wrote(w.at, w.n, err)
		if err != nil {
			w.Err = fmt.Errorf("write %d bytes to segment %d: %w", w.n, s.id, err)
		}
	}
}

func (s *Segment) writeBuffered(w *Write) error {
	h := encodeRecordHeader(s.id, w.record())
	iovs := [][]byte{h[:]}
	if w.n > 0 {
		iovs = append(iovs, w.Payload)
	}
	if pad := Footprint(w.n) - HeaderSize - w.n; pad > 0 {
		iovs = append(iovs, padding[:pad])
	}
	return pwritev(int(s.file.Fd()), iovs, w.at)
}

// wrote ends the write of a record with a payload of n bytes.
func (s *Segment) wrote(at, n int64, err error) {
	s.mu.Lock()
	if err != nil {
		// What follows must stay reachable for Scan: a void record bridges the gap.
		_, next := s.span(at, n)
		s.voids = append(s.voids, Record{Offset: at + HeaderSize, Length: next - at - HeaderSize, Void: true})
	}
	i := slices.Index(s.writing, at)
	s.writing = slices.Delete(s.writing, i, i+1)
	from, to := s.flushed, s.lowest()
	if to-from >= writeback && !s.noSync {
		s.flushed = to
	} else {
		to = from
	}
	s.written.Broadcast()
	s.mu.Unlock()

	if to > from {
		// A hint: what it does not do, Sync will.
		_ = unix.SyncFileRange(int(s.file.Fd()), from, to-from, unix.SYNC_FILE_RANGE_WRITE)
	}
}

// lowest is the offset below which nothing is being written. s.mu is held.
func (s *Segment) lowest() int64 {
	low := s.end.Load()
	for _, at := range s.writing {
		low = min(low, at)
	}
	return low
}

// seal ends appending. Writes under way go on.
func (s *Segment) seal() {
	s.mu.Lock()
	s.sealed = true
	s.mu.Unlock()
}

// Sync brings all that was appended before the call to stable storage, waiting
// for the writes under way.
func (s *Segment) Sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	end := s.end.Load()
	for s.lowest() < end {
		s.written.Wait()
	}
	err, voids := s.failed, slices.Clone(s.voids)
	// Not if it grew, and was sealed, while the lock was given up to wait.
	trim := s.sealed && s.reserved > end && s.end.Load() == end
	s.mu.Unlock()
	if err != nil || end <= s.durable.Load() && !trim {
		return err
	}
	for _, v := range voids {
		h := encodeRecordHeader(s.id, v)
		if _, err := s.file.WriteAt(h[:], v.Offset-HeaderSize); err != nil {
			return fmt.Errorf("sync segment %d: mark a failed write: %w", s.id, err)
		}
	}
	if trim {
		// A sealed segment grows no more: this gives back what was allocated
		// beyond its end and takes away nothing that is mapped.
		if err := s.file.Truncate(end); err != nil {
			return fmt.Errorf("sync segment %d: %w", s.id, err)
		}
	}
	if err = s.failing(OpSync); err == nil {
		err = unix.Fdatasync(int(s.file.Fd()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// The kernel forgets pages it failed to write: a second sync would
		// report success for data that is lost.
		s.failed = fmt.Errorf("sync segment %d: %w", s.id, err)
		return s.failed
	}
	if trim {
		s.reserved = end
	}
	s.voids = slices.DeleteFunc(s.voids, func(r Record) bool { return slices.Contains(voids, r) })
	s.durable.Store(max(end, s.durable.Load()))
	return nil
}

func pwritev(fd int, iovs [][]byte, off int64) error {
	for len(iovs) > 0 {
		n, err := unix.Pwritev(fd, iovs, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		iovs, off = advance(iovs, n), off+int64(n)
	}
	return nil
}

// advance returns what is left of iovs, whose elements it changes, after the first n bytes.
func advance(iovs [][]byte, n int) [][]byte {
	for len(iovs) > 0 && n >= len(iovs[0]) {
		n -= len(iovs[0])
		iovs = iovs[1:]
	}
	if len(iovs) > 0 {
		iovs[0] = iovs[0][n:]
	}
	return iovs
}

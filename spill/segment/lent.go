package segment

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lent is about other processes that read a segment's file. A caller that was told of an extent may hand the file to
// other processes, by a descriptor with a shared lock (flock), which lasts as long as one of them has the file or a
// mapping of it.
type lent struct {
	elsewhere atomic.Bool // an earlier process has handed it out, and somebody has it still
	earlier   bool        // likewise, when it was opened
}

// limit is the Limit of extents.
func (s *Segment) limit() int64 {
	if s.elsewhere.Load() {
		return 0 // or nobody would ever know when they have let go
	}
	return s.capacity
}

// giveSpaceBack gives the disk space of a file back that has no name any more. A process that was handed a descriptor
// keeps the file for as long as it likes, a lock or none, and would keep the space with it, which is counted nowhere. The
// last blob read from the segment was released: no client of this process reads the file any more, if it keeps to the
// rules. A client of an earlier process may, as long as it has the lock.
func (s *Segment) giveSpaceBack() {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil || st.Nlink > 0 || s.earlier && s.locked() {
		return
	}
	_ = s.file.Truncate(0)
}

// Elsewhere reports whether other processes have the file, whom an earlier process has handed it to: what it holds must
// stay as it is. It is to be asked before anybody reads the segment, and until it is false: extents are of no use to
// others meanwhile.
func (s *Segment) Elsewhere() bool {
	if s.model != nil {
		return false
	}
	s.elsewhere.Store(s.locked())
	return s.elsewhere.Load()
}

// locked reports whether another process has the file, or a mapping of it, that was handed it.
func (s *Segment) locked() bool {
	fd := int(s.file.Fd())
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_UN)
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

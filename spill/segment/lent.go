package segment

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lent says who else may read a segment's file. Whoever was told of an extent may hand the file to other processes, by
// a descriptor with a shared lock (flock), which lasts as long as one of them has the file or a mapping of it.
type lent struct {
	out       atomic.Bool // an extent was told
	elsewhere atomic.Bool // an earlier process has handed it out, and somebody has it still
}

// limit is the Limit of extents.
func (s *Segment) limit() int64 {
	if s.elsewhere.Load() {
		return 0 // or nobody would ever know when they have let go
	}
	if !s.out.Load() {
		s.out.Store(true)
	}
	return s.capacity
}

// Lent reports whether somebody was told an extent of the segment since it was opened, who may have mapped it: as long as
// he has, the file keeps its space after Retire.
func (s *Segment) Lent() bool { return s.out.Load() }

// Elsewhere reports whether other processes have the file, whom an earlier process has handed it to: what it holds must
// stay as it is. It is to be asked before anybody reads the segment, and until it is false: extents are of no use to
// others meanwhile.
func (s *Segment) Elsewhere() bool {
	if s.model != nil {
		return false
	}
	fd := int(s.file.Fd())
	err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_UN)
	}
	s.elsewhere.Store(errors.Is(err, unix.EWOULDBLOCK))
	return s.elsewhere.Load()
}

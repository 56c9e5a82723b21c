package segment

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// allocator takes disk space ahead of the writes that fill it: a full disk
// then shows before space in a segment is handed out, and files are laid out
// in long runs.
type allocator struct {
	// keep is the free space that the file system must be left with.
	keep int64
	free func(*os.File) (int64, error)
	// ahead is how much is allocated at once where there is room for it.
	ahead int64
	// grow, if not nil, is asked for space before it is taken, in whole blocks.
	grow  func(n int64) bool
	fault func(op Op, path string) error
}

const allocation = 16 << 20

// Block is the unit in which file systems hand out space, and in which a Set with a Grow function counts it.
const Block = 4096

// Blocks rounds a number of bytes up to whole blocks.
func Blocks(n int64) int64 { return (n + Block - 1) / Block * Block }

// allocate extends the space of f, which ends at have, to at least need and at
// most limit, and returns where it ends now.
func (a allocator) allocate(f *os.File, have, need, limit int64) (int64, error) {
	name := "a model"
	if f != nil {
		name = f.Name()
	}
	free, err := a.free(f)
	if err != nil {
		return have, fmt.Errorf("free space of %s: %w", name, err)
	}
	if free-(need-have) < a.keep {
		return have, fmt.Errorf("%w: disk full: %d bytes are free where %s lies, a write needs %d more and %d are "+
			"kept in reserve: %w",
			schema.ErrLimit, free, name, need-have, a.keep, unix.ENOSPC)
	}
	// Ask for a long run; when little is left, for just what is needed.
	refused := true
	for _, end := range []int64{min(max(need, have+a.ahead), limit), need} {
		if a.grow != nil {
			end = Blocks(end)
		}
		if free-(end-have) < a.keep || a.grow != nil && !a.grow(end-have) {
			continue
		}
		refused = false
		if a.fault != nil {
			if err = a.fault(OpAllocate, name); err != nil {
				a.giveBack(end - have)
				continue
			}
		}
		if f == nil { // of a model
			return end, nil
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		}
		if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return end, nil
		}
		a.giveBack(end - have)
	}
	if refused {
		return have, fmt.Errorf("%w: no %d bytes may be taken for %s", schema.ErrLimit, need-have, name)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return have, fmt.Errorf("%w: disk full: %d bytes for %s: %w", schema.ErrLimit, need-have, name, err)
	}
	return have, fmt.Errorf("allocate %d bytes for %s: %w", need-have, name, err)
}

// giveBack tells grow that n bytes were not taken.
func (a allocator) giveBack(n int64) {
	if a.grow != nil {
		a.grow(-n)
	}
}

func freeSpace(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Room is how many bytes of payload can be appended in space that is allocated
// already; 0 if the segment is sealed.
func (s *Segment) Room() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sealed {
		return 0
	}
	return max(0, min(s.reserved, s.capacity)-s.end.Load()-HeaderSize)
}

// Allocated is the space that the file takes, in whole blocks, if nothing was
// punched.
func (s *Segment) Allocated() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Blocks(max(s.reserved, s.end.Load()))
}

// Trim gives the space back that is allocated beyond the end of a sealed
// segment, and returns how many bytes that are. Of one that is not sealed it
// gives back none.
func (s *Segment) Trim() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.end.Load()
	n := s.reserved - Blocks(end)
	if !s.sealed || n <= 0 {
		return 0, nil
	}
	if err := s.failing(OpTrim); err != nil {
		return 0, fmt.Errorf("trim segment %d: %w", s.id, err)
	}
	// The end is not below anything that was written or is being written.
	if s.model == nil {
		if err := s.file.Truncate(end); err != nil {
			return 0, fmt.Errorf("trim segment %d: %w", s.id, err)
		}
	}
	s.reserved = Blocks(end)
	return n, nil
}

// Cut gives back what is allocated beyond the end of the data of a segment that
// is not appended to, as a process that was killed may leave it.
func (s *Segment) Cut() error {
	if err := s.file.Truncate(s.end.Load()); err != nil {
		return fmt.Errorf("trim segment %d: %w", s.id, err)
	}
	return nil
}

// Punch gives the blocks from one offset to another, multiples of Block, back
// to the file system. They read as zeros from then on: the caller knows that no
// blob in them is pinned, or will be asked for. A file system that cannot do it
// is errors.ErrUnsupported.
func (s *Segment) Punch(from, to int64) error {
	if err := s.failing(OpPunch); err != nil {
		return fmt.Errorf("punch segment %d: %w", s.id, err)
	}
	for s.model == nil {
		err := unix.Fallocate(int(s.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("punch segment %d: %w", s.id, err)
		default:
			return nil
		}
	}
	return nil
}

// DataRuns yields the stretches of the file that are not holes, in order. Space that is
// allocated and was never written counts as a hole.
func (s *Segment) DataRuns(yield func(from, to int64) bool) error {
	fd := int(s.file.Fd())
	for at := int64(0); ; {
		from, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no more data
		} else if err != nil {
			return fmt.Errorf("find the data of segment %d: %w", s.id, err)
		}
		if at, err = unix.Seek(fd, from, unix.SEEK_HOLE); err != nil {
			return fmt.Errorf("find the holes of segment %d: %w", s.id, err)
		}
		if !yield(from, at) {
			return nil
		}
	}
}

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

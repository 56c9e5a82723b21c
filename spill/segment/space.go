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
}

const allocation = 16 << 20

// allocate extends the space of f, which ends at have, to at least need and at
// most limit, and returns where it ends now.
func (a allocator) allocate(f *os.File, have, need, limit int64) (int64, error) {
	free, err := a.free(f)
	if err != nil {
		return have, fmt.Errorf("free space of %s: %w", f.Name(), err)
	}
	if free-(need-have) < a.keep {
		return have, fmt.Errorf("%w: disk full: %d bytes are free where %s lies, a write needs %d more and %d are kept in reserve: %w",
			schema.ErrLimit, free, f.Name(), need-have, a.keep, unix.ENOSPC)
	}
	// Ask for a long run; when little is left, for just what is needed.
	for _, end := range []int64{min(max(need, have+allocation), limit), need} {
		if free-(end-have) < a.keep {
			continue
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, have, end-have)
		}
		if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			return end, nil
		}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return have, fmt.Errorf("%w: disk full: %d bytes for %s: %w", schema.ErrLimit, need-have, f.Name(), err)
	}
	return have, fmt.Errorf("allocate %d bytes for %s: %w", need-have, f.Name(), err)
}

func freeSpace(f *os.File) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}

package segment

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const rewriteBytes = 1 << 20

// Rewrite writes the bytes of a segment's file between two offsets over themselves, and
// syncs the file: for data of which nobody knows whether the kernel has failed to store
// it. It may then still have the bytes, take them for stored, and have no later sync
// fail. The segment must not be appended to meanwhile.
func (s *Set) Rewrite(id uint32, from, to int64) (err error) {
	path := filepath.Join(s.dir, FileName(id))
	defer func() {
		if err != nil {
			err = fmt.Errorf("write segment %s again: %w", path, err)
		}
	}()
	fault := func(op Op) error {
		if s.opts.Fault == nil {
			return nil
		}
		return s.opts.Fault(op, path)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := make([]byte, rewriteBytes)
	for at := from; at < to; {
		n, err := f.ReadAt(buf[:min(to-at, rewriteBytes)], at)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				break
			}
			return err
		}
		if err := fault(OpWrite); err != nil {
			return err
		}
		if _, err := f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	if err := fault(OpSync); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

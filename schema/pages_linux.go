package schema

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Populate brings the pages that hold b into memory within a system call, so that the Go scheduler can run others
// meanwhile, which a page fault does not let it do. Bytes that cannot be read are an error.
func Populate(b []byte) error {
	pages := Pages(b)
	// One read of just these pages, where each fault would read what lies around it: more reads at once get half as
	// much again from the disk. A hint, so that its failing does not matter.
	_ = unix.Madvise(pages, unix.MADV_WILLNEED)
	for {
		err := unix.Madvise(pages, unix.MADV_POPULATE_READ)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

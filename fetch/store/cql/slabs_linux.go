package cql

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages. Where there are none, small ones do.
func adviseHuge(b []byte) {
	if len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}

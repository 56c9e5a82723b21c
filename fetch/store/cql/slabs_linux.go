package cql

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages. If the system has none, small ones work too.
func adviseHuge(b []byte) {
	if len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
}

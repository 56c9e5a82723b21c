package sndfile

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// widen lets a pipe hold more than the usual 64 KiB, where the kernel allows it.
func widen(pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
}

// apart puts the process into a group of its own.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

package sndfile

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// widen enlarges a pipe beyond the usual 64 KiB, if the kernel permits it.
func widen(pipe *os.File) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, pipeBytes) })
}

// apart puts the process into its own process group.
func apart() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

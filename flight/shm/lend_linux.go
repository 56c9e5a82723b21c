package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// handOver sends a message with a descriptor that a file can be read by, and nothing else. It waits for nobody: a client
// that does not take what it is sent gets no more.
//
// The descriptor holds a shared lock (flock) of the file as long as anybody has it or a mapping made by it. So a server
// that comes after this one knows what clients of this one may read still.
func handOver(c *net.UnixConn, message []byte, file *os.File) error {
	// Opened anew: what the server has can be written by. It may have lost its name meanwhile.
	read, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return err
	}
	defer read.Close()
	if err := unix.Flock(int(read.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	rights := unix.UnixRights(int(read.Fd()))
	var sent error
	err = raw.Control(func(fd uintptr) { // no Write: the connection has the deadline that the ring was handed over by
		sent = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, sent)
}

// isGone reports whether a file that nobody holds is closed, or has lost its name.
func isGone(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

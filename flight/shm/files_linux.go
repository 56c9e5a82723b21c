package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// handOver sends a message with a read-only descriptor of a file. It never blocks: if the
// client has not read its socket, and the socket's buffer is full, handOver fails and the
// batch is copied.
//
// The new descriptor holds a shared lock (flock) on the file as long as any process has
// the descriptor or a mapping made with it. So a later server process knows which files
// clients of this one may still read.
func handOver(c *net.UnixConn, message []byte, file *os.File) error {
	// Open the file again: the server's own descriptor is writable. /proc works although
	// the file may have lost its name.
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
	err = raw.Control(func(fd uintptr) { // not by Write, which would obey the write deadline of the handshake
		sent = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return errors.Join(err, sent)
}

// isGone reports whether a file is closed or has lost its name. No slot refers to it, so
// its owner may close it at any time.
func isGone(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

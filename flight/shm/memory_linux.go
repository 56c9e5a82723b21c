package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// memory is anonymous memory that a client can map and only read.
type memory struct {
	bytes []byte
	give  *os.File // for the client
	once  sync.Once
}

// newMemory makes n bytes. They are zeros, and take no room before they are written. If there is no error, w calls gone
// when the kernel has them back: this process has freed them, and no other one has them.
func newMemory(n int64, w *watch, gone func()) (m *memory, err error) {
	fd, err := unix.MemfdCreate("bowstring-ring", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "bowstring-ring")
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	if err := f.Truncate(n); err != nil {
		return nil, fmt.Errorf("shared memory of %d bytes: %w", n, err)
	}
	bytes, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", n, err)
	}
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE) // where the kernel has such pages of shared memory
	// No size but this one, no other writer than this mapping, and no seal less: whoever
	// gets the file cannot make a page vanish under the server, nor write.
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		_ = unix.Munmap(bytes)
		return nil, fmt.Errorf("sealing shared memory: %w", err)
	}
	if err := w.add(f, gone); err != nil {
		_ = unix.Munmap(bytes)
		return nil, err
	}
	return &memory{bytes: bytes, give: f}, nil
}

// given closes the server's end of what the client has by now. The mapping stays.
func (m *memory) given() { _ = m.give.Close() }

// free lets go of the memory in this process. The kernel has it back once clients have let go of it, too. Further calls
// do nothing.
func (m *memory) free() {
	m.once.Do(func() {
		_ = m.give.Close()
		_ = unix.Munmap(m.bytes)
		m.bytes = nil
	})
}

// userOf is the user at the other end of a unix socket, as the kernel knows it.
func userOf(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil || err != nil {
		return 0, fmt.Errorf("who is at the other end: %w", errors.Join(ctlErr, err))
	}
	return cred.Uid, nil
}

// Supported reports whether there is such memory here.
const Supported = true

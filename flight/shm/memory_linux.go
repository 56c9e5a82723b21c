package shm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// memory is anonymous shared memory (memfd), which the server maps for writing and a
// client for reading.
type memory struct {
	bytes []byte   // the server's mapping; nil after free
	give  *os.File // the descriptor for the client; closed by given
	once  sync.Once
}

// newMemory makes n bytes. They are zero and take no pages before they are written. If
// newMemory succeeds, w calls gone when the kernel has freed the pages, that is, when
// neither this process nor any other has them.
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
	_ = unix.Madvise(bytes, unix.MADV_HUGEPAGE) // best effort: not every kernel has huge pages of shared memory
	// The seals fix the size, forbid any other writable mapping, and forbid a change of
	// the seals. Otherwise a client could truncate the file, and the server's next write
	// would end in SIGBUS, or it could write into its own ring while another process
	// trusts it.
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

// given closes the server's descriptor after the client has got it. The mapping stays.
func (m *memory) given() { _ = m.give.Close() }

// free unmaps the memory in this process. The kernel frees the pages when clients have
// unmapped and closed it, too. Further calls do nothing.
func (m *memory) free() {
	m.once.Do(func() {
		_ = m.give.Close()
		_ = unix.Munmap(m.bytes)
		m.bytes = nil
	})
}

// userOf returns the user of the program at the other end of a unix socket, as the kernel
// reports it.
func userOf(c *net.UnixConn) (uid uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if ctlErr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); ctlErr != nil || err != nil {
		return 0, fmt.Errorf("the user at the other end of the socket: %w", errors.Join(ctlErr, err))
	}
	return cred.Uid, nil
}

// Supported reports whether this system has memory that can be shared safely: sealed
// memfds.
const Supported = true

package peer

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// readvBytes bounds the bytes of one system call, which then takes about 50 µs.
const readvBytes = 256 << 10

// vectorReader reads from a socket to several places by one system call. It is used by
// one goroutine at a time.
//
// The Go scheduler does not see the system call, which never blocks: the runtime's poller
// waits for further bytes. Otherwise its monitor would give the thread's P to another
// thread each time.
type vectorReader struct {
	conn    syscall.RawConn
	vectors []syscall.Iovec

	to  [][]byte // set while reading
	n   int
	err error
	try func(fd uintptr) bool // reads once; made once, so that a call allocates nothing
}

// newVectorReader returns a reader of the connection, nil if that is not a socket.
func newVectorReader(c net.Conn) *vectorReader {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	r := &vectorReader{conn: raw}
	r.try = r.receive
	return r
}

// read reads the bytes that are available, at least one and at most limit. It fills the
// places in order. The places together must not be empty.
func (r *vectorReader) read(to [][]byte, limit int) (int, error) {
	r.vectors = r.vectors[:0]
	for limit = min(limit, readvBytes); limit > 0 && len(to) > len(r.vectors); {
		b := to[len(r.vectors)]
		v := syscall.Iovec{Base: unsafe.SliceData(b)}
		v.SetLen(min(len(b), limit))
		limit -= min(len(b), limit)
		r.vectors = append(r.vectors, v)
	}
	r.to, r.n, r.err = to, 0, nil
	err := r.conn.Read(r.try)
	r.to = nil
	clear(r.vectors) // its pointers would keep blobs alive
	if err == nil {
		err = r.err
	}
	return r.n, err
}

// receive makes one system call. It returns false if no byte is available, so that the
// poller waits.
func (r *vectorReader) receive(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(r.vectors))),
		uintptr(len(r.vectors)))
	runtime.KeepAlive(r.to)
	switch {
	case errno == syscall.EAGAIN:
		return false
	case errno == syscall.EINTR:
		return r.receive(fd)
	case errno != 0:
		r.err = os.NewSyscallError("readv", errno)
	case n == 0:
		r.err = io.EOF
	default:
		r.n = int(n)
	}
	return true
}

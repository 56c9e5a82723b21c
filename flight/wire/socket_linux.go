package wire

import (
	"io"
	"net"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// writevBytes is the most that one system call sends: all that a connection takes
	// over. It takes some 200 µs. A system call has a high fixed cost: with calls of 256
	// KiB, a GB takes a tenth to a fifth more CPU time of the server.
	writevBytes = gatherBytes
	// writevSlices is how many slices the kernel gathers at once (IOV_MAX).
	writevSlices = 1024
)

// vectorWriter writes slices to a socket. It is used by one goroutine at a time.
//
// The socket never blocks: what does not fit is waited for by the runtime's poller. So
// the scheduler does not see the system call, as long as the bytes are known to be in
// memory. Otherwise its monitor would find the thread in the kernel at nearly every
// check, hand its P to another thread and check again 20 µs later, for as long as bytes
// go out: a tenth more CPU time. The price is a pause of one call's length whenever the
// collector stops the world, which is why calls are bounded. If a page may have to be
// read from a disk first, the scheduler sees the call: a disk that hangs would hold a P,
// and with it the collector and the whole server.
type vectorWriter struct {
	conn    syscall.RawConn // nil if the connection is no socket
	vectors []syscall.Iovec

	rest     net.Buffers // what is left to write; set while writing
	resident time.Time   // until when that is known to be in memory, zero for always
	err      error
	try      func(fd uintptr) bool // sends once; made once, so that a call allocates nothing
}

func newVectorWriter(c net.Conn) *vectorWriter {
	w := &vectorWriter{}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			w.conn = raw
		}
	}
	w.try = w.send
	return w
}

// write writes all buffers to c, of which w was made. It eats them. resident is until when they are known to be in
// memory, zero for always.
func (w *vectorWriter) write(c net.Conn, buffers net.Buffers, resident time.Time) error {
	if w.conn == nil {
		_, err := buffers.WriteTo(c)
		return err
	}
	w.rest, w.resident, w.err = buffers, resident, nil
	for len(w.rest) > 0 && w.err == nil {
		if err := w.conn.Write(w.try); err != nil {
			w.err = err // the deadline, or the connection is closed
		}
	}
	w.rest = nil
	clear(w.vectors[:cap(w.vectors)]) // else a connection without traffic keeps what it sent last
	return w.err
}

// send makes one system call. It returns false where the socket has no room.
func (w *vectorWriter) send(fd uintptr) bool {
	w.vectors = w.vectors[:0]
	bytes := 0
	for _, b := range w.rest {
		if len(w.vectors) == writevSlices || bytes >= writevBytes {
			break
		}
		if len(b) == 0 {
			continue
		}
		v := syscall.Iovec{Base: unsafe.SliceData(b)}
		n := min(len(b), writevBytes-bytes)
		v.SetLen(n)
		bytes += n
		w.vectors = append(w.vectors, v)
	}
	if len(w.vectors) == 0 {
		w.rest = nil
		return true
	}
	var n uintptr
	var errno syscall.Errno
	first, count := unsafe.Pointer(unsafe.SliceData(w.vectors)), uintptr(len(w.vectors))
	if isStale(w.resident) {
		n, _, errno = syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(first), count)
	} else {
		n, _, errno = syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(first), count)
	}
	runtime.KeepAlive(w.rest)
	switch errno {
	case 0:
	case syscall.EAGAIN:
		return false
	case syscall.EINTR:
		return true
	default:
		w.err = &net.OpError{Op: "writev", Err: errno}
		return true
	}
	if n == 0 {
		w.err = io.ErrUnexpectedEOF
	}
	w.eat(int(n))
	return true
}

// eat removes the first n bytes of what is left to write.
func (w *vectorWriter) eat(n int) {
	for len(w.rest) > 0 {
		if b := w.rest[0]; n < len(b) {
			w.rest[0] = b[n:]
			return
		}
		n -= len(w.rest[0])
		w.rest[0] = nil
		w.rest = w.rest[1:]
	}
}

const (
	// localCongestion is the congestion control of connections that stay on this machine. Every Linux has it, and lets
	// any user choose it.
	localCongestion = "reno"
	// localBuffer is what the kernel may hold of such a connection before the other end has it. It is a part of what the
	// processor's cache holds: the other end then reads from there what was just copied, and the next copy goes there. By
	// itself the kernel takes up to net.ipv4.tcp_wmem, 4 MiB and more.
	localBuffer = 768 << 10
)

// onMachine tunes a connection whose other end is on this machine, if it is one. There is
// no path that could be congested, and bytes need not be under way for longer than a copy
// takes. A congestion control that models the path, such as BBR, sends by timers at the
// rate that it has measured: on loopback that costs throughput, and CPU time of both
// ends. Both settings are hints: a connection for which they fail is as good as before.
func onMachine(c net.Conn) {
	s, ok := c.(*net.TCPConn)
	if !ok || !sameMachine(c.LocalAddr(), c.RemoteAddr()) {
		return
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, localCongestion)
		// Without the right to exceed net.core.wmem_max, often 208 KiB, the kernel's own size is the better one.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, localBuffer)
	})
}

// sameMachine reports whether both ends of a connection have addresses of one machine.
func sameMachine(local, remote net.Addr) bool {
	l, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	r, ok := remote.(*net.TCPAddr)
	return ok && (r.IP.IsLoopback() || l.IP.Equal(r.IP))
}

// tcpTimes reads Conn.SendTimes from the kernel, which counts since Linux 4.10.
func tcpTimes(c *net.TCPConn) (sending, held time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) { // it fails where the connection is closed: nothing is sent then
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			sending, held = time.Duration(info.Busy_time)*time.Microsecond,
				time.Duration(info.Rwnd_limited)*time.Microsecond
		}
	})
	return sending, held
}

package wire

import (
	"net"

	"golang.org/x/sys/unix"
)

const (
	// localCongestion is the congestion control of connections that stay on this machine. Every Linux has it, and lets
	// any user choose it.
	localCongestion = "reno"
	// localBuffer is what the kernel may hold of such a connection before the other end has it. It is a part of what the
	// processor's cache holds: the other end then reads from there what was just copied, and the next copy goes there. By
	// itself the kernel takes up to net.ipv4.tcp_wmem, 4 MiB and more.
	localBuffer = 768 << 10
)

// onMachine tunes a connection whose other end is on this machine, if it is one. There is no path that could be
// congested, and bytes need not be under way for longer than a copy takes. A congestion control that models the path, as
// BBR does, sends by timers at the rate that it has measured: on loopback that takes throughput, and processor time of
// both ends. Both settings are hints: a connection for which they fail is as good as before.
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

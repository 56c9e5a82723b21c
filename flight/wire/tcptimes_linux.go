package wire

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

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

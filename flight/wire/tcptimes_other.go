//go:build !linux

package wire

import (
	"net"
	"time"
)

// tcpTimes tells nothing where the kernel is not Linux.
func tcpTimes(*net.TCPConn) (sending, held time.Duration) { return 0, 0 }

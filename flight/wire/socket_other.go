//go:build !linux

package wire

import (
	"net"
	"time"
)

// vectorWriter writes slices to a connection. It is used by one goroutine at a time.
type vectorWriter struct{}

func newVectorWriter(net.Conn) *vectorWriter { return &vectorWriter{} }

// write writes all buffers to c. It eats them.
func (*vectorWriter) write(c net.Conn, buffers net.Buffers, _ time.Time) error {
	_, err := buffers.WriteTo(c)
	return err
}

// onMachine does nothing where the kernel is not Linux.
func onMachine(net.Conn) {}

// tcpTimes reports nothing on systems other than Linux.
func tcpTimes(*net.TCPConn) (sending, held time.Duration) { return 0, 0 }

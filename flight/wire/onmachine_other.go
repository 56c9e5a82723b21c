//go:build !linux

package wire

import "net"

// onMachine does nothing where the kernel is not Linux.
func onMachine(net.Conn) {}

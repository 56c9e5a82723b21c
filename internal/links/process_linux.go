package links

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// socketOf returns the kernel's name of a socket, as a process has it open, by the
// addresses of its connection. ok is false if the table does not have it.
func socketOf(local, remote string) (socket string, ok bool) {
	from, err := tableAddress(local)
	if err != nil {
		return "", false
	}
	to, err := tableAddress(remote)
	if err != nil {
		return "", false
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(table)) {
		// The columns are: sl local_address rem_address st tx:rx tr:when retrnsmt uid
		// timeout inode …
		if f := strings.Fields(line); len(f) > 9 && f[1] == from && f[2] == to {
			return "socket:[" + f[9] + "]", true
		}
	}
	return "", false
}

// tableAddress formats an IPv4 address and port as /proc/net/tcp does: hexadecimal, the
// address as a number in the byte order of the machine.
func tableAddress(s string) (string, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return "", err
	}
	if !a.Addr().Is4() {
		return "", fmt.Errorf("%s is no address of IPv4", s)
	}
	ip := a.Addr().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port()), nil
}

// holds reports whether a process has a socket open. It needs the same user or root.
func holds(pid int, socket string) bool {
	folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	files, err := os.ReadDir(folder)
	if err != nil {
		return false // the process has ended
	}
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil && to == socket {
			return true
		}
	}
	return false
}

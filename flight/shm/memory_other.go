//go:build !linux

package shm

import (
	"errors"
	"log/slog"
	"net"
	"os"
)

// memory is never made on this system: newMemory always fails, and Options.Validate
// refuses before that.
type memory struct {
	bytes []byte
	give  *os.File
}

// watch reports when the kernel has freed shared memory. There is none on this system.
type watch struct{}

func newWatch() (*watch, error) { return nil, errors.New("not possible here") }

func (*watch) run(*slog.Logger) {}
func (*watch) close() error     { return nil }

func newMemory(int64, *watch, func()) (*memory, error) {
	return nil, errors.New("memory can be shared with clients on Linux only")
}

func userOf(*net.UnixConn) (uint32, error) { return 0, errors.New("not known here") }

func handOver(*net.UnixConn, []byte, *os.File) error { return errors.New("not possible here") }

func isGone(*os.File) bool { return false }

func (*memory) given() {}
func (*memory) free()  {}

// Supported reports whether this system has memory that can be shared safely. Only Linux
// has sealed memfds.
const Supported = false

//go:build !linux

package sndfile

import (
	"os"
	"syscall"
)

// widen does nothing: only Linux can enlarge a pipe.
func widen(*os.File) {}

// apart returns no attributes.
func apart() *syscall.SysProcAttr { return nil }

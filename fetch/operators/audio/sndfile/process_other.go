//go:build !linux

package sndfile

import (
	"os"
	"syscall"
)

func widen(*os.File) {}

func apart() *syscall.SysProcAttr { return nil }

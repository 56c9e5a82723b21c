//go:build !linux

package schema

import "errors"

// Populate would bring the pages that hold b into memory.
func Populate([]byte) error { return errors.ErrUnsupported }

// Resident would report whether the pages that hold b are in memory.
func Resident([]byte) bool { return false }

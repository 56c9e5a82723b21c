//go:build !cgo || !linux

package sndfile

// noLibrary is why this build cannot load the library.
const noLibrary = "takes a build for Linux with a C compiler"

// load returns no library.
func load(string) (library, string) { return nil, noLibrary }

// confine does nothing: without a library no process decodes.
func confine() {}

//go:build !cgo || !linux

package sndfile

const noLibrary = "takes a build for Linux with a C compiler"

func load(string) (library, string) { return nil, noLibrary }

func confine() {}

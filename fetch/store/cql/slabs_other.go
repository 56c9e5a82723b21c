//go:build !linux

package cql

// adviseHuge does nothing: other systems have no such advice.
func adviseHuge([]byte) {}

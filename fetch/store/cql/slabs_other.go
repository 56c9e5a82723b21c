//go:build !linux

package cql

func adviseHuge([]byte) {}

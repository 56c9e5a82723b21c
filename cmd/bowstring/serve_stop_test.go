package main

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
)

// A server that is told to stop while its store says nothing stops, though it may wait for the store for an hour.
func TestServeStopsBeforeItsStoreIsOpen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var output bytes.Buffer
	cmd := exec.Command("bowstring", "serve", "--listen", "127.0.0.1:0", "--store",
		fmt.Sprintf("cql://%s/ks?connect=1h&timeout=1h", l.Addr()))
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil { // it asks something
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil { // or the test hangs
		t.Errorf("%v\n%s", err, output.String())
	}
}

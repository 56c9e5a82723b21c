package command

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
)

// A process stops on a signal while its store does not answer, though it may wait for the
// store for an hour. The exit status of a server is that of success; that of a command is
// not.
func TestStopBeforeTheStoreIsOpen(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		status int
	}{
		{[]string{"serve", "--listen", "127.0.0.1:0", "--store"}, 0},
		{[]string{"ls", "--store"}, 128 + int(syscall.SIGTERM)},
		{[]string{"cluster", "status", "lab", "--store"}, 128 + int(syscall.SIGTERM)},
		{[]string{"verify"}, 128 + int(syscall.SIGTERM)},
	} {
		t.Run(tt.args[0], func(t *testing.T) { stopBeforeOpen(t, tt.args, tt.status) })
	}
}

func stopBeforeOpen(t *testing.T, args []string, status int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var output bytes.Buffer
	cmd := exec.Command("bowstring", append(args, fmt.Sprintf("cql://%s/ks?connect=1h&timeout=1h", l.Addr()))...)
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
	_ = cmd.Wait() // or the test hangs; how it ended is looked at
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("it ended with %d, want %d\n%s", got, status, output.String())
	}
}

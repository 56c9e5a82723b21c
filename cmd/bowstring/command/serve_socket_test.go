package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"bowstring/flight"
)

// socketServer is a running "bowstring serve" at a socket.
type socketServer struct {
	*exec.Cmd
	ended chan struct{} // closed when the process has ended with err
	err   error
	log   string // its path
}

// Wait waits until the process has ended.
func (p *socketServer) Wait() error { <-p.ended; return p.err }

// serveSocket starts a server at a socket and waits until it serves.
func serveSocket(t *testing.T, dir string, args ...string) *socketServer {
	t.Helper()
	p, ready := startSocket(t, dir, args...)
	if !ready {
		said, _ := os.ReadFile(p.log)
		t.Fatalf("serve does not become ready: %s", said)
	}
	return p
}

// startSocket starts a server at a socket and waits until it serves or has ended.
func startSocket(t *testing.T, dir string, args ...string) (p *socketServer, serves bool) {
	t.Helper()
	ready := filepath.Join(dir, "ready")
	_ = os.Remove(ready)
	p = &socketServer{ended: make(chan struct{}), log: filepath.Join(dir, "log"), Cmd: exec.Command("bowstring",
		append([]string{"serve", "--store", filepath.Join(dir, "store"), "--listen",
			"grpc+unix://" + filepath.Join(dir, "socket"), "--ready-file", ready}, args...)...)}
	out, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.Stderr = out
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.ended
	})
	tick := time.NewTicker(5 * time.Millisecond) // another process makes the file, so that there is nothing to wait on
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if text, err := os.ReadFile(ready); err == nil {
			if want := "grpc+unix://" + filepath.Join(dir, "socket") + "\n"; string(text) != want {
				t.Fatalf("the ready file has %q, want %q", text, want)
			}
			return p, true
		}
		select {
		case <-p.ended:
			return p, false
		case <-tick.C:
		}
	}
	return p, false
}

// One server at a time has a socket, for its user alone. One that was killed leaves nothing that keeps the next from it.
func TestServeSocket(t *testing.T) {
	dir := t.TempDir()
	at := "grpc+unix://" + filepath.Join(dir, "socket")
	first := serveSocket(t, dir)
	if info, err := os.Stat(filepath.Join(dir, "socket")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want mode 0600", info, err)
	}
	if out, err := exec.Command("bowstring", "ls", "--server", at).CombinedOutput(); err != nil {
		t.Fatalf("ls: %v: %s", err, out)
	}
	second := exec.Command("bowstring", "serve", "--store", filepath.Join(dir, "other"), "--listen", at)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another server has") {
		t.Errorf("a second server on the socket: %v: %s", err, out)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	third := serveSocket(t, dir)
	if out, err := exec.Command("bowstring", "ls", "--server", at).CombinedOutput(); err != nil {
		t.Fatalf("ls after a kill: %v: %s", err, out)
	}
	if err := third.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := third.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	for _, name := range []string{"socket", "ready"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
}

// A connection keeps a server; without any it ends by itself, and well.
func TestServeExitsWhenIdle(t *testing.T) {
	dir := t.TempDir()
	for quiet := time.Second; ; quiet *= 4 {
		p, serves := startSocket(t, dir, "--exit-when-idle", quiet.String())
		conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "socket"),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if serves {
			_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		}
		// On a busy machine the server may end before the test has connected.
		if (!serves || err != nil) && quiet < time.Minute {
			if err := p.Wait(); err != nil {
				t.Fatalf("a server without connections ended with %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.ended:
			t.Fatalf("the server ended with a connection open: %v", p.err)
		case <-time.After(quiet * 5 / 2):
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "ready")); !os.IsNotExist(err) {
			t.Errorf("the ready file is left: %v", err)
		}
		return
	}
}

// A connection that came and went between two looks begins the wait anew.
func TestUntilIdle(t *testing.T) {
	checks := 0
	quiet := 40 * time.Millisecond
	if !untilIdle(t.Context(), quiet, func() flight.Activity {
		checks++
		return flight.Activity{Ended: int64(min(checks, 50))}
	}) {
		t.Error("it ended without its time")
	}
	if checks <= 50 {
		t.Errorf("%d checks: the server was idle while connections came and went", checks)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if untilIdle(ctx, time.Hour, func() flight.Activity { return flight.Activity{} }) {
		t.Error("it was idle after its context had ended")
	}
}

// A server removes no file that is none of its own, and says what is wrong with the path of a socket.
func TestServeSocketRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"file", "other.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	longest := filepath.Join(dir, strings.Repeat("x", 103-len(dir)-1))
	for _, c := range []struct {
		path, want string
		args       []string
	}{
		{filepath.Join(dir, "file"), "file is something else than a socket", nil},
		{filepath.Join(dir, "other"), "other.new is something else than a socket", nil},
		{longest + "x", "has 104 bytes, a socket's may have 103", nil},
		{filepath.Join(dir, "socket"), "leave out --tls-cert", []string{"--tls-cert", "cert.pem", "--tls-key", "key.pem"}},
	} {
		at := "grpc+unix://" + c.path
		args := append([]string{"serve", "--store", filepath.Join(dir, "store"), "--listen", at}, c.args...)
		if status, _, errs := runCommand(t, args...); status == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: status %d, %q, want %q", c.path, status, errs, c.want)
		}
	}
	for _, name := range []string{"file", "other.new"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "mine" {
			t.Errorf("%s has %q, %v", name, data, err)
		}
	}
	l, lock, err := listenSocket(t.Context(), longest)
	if err != nil {
		t.Fatalf("a path of 103 bytes: %v", err)
	}
	if err := errors.Join(l.Close(), lock.Close()); err != nil {
		t.Error(err)
	}
}

// A socket has its mode as soon as it has a name, whatever the umask.
func TestListenPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	old := syscall.Umask(0)
	l, err := listenPrivate(t.Context(), path)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v, want mode 0600", info, err)
	}
}

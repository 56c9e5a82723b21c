package cql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// silent is a server that accepts connections and says nothing until they end.
func silent(t *testing.T) (addr *net.TCPAddr, accepted <-chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns, ended := make(chan net.Conn, 100), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		for len(conns) > 0 {
			_ = (<-conns).Close()
		}
	})
	return l.Addr().(*net.TCPAddr), conns
}

// opensSession says whether any goroutine opens a session.
func opensSession() bool {
	stacks := make([]byte, 1<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "ClusterConfig).CreateSession")
}

// TestConnectEndsWithItsContext: if the context ends while a session is opened, the driver has stopped when connect
// returns, and the connections are closed.
func TestConnectEndsWithItsContext(t *testing.T) {
	cause := errors.New("the caller has gone")
	for name, params := range map[string]string{
		"a server that says nothing": "", "one that does not shake hands": "&tls=1",
	} {
		t.Run(name, func(t *testing.T) {
			addr, accepted := silent(t)
			s := unconnected(t, fmt.Sprintf("cql://%s/mock?connect=1h&timeout=1h%s", addr, params), nil)
			ctx, cancel := context.WithCancelCause(t.Context())
			held := make(chan net.Conn, 1)
			go func() {
				c := <-accepted
				cancel(cause)
				held <- c
			}()
			if _, _, err := s.session(ctx, "mock", 1); !errors.Is(err, cause) { // or the test hangs
				t.Errorf("got %v, want the cause", err)
			}
			if opensSession() {
				t.Error("the driver still opens a session")
			}
			c := <-held
			defer c.Close()
			for b := make([]byte, 1024); ; { // or the test hangs
				if _, err := c.Read(b); err != nil {
					break
				}
			}
		})
	}
	t.Run("a way that is not there", func(t *testing.T) {
		dialer := &gated{first: make(chan struct{})}
		gate := make(chan struct{})
		dialer.gate.Store(&gate)
		s := unconnected(t, "cql://127.0.0.1:1/mock?connect=1h", dialer)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-dialer.first
			cancel(cause)
		}()
		if _, _, err := s.session(ctx, "mock", 1); !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		if opensSession() {
			t.Error("the driver still opens a session")
		}
	})
}

// TestSessionOutlivesItsContext: a session that is open does not end with the context that it was opened with, nor do
// connections that are made later.
func TestSessionOutlivesItsContext(t *testing.T) {
	m, port := mockAlone(t, func(n int) deed { return deed{cut: n == 2} })
	s := unconnected(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=1", port), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var err error
	if s.db, s.steering, err = s.session(ctx, "mock", 1); err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	cancel()
	for n := 0; n < 3; { // the second one cuts the connection
		if err := m.read(t.Context(), s); err == nil {
			n++
		}
	}
	if err := s.buffers.close(); err != nil {
		t.Error(err)
	}
}

var errEnded = errors.New("the session was cancelled")

// TestDialingAfterTheEnd: a connection that is made after the opening was cancelled is closed.
func TestDialingAfterTheEnd(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	d := &dialing{}
	d.begin(dialerFunc(func(ctx context.Context) (net.Conn, error) {
		d.end(errEnded)
		<-ctx.Done() // or the test hangs
		return here, nil
	}))
	if c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:1"); c != nil || !errors.Is(err, errEnded) {
		t.Errorf("got %v, %v", c, err)
	}
	_ = there.SetDeadline(time.Now().Add(time.Minute))
	if _, err := there.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
	if d.open(t.Context()) {
		t.Error("a cancelled dialing is open")
	}
}

// dialerFunc is a Dialer to one place.
type dialerFunc func(context.Context) (net.Conn, error)

func (f dialerFunc) DialContext(ctx context.Context, _, _ string) (net.Conn, error) { return f(ctx) }

// unconnected is a store without a session.
func unconnected(t *testing.T, uri string, dialer Dialer) *Store {
	t.Helper()
	config, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(config, Options{Logger: quiet, Dialer: dialer})
	s.dc = "dc1"
	t.Cleanup(s.end)
	return s
}

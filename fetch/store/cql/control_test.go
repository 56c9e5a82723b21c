//go:build cassandra

package cql

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// holding is a Dialer that can hold back what arrives.
type holding struct {
	mu    sync.Mutex
	conns []*held
}

type held struct {
	net.Conn
	shut func()
	done chan struct{}

	mu   sync.Mutex
	free chan struct{} // what to wait for; nil: nothing
}

func (h *holding) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	c := &held{Conn: conn, done: done, shut: sync.OnceFunc(func() { close(done) })}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c, nil
}

// hold lets nothing more arrive by the connections there are, until the function is called that it returns.
func (h *holding) hold() (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	free := make(chan struct{})
	for _, c := range h.conns {
		c.mu.Lock()
		c.free = free
		c.mu.Unlock()
	}
	return sync.OnceFunc(func() { close(free) })
}

func (c *held) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	free := c.free
	c.mu.Unlock()
	if free != nil {
		select {
		case <-free:
		case <-c.done:
		}
	}
	return n, err
}

func (c *held) Close() error {
	c.shut()
	return c.Conn.Close()
}

// Leases do not wait behind blobs: whatever is under way on the connections of data, they come and go.
func TestLeasesDoNotWaitForBlobs(t *testing.T) {
	dialer := &holding{}
	s := openWith(t, newKeyspace(t), Options{Logger: quiet, Dialer: dialer})
	release := dialer.hold()
	defer release()
	if err := s.PutLease(t.Context(), "c", "n", []byte("lease"), time.Minute); err != nil {
		t.Fatal(err)
	}
	leases, err := s.Leases(t.Context(), "c")
	if err != nil {
		t.Fatal(err)
	}
	if string(leases["n"]) != "lease" {
		t.Errorf("the leases are %q", leases)
	}
}

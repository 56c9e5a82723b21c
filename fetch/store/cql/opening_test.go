package cql

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
)

// gated is a Dialer whose connections wait for a gate, if it has one.
type gated struct {
	dials atomic.Int32
	first chan struct{} // closed when the first one waits
	gate  atomic.Pointer[chan struct{}]
}

func (d *gated) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if gate := d.gate.Load(); gate != nil {
		if d.dials.Add(1) == 1 {
			close(d.first)
		}
		select {
		case <-*gate:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	var own net.Dialer
	return own.DialContext(ctx, network, addr)
}

// TestControlOutlivesItsFirstCaller: the first caller of the session may leave while it is opened. It is still
// opened, once.
func TestControlOutlivesItsFirstCaller(t *testing.T) {
	_, port := mockAlone(t, well)
	dialer := &gated{first: make(chan struct{})}
	s := mockStoreOver(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=1", port), dialer)
	t.Cleanup(s.later.close)
	gate := make(chan struct{})
	dialer.gate.Store(&gate)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.controlled(ctx)
		gone <- err
	}()
	<-dialer.first
	s.later.mu.Lock()
	under := s.later.known[control]
	s.later.mu.Unlock()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("who went away got %v", err)
	}
	close(gate)
	session, err := s.controlled(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if <-under.ended; under.session != session {
		t.Error("the session was opened once more")
	}
}

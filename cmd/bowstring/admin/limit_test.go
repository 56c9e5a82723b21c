package admin

import (
	"net"
	"testing"
)

// from is a listener to which connections come from addresses, one after another.
type from struct {
	net.Listener
	addresses []string
	closed    []string
}

type fromConn struct {
	net.Conn
	at *from
	is string
}

func (f *from) Accept() (net.Conn, error) {
	if len(f.addresses) == 0 {
		return nil, net.ErrClosed
	}
	c := &fromConn{at: f, is: f.addresses[0]}
	f.addresses = f.addresses[1:]
	return c, nil
}

func (c *fromConn) RemoteAddr() net.Addr {
	addr, err := net.ResolveTCPAddr("tcp", c.is)
	if err != nil {
		panic(err)
	}
	return addr
}

func (c *fromConn) Close() error {
	c.at.closed = append(c.at.closed, c.is)
	return nil
}

// A client has no more connections than others by having all addresses of a network of IPv6.
func TestConnectionsOfANetwork(t *testing.T) {
	f := &from{addresses: []string{"[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", "[2001:db8:0:1::1]:1",
		"192.0.2.1:1"}}
	l := newBoundedListener(f, 100, 2)
	var open []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open = append(open, c)
	}
	if len(open) != 4 || len(f.closed) != 1 || f.closed[0] != "[2001:db8::3]:1" {
		t.Fatalf("%d connections are open, and %v were closed", len(open), f.closed)
	}
	for _, c := range open {
		_ = c.Close()
	}
	if len(l.peers) != 0 || l.open != 0 {
		t.Errorf("%v are counted when all are closed", l.peers)
	}
}

package admin

import (
	"errors"
	"net"
	"sync"
)

// What may be connected at once. Health is answered to all who reach the listener, and
// someone who only holds connections is not to keep others from it.
const (
	maxConnections        = 512
	maxConnectionsPerPeer = 128
)

// boundedListener closes connections that are too many as they come.
type boundedListener struct {
	net.Listener
	most, mostOf int

	mu    sync.Mutex
	open  int            // guarded by mu
	peers map[string]int // connections by address, as guesses are counted; guarded by mu
}

func newBoundedListener(l net.Listener, most, mostOf int) *boundedListener {
	return &boundedListener{Listener: l, most: most, mostOf: mostOf, peers: map[string]int{}}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := guesser(c.RemoteAddr().String())
		if l.admit(host) {
			return &boundedConn{Conn: c, leave: func() { l.leave(host) }}, nil
		}
		_ = c.Close() // there is nobody to tell
	}
}

func (l *boundedListener) admit(host string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.most || l.peers[host] >= l.mostOf {
		return false
	}
	l.open++
	l.peers[host]++
	return true
}

func (l *boundedListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.peers[host]--; l.peers[host] == 0 {
		delete(l.peers, host)
	}
}

// boundedConn is counted out when it is closed.
type boundedConn struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.leave)
	return err
}

// CloseWrite lets net/http end an answer before the connection, so that a client that is
// still sending reads it.
func (c *boundedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

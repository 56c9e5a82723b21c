package wire

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"bowstring/flight/auth"
)

// refusalsLogged is how often refused connections are logged.
const refusalsLogged = time.Second

// listener makes every connection that it accepts a Conn, or a
// rawConn that becomes one by a TLS handshake, and closes those that are too
// many.
type listener struct {
	net.Listener
	Listening
	spawn func(func())

	mu      sync.Mutex
	open    int            // guarded by mu
	peers   map[string]int // connections by address; guarded by mu
	refused int            // since it was last logged; guarded by mu
	logged  time.Time      // guarded by mu
}

// Listening is what a listener accepts.
type Listening struct {
	Logger *slog.Logger // of what it refuses
	// Encrypts says that connections begin with a TLS handshake; see Credentials.
	Encrypts bool
	// Within says that they come from within this process; see Conn.Within.
	Within bool
	// Plain has connections lean on nothing that grpc does not promise, at the price of copies; see Plain.
	Plain bool
	// Most is how many may be open, and MostOf how many of one address.
	Most, MostOf int
	// Count counts those that are let in; nil: they are not counted.
	Count *Count
}

// Count counts connections.
type Count struct{ open, ended atomic.Int64 }

// Open is how many are open.
func (c *Count) Open() int64 { return c.open.Load() }

// Ended is how many there were.
func (c *Count) Ended() int64 { return c.ended.Load() }

// Listen returns a listener whose connections are Conns. spawn runs the writer of each in a goroutine that the caller
// waits for.
func Listen(l net.Listener, spawn func(func()), o Listening) net.Listener { return listen(l, spawn, o) }

func listen(l net.Listener, spawn func(func()), o Listening) *listener {
	return &listener{Listener: l, Listening: o, spawn: spawn, peers: map[string]int{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := auth.Host(c.RemoteAddr().String())
		if why := l.admit(host); why != "" {
			l.refuse(c, why)
			continue
		}
		onMachine(c)
		if l.Encrypts {
			return &rawConn{
				corkedConn: &corkedConn{Conn: c}, plain: l.Plain,
				begun: func(g *Conn) { l.run(g, host) },
				left:  func() { l.leave(host) },
			}, nil
		}
		g := newConn(c, l.Plain)
		g.Within = l.Within
		l.run(g, host)
		return g, nil
	}
}

// run starts a connection's writer, which counts it out when it ends.
func (l *listener) run(g *Conn, host string) {
	l.spawn(func() {
		g.write()
		if g.reading.flooded.Load() {
			l.Logger.LogAttrs(context.Background(), slog.LevelWarn,
				"a connection was closed: it sent more control frames than any client needs",
				slog.String("peer", g.Conn.RemoteAddr().String()))
		}
		l.leave(host)
	})
}

// admit counts a connection in, or says why not.
func (l *listener) admit(host string) (why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.Most:
		return fmt.Sprintf("MaxConnections is %d, and as many are open", l.Most)
	case l.peers[host] >= l.MostOf:
		return fmt.Sprintf("MaxConnectionsPerPeer is %d, and this address has as many", l.MostOf)
	}
	l.open++
	l.peers[host]++
	if l.Count != nil {
		l.Count.open.Add(1)
	}
	return ""
}

func (l *listener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.Count != nil {
		l.Count.ended.Add(1) // first: there is no moment at which it is neither open nor ended
		l.Count.open.Add(-1)
	}
	if l.peers[host]--; l.peers[host] == 0 {
		delete(l.peers, host)
	}
}

// refuse closes a connection; who makes many of them does not fill the log.
func (l *listener) refuse(c net.Conn, why string) {
	_ = c.Close() // no caller could use the error
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	if time.Since(l.logged) < refusalsLogged {
		return
	}
	l.Logger.LogAttrs(context.Background(), slog.LevelWarn, "connections were refused",
		slog.String("reason", why), slog.String("peer", c.RemoteAddr().String()), slog.Int("connections", l.refused))
	l.refused, l.logged = 0, time.Now()
}

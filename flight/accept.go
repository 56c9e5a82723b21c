package flight

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"bowstring/flight/auth"
)

// refusalsLogged is how often refused connections are logged.
const refusalsLogged = time.Second

// gatherListener makes every connection that it accepts a gatherConn, or a
// rawConn that becomes one by a TLS handshake, and closes those that are too
// many.
type gatherListener struct {
	net.Listener
	spawn        func(func()) // runs a connection's writer, and is waited for by the server
	log          *slog.Logger
	encrypts     bool
	within       bool // its connections come from within this process
	most, mostOf int  // connections, and those of one address

	mu      sync.Mutex
	open    int            // guarded by mu
	peers   map[string]int // connections by address; guarded by mu
	refused int            // since it was last logged; guarded by mu
	logged  time.Time      // guarded by mu
}

func newListener(l net.Listener, spawn func(func()), o *Options) *gatherListener {
	return &gatherListener{
		Listener: l, spawn: spawn, log: o.Logger, encrypts: o.Door.Encrypts(),
		most: o.MaxConnections, mostOf: o.MaxConnectionsPerPeer, peers: map[string]int{},
	}
}

// Accept implements net.Listener.
func (l *gatherListener) Accept() (net.Conn, error) {
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
		if l.encrypts {
			return &rawConn{
				corkedConn: &corkedConn{Conn: c},
				begun:      func(g *gatherConn) { l.run(g, host) },
				left:       func() { l.leave(host) },
			}, nil
		}
		g := newGatherConn(c)
		g.within = l.within
		l.run(g, host)
		return g, nil
	}
}

// run starts a connection's writer, which counts it out when it ends.
func (l *gatherListener) run(g *gatherConn, host string) {
	l.spawn(func() {
		g.write()
		if g.reading.flooded.Load() {
			l.log.LogAttrs(context.Background(), slog.LevelWarn,
				"a connection was closed: it sent more control frames than any client needs",
				slog.String("peer", g.Conn.RemoteAddr().String()))
		}
		l.leave(host)
	})
}

// admit counts a connection in, or says why not.
func (l *gatherListener) admit(host string) (why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.most:
		return fmt.Sprintf("MaxConnections is %d, and as many are open", l.most)
	case l.peers[host] >= l.mostOf:
		return fmt.Sprintf("MaxConnectionsPerPeer is %d, and this address has as many", l.mostOf)
	}
	l.open++
	l.peers[host]++
	return ""
}

func (l *gatherListener) leave(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.peers[host]--; l.peers[host] == 0 {
		delete(l.peers, host)
	}
}

// refuse closes a connection; who makes many of them does not fill the log.
func (l *gatherListener) refuse(c net.Conn, why string) {
	_ = c.Close() // there is nobody to tell
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	if time.Since(l.logged) < refusalsLogged {
		return
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "connections were refused",
		slog.String("reason", why), slog.String("peer", c.RemoteAddr().String()), slog.Int("connections", l.refused))
	l.refused, l.logged = 0, time.Now()
}

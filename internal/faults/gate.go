package faults

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Trouble is a fault that a gate applies to its connections. The zero value is none.
type Trouble struct {
	// Cut closes connections and takes no new ones.
	Cut bool
	// Hold holds data back, and delivers it when the fault is over, even if its sender has closed long before.
	Hold bool
	// Delay is how much later everything arrives.
	Delay time.Duration
	// Loss is the share of frames between nodes that never arrive.
	Loss float64
}

// Gate is a proxy before a server, with an address of its own. It applies to each
// connection the fault that is set for its origin. Between nodes the origin is the
// address that a node states in its greeting. The origin of all clients is "".
//
// Its methods are safe for concurrent use. Close ends its goroutines.
type Gate struct {
	target string
	nodes  bool // the peers are nodes, which state their addresses

	listener net.Listener
	ctx      context.Context //nolint:containedctx // done when the gate closes
	end      context.CancelFunc
	all      sync.WaitGroup
	lost     atomic.Int64

	// mu guards the fields below. changed is replaced whenever a fault is set, so that
	// goroutines can wait for the next change without polling.
	mu      sync.Mutex
	trouble map[string]Trouble
	changed chan struct{} // closed when trouble changes
	conns   map[net.Conn]string
}

// NewGate listens at addr and forwards to target. If nodes is set, it reads the messages with which nodes of
// Cassandra begin a connection.
func NewGate(addr, target string, nodes bool) (*Gate, error) {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		target: target, nodes: nodes, listener: l,
		trouble: map[string]Trouble{}, changed: make(chan struct{}), conns: map[net.Conn]string{},
	}
	g.ctx, g.end = context.WithCancel(context.Background())
	g.all.Go(g.accept)
	return g, nil
}

// Addr is where the gate listens.
func (g *Gate) Addr() string { return g.listener.Addr().String() }

// Lost is how many frames were lost so far.
func (g *Gate) Lost() int64 { return g.lost.Load() }

// Set sets the fault of connections from an origin, instead of the previous one.
func (g *Gate) Set(from string, t Trouble) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trouble[from] = t
	close(g.changed)
	g.changed = make(chan struct{})
	if t.Cut {
		for c, of := range g.conns {
			if of == from {
				_ = c.Close() // its goroutines end by the error
			}
		}
	}
}

// Close cuts everything, and waits for the gate's goroutines.
func (g *Gate) Close() error {
	g.end()
	err := g.listener.Close()
	g.mu.Lock()
	for c := range g.conns {
		_ = c.Close() // its goroutines end by the error
	}
	g.mu.Unlock()
	g.all.Wait()
	return err
}

// state returns the fault of an origin, and a channel that is closed at the next change.
func (g *Gate) state(from string) (Trouble, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.trouble[from], g.changed
}

// keep records a connection, unless the fault of its origin forbids it.
func (g *Gate) keep(c net.Conn, from string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil || g.trouble[from].Cut {
		return false
	}
	g.conns[c] = from
	return true
}

// forget removes connections that have ended.
func (g *Gate) forget(conns ...net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.conns, c)
	}
}

// accept accepts connections until the gate closes.
func (g *Gate) accept() {
	for {
		c, err := g.listener.Accept()
		if err != nil {
			if g.ctx.Err() != nil {
				return
			}
			continue // an error of this connection alone
		}
		g.all.Go(func() {
			defer c.Close()
			g.serve(c)
		})
	}
}

// unknownOrigin is the origin of connections whose origin is not known yet.
// Such connections are closed with the gate, and no fault applies to them.
const unknownOrigin = "?"

// serve forwards a connection until one of its ends is closed.
func (g *Gate) serve(c net.Conn) {
	if !g.keep(c, unknownOrigin) {
		return
	}
	defer g.forget(c)
	var first greeting
	if g.nodes {
		var err error
		if first, err = readGreeting(c); err != nil {
			return
		}
	}
	var d net.Dialer
	server, err := d.DialContext(g.ctx, "tcp", g.target)
	if err != nil {
		return
	}
	defer server.Close()
	if !g.keep(c, first.from) || !g.keep(server, first.from) {
		return
	}
	defer g.forget(server)
	var both sync.WaitGroup
	both.Go(func() { g.carry(first.from, c, server, first.then(c)) })
	both.Go(func() { g.carry(first.from, server, c, chunks(server)) })
	both.Wait()
}

// inGate is the most pieces in the gate for a connection and direction. A held connection
// then blocks its sender, as a full TCP window would.
const inGate = 256

// piece is data in the gate, and when it may be delivered at the earliest.
type piece struct {
	data []byte
	due  time.Time
}

// carry delivers what next returns until either end is closed, and then closes the other
// end. One goroutine reads and another one delivers. Data that is delayed therefore
// arrives later but at the same rate.
func (g *Gate) carry(from string, source, to net.Conn, next func() (data []byte, whole bool, err error)) {
	defer to.Close()
	waiting := make(chan piece, inGate)
	gone := make(chan struct{})
	var deliver sync.WaitGroup
	deliver.Go(func() {
		defer close(gone)
		defer source.Close()
		for p := range waiting {
			if !g.hold(from, p.due) {
				return
			}
			if _, err := to.Write(p.data); err != nil {
				return
			}
		}
	})
	defer deliver.Wait()
	defer close(waiting)
	for {
		data, whole, err := next()
		if err != nil {
			return
		}
		t, _ := g.state(from)
		if whole && t.Loss > 0 && rand.Float64() < t.Loss {
			g.lost.Add(1)
			continue
		}
		select {
		case waiting <- piece{data, time.Now().Add(t.Delay)}:
		case <-gone:
			return
		}
	}
}

// hold waits until a piece may be delivered. It returns false if the gate closed first. A
// change of the fault applies also to pieces that wait already.
func (g *Gate) hold(from string, due time.Time) bool {
	for {
		t, changed := g.state(from)
		var later <-chan time.Time
		if !t.Hold {
			wait := time.Until(due)
			if wait <= 0 {
				return g.ctx.Err() == nil
			}
			later = time.After(wait)
		}
		select {
		case <-changed:
		case <-later:
		case <-g.ctx.Done():
			return false
		}
	}
}

// chunks returns arriving data in pieces of any size. None of them may be lost: without
// frames the receiver could not find the next message.
func chunks(c io.Reader) func() ([]byte, bool, error) {
	return func() ([]byte, bool, error) {
		b := make([]byte, 64<<10)
		n, err := c.Read(b)
		if n > 0 {
			return b[:n], false, nil
		}
		return nil, false, err
	}
}

package links

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"bowstring/internal/delay"
)

// door leads to a server by way of a link.
type door struct {
	link     *delay.Link
	to       string
	who      func(remote, local string) string
	listener net.Listener
	ctx      context.Context //nolint:containedctx // done when the door closes
	end      context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	trouble map[string]Trouble
	changed chan struct{} // closed when trouble changes
	conns   map[net.Conn]string
	passed  map[string]*passed
}

// passed is what came from a process.
type passed struct{ connections, to, back atomic.Int64 }

func newDoor(link *delay.Link, to string, who func(remote, local string) string) (*door, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &door{
		link: link, to: to, who: who, listener: listener,
		trouble: map[string]Trouble{}, changed: make(chan struct{}), conns: map[net.Conn]string{},
		passed: map[string]*passed{},
	}
	d.ctx, d.end = context.WithCancel(context.Background())
	d.running.Go(d.accept)
	return d, nil
}

func (d *door) address() string { return d.listener.Addr().String() }

func (d *door) accept() {
	for {
		c, err := d.listener.Accept()
		switch {
		case err == nil:
			d.running.Go(func() { d.serve(c) })
		case d.ctx.Err() != nil:
			return
		}
	}
}

// serve carries a connection until one of its ends is gone.
func (d *door) serve(c net.Conn) {
	defer c.Close()
	from := d.who(c.RemoteAddr().String(), c.LocalAddr().String())
	if !d.keep(c, from) {
		return
	}
	defer d.forget(c)
	server, err := d.link.DialContext(d.ctx, "tcp", d.to)
	if err != nil {
		return
	}
	defer server.Close()
	if !d.keep(server, from) {
		return
	}
	defer d.forget(server)
	n := d.of(from)
	n.connections.Add(1)
	var back sync.WaitGroup
	back.Go(func() { d.carry(from, c, server, &n.back) })
	d.carry(from, server, c, &n.to)
	back.Wait()
}

// pieceBytes is how much is read at once.
const pieceBytes = 64 << 10

// carry passes on what comes from source until either end is gone, and takes the other along.
func (d *door) carry(from string, to, source net.Conn, count *atomic.Int64) {
	defer to.Close()
	defer source.Close()
	b := make([]byte, pieceBytes)
	for {
		n, err := source.Read(b)
		if !d.pass(from) {
			return
		}
		if n > 0 {
			count.Add(int64(n))
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits while what comes from a process is held, and reports whether it may go on.
func (d *door) pass(from string) bool {
	for {
		d.mu.Lock()
		t, changed := d.trouble[from], d.changed
		d.mu.Unlock()
		switch {
		case d.ctx.Err() != nil || t == Cut:
			return false
		case t == None:
			return true
		}
		select {
		case <-changed:
		case <-d.ctx.Done():
		}
	}
}

// set changes the trouble of a process.
func (d *door) set(from string, t Trouble) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trouble[from] = t
	close(d.changed)
	d.changed = make(chan struct{})
	if t == Cut {
		d.closeLocked(func(of string) bool { return of == from })
	}
}

func (d *door) closeLocked(which func(from string) bool) {
	for c, of := range d.conns {
		if which(of) {
			_ = c.Close() // its goroutines find out
		}
	}
}

// keep notes a connection, unless it must not be.
func (d *door) keep(c net.Conn, from string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil || d.trouble[from] == Cut {
		return false
	}
	d.conns[c] = from
	return true
}

func (d *door) forget(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

func (d *door) of(from string) *passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.passed[from] == nil {
		d.passed[from] = &passed{}
	}
	return d.passed[from]
}

func (d *door) counts() map[string]*passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]*passed, len(d.passed))
	for from, n := range d.passed {
		all[from] = n
	}
	return all
}

// stop closes what there is; its goroutines end by themselves.
func (d *door) stop() error {
	d.end()
	err := d.listener.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeLocked(func(string) bool { return true })
	return err
}

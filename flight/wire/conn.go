package wire

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"bowstring/schema"
)

const (
	// gatherBytes is how much a connection takes over before the transport has
	// to wait: as much again is on its way into the kernel meanwhile.
	gatherBytes = 1 << 20
	// copyBlock is the memory that small writes are copied into, at a time.
	copyBlock = 16 << 10
	// lastFlush is how long a connection that is being closed may still write
	// what the transport had written, to a client that may not be reading.
	lastFlush = time.Second
)

// nothing is written in place of what a client no longer wants.
var nothing [defaultMaxFrame]byte

// Conn is a connection whose writes go out by writev, directly from the memory of a
// frame's bytes. All else it copies. Its writer sends what has come together while it was
// sending, so that writes are large when there is much to send and prompt when there is
// little.
//
// Over TLS it is the same, except that the kernel does not encrypt: see sealedConn.
//
// A frame's batch stays in place until its bytes are in the kernel: what grpc frees
// before that is passed to retire. Slices that grpc drops without freeing them are
// released when their stream or the connection ends: see lane.
type Conn struct {
	net.Conn

	Within bool   // its other end is in this process
	plain  bool   // what grpc writes is copied as it is
	first  []byte // what was read before grpc reads, and is still to be read by it
	// dispatched says that the connection is another node's. The goroutine of grpc that accepted it sets and reads it.
	dispatched bool

	mu       sync.Mutex
	work     sync.Cond        // the writer waits for pending, or closing
	room     sync.Cond        // Write waits for less pending
	pending  net.Buffers      // what to write next; guarded by mu
	size     int              // bytes of pending; guarded by mu
	resident time.Time        // until when pending is known to be in memory, zero for always; guarded by mu
	copied   []byte           // the block that small writes are copied into; guarded by mu
	run      int              // how much of the block's end is the last slice of pending; guarded by mu
	lanes    map[uint32]*Lane // by stream, where grpc has frames; guarded by mu
	cut      int              // lanes of them that are cut; guarded by mu
	lane     *Lane            // of the DATA frame that the transport writes, or nil; guarded by mu
	payload  int              // bytes that the transport has still to write of a DATA frame; guarded by mu
	open     []byte           // the header of the last frame of pending, if DATA; guarded by mu
	retired  []*Frame         // to release once pending is written; guarded by mu
	writing  bool             // the writer is in the kernel; guarded by mu
	closing  bool             // guarded by mu
	writeErr error            // guarded by mu

	reading settingsReader
}

func newConn(c net.Conn, plain bool) *Conn {
	g := &Conn{Conn: c, plain: plain, lanes: map[uint32]*Lane{}}
	g.work.L, g.room.L = &g.mu, &g.mu
	return g
}

// SetDeadline implements net.Conn for grpc, which clears the deadlines of a connection after the handshake, of one that it
// has dispatched to another node, too. By then that one has deadlines of its own, so there it does nothing.
func (g *Conn) SetDeadline(t time.Time) error {
	if g.dispatched {
		return nil
	}
	return g.Conn.SetDeadline(t)
}

// dispatch takes a connection out of grpc's hands. The deadline of its handshake is over.
func (g *Conn) dispatch() error {
	g.dispatched = true
	return g.Conn.SetDeadline(time.Time{})
}

// gatherAddr is the remote address of a Conn, by which a call finds the
// connection that it came by.
type gatherAddr struct {
	net.Addr
	conn *Conn
}

// RemoteAddr implements net.Conn.
func (g *Conn) RemoteAddr() net.Addr { return gatherAddr{g.Conn.RemoteAddr(), g} }

// ConnOf returns the connection of a call, nil if it is of another kind.
func ConnOf(ctx context.Context) *Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(gatherAddr); ok {
			return a.conn
		}
	}
	return nil
}

// retire releases a frame that grpc has freed: the transport writes no more of it.
func (g *Conn) retire(f *Frame) {
	g.mu.Lock()
	f.lane.forgetLocked(f)
	free := g.retireLocked(f)
	g.mu.Unlock()
	releaseAll(free)
}

// retireLocked has a frame released as soon as no byte of it is pending; now, if it returns it.
func (g *Conn) retireLocked(f *Frame) (free []*Frame) {
	if g.writing || len(g.pending) > 0 {
		g.retired = append(g.retired, f)
		return nil
	}
	return []*Frame{f}
}

// Read implements net.Conn, looking for the client's settings in passing, and for streams that it resets. The transport
// reads on only when it has dealt with those.
func (g *Conn) Read(b []byte) (int, error) {
	if r := &g.reading; len(r.resets) > 0 {
		g.reset(r.resets)
		r.resets = r.resets[:0]
	}
	var n int
	var err error
	if len(g.first) > 0 {
		n = copy(b, g.first)
		g.first = g.first[n:]
	} else {
		n, err = g.Conn.Read(b)
	}
	if !g.reading.see(b[:n]) {
		return 0, errFlood
	}
	return n, err
}

// Write implements net.Conn. An error of the writer is returned by the writes
// that follow.
func (g *Conn) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.size >= gatherBytes && g.writeErr == nil && !g.closing {
		g.room.Wait()
	}
	switch {
	case g.writeErr != nil:
		return 0, g.writeErr
	case g.closing:
		return 0, net.ErrClosed
	case len(b) == 0:
		return 0, nil
	}
	if g.plain {
		g.copy(b)
	} else if err := g.recognise(b); err != nil {
		return 0, err
	}
	g.size += len(b)
	if !g.writing {
		g.work.Signal()
	}
	return len(b), nil
}

// recognise appends to pending what the transport writes. mu is held.
func (g *Conn) recognise(b []byte) error {
	begins := g.payload == 0   // a frame of HTTP/2: the transport writes all but DATA frames at once
	if !begins || !g.data(b) { // else it is the header of a DATA frame, dealt with
		if g.writeErr = g.take(b); g.writeErr != nil {
			g.work.Signal() // the writer ends the connection
			return g.writeErr
		}
		g.payload = max(0, g.payload-len(b))
	}
	if begins {
		g.follow(b)
	}
	return nil
}

// take appends the bytes that the transport writes to pending, except headers of DATA
// frames; mu is held.
func (g *Conn) take(b []byte) error {
	if g.payload > 0 && g.lane != nil {
		if g.lane.cut { // its batch may have been released
			for n := len(b); n > 0; n -= len(nothing) {
				g.refer(nothing[:min(n, len(nothing))])
			}
			return nil
		}
		if part := g.lane.next(b); len(part) > InlineBytes {
			g.refer(part)
			return nil
		}
	}
	return g.copyGuarded(b)
}

// follow looks at the beginning of a frame that the transport has written, for what it says of streams: that one has
// ended, or that grpc has come to one that is newer than those that are cut. mu is held.
func (g *Conn) follow(b []byte) {
	if len(b) < frameHeader {
		return
	}
	stream := frameStream(b)
	if l := g.lanes[stream]; l != nil && (b[3] == typeReset || b[3] == typeHeaders && b[4]&flagEndStream != 0) {
		l.overLocked()
	}
	if g.cut == 0 {
		return
	}
	for _, l := range g.lanes {
		if l.cut && l.newest < stream {
			l.endLocked()
		}
	}
}

// refer appends part of a piece to pending; mu is held. The transport cuts pieces as it
// cuts messages: what follows the last slice in the same piece makes that one longer. So
// there are fewer for the kernel to gather, and for TLS to put together.
func (g *Conn) refer(part []byte) {
	if n := len(g.pending); n > 0 && g.run == 0 {
		last := g.pending[n-1]
		if have := len(last); cap(last)-have >= len(part) {
			if whole := last[:have+len(part)]; &whole[have] == &part[0] {
				g.pending[n-1] = whole
				return
			}
		}
	}
	g.pending, g.run = append(g.pending, part), 0
}

// copy appends a copy of b to pending; mu is held. Successive copies become one slice.
func (g *Conn) copy(b []byte) {
	if cap(g.copied)-len(g.copied) < len(b) {
		g.copied, g.run = make([]byte, 0, max(copyBlock, len(b))), 0
	}
	g.copied = append(g.copied, b...)
	g.run += len(b)
	tail := g.copied[len(g.copied)-g.run:]
	if g.run > len(b) {
		g.pending[len(g.pending)-1] = tail
	} else {
		g.pending = append(g.pending, tail)
	}
}

// copyGuarded is copy for bytes that may be in a mapped file. A page of that file may have
// become unreadable.
func (g *Conn) copyGuarded(b []byte) error {
	if g.payload == 0 {
		g.copy(b)
		return nil
	}
	if isStale(g.resident) && !schema.Resident(b) {
		_ = schema.Populate(b)
	}
	return schema.Guard(func() error {
		g.copy(b)
		return nil
	})
}

// data takes over b if it is the header of a DATA frame, which the transport
// writes by itself. If the frame continues the one before it, that one is made
// longer instead, up to what the client accepts: the transport cuts messages
// into frames of 16 KiB, and each frame costs the client a fair part of what
// reading its bytes does. mu is held.
func (g *Conn) data(b []byte) bool {
	if len(b) != frameHeader || b[3] != typeData {
		g.open = nil
		return false
	}
	g.payload, g.lane = frameLength(b), g.lanes[frameStream(b)]
	if g.open != nil && bytes.Equal(g.open[3:], b[3:]) && b[4] == 0 &&
		frameLength(g.open)+g.payload <= g.reading.maxFrame() {
		putFrameLength(g.open, frameLength(g.open)+g.payload)
		return true
	}
	g.copy(b)
	g.open = g.copied[len(g.copied)-frameHeader:]
	return true
}

// write is the connection's writer. It ends, and closes the connection, after
// Close or an error.
func (g *Conn) write() {
	g.mu.Lock()
	var spare net.Buffers
	vectors := newVectorWriter(g.Conn)
	for g.writeErr == nil {
		for len(g.pending) == 0 && !g.closing && g.writeErr == nil {
			g.work.Wait()
		}
		if len(g.pending) == 0 {
			break
		}
		batch, written, resident := g.pending, g.retired, g.resident
		g.pending, g.retired, g.resident = spare, nil, time.Time{}
		g.size, g.run, g.open, g.writing = 0, 0, nil, true
		g.room.Broadcast()
		g.mu.Unlock()

		err := g.flush(vectors, batch, resident)
		clear(batch)
		spare = batch[:0]
		releaseAll(written)

		g.mu.Lock()
		if g.writing = false; g.writeErr == nil {
			g.writeErr = err
		}
		if len(g.pending) == 0 {
			// Retired while the last of their bytes went out.
			written, g.retired = g.retired, nil
			g.mu.Unlock()
			releaseAll(written)
			g.mu.Lock()
		}
	}
	retired := g.retired
	g.pending, g.retired, g.size = nil, nil, 0
	for _, l := range g.lanes { // of which no byte is read any more
		retired = append(retired, l.releaseLocked()...)
		l.ended, l.listed, l.frames = true, false, nil
	}
	g.lanes, g.lane, g.cut = nil, nil, 0
	g.closing = true
	g.room.Broadcast()
	g.mu.Unlock()
	releaseAll(retired)
	_ = g.Conn.Close() // what there was to say is said, or the error is known
}

func releaseAll(list []*Frame) {
	for _, f := range list {
		f.release()
	}
}

// Close implements net.Conn. It does not wait: the writer sends what is
// pending, as long as the client takes it within a second, and closes.
func (g *Conn) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closing {
		return nil
	}
	g.closing = true
	g.work.Signal()
	g.room.Broadcast()
	return g.Conn.SetWriteDeadline(time.Now().Add(lastFlush))
}

// SendTimes returns how long the connection has had bytes to send that its peer's machine
// had not confirmed, and how long of that the peer had no room for them; both are zero if
// the system does not report them.
func (g *Conn) SendTimes() (sending, held time.Duration) {
	c := g.Conn
	if sealed, ok := c.(*sealedConn); ok {
		c = sealed.below.Conn
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		return tcpTimes(tcp)
	}
	return 0, 0
}

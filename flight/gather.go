package flight

import (
	"bytes"
	"context"
	"net"
	"sync"
	"time"
	"weak"

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

// gatherConn is a connection whose writes go out by writev, straight from
// where a frame's bytes lie. grpc's transport writes each slice of a frame by
// itself if it has no write buffer; a gatherConn recognises the slices of
// frames that it was told of (expect) and keeps them by reference. All else it
// copies. Its writer sends what has come together while it was sending, so
// that writes are large when there is much to send and prompt when there is
// little.
//
// Over TLS it is the same but for the kernel: see sealedConn.
//
// A frame's batch stays in place until its bytes are in the kernel: what
// grpc frees before that is passed to retire. Of a call that has ended grpc drops
// frames without a word. So they are not kept here, but by their buffers.
type gatherConn struct {
	net.Conn

	within bool // from within this process

	mu       sync.Mutex
	work     sync.Cond             // the writer waits for pending, or closing
	room     sync.Cond             // Write waits for less pending
	pending  net.Buffers           // what to write next; guarded by mu
	size     int                   // bytes of pending; guarded by mu
	copied   []byte                // the block that small writes are copied into; guarded by mu
	run      int                   // how much of the block's end is the last slice of pending; guarded by mu
	frames   []weak.Pointer[frame] // expected, as long as grpc may write them; guarded by mu
	payload  int                   // bytes that the transport has still to write of a DATA frame; guarded by mu
	open     []byte                // the header of the last frame of pending, if DATA; guarded by mu
	retired  []*hold               // to release once pending is written; guarded by mu
	writing  bool                  // the writer is in the kernel; guarded by mu
	closing  bool                  // guarded by mu
	writeErr error                 // guarded by mu

	reading settingsReader
}

func newGatherConn(c net.Conn) *gatherConn {
	g := &gatherConn{Conn: c}
	g.work.L, g.room.L = &g.mu, &g.mu
	return g
}

// gatherAddr is the remote address of a gatherConn, by which a call finds the
// connection that it came by.
type gatherAddr struct {
	net.Addr
	conn *gatherConn
}

// RemoteAddr implements net.Conn.
func (g *gatherConn) RemoteAddr() net.Addr { return gatherAddr{g.Conn.RemoteAddr(), g} }

// gatherOf returns the connection of a call, nil if it is of another kind.
func gatherOf(ctx context.Context) *gatherConn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(gatherAddr); ok {
			return a.conn
		}
	}
	return nil
}

// expect tells of a frame that the transport is about to write.
func (g *gatherConn) expect(f *frame) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closing && g.writeErr == nil {
		g.frames = append(g.frames, weak.Make(f))
	}
}

// retire releases a frame's batch when no byte of it is pending. The transport
// writes no more of the frame. Until then the hold itself is kept: were it out
// of reach, its cleanup would release the batch.
func (g *gatherConn) retire(h *hold) {
	g.mu.Lock()
	for i := range g.frames {
		if f := g.frames[i].Value(); f != nil && f.hold == h {
			g.forget(i)
			break
		}
	}
	wait := g.writing || len(g.pending) > 0
	if wait {
		g.retired = append(g.retired, h)
	}
	g.mu.Unlock()
	if !wait {
		h.batch.release()
	}
}

// forget removes an expected frame; mu is held.
func (g *gatherConn) forget(i int) {
	last := len(g.frames) - 1
	g.frames[i], g.frames[last] = g.frames[last], weak.Pointer[frame]{}
	g.frames = g.frames[:last]
}

// Read implements net.Conn, looking for the client's settings in passing.
func (g *gatherConn) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if !g.reading.see(b[:n]) {
		return 0, errFlood
	}
	return n, err
}

// Write implements net.Conn. An error of the writer is returned by the writes
// that follow.
func (g *gatherConn) Write(b []byte) (int, error) {
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
	if g.payload > 0 || !g.data(b) { // else it is the header of a DATA frame, dealt with
		if part := g.expected(b); len(part) > inlineBytes {
			g.refer(part)
		} else if g.writeErr = g.copyGuarded(b); g.writeErr != nil {
			g.work.Signal() // the writer ends the connection
			return 0, g.writeErr
		}
		g.payload = max(0, g.payload-len(b))
	}
	g.size += len(b)
	if !g.writing {
		g.work.Signal()
	}
	return len(b), nil
}

// refer appends part of a piece to pending; mu is held. The transport cuts pieces as it
// cuts messages: what follows the last slice in the same piece makes that one longer. So
// there are fewer for the kernel to gather, and for TLS to put together.
func (g *gatherConn) refer(part []byte) {
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

// copy appends a copy of b to pending; mu is held. What is copied in a row
// becomes one slice.
func (g *gatherConn) copy(b []byte) {
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

// copyGuarded is copy of what may lie in a file, a page of which cannot be read any more. mu is held.
func (g *gatherConn) copyGuarded(b []byte) error {
	if g.payload == 0 {
		g.copy(b)
		return nil
	}
	return schema.Guard(func() error {
		g.copy(b)
		return nil
	})
}

// data takes over b if it is the header of a DATA frame, which the transport
// writes by itself. If the frame continues the one before it, that one is made
// longer instead, up to what the client accepts: the transport cuts messages
// into frames of 16 KiB, each of which costs the client a fair part of what
// reading its bytes does. mu is held.
func (g *gatherConn) data(b []byte) bool {
	if len(b) != frameHeader || b[3] != typeData {
		g.open = nil
		return false
	}
	g.payload = frameLength(b)
	if g.open != nil && bytes.Equal(g.open[3:], b[3:]) && b[4] == 0 &&
		frameLength(g.open)+g.payload <= g.reading.maxFrame() {
		putFrameLength(g.open, frameLength(g.open)+g.payload)
		return true
	}
	g.copy(b)
	g.open = g.copied[len(g.copied)-frameHeader:]
	return true
}

// expected returns b as part of its piece, if it is what comes next of an expected frame;
// else nil.
func (g *gatherConn) expected(b []byte) []byte {
	for i := 0; i < len(g.frames); i++ {
		f := g.frames[i].Value()
		if f == nil { // it was dropped
			g.forget(i)
			i--
			continue
		}
		if part := f.next(b); part != nil {
			if f.written == len(f.pieces) {
				g.forget(i)
			}
			return part
		}
	}
	return nil
}

// write is the connection's writer. It ends, and closes the connection, after
// Close or an error.
func (g *gatherConn) write() {
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
		batch, written := g.pending, g.retired
		g.pending, g.retired = spare, nil
		g.size, g.run, g.open, g.writing = 0, 0, nil, true
		g.room.Broadcast()
		g.mu.Unlock()

		rest := batch // which WriteTo eats
		var err error
		if sealed, ok := g.Conn.(*sealedConn); ok {
			err = schema.Guard(func() error { return sealed.writeBuffers(rest) })
		} else {
			err = vectors.write(g.Conn, rest)
		}
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
	g.pending, g.retired, g.frames, g.size = nil, nil, nil, 0
	g.closing = true
	g.room.Broadcast()
	g.mu.Unlock()
	releaseAll(retired)
	_ = g.Conn.Close() // what there was to say is said, or the error is known
}

func releaseAll(list []*hold) {
	for _, h := range list {
		h.batch.release()
	}
}

// Close implements net.Conn. It does not wait: the writer sends what is
// pending, as long as the client takes it within a second, and closes.
func (g *gatherConn) Close() error {
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

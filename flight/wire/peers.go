package wire

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"

	"bowstring/flight/auth"
	"bowstring/schema"
)

const (
	// lastWords is how long a connection to another node that ends may still be written to, and is still read.
	lastWords = time.Second
	// lastRead is how much is still read of it: were it closed with something unread, what was said last would be lost.
	lastRead = 1 << 20
)

// peerPreface begins a connection of another node without TLS.
var peerPreface = []byte(auth.PeerProtocol + "\n")

// PeerConn is a connection that another node of the cluster has opened, and that gRPC knows nothing of. Its preface was
// read. One goroutine reads, and one at a time writes.
type PeerConn struct {
	*Conn
	at      *peer.Peer
	vectors *vectorWriter

	mu   sync.Mutex
	last bool // writes get no more time; guarded by mu
}

func newPeerConn(g *Conn, info *auth.Peer) *PeerConn {
	p := &PeerConn{Conn: g, at: &peer.Peer{Addr: g.RemoteAddr()}, vectors: newVectorWriter(g.Conn)}
	if info != nil {
		p.at.AuthInfo = info
	}
	return p
}

// Context returns ctx as that of a call which comes by the connection.
func (p *PeerConn) Context(ctx context.Context) context.Context { return peer.NewContext(ctx, p.at) }

// Read reads what the other node has sent.
func (p *PeerConn) Read(b []byte) (int, error) { return p.Conn.Conn.Read(b) }

// WriteBuffers writes all slices of a list from their own memory, until a time. It eats
// the list. resident is until when they are known to be in memory, zero for always.
func (p *PeerConn) WriteBuffers(list net.Buffers, resident, until time.Time) error {
	if err := p.allow(until); err != nil {
		return err
	}
	return p.flush(p.vectors, list, resident)
}

// allow gives writes time, unless these are the last ones.
func (p *PeerConn) allow(until time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last {
		return nil
	}
	if sealed, ok := p.Conn.Conn.(*sealedConn); ok {
		return sealed.below.SetWriteDeadline(until)
	}
	return p.Conn.Conn.SetWriteDeadline(until)
}

// Interrupt ends reads at once, and writes soon. It may be called several times.
func (p *PeerConn) Interrupt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last {
		return
	}
	p.last = true
	now := time.Now()
	_ = p.Conn.Conn.SetReadDeadline(now)
	_ = p.Conn.Conn.SetWriteDeadline(now.Add(lastWords))
}

// Close waits a moment until the other node has read what was said last, and closes the connection.
func (p *PeerConn) Close() error {
	if p.Conn.Conn.SetReadDeadline(time.Now().Add(lastWords)) == nil {
		_, _ = io.CopyN(io.Discard, p, lastRead) // it ends, one way or the other
	}
	return p.Conn.Close()
}

// flush writes a list, which it eats.
func (g *Conn) flush(vectors *vectorWriter, list net.Buffers, resident time.Time) error {
	sealed, ok := g.Conn.(*sealedConn)
	if !ok {
		return vectors.write(g.Conn, list, resident)
	}
	if isStale(resident) {
		bringBack(list)
	}
	return schema.Guard(func() error { return sealed.writeBuffers(list) })
}

// ofPeer reads the beginning of a connection, and reports whether it is that of another
// node. On any other connection, gRPC reads the first bytes again. It waits until
// deadlines or ctx end.
func (g *Conn) ofPeer(ctx context.Context) (bool, error) {
	defer context.AfterFunc(ctx, func() { _ = g.Conn.SetReadDeadline(time.Now()) })()
	first := make([]byte, 0, len(peerPreface))
	for len(first) < len(peerPreface) {
		n, err := g.Conn.Read(first[len(first):cap(first)])
		first = first[:len(first)+n]
		if !bytes.HasPrefix(peerPreface, first) {
			g.first = first
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

package wire

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"bowstring/flight/auth"
)

const (
	// recordBytes is what one TLS record carries at most.
	recordBytes = 16 << 10
	// corkBytes is how much of what was encrypted goes into the kernel at once.
	corkBytes = 256 << 10
)

// sealedConn is a TLS connection that a Conn writes to. Gathered slices are encrypted
// from their own memory, which is TLS's one copy; small pieces are put together into
// records, and many records go out by one system call, where crypto/tls alone makes one
// for each.
type sealedConn struct {
	*tls.Conn
	below   *corkedConn
	records *bufio.Writer // fills records; used by the Conn's writer alone
}

func newSealedConn(c *tls.Conn, below *corkedConn) *sealedConn {
	return &sealedConn{c, below, bufio.NewWriterSize(c, recordBytes)}
}

// writeBuffers writes all of list.
func (s *sealedConn) writeBuffers(list net.Buffers) error {
	s.below.cork()
	for _, b := range list {
		if _, err := s.records.Write(b); err != nil {
			return errors.Join(err, s.below.uncork())
		}
	}
	return errors.Join(s.records.Flush(), s.below.uncork())
}

// SetWriteDeadline sets the deadline for the last words of the connection. TLS,
// which would give itself more time to say goodbye, does not get it.
func (s *sealedConn) SetWriteDeadline(t time.Time) error { return s.below.last(t) }

// corkedConn is a connection below TLS that holds back what is written between
// cork and uncork until it is worth a system call.
type corkedConn struct {
	net.Conn

	mu      sync.Mutex
	corked  bool          // guarded by mu
	held    *[]byte       // of corks, while there is something; guarded by mu
	vectors *vectorWriter // made when it is needed; guarded by mu

	deadlines sync.Mutex // not mu, which is held while Write waits
	final     bool       // the write deadline stays as it is; guarded by deadlines
}

// corks are the buffers of connections that write just now.
var corks = sync.Pool{New: func() any {
	b := make([]byte, 0, corkBytes)
	return &b
}}

// Write implements net.Conn. An error may be that of an earlier write.
func (c *corkedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		return c.Conn.Write(b)
	}
	if c.held != nil && len(*c.held)+len(b) > corkBytes {
		if err := c.flushLocked(); err != nil {
			return 0, err
		}
	}
	if len(b) > corkBytes {
		return c.Conn.Write(b)
	}
	if c.held == nil {
		c.held, _ = corks.Get().(*[]byte)
	}
	*c.held = append(*c.held, b...)
	return len(b), nil
}

func (c *corkedConn) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = true
}

// uncork writes what was held back.
func (c *corkedConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	return c.flushLocked()
}

func (c *corkedConn) flushLocked() error {
	if c.held == nil {
		return nil
	}
	if c.vectors == nil {
		c.vectors = newVectorWriter(c.Conn)
	}
	err := c.vectors.write(c.Conn, net.Buffers{*c.held}, time.Time{})
	*c.held = (*c.held)[:0]
	corks.Put(c.held)
	c.held = nil
	return err
}

// SetDeadline implements net.Conn.
func (c *corkedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetWriteDeadline implements net.Conn. After last it does nothing.
func (c *corkedConn) SetWriteDeadline(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	if c.final {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// last sets the write deadline once and for all.
func (c *corkedConn) last(t time.Time) error {
	c.deadlines.Lock()
	defer c.deadlines.Unlock()
	c.final = true
	return c.Conn.SetWriteDeadline(t)
}

// rawConn is a connection before its TLS handshake, as grpc keeps it: closing it
// closes what was made of it.
type rawConn struct {
	*corkedConn
	plain  bool
	left   func() // called once, when the connection is closed before its handshake is done
	gather atomic.Pointer[Conn]
	begun  func(*Conn) // runs the writer
	once   sync.Once
}

// SetDeadline implements net.Conn, as that of a Conn.
func (r *rawConn) SetDeadline(t time.Time) error {
	if g := r.gather.Load(); g != nil && g.dispatched {
		return nil
	}
	return r.corkedConn.SetDeadline(t)
}

// Close implements net.Conn.
func (r *rawConn) Close() error {
	if g := r.gather.Load(); g != nil {
		return g.Close()
	}
	err := r.corkedConn.Close()
	r.once.Do(r.left)
	return err
}

// guide is grpc's credentials of a server: it makes TLS connections, where the authenticator encrypts, and leads other nodes of
// the cluster elsewhere.
type guide struct {
	ctx           context.Context // ends handshakes
	authenticator *auth.Authenticator
	peers         func(*PeerConn)
}

// Credentials returns the credentials of a grpc server whose connections come from a listener of this package. They make
// each a TLS connection, if the authenticator encrypts. Handshakes end with ctx. Connections of other nodes are given to peers,
// which does not wait: it is what closes them.
func Credentials(ctx context.Context, authenticator *auth.Authenticator, peers func(*PeerConn)) credentials.TransportCredentials {
	return guide{ctx, authenticator, peers}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c guide) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if plain, ok := conn.(*Conn); ok {
		if plain.Within {
			return plain, nil, nil
		}
		switch other, err := plain.ofPeer(c.ctx); {
		case err != nil:
			return nil, nil, err
		case other:
			return nil, nil, c.dispatch(plain, nil)
		}
		return plain, nil, nil
	}
	raw, ok := conn.(*rawConn)
	if !ok {
		return nil, nil, errors.New("the connection is not one that this server has accepted")
	}
	sealed, peer, err := c.authenticator.Encrypt(c.ctx, raw.corkedConn)
	if err != nil {
		return nil, nil, err
	}
	g := newConn(newSealedConn(sealed, raw.corkedConn), raw.plain)
	raw.gather.Store(g)
	raw.begun(g)
	if sealed.ConnectionState().NegotiatedProtocol == auth.PeerProtocol {
		return nil, nil, c.dispatch(g, peer)
	}
	return g, peer, nil
}

// dispatch gives a connection of another node to peers. By this error grpc knows that the
// connection is none of its own.
func (c guide) dispatch(g *Conn, peer *auth.Peer) error {
	if err := g.dispatch(); err != nil {
		return err
	}
	c.peers(newPeerConn(g, peer))
	return credentials.ErrConnDispatched
}

// ClientHandshake implements credentials.TransportCredentials; there is no client.
func (guide) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are credentials of a server")
}

// Info implements credentials.TransportCredentials.
func (guide) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls or none"}
}

// Clone implements credentials.TransportCredentials.
func (c guide) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials, which has it
// for clients.
func (guide) OverrideServerName(string) error { return nil }

// TLS returns the state of the connection's TLS; false where it has none.
func (g *Conn) TLS() (state tls.ConnectionState, ok bool) {
	sealed, ok := g.Conn.(*sealedConn)
	if !ok {
		return state, false
	}
	return sealed.ConnectionState(), true
}

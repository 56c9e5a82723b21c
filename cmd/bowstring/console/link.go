package console

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"bowstring/flight"
)

const (
	// maxAnswer is the longest message accepted from the server: the largest shown blob
	// and its envelope.
	maxAnswer = maxBlob + 1<<20
	// maxLinks is how many addresses keep a connection. Connections in use are kept
	// beyond it.
	maxLinks = 64
)

// links are the in-process connections to the server, one for each address of a viewer.
// The server limits calls by address: with one shared connection, one viewer could use up
// the limits of all.
type links struct {
	pipe *pipe
	done chan error // result of ServeWithin

	mu    sync.Mutex
	byKey map[string]*link // guarded by mu
}

// link is a Flight client for one address. gRPC multiplexes the calls of its users.
type link struct {
	arrowflight.Client
	conn  *grpc.ClientConn
	users int       // guarded by links.mu
	last  time.Time // guarded by links.mu
}

// newLinks serves the server on an in-process listener, in a goroutine that ends with
// close.
func newLinks(server *flight.Server, log *slog.Logger) *links {
	l := &links{pipe: newPipe(), done: make(chan error, 1), byKey: map[string]*link{}}
	go func() {
		err := server.ServeWithin(l.pipe)
		if err != nil && !errors.Is(err, net.ErrClosed) {
			log.Error("the console cannot reach the server", "error", err)
		}
		l.done <- err
	}()
	return l
}

// get returns the connection of an address and a function that releases it. The port does
// not count: a browser uses many.
func (l *links) get(from net.Addr) (*link, func(), error) {
	key, _, err := net.SplitHostPort(from.String())
	if err != nil {
		key = from.String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.byKey[key]
	if one == nil {
		l.makeRoomLocked()
		// The dialer ignores the target. Retries are off: the viewer sees an error at
		// once.
		conn, err := grpc.NewClient("passthrough:///console", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				return l.pipe.dial(ctx, from)
			}),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableRetry(),
			grpc.WithUserAgent(flight.ConsoleAgent))
		if err != nil {
			return nil, nil, err
		}
		one = &link{Client: arrowflight.NewClientFromConn(conn, nil), conn: conn}
		l.byKey[key] = one
	}
	one.users++
	return one, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		one.users--
		one.last = time.Now()
	}, nil
}

// makeRoomLocked closes the connection that has been unused for longest, if there are
// maxLinks or more. l.mu is held.
func (l *links) makeRoomLocked() {
	if len(l.byKey) < maxLinks {
		return
	}
	oldest := ""
	for key, one := range l.byKey {
		if one.users == 0 && (oldest == "" || one.last.Before(l.byKey[oldest].last)) {
			oldest = key
		}
	}
	if oldest != "" {
		_ = l.byKey[oldest].conn.Close()
		delete(l.byKey, oldest)
	}
}

// close ends the connections and waits for the goroutine of newLinks.
func (l *links) close() error {
	var err error
	l.mu.Lock()
	for _, one := range l.byKey {
		err = errors.Join(err, one.conn.Close())
	}
	clear(l.byKey)
	l.mu.Unlock()
	err = errors.Join(err, l.pipe.Close())
	<-l.done //nolint:errcheck // it is logged
	return err
}

// pipe is a net.Listener for connections within the process. It needs no port, so that no
// other process can connect with a forged address.
type pipe struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe { return &pipe{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements net.Listener.
func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr implements net.Listener.
func (*pipe) Addr() net.Addr { return within{} }

// dial returns a connection whose other end reports from as its remote address. It blocks
// until the server accepts it, the pipe is closed, or ctx ends.
func (p *pipe) dial(ctx context.Context, from net.Addr) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- pipeConn{theirs, from}:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipeConn is the server's end of a connection, with the address of the viewer.
type pipeConn struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements net.Conn.
func (c pipeConn) RemoteAddr() net.Addr { return c.from }

// within is the address of the listener itself.
type within struct{}

// Network implements net.Addr.
func (within) Network() string { return "within" }

func (within) String() string { return "within" }

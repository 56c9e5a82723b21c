package object

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// resolveEvery is how long an answer of DNS is used. S3 returns other addresses every
	// few seconds.
	resolveEvery = 10 * time.Second
	// dialPatience is how long one of several addresses may take to answer.
	dialPatience = 5 * time.Second
	// handshakePatience is how long a TLS handshake may take.
	handshakePatience = 10 * time.Second
	// recordsBytes is how many bytes of TLS records are read by one system call.
	// crypto/tls itself reads each record of 16 KiB with a call of its own.
	recordsBytes = 256 << 10
	// avoidFor is how long an address that did not answer is dialled only after all
	// others.
	avoidFor = time.Minute
)

// spreader dials hosts at all of their addresses in rotation. Hundreds of connections to
// one address of a large service would overload it, and so would all connections going to
// the address that a resolver happens to return first. It is safe for concurrent use.
type spreader struct {
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	lookup func(ctx context.Context, host string) ([]string, error)
	now    func() time.Time

	mu    sync.Mutex
	hosts map[string]*hostAddresses
}

// hostAddresses are the addresses of a host. They are guarded by spreader.mu.
type hostAddresses struct {
	addresses []string
	read      time.Time            // when DNS returned them
	next      int                  // index of the address for the next connection
	avoid     map[string]time.Time // addresses that did not answer, and until when they are avoided
}

func newSpreader(dial func(ctx context.Context, network, address string) (net.Conn, error)) *spreader {
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	return &spreader{dial: dial, lookup: net.DefaultResolver.LookupHost, now: time.Now, hosts: map[string]*hostAddresses{}}
}

// DialContext connects to the next address of a host, or to one after it if that does not
// answer.
func (s *spreader) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) != nil {
		return s.dial(ctx, network, address)
	}
	turn, err := s.turn(ctx, host)
	if err != nil {
		return nil, err
	}
	var last error
	for i, ip := range turn {
		conn, err := s.dialOne(ctx, network, net.JoinHostPort(ip, port), i == len(turn)-1)
		if err == nil {
			if i > 0 { // else the one behind those that failed would get all their connections
				s.behind(host, ip)
			}
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		last = err
		s.failed(host, ip)
	}
	return nil, last
}

// dialOne dials one address. The last one has no deadline of its own: there is nothing
// else to try.
func (s *spreader) dialOne(ctx context.Context, network, address string, last bool) (net.Conn, error) {
	if !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialPatience)
		defer cancel()
	}
	return s.dial(ctx, network, address)
}

// turn returns the host's addresses in the order in which a connection tries them,
// avoided ones last.
func (s *spreader) turn(ctx context.Context, host string) ([]string, error) {
	s.mu.Lock()
	h := s.hosts[host]
	fresh := h != nil && s.now().Sub(h.read) < resolveEvery
	s.mu.Unlock()
	if !fresh {
		// Several connections that begin at once may all resolve the name. The resolver
		// joins these requests.
		got, err := s.lookup(ctx, host)
		s.mu.Lock()
		if h = s.hosts[host]; h == nil {
			if err != nil {
				s.mu.Unlock()
				return nil, err
			}
			h = &hostAddresses{avoid: map[string]time.Time{}}
			s.hosts[host] = h
		}
		// If the resolver fails, its last answer stays in use.
		if err == nil && len(got) > 0 {
			h.addresses, h.read = got, s.now()
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	turn := make([]string, 0, len(h.addresses))
	var avoided []string
	for i := range h.addresses {
		ip := h.addresses[(h.next+i)%len(h.addresses)]
		if until, ok := h.avoid[ip]; ok && now.Before(until) {
			avoided = append(avoided, ip)
			continue
		}
		turn = append(turn, ip)
	}
	if len(turn) > 0 {
		h.behind(turn[0])
	}
	return append(turn, avoided...), nil
}

// behind makes the next connection begin with the address after ip.
func (h *hostAddresses) behind(ip string) {
	if i := slices.Index(h.addresses, ip); i >= 0 {
		h.next = (i + 1) % len(h.addresses)
	}
}

func (s *spreader) behind(host, ip string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[host].behind(ip)
}

// failed marks an address to be avoided, and drops old marks.
func (s *spreader) failed(host, ip string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[host]
	for other, until := range h.avoid {
		if s.now().After(until) {
			delete(h.avoid, other)
		}
	}
	h.avoid[ip] = s.now().Add(avoidFor)
}

// dialTLS opens a connection with TLS that reads several records at once.
func dialTLS(ctx context.Context, network, address string,
	dial func(ctx context.Context, network, address string) (net.Conn, error), config *tls.Config) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	raw, err := dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.ServerName = host
	conn := tls.Client(&recordsConn{Conn: raw}, config)
	ctx, cancel := context.WithTimeout(ctx, handshakePatience)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// recordsConn is a connection that reads large pieces while much data arrives. It holds a
// buffer only during that time, because hundreds of connections wait for answers.
type recordsConn struct {
	net.Conn
	more bool // more data may be waiting
	buf  *[recordsBytes]byte
	left []byte // unread part of buf, never empty while there is a buf
}

var recordsBuffers = sync.Pool{New: func() any { return new([recordsBytes]byte) }}

// Read implements net.Conn. crypto/tls calls it from one goroutine at a time.
func (c *recordsConn) Read(b []byte) (int, error) {
	if c.buf == nil && !c.more {
		n, err := c.Conn.Read(b)
		c.more = n == len(b)
		return n, err
	}
	if c.buf == nil {
		buf := recordsBuffers.Get().(*[recordsBytes]byte)
		n, err := c.Conn.Read(buf[:])
		c.more = n > len(buf)/8
		if n == 0 {
			recordsBuffers.Put(buf)
			return 0, err
		}
		c.buf, c.left = buf, buf[:n] // the next read returns the error again
	}
	n := copy(b, c.left)
	if c.left = c.left[n:]; len(c.left) == 0 {
		recordsBuffers.Put(c.buf)
		c.buf = nil
	}
	return n, nil
}

package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc/credentials"
)

// PeerProtocol marks a connection between nodes, as opposed to HTTP/2: by TLS's ALPN, and
// without TLS by its first line. Package peer speaks it.
const PeerProtocol = "bowstring-peer/1"

// suites12 are those of TLS 1.2 that have forward secrecy and authenticate what
// they encrypt; those of 1.3 all do, and are the library's to choose.
var suites12 = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// turnTime is how long a handshake keeps its turn. One that takes longer waits
// for its client, and others need not.
const turnTime = time.Second

// encryption makes TLS connections, with the certificates that are current. It
// is safe for concurrent use.
type encryption struct {
	opts    *TLSOptions
	base    *tls.Config // of every connection; its session tickets outlive certificates
	current atomic.Pointer[material]
	loading sync.Mutex // held while current is exchanged

	handshakes *semaphore.Weighted
	mostOf     int64 // handshakes of one address

	mu    sync.Mutex
	peers map[string]*waiting // by address; guarded by mu
}

// material is what comes from files. It is immutable.
type material struct {
	cert  *tls.Certificate // nil before it was read
	roots *roots           // nil if certificates of clients say nothing
}

// waiting is the handshakes of one address.
type waiting struct {
	turns *semaphore.Weighted
	n     int // that have a turn or wait for it; guarded by encryption.mu
}

func newEncryption(o *TLSOptions) *encryption {
	e := &encryption{
		opts: o, handshakes: semaphore.NewWeighted(int64(o.MaxHandshakes)),
		mostOf: max(1, int64(o.MaxHandshakes)/4), peers: map[string]*waiting{},
	}
	e.current.Store(&material{})
	e.base = &tls.Config{
		MinVersion:   o.MinVersion,
		CipherSuites: suites12,
		NextProtos:   []string{"h2", PeerProtocol},
		// Batches are large: small records first would only cost.
		DynamicRecordSizingDisabled: true,
		GetConfigForClient:          func(*tls.ClientHelloInfo) (*tls.Config, error) { return e.config(), nil },
	}
	return e
}

// config is that of the next connection.
func (e *encryption) config() *tls.Config {
	now := e.current.Load()
	c := e.base.Clone()
	c.GetConfigForClient = nil
	c.Certificates = []tls.Certificate{*now.cert}
	if now.roots != nil {
		c.ClientCAs, c.ClientAuth = now.roots.pool, tls.VerifyClientCertIfGiven
		if e.opts.RequireClientCert {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	return c
}

// sources are the files that are read.
func (e *encryption) sources() []*source {
	list := []*source{{what: "the server's certificate", paths: []string{e.opts.Cert, e.opts.Key}, load: e.loadPair}}
	if e.opts.ClientCA != "" {
		list = append(list, &source{what: "the authorities of clients", paths: []string{e.opts.ClientCA},
			load: e.loadRoots})
	}
	return list
}

// loadPair takes over a certificate and its key.
func (e *encryption) loadPair(contents [][]byte) error {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return err
	}
	e.exchange(func(m *material) { m.cert = &cert })
	return nil
}

// loadRoots takes over authorities.
func (e *encryption) loadRoots(contents [][]byte) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(contents[0]) {
		return errors.New("there is no certificate in it")
	}
	e.exchange(func(m *material) { m.roots = &roots{pool} })
	return nil
}

func (e *encryption) exchange(change func(*material)) {
	e.loading.Lock()
	defer e.loading.Unlock()
	next := *e.current.Load()
	change(&next)
	e.current.Store(&next)
}

// handshake makes a TLS connection of one that a client has opened. below is
// what the encrypted bytes go over; the caller closes it if there is an error.
func (e *encryption) handshake(ctx context.Context, below net.Conn) (*tls.Conn, *Peer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.opts.HandshakeTimeout,
		fmt.Errorf("the handshake took longer than %s", e.opts.HandshakeTimeout))
	defer cancel()
	done, err := e.turn(ctx, hostOf(below.RemoteAddr()))
	if err != nil {
		return nil, nil, err
	}
	done = sync.OnceFunc(done)
	defer done()
	slow := time.AfterFunc(turnTime, done) // who says nothing computes nothing
	defer slow.Stop()
	by := e.current.Load().roots
	conn := tls.Server(below, e.base)
	if err := conn.HandshakeContext(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nil, err
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" && state.NegotiatedProtocol != PeerProtocol {
		return nil, nil, errors.New("the client does not speak HTTP/2 (ALPN h2)")
	}
	if by != e.current.Load().roots {
		by = nil // the roots were replaced during the handshake: which ones verified it is unknown
	}
	return conn, newPeer(state, by), nil
}

// turn waits until one more handshake may begin, of all and of its address.
func (e *encryption) turn(ctx context.Context, host string) (done func(), err error) {
	e.mu.Lock()
	w := e.peers[host]
	if w == nil {
		w = &waiting{turns: semaphore.NewWeighted(e.mostOf)}
		e.peers[host] = w
	}
	w.n++
	e.mu.Unlock()
	leave := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if w.n--; w.n == 0 {
			delete(e.peers, host)
		}
	}
	if err := w.turns.Acquire(ctx, 1); err != nil {
		leave()
		return nil, fmt.Errorf("waiting for other handshakes of the address: %w", context.Cause(ctx))
	}
	if err := e.handshakes.Acquire(ctx, 1); err != nil {
		w.turns.Release(1)
		leave()
		return nil, fmt.Errorf("waiting for other handshakes: %w", context.Cause(ctx))
	}
	return func() {
		e.handshakes.Release(1)
		w.turns.Release(1)
		leave()
	}, nil
}

// hostOf is the part of an address that stays the same from one connection to
// the next.
func hostOf(addr net.Addr) string {
	if addr == nil {
		return ""
	}
	return Host(addr.String())
}

// Host returns the part of an address (HOST:PORT) by which its clients are counted. For
// IPv6 this is the /64 network, because the holder of one address has the whole network.
func Host(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() && !ip.Is4In6() && !ip.IsLoopback() {
		if network, err := ip.WithZone("").Prefix(64); err == nil {
			return network.String()
		}
	}
	return host
}

var errNotRooted = errors.New("the certificate is of no authority that is trusted now")

// Peer is who is at the other end of a TLS connection: the AuthInfo of its
// calls. It is safe for concurrent use.
type Peer struct {
	credentials.TLSInfo

	mu       sync.Mutex
	verified *roots   // against which the certificate was found good; guarded by mu
	identity Identity // valid if verified is not nil; guarded by mu
}

func newPeer(state tls.ConnectionState, by *roots) *Peer {
	p := &Peer{TLSInfo: credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}}
	// A resumed session has the chains of the handshake that began it, and by
	// whatever authorities were trusted then.
	if len(state.VerifiedChains) > 0 && !state.DidResume {
		p.acceptLocked(by, state.VerifiedChains)
	}
	return p
}

// roots are the authorities of clients' certificates.
type roots struct{ pool *x509.CertPool }

// identify returns who the certificate is for, by the authorities that are
// trusted now.
func (p *Peer) identify(now *roots) (Identity, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verified != now {
		certs := p.State.PeerCertificates
		between := x509.NewCertPool()
		for _, c := range certs[1:] {
			between.AddCert(c)
		}
		chains, err := certs[0].Verify(x509.VerifyOptions{
			Roots: now.pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			p.verified = nil
			return Identity{}, fmt.Errorf("%w: %w", errNotRooted, err)
		}
		p.acceptLocked(now, chains)
	}
	return p.identity, p.identity.valid()
}

// acceptLocked takes over what a certificate says that was verified.
func (p *Peer) acceptLocked(by *roots, chains [][]*x509.Certificate) {
	leaf := chains[0][0]
	p.verified = by
	p.identity = Identity{
		Principal: principalOf(leaf), Groups: leaf.Subject.Organization,
		By: ByCertificate, ID: leaf.SerialNumber.Text(16), Expires: expiryOf(chains),
	}
}

// principalOf is a certificate's name: its first URI, which is where SPIFFE has
// its ID, else its first DNS name, mail address, or its common name.
func principalOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	}
	return c.Subject.CommonName
}

// expiryOf is when the last chain ends.
func expiryOf(chains [][]*x509.Certificate) (last time.Time) {
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(last) {
			last = end
		}
	}
	return last
}

// fromCertificate returns who is at the other end of a connection; errNone if
// it has shown no certificate.
func (d *Authenticator) fromCertificate(p *Peer) (Identity, error) {
	if p == nil || d.tls == nil || len(p.State.PeerCertificates) == 0 {
		return Identity{}, errNone
	}
	now := d.tls.current.Load().roots
	if now == nil {
		return Identity{}, errNone
	}
	id, err := p.identify(now)
	if err != nil {
		return Identity{}, err
	}
	if err := id.expired(d.now()); err != nil {
		return Identity{}, err
	}
	id.check = func() error {
		_, err := p.identify(d.tls.current.Load().roots)
		return err
	}
	return id, nil
}

package cql

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gocql/gocql"

	"bowstring/schema"
)

// Dialer makes the connections to the servers. Tests use it to add a delay.
type Dialer interface {
	DialContext(ctx context.Context, network, addr string) (net.Conn, error)
}

// attempts is how many hosts the driver tries for a request, without a pause. Reads of blobs have their own policy,
// readRetry.
const attempts = 3

// cluster is the configuration of every session.
func (c *Config) cluster(opts Options) (*gocql.ClusterConfig, error) {
	cl := gocql.NewCluster(c.Hosts...)
	cl.Port = c.Port
	cl.ProtoVersion = c.Proto
	cl.Timeout = c.Timeout
	cl.ConnectTimeout = c.Connect
	cl.Consistency = c.Read
	cl.SerialConsistency = gocql.Serial
	if c.LocalSerial {
		cl.SerialConsistency = gocql.LocalSerial
	}
	cl.RetryPolicy = movingRetries(attempts - 1)
	cl.ReconnectInterval = 5 * time.Second // to nodes that were down
	cl.DefaultIdempotence = true           // transactions set it to false
	// Responses come without a description of their columns, which the driver has from preparing the statement. That
	// is safe, because no statement selects *, and transactions, whose columns vary, turn it off.
	cl.DisableSkipMetadata = false
	cl.Logger = driverLogger{opts.Logger}
	if opts.Dialer != nil {
		cl.Dialer = opts.Dialer
	}
	user, password, err := c.credentials()
	if err != nil {
		return nil, err
	}
	if user != "" {
		cl.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	}
	if c.TLS {
		config, err := c.tls()
		if err != nil {
			return nil, err
		}
		cl.SslOpts = &gocql.SslOptions{Config: config, EnableHostVerification: !c.NoVerify}
	}
	return cl, nil
}

// movingRetries tries the next replica. The struct hides the policy's other interfaces: ScyllaDB's fork takes the
// statements that Cassandra prepares for lightweight transactions, and a policy that knows these would stay with the
// host that has just failed.
func movingRetries(n int) gocql.RetryPolicy {
	return struct{ gocql.RetryPolicy }{&gocql.SimpleRetryPolicy{NumRetries: n}}
}

// tls returns the TLS configuration of the address. The files are read for each session.
func (c *Config) tls() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         c.ServerName,
		InsecureSkipVerify: c.NoVerify, //nolint:gosec // the parameter verify=0 requests it
	}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: ca: %w", schema.ErrInvalid, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, bad("ca", c.CA, "a file with certificates in PEM form")
		}
	}
	if c.Cert != "" {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: cert and key: %w", schema.ErrInvalid, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// session opens a session with conns connections to each host for a keyspace, whose replicas it then knows.
func (s *Store) session(ctx context.Context, keyspace string, conns int) (*gocql.Session, *steering, error) {
	cl, err := s.config.cluster(s.options)
	if err != nil {
		return nil, nil, err
	}
	cl.Keyspace = keyspace
	cl.NumConns = conns
	st := s.newSteering(keyspace)
	cl.PoolConfig.HostSelectionPolicy = st
	session, err := connect(ctx, s.connected, cl, &s.spares, st.countReplicas)
	if err != nil {
		return nil, nil, s.connectFault(ctx, err)
	}
	return session, st, nil
}

// connectFault explains why no session could be opened. The driver gives most reasons only as text.
func (s *Store) connectFault(ctx context.Context, err error) error {
	const doing = "connect"
	where := s.where(nil, "")
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	}
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var verification *tls.CertificateVerificationError
	text := err.Error()
	switch {
	case errors.As(err, &hostname), strings.Contains(text, "x509: certificate is valid for"),
		strings.Contains(text, "doesn't contain any IP SANs"):
		return fmt.Errorf("%s: %s: %w; the parameter server_name says which name to expect", doing, where, err)
	case errors.As(err, &unknown), errors.As(err, &verification), strings.Contains(text, "x509:"):
		return fmt.Errorf("%s: %s: %w; the parameter ca names the file with the authority that signed the servers' "+
			"certificates", doing, where, err)
	case strings.Contains(text, "tls: certificate required"),
		strings.Contains(text, "remote error: tls: bad certificate"),
		strings.Contains(text, "remote error: tls: certificate"):
		return fmt.Errorf("%s: %s: %w; the servers want a certificate: the parameters cert and key", doing, where, err)
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%s: %s: %w; the servers do not use TLS: leave the parameter tls out", doing, where, err)
	case strings.Contains(text, "assword") || strings.Contains(text, "uthentic"):
		return rejected(err, doing, where)
	}
	fault := classify(err, doing, where, s.config)
	if s.config.TLS && s.config.Cert == "" && cutOff(text) {
		return fmt.Errorf("%w; if the servers want a certificate: the parameters cert and key", fault)
	}
	return fault
}

// cutOff reports whether a connection ended without a reason. A server that misses a certificate sends the reason and
// closes the connection; a client that writes at that moment may only see the close.
func cutOff(text string) bool {
	return slices.ContainsFunc([]string{"no response to connection startup", "connection reset by peer", "broken pipe"},
		func(end string) bool { return strings.Contains(text, end) })
}

// pair is an interval of tokens, open at its start and closed at its end.
type pair struct{ start, end int64 }

// ring cuts the range of Murmur3 tokens into n intervals of equal size.
func ring(n int) []pair {
	parts := make([]pair, n)
	step := math.MaxUint64/uint64(n) + 1
	low := int64(math.MinInt64)
	for i := range parts {
		high := int64(math.MaxInt64)
		if i < n-1 {
			high = int64(uint64(low) + step)
		}
		parts[i] = pair{low, high}
		low = high
	}
	return parts
}

// driverLogger passes the driver's messages to slog, at debug level, because what matters is also returned as an
// error.
type driverLogger struct{ log *slog.Logger }

func (l driverLogger) Print(v ...any) { l.write(fmt.Sprint(v...)) }

func (l driverLogger) Printf(format string, v ...any) { l.write(fmt.Sprintf(format, v...)) }

func (l driverLogger) Println(v ...any) { l.write(fmt.Sprintln(v...)) }

// write passes one message on.
func (l driverLogger) write(s string) {
	l.log.Debug("database driver", "message", strings.TrimSpace(s))
}

// connect opens a session and calls ready, which sends a request. If ctx ends before, it returns the cause. The
// driver takes no context there, but it waits only for connections. Until the session is open, all of them end with
// ctx. So connect always waits for the driver, which may sleep for a second between attempts. The session's
// connections end with life. It uses those of spare, which may be nil, before it makes others.
func connect(ctx, life context.Context, cl *gocql.ClusterConfig, spare *spares, ready func()) (*gocql.Session, error) {
	own := *cl
	d := newDialing(&own)
	d.spare = spare
	defer d.end(context.Canceled) // for dials still in flight
	stop := context.AfterFunc(ctx, func() { d.end(context.Cause(ctx)) })
	defer stop()
	// The driver hides the session while it is being opened. The policy is the one part
	// that gets it.
	policy := &introduced{HostSelectionPolicy: own.PoolConfig.HostSelectionPolicy}
	if policy.HostSelectionPolicy == nil { // of a single host
		policy.HostSelectionPolicy = gocql.RoundRobinHostPolicy()
	}
	own.PoolConfig.HostSelectionPolicy = policy
	session, err := own.CreateSession()
	if err == nil {
		ready()
		if d.open(life) {
			return session, nil
		}
		// The opening was cancelled at the last moment.
		err = context.Cause(d.ended)
	}
	if policy.session != nil {
		policy.session.Close() // ScyllaDB's fork does not
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, err
}

// introduced is a policy that remembers its session, even one that could not be opened.
type introduced struct {
	gocql.HostSelectionPolicy
	session *gocql.Session
}

// Init implements gocql.HostSelectionPolicy.
func (p *introduced) Init(s *gocql.Session) {
	p.session = s
	p.HostSelectionPolicy.Init(s)
}

// dialing makes the connections of a session. Until the session is open, all of them end together; from then on they
// end with its life.
type dialing struct {
	dialer Dialer
	spare  *spares         // or nil
	ended  context.Context //nolint:containedctx // ends when the opening is cancelled
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	opened bool
	conns  []net.Conn // made so far, without some that were closed
}

// begin sets the dialer of the connections.
func (d *dialing) begin(dialer Dialer) {
	d.dialer = dialer
	d.ended, d.cancel = context.WithCancelCause(context.Background())
}

// open marks the session as open: from now on its connections end with life. It returns false if they have been
// closed already.
func (d *dialing) open(life context.Context) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = d.ended.Err() == nil
	if d.opened {
		context.AfterFunc(life, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.cutLocked(context.Cause(life))
		})
	}
	return d.opened
}

// end cancels the opening, unless the session is open.
func (d *dialing) end(cause error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened {
		d.cutLocked(cause)
	}
}

// cutLocked closes all connections, and prevents new ones.
func (d *dialing) cutLocked(cause error) {
	d.cancel(cause)
	for _, c := range d.conns {
		_ = c.Close() // the driver may have closed it
	}
	d.conns = nil
}

// bound returns a child of ctx that also ends when the opening is cancelled. The caller calls release.
func (d *dialing) bound(ctx context.Context) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ended, func() { cancel(context.Cause(d.ended)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// DialContext implements [Dialer]. It returns the dialer's own connection, because the driver writes several buffers
// at once to types that it knows.
func (d *dialing) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	bound, release := d.bound(ctx)
	defer release()
	c, err := d.spare.take(addr), error(nil)
	if c == nil {
		c, err = d.dialer.DialContext(bound, network, addr)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended.Err() != nil:
		if err == nil {
			_ = c.Close() // it is unused
		}
		// An error of this type prevents that the driver pauses and tries again.
		return nil, &net.OpError{Op: "dial", Net: network, Err: context.Cause(d.ended)}
	case err == nil:
		d.conns = append(slices.DeleteFunc(d.conns, isClosed), c)
	}
	return c, err
}

// isClosed reports whether a connection is known to be closed on this side.
func isClosed(c net.Conn) bool {
	if s, ok := c.(syscall.Conn); ok {
		raw, err := s.SyscallConn()
		return err != nil || raw.Control(func(uintptr) {}) != nil
	}
	return false
}

// LookupIP looks up the addresses of a host, until the opening is cancelled.
func (d *dialing) LookupIP(host string) ([]net.IP, error) {
	ctx, release := d.bound(context.Background())
	defer release()
	return net.DefaultResolver.LookupIP(ctx, "ip", host)
}

// later holds sessions that are opened on first use, by name.
type later struct {
	running sync.WaitGroup

	mu    sync.Mutex
	known map[string]*opening // without those that could not be opened
}

// opening is a session that is shared by its waiters.
type opening struct {
	ended   chan struct{} // closed when the other fields are set
	session *gocql.Session
	err     error
}

// get returns the session of a name. If a caller's context ends, the session is still opened for the next caller,
// until ending ends.
func (l *later) get(ctx, ending context.Context, name string, open func(context.Context) (*gocql.Session, error),
) (*gocql.Session, error) {
	l.mu.Lock()
	// The session is opened in a goroutine of its own, so that it does not end with the
	// first caller.
	o := l.known[name]
	if o == nil {
		o = &opening{ended: make(chan struct{})}
		l.known[name] = o
		l.running.Go(func() {
			if o.session, o.err = open(ending); o.err != nil {
				l.mu.Lock()
				delete(l.known, name)
				l.mu.Unlock()
			}
			close(o.ended)
		})
	}
	l.mu.Unlock()
	select {
	case <-o.ended:
		return o.session, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close closes the sessions. The store's context has ended and its life is locked, so there are no callers.
func (l *later) close() {
	l.running.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.known {
		o.session.Close()
	}
}

// control names the session for requests that must not wait behind blobs: leases, layouts and claims. Responses on a
// connection come one after the other, and a slow link may have seconds of blobs in flight, so that a running node
// would seem gone. A process outside a cluster does not open it. No keyspace has this name.
const control = ""

// controlled returns the session for requests that must not wait behind blobs.
func (s *Store) controlled(ctx context.Context) (*gocql.Session, error) {
	return s.later.get(ctx, s.ending, control, func(ctx context.Context) (*gocql.Session, error) {
		session, _, err := s.session(ctx, s.config.Keyspace, 1)
		return session, err
	})
}

// sessionFor returns a session that knows the replicas of a keyspace.
func (s *Store) sessionFor(ctx context.Context, keyspace string) (*gocql.Session, error) {
	if keyspace == s.config.Keyspace {
		return s.db, nil
	}
	return s.later.get(ctx, s.ending, keyspace, func(ctx context.Context) (*gocql.Session, error) {
		if err := s.keyspaceLost(ctx, keyspace); err != nil {
			return nil, err // the driver would only say that it cannot connect
		}
		session, _, err := s.session(ctx, keyspace, s.conns)
		if err != nil {
			return nil, fmt.Errorf("keyspace %s: %w", keyspace, err)
		}
		return session, nil
	})
}

// reader returns the steering that watches reads of blobs, for a session of the same keyspace that makes none.
func (s *Store) reader(keyspace string) *steering {
	if keyspace != s.config.Keyspace {
		return nil // attached tables are read by the session itself
	}
	return s.steering // nil while the first session, which is for reads, is opened
}

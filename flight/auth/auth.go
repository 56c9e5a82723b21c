package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"bowstring/schema"
)

// refusalsLogged is the shortest interval between two log lines about refusals.
const refusalsLogged = time.Second

// errWho is the only reason that a client gets, whatever was wrong: more would help a
// guesser.
var errWho = fmt.Errorf("%w: the call needs valid credentials: a token (authorization: Bearer TOKEN), or a client "+
	"certificate", schema.ErrUnauthenticated)

// errTooMany is the answer to an address that keeps sending wrong credentials.
var errTooMany = fmt.Errorf("%w: too many wrong credentials came from this address; wait a minute", schema.ErrLimit)

// Authenticator authenticates callers. It is safe for concurrent use.
type Authenticator struct {
	opts     Options
	log      *slog.Logger
	tls      *encryption // nil without TLS
	tokens   *tokens     // nil without
	provider *provider   // nil without
	failed   *failedLogins
	sessions sessions
	now      func() time.Time

	// refused counts calls without valid credentials, limited those of them that
	// errTooMany refused.
	refused, limited atomic.Int64

	logging sync.Mutex
	logged  time.Time // when a refusal was logged last; guarded by logging
	since   int64     // refusals since then; guarded by logging

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New reads the files that opts name, and reads them again when they change, until Close.
// It returns schema.ErrInvalid if a file is wrong. An unreachable provider is no error:
// see below.
func New(ctx context.Context, opts Options) (*Authenticator, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	d := &Authenticator{
		opts: opts, log: opts.Logger, now: time.Now,
		failed:   newFailedLogins(opts.WrongBurst, opts.WrongPerMinute, time.Now),
		sessions: sessions{live: map[*session]struct{}{}},
	}
	var sources []*source
	if opts.TLS.Cert != "" {
		d.tls = newEncryption(&d.opts.TLS)
		sources = d.tls.sources()
	}
	if opts.Tokens != "" {
		d.tokens = &tokens{}
		sources = append(sources, &source{what: "tokens", paths: []string{opts.Tokens}, load: d.tokens.load})
	}
	for _, s := range sources {
		s.noted = opts.Sources.Add(s.what, true)
		if _, err := s.read(); err != nil {
			if s.what == "tokens" && errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w; `bowstring token create` makes it", err)
			}
			return nil, fmt.Errorf("%w: %s (%s): %w", schema.ErrInvalid, s.what, strings.Join(s.paths, ", "), err)
		}
	}
	if opts.OIDC.Issuer != "" {
		var err error
		if d.provider, err = newProvider(&d.opts.OIDC, d.log, func() time.Time { return d.now() }); err != nil {
			return nil, fmt.Errorf("%w: OIDC.CA: %w", schema.ErrInvalid, err)
		}
		d.provider.noted = opts.Sources.add("the provider of tokens", false, keysGrace)
		// A provider that does not answer does not prevent the start. The calls that need
		// it request its configuration again.
		_, _ = d.provider.discover(ctx) // discover logs its error
	}
	running, stop := context.WithCancel(context.Background())
	d.stop = stop
	if len(sources) > 0 {
		w := &watcher{sources: sources, poll: opts.Poll, log: d.log}
		d.running.Go(func() { w.run(running) })
	}
	if d.provider != nil {
		d.running.Go(func() { d.provider.run(running) })
	}
	if opts.Authenticates() {
		d.running.Go(func() { d.sessions.run(running, opts.Recheck) })
	}
	return d, nil
}

// Close stops the goroutines of New and waits for them. No call may be running.
func (d *Authenticator) Close() error {
	d.stop()
	d.running.Wait()
	if d.provider != nil {
		d.provider.close()
	}
	return nil
}

// Encrypts reports whether connections are encrypted.
func (d *Authenticator) Encrypts() bool { return d != nil && d.tls != nil }

// CertificateEnds returns when the certificate expires that new connections are shown.
// Encrypts must be true.
func (d *Authenticator) CertificateEnds() time.Time { return d.tls.current.Load().cert.Leaf.NotAfter }

// Authenticates reports whether callers have to authenticate.
func (d *Authenticator) Authenticates() bool { return d != nil && d.opts.Authenticates() }

// Encrypt runs the TLS handshake of a connection that a client has opened, and returns
// the client's identity. The bytes go over below; the caller closes it after an error.
// Waiting for a turn and the handshake together take at most TLSOptions.HandshakeTimeout.
func (d *Authenticator) Encrypt(ctx context.Context, below net.Conn) (*tls.Conn, *Peer, error) {
	conn, p, err := d.tls.handshake(ctx, below)
	if err != nil {
		d.refusal(ctx, "a TLS handshake failed", hostOf(below.RemoteAddr()), err)
	}
	return conn, p, err
}

// Open reports whether anonymous callers may call a method.
func (d *Authenticator) Open(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.Health/") ||
		d != nil && d.opts.OpenReflection && strings.HasPrefix(method, "/grpc.reflection.")
}

// Authenticate returns the identity of a call from its context. A token in the headers
// takes precedence over the connection's certificate: it is about this call. Errors are
// schema.ErrUnauthenticated, without the reason; schema.ErrLimit for an address that
// keeps sending wrong credentials; and schema.ErrUnavailable if the provider does not
// answer.
func (d *Authenticator) Authenticate(ctx context.Context) (*Identity, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	cred, err := fromHeaders(md, false)
	if errors.Is(err, errNone) {
		host, p := d.peerOf(ctx)
		id, err := d.fromCertificate(p)
		if err != nil {
			return nil, d.refuse(ctx, host, err)
		}
		return &id, nil
	}
	return d.accept(ctx, cred, err)
}

// Handshake answers Flight's Handshake: it returns the token that later calls carry, and
// its identity. payload reads the client's message, if its headers have no credentials.
func (d *Authenticator) Handshake(ctx context.Context, payload func() ([]byte, error)) (token string, _ *Identity, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	cred, err := fromHeaders(md, true)
	if errors.Is(err, errNone) {
		said, failed := payload()
		if failed != nil {
			return "", nil, failed
		}
		cred, err = fromPayload(said)
	}
	id, err := d.accept(ctx, cred, err)
	if err != nil {
		return "", nil, err
	}
	if cred.user != "" && cred.user != id.Principal {
		host, _ := d.peerOf(ctx)
		return "", nil, d.refuse(ctx, host, errUser)
	}
	return cred.token, id, nil
}

// accept returns the identity of a credential. err is the error of reading the
// credential.
func (d *Authenticator) accept(ctx context.Context, cred credential, err error) (*Identity, error) {
	host, _ := d.peerOf(ctx)
	if err != nil {
		return nil, d.refuse(ctx, host, err)
	}
	var id Identity
	switch {
	case d.tokens != nil && isOurs(cred.token):
		id, err = d.tokens.identify(cred.token, d.now())
	case d.provider != nil:
		if err = d.provider.closed(); err != nil {
			break
		}
		var known bool
		if id, known = d.provider.known(cred.token); known {
			break
		}
		// A verification costs CPU time and may cause a request to the provider. An
		// address over its limit does not get one. Tokens in the cache still work from
		// there.
		if d.failed.over(host) {
			return nil, d.refuse(ctx, host, errTooMany)
		}
		id, err = d.provider.identify(ctx, cred.token)
	default:
		err = errToken
	}
	if err != nil {
		return nil, d.refuse(ctx, host, err)
	}
	return &id, nil
}

// Refuse counts a call as one with wrong credentials that another component has checked,
// such as the key of a node. It returns the client's error.
func (d *Authenticator) Refuse(ctx context.Context, why error) error {
	host, _ := d.peerOf(ctx)
	return d.refuse(ctx, host, why)
}

// refuse counts and logs a refused call, and returns the client's error. A provider that
// does not answer and a call that was cancelled are no guesses, and do not count.
func (d *Authenticator) refuse(ctx context.Context, host string, why error) error {
	switch {
	case errors.Is(why, schema.ErrUnavailable):
		return why
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	d.refused.Add(1)
	d.refusal(ctx, "calls were refused: they had no valid credentials", host, why)
	if errors.Is(why, errNone) {
		return errWho // a call without credentials is no guess
	}
	if d.failed.over(host) {
		d.limited.Add(1)
		return errTooMany
	}
	d.failed.count(host)
	return errWho
}

// refusal logs the reason of a refusal, at most one line per refusalsLogged: otherwise a
// client that retries would fill the log.
func (d *Authenticator) refusal(ctx context.Context, what, host string, why error) {
	d.logging.Lock()
	defer d.logging.Unlock()
	d.since++
	if time.Since(d.logged) < refusalsLogged {
		return
	}
	d.log.LogAttrs(ctx, slog.LevelWarn, what, slog.String("peer", host), slog.String("reason", fmt.Sprintf("%.300s", why.Error())), slog.Int64("refused", d.since)) //nolint:sloglint // one of two texts
	d.since, d.logged = 0, time.Now()
}

func (d *Authenticator) peerOf(ctx context.Context) (host string, p *Peer) {
	if at, ok := peer.FromContext(ctx); ok {
		p, _ = at.AuthInfo.(*Peer)
		host = hostOf(at.Addr)
	}
	return host, p
}

// Watch calls end if the caller's credentials become invalid while its call runs: soon
// after its token is revoked or expires. The call invokes stop at its end.
func (d *Authenticator) Watch(id *Identity, end func(error)) (stop func()) {
	return d.sessions.watch(id, end)
}

// Stats counts refused calls.
type Stats struct {
	Refused int64 `json:"refused"` // calls for want of credentials that are right
	Limited int64 `json:"limited"` // of these, calls of addresses that sent too many wrong ones
}

// Stats returns what was counted since the start.
func (d *Authenticator) Stats() Stats { return Stats{d.refused.Load(), d.limited.Load()} }

// sessions are the running calls with their identities. It is safe for concurrent use.
type sessions struct {
	mu   sync.Mutex
	live map[*session]struct{} // guarded by mu
}

type session struct {
	id  *Identity
	end func(error)
}

// watch registers a call: end is called, at most once, when its identity has become
// invalid. stop removes the call; end may be running at that time.
func (s *sessions) watch(id *Identity, end func(error)) (stop func()) {
	if id == nil || !id.mayEnd() {
		return func() {}
	}
	one := &session{id, end}
	s.mu.Lock()
	s.live[one] = struct{}{}
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		delete(s.live, one)
		s.mu.Unlock()
	}
}

// run checks all calls at each interval until ctx ends.
func (s *sessions) run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.endAll(now)
		}
	}
}

// endAll ends the calls whose identity has become invalid. It calls end without the
// mutex, because end may take locks of the call.
func (s *sessions) endAll(now time.Time) {
	ended := map[*session]error{}
	s.mu.Lock()
	for one := range s.live {
		if why := one.id.expired(now); why != nil {
			ended[one] = why
			delete(s.live, one)
		}
	}
	s.mu.Unlock()
	for one, why := range ended {
		one.end(fmt.Errorf("%w: the credentials of the call have become invalid: %w", schema.ErrUnauthenticated, why))
	}
}

// maxWrongPeers bounds the addresses whose failed logins are remembered.
const maxWrongPeers = 4096

// failedLogins counts wrong credentials by address: a burst, and a rate per minute. It is
// safe for concurrent use, and bounded: if more addresses send wrong credentials than it
// remembers, it forgets those with the fewest.
type failedLogins struct {
	burst int
	rate  rate.Limit
	now   func() time.Time

	mu    sync.Mutex
	peers map[string]*rate.Limiter // guarded by mu
}

func newFailedLogins(burst, perMinute int, now func() time.Time) *failedLogins {
	return &failedLogins{burst: burst, rate: rate.Limit(float64(perMinute) / 60), now: now,
		peers: map[string]*rate.Limiter{}}
}

// over reports whether an address has used up its limit.
func (w *failedLogins) over(peer string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.peers[peer]
	return l != nil && l.TokensAt(w.now()) < 1
}

// count records a failed login of an address.
func (w *failedLogins) count(peer string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	l := w.peers[peer]
	if l == nil {
		if len(w.peers) >= maxWrongPeers {
			w.forgetLocked(now)
		}
		l = rate.NewLimiter(w.rate, w.burst)
		w.peers[peer] = l
	}
	// Refusals by errTooMany do not count, so that an address is not locked out for ever.
	l.AllowN(now, 1)
}

// forgetLocked forgets half of the addresses, so that the scan is needed only once for
// every two thousand new addresses. mu is held.
func (w *failedLogins) forgetLocked(now time.Time) {
	for most := 1.0; len(w.peers) > maxWrongPeers/2; most *= 2 {
		for peer, l := range w.peers {
			if float64(w.burst)-l.TokensAt(now) < most && len(w.peers) > maxWrongPeers/2 {
				delete(w.peers, peer)
			}
		}
	}
}

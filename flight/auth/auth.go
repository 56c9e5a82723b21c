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

// refusalsLogged is how often refusals are logged.
const refusalsLogged = time.Second

// errWho is all that a client is told, whatever was wrong.
var errWho = fmt.Errorf("%w: the call needs valid credentials: a token (authorization: Bearer TOKEN), or a client "+
	"certificate", schema.ErrUnauthenticated)

// errTooMany is what an address is told that sends wrong credentials again and again.
var errTooMany = fmt.Errorf("%w: too many wrong credentials came from this address; wait a minute", schema.ErrLimit)

// Authenticator recognises callers. It is safe for concurrent use.
type Authenticator struct {
	opts     Options
	log      *slog.Logger
	tls      *encryption // nil without TLS
	tokens   *tokens     // nil without
	provider *provider   // nil without
	wrongs   *wrongs
	sessions sessions
	now      func() time.Time

	refused, limited atomic.Int64

	logging sync.Mutex
	logged  time.Time // when a refusal was logged last; guarded by logging
	since   int64     // refusals since then; guarded by logging

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New reads the files that opts name, and reads them again whenever they
// change, until Close.
func New(ctx context.Context, opts Options) (*Authenticator, error) {
	opts.EnsureDefaults()
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	d := &Authenticator{
		opts: opts, log: opts.Logger, now: time.Now,
		wrongs:   newWrongs(opts.WrongBurst, opts.WrongPerMinute, time.Now),
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
		// A provider that does not answer keeps nobody from starting: it is asked again
		// by the calls that need it.
		_, _ = d.provider.discover(ctx) // it is logged
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

// Close ends what New started, and waits for it. No call may be under way.
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

// CertificateEnds is when the certificate ends that connections are shown now. The door
// encrypts.
func (d *Authenticator) CertificateEnds() time.Time { return d.tls.current.Load().cert.Leaf.NotAfter }

// Authenticates reports whether callers have to say who they are.
func (d *Authenticator) Authenticates() bool { return d != nil && d.opts.Authenticates() }

// Encrypt makes a TLS connection of one that a client has opened, and says who is
// at its other end. The bytes go over below, which the caller closes if there is
// an error. It waits for its turn and the client for TLSOptions.HandshakeTimeout
// at most.
func (d *Authenticator) Encrypt(ctx context.Context, below net.Conn) (*tls.Conn, *Peer, error) {
	conn, p, err := d.tls.handshake(ctx, below)
	if err != nil {
		d.refusal(ctx, "a TLS handshake failed", hostOf(below.RemoteAddr()), err)
	}
	return conn, p, err
}

// Open reports whether anybody may call a method.
func (d *Authenticator) Open(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.Health/") ||
		d != nil && d.opts.OpenReflection && strings.HasPrefix(method, "/grpc.reflection.")
}

// Authenticate returns who makes a call, by its context. A credential that is
// sent counts, whatever certificate the connection has: it is more to the point.
// schema.ErrUnauthenticated says nothing about what is wrong, schema.ErrLimit is
// for an address that sends wrong ones all the time, schema.ErrUnavailable for a
// provider that cannot be asked.
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

// Handshake answers Flight's Handshake: the token that later calls are to carry,
// and whose it is. payload reads what the client says where its headers say
// nothing.
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

// accept returns whose a credential is, if it could be read.
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
		// What costs the provider or this server something is not done for an address
		// that sends wrong tokens all the time. Tokens that are known still do.
		if d.wrongs.over(host) {
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

// Refuse counts a call as one with wrong credentials that others have looked at, and
// returns what its client is told.
func (d *Authenticator) Refuse(ctx context.Context, why error) error {
	host, _ := d.peerOf(ctx)
	return d.refuse(ctx, host, why)
}

// refuse counts and logs a call that is not let in, and returns what its client
// is told.
func (d *Authenticator) refuse(ctx context.Context, host string, why error) error {
	switch {
	case errors.Is(why, schema.ErrUnavailable):
		return why
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	d.refused.Add(1)
	d.refusal(ctx, "calls were refused: nobody knows who makes them", host, why)
	if errors.Is(why, errNone) {
		return errWho // whoever sends nothing guesses nothing
	}
	if d.wrongs.over(host) {
		d.limited.Add(1)
		return errTooMany
	}
	d.wrongs.count(host)
	return errWho
}

// refusal logs why somebody was turned away. Who tries again and again does not
// fill the log.
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

// Watch calls end when what let a caller in has ended while its call runs: soon
// after its token was revoked or has expired. stop ends that.
func (d *Authenticator) Watch(id *Identity, end func(error)) (stop func()) {
	return d.sessions.watch(id, end)
}

// Stats counts what was turned away.
type Stats struct {
	Refused int64 `json:"refused"` // calls for want of credentials that are right
	Limited int64 `json:"limited"` // of these, calls of addresses that sent too many wrong ones
}

// Stats returns what was counted since the start.
func (d *Authenticator) Stats() Stats { return Stats{d.refused.Load(), d.limited.Load()} }

// sessions are calls that run, with who made them. It is safe for concurrent
// use.
type sessions struct {
	mu   sync.Mutex
	live map[*session]struct{} // guarded by mu
}

type session struct {
	id  *Identity
	end func(error)
}

// watch lists a call: end is called, once at most, when its caller's identity
// has ended. stop takes it off the list; end may be running then.
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

// run looks at all calls again and again until ctx ends.
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

// endAll ends the calls whose callers may not go on.
func (s *sessions) endAll(now time.Time) {
	ended := map[*session]error{}
	s.mu.Lock()
	for one := range s.live {
		if why := one.id.still(now); why != nil {
			ended[one] = why
			delete(s.live, one)
		}
	}
	s.mu.Unlock()
	for one, why := range ended {
		one.end(fmt.Errorf("%w: what let the call in has ended meanwhile: %w", schema.ErrUnauthenticated, why))
	}
}

// maxWrongPeers is how many addresses are remembered for their wrong
// credentials.
const maxWrongPeers = 4096

// wrongs counts wrong credentials by address: so many at once, so many a minute
// in the long run. It is safe for concurrent use, and bounded: where more
// addresses send wrong ones than it remembers, those with the fewest are
// forgotten.
type wrongs struct {
	burst int
	rate  rate.Limit
	now   func() time.Time

	mu    sync.Mutex
	peers map[string]*rate.Limiter // guarded by mu
}

func newWrongs(burst, perMinute int, now func() time.Time) *wrongs {
	return &wrongs{burst: burst, rate: rate.Limit(float64(perMinute) / 60), now: now,
		peers: map[string]*rate.Limiter{}}
}

// over reports whether an address has sent more than it may.
func (w *wrongs) over(peer string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.peers[peer]
	return l != nil && l.TokensAt(w.now()) < 1
}

// count takes note of wrong credentials of an address.
func (w *wrongs) count(peer string) {
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
	// What is refused unheard does not count further, so that an address is not
	// shut out for ever.
	l.AllowN(now, 1)
}

// forgetLocked makes room for half as many; mu is held. It takes a pass for every two
// thousand new addresses.
func (w *wrongs) forgetLocked(now time.Time) {
	for most := 1.0; len(w.peers) > maxWrongPeers/2; most *= 2 {
		for peer, l := range w.peers {
			if float64(w.burst)-l.TokensAt(now) < most && len(w.peers) > maxWrongPeers/2 {
				delete(w.peers, peer)
			}
		}
	}
}

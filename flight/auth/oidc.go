package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/time/rate"

	"bowstring/schema"
)

const (
	// askTimeout is how long the provider has for an answer.
	askTimeout = 10 * time.Second
	// askAgain is how long after a failure it is asked for its configuration again.
	askAgain = 5 * time.Second
	// keysPerSecond and keysBurst bound how often tokens with unknown keys, which
	// anybody can make, let the provider be asked for its keys.
	keysPerSecond, keysBurst = 0.5, 5
	// maxVerified bounds the verified tokens that are cached, and keepVerified is for how
	// long one is.
	maxVerified  = 4096
	keepVerified = 5 * time.Minute
	// refreshKeys is how often the provider is asked for its configuration and keys anew: a key that it has withdrawn
	// is not known any longer then. refreshAgain is how soon after a failure, and keysGrace how long the keys hold that
	// it said last.
	refreshKeys, refreshAgain, keysGrace = 10 * time.Minute, time.Minute, 24 * time.Hour
	// maxProviderAnswer bounds what the provider says, decompressed: its configuration and
	// its keys have some kilobytes.
	maxProviderAnswer = 1 << 20
)

// algorithms are the asymmetric ones. A token with a shared secret could be signed by
// every service that verifies it, or with a public key used as the secret.
var algorithms = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512,
	oidc.EdDSA,
}

var (
	errUnverified = errors.New("the token is not signed by the provider for this audience")
	errTimes      = errors.New("the token has expired, or is not good yet")
	errClaims     = errors.New("the claims of the token do not name a caller")
)

// provider verifies the tokens of an OpenID Connect provider. It is safe for
// concurrent use.
type provider struct {
	opts   *OIDCOptions
	log    *slog.Logger
	now    func() time.Time
	client *http.Client
	asking *asking
	noted  *Source // records whether the provider answers

	turn chan struct{} // held by the call that requests the configuration

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier            // nil before the provider has answered; guarded by mu
	again    time.Time                        // when to ask again; guarded by mu
	verified map[[sha256.Size]byte]verifiedID // guarded by mu
}

// verifiedID is a token that was verified.
type verifiedID struct {
	id    Identity
	until time.Time
}

func newProvider(o *OIDCOptions, log *slog.Logger, now func() time.Time) (*provider, error) {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: there is no certificate in it", o.CA)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	ask := &asking{next: transport, limit: rate.NewLimiter(keysPerSecond, keysBurst)}
	ask.plain = strings.HasPrefix(o.Issuer, "http://") // on this machine, as Options.Validate has seen
	return &provider{
		opts: o, log: log, now: now, asking: ask,
		client: &http.Client{Transport: ask, Timeout: askTimeout, CheckRedirect: sameServer},
		turn:   make(chan struct{}, 1), verified: map[[sha256.Size]byte]verifiedID{},
	}, nil
}

// close closes idle connections. No call may use the provider after it.
func (p *provider) close() { p.client.CloseIdleConnections() }

// discover asks the provider for its configuration, unless it has answered
// before. One call does so at a time, and not at once after a failure.
func (p *provider) discover(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	known, again := p.verifier, p.again
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	unreachable := fmt.Errorf("%w: the provider of tokens does not answer just now; try again later",
		schema.ErrUnavailable)
	if time.Now().Before(again) {
		return nil, unreachable
	}
	// A caller who goes away ends nothing that others wait for. The verifier keeps the
	// context's client for later, not the context.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	verifier, err := p.ask(asking)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.again = time.Now().Add(askAgain)
		p.log.LogAttrs(ctx, slog.LevelError, "the provider of tokens gives no configuration",
			slog.String("issuer", p.opts.Issuer), slog.String("error", err.Error()))
		return nil, unreachable
	}
	p.verifier = verifier
	return verifier, nil
}

// ask asks the provider for its configuration. The verifier that comes of it has no keys yet.
func (p *provider) ask(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	found, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.opts.Issuer)
	p.noted.Note(ctx, err)
	if err != nil {
		return nil, err
	}
	return found.Verifier(&oidc.Config{
		ClientID: p.opts.Audience, SupportedSigningAlgs: algorithms,
		SkipExpiryCheck: true, // times are checked here, by the clock's skew
	}), nil
}

// run asks the provider again and again until ctx ends.
func (p *provider) run(ctx context.Context) {
	wait := time.NewTimer(refreshKeys)
	defer wait.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		next := refreshKeys
		if err := p.refresh(ctx); err != nil {
			next = refreshAgain
		}
		wait.Reset(next)
	}
}

// refresh fetches the provider's configuration and keys. If the provider does not answer,
// the previous ones stay in force.
func (p *provider) refresh(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	verifier, err := p.ask(asking)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelError, "the provider of tokens does not say its keys anew: those that are known "+
			"hold on", slog.String("issuer", p.opts.Issuer), slog.String("error", err.Error()))
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verifier = verifier
	return nil
}

// closed says why tokens of the provider are refused, if they are.
func (p *provider) closed() error {
	if p.noted.Closed() == nil {
		return nil
	}
	return fmt.Errorf("%w: the provider of tokens has not answered for %s, and its keys do not hold any longer; try "+
		"again later", schema.ErrUnavailable, keysGrace)
}

// known returns who has a token that was verified a short time ago.
func (p *provider) known(token string) (Identity, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v, ok := p.verified[sha256.Sum256([]byte(token))]
	return v.id, ok && p.now().Before(v.until)
}

// identify verifies a token. schema.ErrUnavailable if the provider is needed
// and cannot be asked.
func (p *provider) identify(ctx context.Context, token string) (Identity, error) {
	if strings.Count(token, ".") != 2 {
		return Identity{}, errToken
	}
	verifier, err := p.discover(ctx)
	if err != nil {
		return Identity{}, err
	}
	began := time.Now()
	verified, err := verifier.Verify(ctx, token)
	if err != nil {
		if p.asking.failedSince(began) {
			return Identity{}, fmt.Errorf("%w: the provider of tokens does not say its keys just now; try again later",
				schema.ErrUnavailable)
		}
		return Identity{}, fmt.Errorf("%w: %w", errUnverified, err)
	}
	var claims map[string]json.RawMessage
	if err := verified.Claims(&claims); err != nil {
		return Identity{}, fmt.Errorf("%w: %w", errClaims, err)
	}
	now := p.now()
	if err := p.inTime(verified.Expiry, claims, now); err != nil {
		return Identity{}, err
	}
	id, err := p.caller(claims)
	if err != nil {
		return Identity{}, fmt.Errorf("%w: %w", errClaims, err)
	}
	id.Expires = verified.Expiry.Add(p.opts.Skew)
	until := now.Add(keepVerified)
	if id.Expires.Before(until) {
		until = id.Expires
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.verified) >= maxVerified {
		clear(p.verified) // each of them can be verified again
	}
	p.verified[sha256.Sum256([]byte(token))] = verifiedID{id, until}
	return id, nil
}

// inTime checks when a token is good.
func (p *provider) inTime(expiry time.Time, claims map[string]json.RawMessage, now time.Time) error {
	if expiry.Unix() <= 0 || !now.Before(expiry.Add(p.opts.Skew)) {
		return errTimes
	}
	for _, name := range []string{"nbf", "iat"} {
		raw, ok := claims[name]
		if !ok {
			continue
		}
		var seconds float64
		if err := json.Unmarshal(raw, &seconds); err != nil || seconds > float64(now.Add(p.opts.Skew).Unix()) {
			return errTimes
		}
	}
	return nil
}

// caller is who the claims name.
func (p *provider) caller(claims map[string]json.RawMessage) (Identity, error) {
	id := Identity{By: ByOIDC}
	names, err := textsAt(claims, p.opts.PrincipalClaim)
	if err != nil {
		return id, err
	}
	if len(names) != 1 {
		return id, fmt.Errorf("%s: got %d names, want one", p.opts.PrincipalClaim, len(names))
	}
	id.Principal = p.opts.Prefix + names[0]
	groups, err := textsAt(claims, p.opts.GroupsClaim)
	if err != nil {
		return id, err
	}
	for _, g := range groups {
		id.Groups = append(id.Groups, p.opts.Prefix+g)
	}
	if p.opts.TenantClaim != "" {
		tenants, err := textsAt(claims, p.opts.TenantClaim)
		if err != nil {
			return id, err
		}
		if len(tenants) > 0 {
			id.Tenant, id.Tenants = tenants[0], tenants[1:]
		}
	}
	if jti, err := textsAt(claims, "jti"); err == nil && len(jti) == 1 {
		id.ID = fmt.Sprintf("%.64s", jti[0])
	}
	return id, id.valid()
}

// textsAt is the text or the list of texts at a claim; none if it is not there.
// A dot leads into an object, unless a claim has that very name.
func textsAt(claims map[string]json.RawMessage, name string) ([]string, error) {
	raw, ok := claims[name]
	if !ok {
		first, rest, dotted := strings.Cut(name, ".")
		var inner map[string]json.RawMessage
		if !dotted || !decodes(claims[first], &inner) {
			return nil, nil
		}
		return textsAt(inner, rest)
	}
	var one string
	if decodes(raw, &one) {
		return []string{one}, nil
	}
	var list []string
	if !decodes(raw, &list) {
		return nil, fmt.Errorf("%s: want a text or a list of texts", name)
	}
	return list, nil
}

// decodes reports whether JSON is of a type, and reads it.
func decodes(raw json.RawMessage, into any) bool { return json.Unmarshal(raw, into) == nil }

// asking bounds how often the provider is asked, and notes when it could not be.
type asking struct {
	plain bool // HTTP without TLS will do
	next  http.RoundTripper
	limit *rate.Limiter

	mu     sync.Mutex
	failed time.Time // guarded by mu
}

// CloseIdleConnections is called by http.Client.
func (a *asking) CloseIdleConnections() {
	if c, ok := a.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// sameServer refuses to follow a provider to another server: what signs tokens is said by the one that is configured.
func sameServer(r *http.Request, via []*http.Request) error {
	if first := via[0].URL; r.URL.Scheme != first.Scheme || r.URL.Host != first.Host {
		return fmt.Errorf("%s://%s sends on to another server, %s://%s, which is not followed", first.Scheme,
			first.Host, r.URL.Scheme, r.URL.Host)
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("%s sends on more than %d times", via[0].URL.Host, maxRedirects)
	}
	return nil
}

// maxRedirects is how often a provider may send on.
const maxRedirects = 5

// RoundTrip implements http.RoundTripper.
func (a *asking) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !a.plain {
		return nil, fmt.Errorf("the provider names %s://%s: its keys are read encrypted only", r.URL.Scheme, r.URL.Host)
	}
	if !a.limit.Allow() {
		// No failure of the provider: somebody sends tokens that are not its own. Were
		// its keys exchanged just now, those tokens have let them be fetched, too.
		return nil, errors.New("the provider is asked too often")
	}
	answer, err := a.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= http.StatusInternalServerError {
		a.note()
	}
	if err == nil {
		answer.Body = &boundedBody{http.MaxBytesReader(nil, answer.Body, maxProviderAnswer), a}
	}
	return answer, err
}

// boundedBody is an answer of the provider. One that is too long, or breaks off, is a
// failure of the provider, and not of the token that it was asked for.
type boundedBody struct {
	io.ReadCloser
	asking *asking
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		b.asking.note()
	}
	return n, err
}

func (a *asking) note() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = time.Now()
}

func (a *asking) failedSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.failed.Before(t)
}

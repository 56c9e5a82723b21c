package flight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"bowstring/flight/auth"
	"bowstring/internal/authtest"
)

// logins are all ways to authenticate to one server, over TLS.
type logins struct {
	t         testing.TB
	dir       string
	authority *authtest.Authority // of servers and clients
	provider  *authtest.Provider
	tokens    string // the file
	auth      *auth.Authenticator
	log       *lockedBuffer
}

const audience = "bowstring"

// newLogins enables all of them; change, if not nil, changes the options before.
func newLogins(t testing.TB, change func(*auth.Options)) *logins {
	t.Helper()
	d := &logins{t: t, dir: t.TempDir(), authority: authtest.NewAuthority(t, "authority"),
		provider: authtest.NewProvider(t), log: &lockedBuffer{}}
	d.tokens = filepath.Join(d.dir, "tokens.json")
	d.token(auth.Token{Principal: "somebody"}) // makes the file
	d.exchange(d.authority.Server(t))
	opts := auth.Options{
		TLS: auth.TLSOptions{
			Cert: filepath.Join(d.dir, "server.pem"), Key: filepath.Join(d.dir, "server.key"),
			ClientCA: authtest.Write(t, d.dir, "clients.pem", d.authority.PEM),
		},
		Tokens: d.tokens,
		OIDC: auth.OIDCOptions{
			Issuer: d.provider.Issuer, Audience: audience, CA: authtest.Write(t, d.dir, "provider.pem", d.provider.CA),
			TenantClaim: "tenants",
		},
		WrongBurst: 1 << 20, Poll: 20 * time.Millisecond, Recheck: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&opts)
	}
	var err error
	if d.auth, err = auth.New(t.Context(), opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.auth.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the Authenticator's log:\n%s", d.log)
		}
	})
	return d
}

// serve starts a server with these options. Its clients send a token of alice's.
func (d *logins) serve(opts Options) (f *fixture, token string) {
	d.t.Helper()
	token = d.token(auth.Token{Principal: "alice", Groups: []string{"ml"}, Tenant: "vision",
		Tenants: []string{"audio"}})
	// The Authenticator has to have read it before a client calls.
	d.await(func() bool { return d.known(token) })
	opts.Auth = d.auth
	t, ok := d.t.(*testing.T)
	if !ok {
		d.t.Fatal("a benchmark has no server")
	}
	return serve(t, opts, d.trust(nil, nil), grpc.WithPerRPCCredentials(withHeaders{"authorization": "Bearer " +
		token})), token
}

// known reports whether the Authenticator knows a token by now.
func (d *logins) known(token string) bool {
	_, err := d.auth.Authenticate(incoming1("authorization", "Bearer "+token))
	return err == nil
}

// await waits for an event that must happen.
func (d *logins) await(happened func() bool) {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			d.t.Fatal("it did not happen within a minute")
		}
	}
}

// token makes a token, and adds it to the file.
func (d *logins) token(t auth.Token) string {
	d.t.Helper()
	secret, err := auth.AddToken(d.tokens, &t)
	if err != nil {
		d.t.Fatal(err)
	}
	return secret
}

// exchange writes another certificate and key.
func (d *logins) exchange(p authtest.Pair) {
	authtest.Write(d.t, d.dir, "server.key", p.Key)
	authtest.Write(d.t, d.dir, "server.pem", p.Cert)
}

// trust connects to servers of the authority, with a client's certificate if own is not
// nil. change modifies the configuration.
func (d *logins) trust(own *authtest.Pair, change func(*tls.Config)) grpc.DialOption {
	d.t.Helper()
	config := d.client(own)
	if change != nil {
		change(config)
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config))
}

// client returns the TLS configuration of a client with that certificate, nil for none.
func (d *logins) client(own *authtest.Pair) *tls.Config {
	d.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	if !config.RootCAs.AppendCertsFromPEM(d.authority.PEM) {
		d.t.Fatal("no certificate of the authority")
	}
	if own != nil {
		pair, err := tls.X509KeyPair(own.Cert, own.Key)
		if err != nil {
			d.t.Fatal(err)
		}
		// The client shows this certificate whatever authorities the server names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return config
}

// withHeaders are sent with every call.
type withHeaders map[string]string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (h withHeaders) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return h, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (withHeaders) RequireTransportSecurity() bool { return false }

package auth

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"bowstring/internal/authtest"
	"bowstring/schema"
)

// from is the context of a call of an address, with a token.
func from(addr, token string) context.Context {
	ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(addr), Port: 1}})
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
}

// An address that keeps sending wrong tokens gets schema.ErrLimit and causes no request
// to the provider. A cached token still works from there.
func TestWrongTokensAreLimited(t *testing.T) {
	p := authtest.NewProvider(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.json")
	token, err := AddToken(path, &Token{Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(t.Context(), Options{
		Tokens: path, OIDC: OIDCOptions{Issuer: p.Issuer, Audience: "a", CA: authtest.Write(t, dir, "ca.pem", p.CA)},
		WrongBurst: 3, WrongPerMinute: 60, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	now := time.Now()
	d.failed.now = func() time.Time { return now }
	d.now = d.failed.now
	jwt := p.Sign(p.Claims("a", nil))
	if _, err := d.Authenticate(from("10.0.0.1", jwt)); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		want := schema.ErrUnauthenticated
		if i >= 3 {
			want = schema.ErrLimit
		}
		if _, err := d.Authenticate(from("10.0.0.1", "x.y.z")); !errors.Is(err, want) {
			t.Errorf("wrong token %d: %v, want %v", i, err, want)
		}
	}
	for _, good := range []string{token, jwt} {
		if _, err := d.Authenticate(from("10.0.0.1", good)); err != nil {
			t.Errorf("a token that is known: %v", err)
		}
	}
	unseen := p.Sign(p.Claims("a", map[string]any{"sub": "dave"}))
	if _, err := d.Authenticate(from("10.0.0.1", unseen)); !errors.Is(err, schema.ErrLimit) {
		t.Errorf("a token that would have to be verified: %v", err)
	}
	if _, err := d.Authenticate(from("10.0.0.2", unseen)); err != nil {
		t.Errorf("the same from another address: %v", err)
	}
	now = now.Add(2 * time.Second)
	if _, err := d.Authenticate(from("10.0.0.1", p.Sign(p.Claims("a", map[string]any{"sub": "eve"})))); err != nil {
		t.Errorf("after a while: %v", err)
	}
	if s := d.Stats(); s.Refused != 11 || s.Limited != 8 {
		t.Errorf("%+v", s)
	}

	// A client with many addresses does not fill the memory.
	for i := range 3 * maxWrongPeers {
		d.failed.count(fmt.Sprintf("2001:db8::%x", i))
	}
	if n := len(d.failed.peers); n > maxWrongPeers {
		t.Errorf("%d addresses are remembered", n)
	}
	d.failed.count("10.0.0.3")
	d.failed.count("10.0.0.3")
	for i := range maxWrongPeers {
		d.failed.count(fmt.Sprintf("2001:db8:1::%x", i))
	}
	d.failed.count("10.0.0.3")
	if !d.failed.over("10.0.0.3") {
		t.Error("the worst address was forgotten before others")
	}
}

// fetched waits until the previous fetch of keys is over. A fetch publishes its result a
// little earlier, and a caller in between gets that result, too. The library has no other
// sign of the end than its goroutine.
func fetched() {
	stacks := make([]byte, 1<<20)
	for strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "oidc.(*RemoteKeySet).keysFromRemote.func1(") {
		runtime.Gosched()
	}
}

// Keys of the provider are exchanged, tokens with unknown keys let it be asked
// now and then only, and when it does not answer, that is no fault of the token.
func TestProviderKeys(t *testing.T) {
	p := authtest.NewProvider(t)
	d, err := New(t.Context(), Options{
		OIDC: OIDCOptions{Issuer: p.Issuer, Audience: "a", CA: authtest.Write(t, t.TempDir(), "ca.pem", p.CA),
			Prefix: "idp:", GroupsClaim: "realm.roles"},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	for _, algorithm := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		p.Rotate(algorithm)
		token := p.Sign(p.Claims("a", map[string]any{"realm": map[string]any{"roles": []string{"ml"}}}))
		fetched()
		id, err := d.Authenticate(from("10.0.2.1", token))
		if err != nil || id.Principal != "idp:carol" || strings.Join(id.Groups, " ") != "idp:ml" ||
			id.Expires.IsZero() {
			t.Fatalf("%s: %+v, %v", algorithm, id, err)
		}
	}
	// If the provider is broken, the token is neither right nor wrong.
	p.Rotate(jose.ES256)
	p.Break(true)
	rotated := p.Sign(p.Claims("a", nil))
	fetched()
	if _, err := d.Authenticate(from("10.0.0.1", rotated)); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("keys that cannot be had: %v", err)
	}
	p.Break(false)
	fetched()
	if _, err := d.Authenticate(from("10.0.2.2", rotated)); err != nil {
		t.Errorf("keys that can be had again: %v", err)
	}
	fetched()
	before, began := p.Fetches(), time.Now()
	stranger := authtest.NewProvider(t)
	for i := range 50 {
		_, _ = d.Authenticate(from(fmt.Sprintf("10.0.1.%d", i), stranger.Sign(p.Claims("a", nil))))
	}
	most := keysBurst + 1 + int(keysPerSecond*time.Since(began).Seconds())
	if n := p.Fetches() - before; n > most {
		t.Errorf("50 tokens with unknown keys let the provider be asked %d times, and %d are enough", n, most)
	}
}

// A provider that is not reachable does not prevent the start.
func TestProviderAway(t *testing.T) {
	p := authtest.NewProvider(t)
	p.Break(true)
	log := &buffer{}
	d, err := New(t.Context(), Options{
		OIDC:   OIDCOptions{Issuer: p.Issuer, Audience: "a", CA: authtest.Write(t, t.TempDir(), "ca.pem", p.CA)},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	if !strings.Contains(log.String(), "gives no configuration") {
		t.Errorf("the log says nothing of it: %s", log)
	}
	token := p.Sign(p.Claims("a", nil))
	if _, err := d.Authenticate(from("10.0.0.1", token)); !errors.Is(err, schema.ErrUnavailable) {
		t.Errorf("while it is away: %v", err)
	}
	p.Break(false)
	d.provider.mu.Lock()
	d.provider.again = time.Time{} // as if some seconds had passed
	d.provider.mu.Unlock()
	if _, err := d.Authenticate(from("10.0.0.1", token)); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

// Clients that say nothing do not keep others out, and do not stay.
func TestSilentHandshakes(t *testing.T) {
	dir := t.TempDir()
	a := authtest.NewAuthority(t, "authority")
	pair := a.Server(t)
	d, err := New(t.Context(), Options{
		TLS: TLSOptions{
			Cert: authtest.Write(t, dir, "cert", pair.Cert), Key: authtest.Write(t, dir, "key", pair.Key),
			MaxHandshakes: 1, HandshakeTimeout: time.Minute,
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	accept := func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			s, _, err := d.Encrypt(ctx, c)
			if err == nil {
				_ = s.Close()
			}
			_ = c.Close()
			done <- err
		}()
	}
	silent, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	accept()
	await(t, func() bool { return !d.tls.handshakes.TryAcquire(1) || releaseOne(d.tls) })
	greeted := make(chan error, 1)
	go func() {
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // the server is this test
		if err == nil {
			_ = c.Close()
		}
		greeted <- err
	}()
	accept()
	if err := errors.Join(<-greeted, <-done); err != nil {
		t.Errorf("beside a silent client: %v", err)
	}
	cancel() // as a server does that stops
	if err := <-done; err == nil {
		t.Error("a silent client was let in")
	}
	if n := len(d.tls.peers); n != 0 {
		t.Errorf("%d addresses are remembered", n)
	}
}

func releaseOne(e *encryption) bool {
	e.handshakes.Release(1)
	return false
}

// Beyond this machine, a server takes TLS and a way to know callers.
func TestCheckExposed(t *testing.T) {
	encrypted, known := TLSOptions{Cert: "c", Key: "k"}, "tokens"
	for _, tt := range []struct {
		addr string
		o    Options
		want string // in the error; "" for none
	}{
		{"127.0.0.1:1", Options{}, ""},
		{"[::1]:1", Options{}, ""},
		{"localhost:1", Options{}, ""},
		{"127.8.8.8:1", Options{}, ""},
		{":8815", Options{}, "give --tls-cert and --tls-key, and one of --tokens"},
		{"0.0.0.0:1", Options{}, "or --insecure"},
		{"[::]:1", Options{Tokens: known}, "give --tls-cert and --tls-key, or"},
		{"gpu7:1", Options{TLS: encrypted}, "give one of --tokens, --oidc-issuer and --tls-client-ca, or"},
		{"localhost.evil:1", Options{}, "can be reached"},
		{"10.0.0.1:1", Options{TLS: encrypted, Tokens: known}, ""},
		{"10.0.0.1:1", Options{TLS: TLSOptions{Cert: "c", Key: "k", ClientCA: "a"}}, ""},
	} {
		err := tt.o.CheckExposed(tt.addr)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s, %+v: %v, want %q", tt.addr, tt.o, err, tt.want)
		}
	}
}

// Options that cannot be are refused by name, before anything is opened.
func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"TLS: got one of":               {TLS: TLSOptions{Cert: "c"}},
		"TLS.ClientCA":                  {TLS: TLSOptions{ClientCA: "c"}},
		"TLS.RequireClientCert":         {TLS: TLSOptions{Cert: "c", Key: "k", RequireClientCert: true}},
		"TLS.MinVersion: got TLS 1.1":   {TLS: TLSOptions{MinVersion: tls.VersionTLS11}},
		"OIDC: got one of":              {OIDC: OIDCOptions{Issuer: "https://a"}},
		"OIDC.Issuer: got \"http://a\"": {OIDC: OIDCOptions{Issuer: "http://a", Audience: "b"}},
		"OIDC.Skew":                     {OIDC: OIDCOptions{Skew: time.Hour}},
		"WrongBurst":                    {WrongBurst: -1},
		"token create` makes it":        {Tokens: "/nowhere/tokens.json"},
		"the server's certificate (":    {TLS: TLSOptions{Cert: "/nowhere/c", Key: "/nowhere/k"}},
	} {
		d, err := New(t.Context(), o)
		if err == nil || !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
		if d != nil {
			_ = d.Close()
		}
	}
}

func TestHost(t *testing.T) {
	for addr, want := range map[string]string{
		"10.1.2.3:99":            "10.1.2.3",
		"[2001:db8:1:2:3::4]:99": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:99":      "fe80::/64",
		"[::ffff:10.1.2.3]:99":   "::ffff:10.1.2.3",
		"[::1]:99":               "::1",
		"bufconn":                "bufconn",
	} {
		if got := Host(addr); got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

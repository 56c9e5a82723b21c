package auth

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"bowstring/schema"
)

// Options say how callers authenticate. The zero value of each field stands for its
// default. An Authenticator without any way to authenticate accepts every caller, as
// anonymous.
type Options struct {
	TLS TLSOptions
	// Tokens is the path of the file of tokens. Default none.
	Tokens string
	OIDC   OIDCOptions
	// OpenReflection lets anonymous callers list the methods. Health checks are always
	// open.
	OpenReflection bool
	// WrongBurst is how many wrong credentials one address may send at once, and
	// WrongPerMinute how many a minute in the long run. Default 30 and 30.
	WrongBurst, WrongPerMinute int
	// Poll is the interval at which files are read, in addition to the kernel's
	// notifications. Recheck is the interval at which the credentials of running calls
	// are checked. Default 2 s and 1 s: the calls of a revoked token end within the sum
	// of both.
	Poll, Recheck time.Duration
	// Sources records whether the files and the provider's keys can be read; nil if that
	// has no effect.
	Sources *Sources
	// Logger gets reloads and refusals. Default slog.Default().
	Logger *slog.Logger
}

// TLSOptions say how connections are encrypted.
type TLSOptions struct {
	// Cert and Key are PEM files: the server's certificate with what stands between
	// it and the root, and its private key. Default none: no TLS.
	Cert, Key string
	// ClientCA is a PEM file with the roots of clients' certificates, whose names
	// are principals. Default none: certificates of clients say nothing.
	ClientCA string
	// RequireClientCert refuses connections without one, those of health checks
	// too.
	RequireClientCert bool
	// MinVersion is tls.VersionTLS12 or tls.VersionTLS13. Default 1.3.
	MinVersion uint16
	// HandshakeTimeout is how long a handshake may take, with the wait for its
	// turn. Default 10 s.
	HandshakeTimeout time.Duration
	// MaxHandshakes is how many may be worked on at once; more wait. One address
	// has a quarter at most. Default 256.
	MaxHandshakes int
}

// OIDCOptions say whose tokens are accepted.
type OIDCOptions struct {
	// Issuer is the URL of the provider, as its tokens have it in "iss". Default
	// none.
	Issuer string
	// Audience is what tokens must have in "aud".
	Audience string
	// PrincipalClaim, GroupsClaim and TenantClaim are where a token has these; a
	// dot leads into an object. Default "sub", "groups" and none.
	PrincipalClaim, GroupsClaim, TenantClaim string
	// Prefix is put before principals and groups from tokens, so that they cannot be
	// names of other sources. Default none.
	Prefix string
	// Skew is how far the provider's clock may be off. Default 30 s.
	Skew time.Duration
	// CA is a PEM file with the roots of the provider's certificate. Default the
	// system's.
	CA string
}

// EnsureDefaults fills in the fields that are zero.
func (o *Options) EnsureDefaults() {
	for at, n := range map[*int]int{&o.WrongBurst: 30, &o.WrongPerMinute: 30, &o.TLS.MaxHandshakes: 256} {
		if *at == 0 {
			*at = n
		}
	}
	for at, d := range map[*time.Duration]time.Duration{
		&o.Poll: 2 * time.Second, &o.Recheck: time.Second, &o.TLS.HandshakeTimeout: 10 * time.Second,
		&o.OIDC.Skew: 30 * time.Second,
	} {
		if *at == 0 {
			*at = d
		}
	}
	if o.TLS.MinVersion == 0 {
		o.TLS.MinVersion = tls.VersionTLS13
	}
	for at, claim := range map[*string]string{&o.OIDC.PrincipalClaim: "sub", &o.OIDC.GroupsClaim: "groups"} {
		if *at == "" {
			*at = claim
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Validate returns an error that names the first field whose value cannot be,
// after EnsureDefaults.
func (o *Options) Validate() error {
	wrong := func(field, got, want string) error { return &schema.FieldError{Field: field, Got: got, Want: want} }
	switch t := &o.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		return wrong("TLS", "one of a certificate and a private key", "both, or neither")
	case t.ClientCA != "" && t.Cert == "":
		return wrong("TLS.ClientCA", t.ClientCA, "nothing unless there is a server's certificate")
	case t.RequireClientCert && t.ClientCA == "":
		return wrong("TLS.RequireClientCert", "true", "false unless there is a TLS.ClientCA")
	case t.MinVersion != tls.VersionTLS12 && t.MinVersion != tls.VersionTLS13:
		return wrong("TLS.MinVersion", tls.VersionName(t.MinVersion), "TLS 1.2 or TLS 1.3")
	case t.MaxHandshakes < 1:
		return wrong("TLS.MaxHandshakes", fmt.Sprint(t.MaxHandshakes), "1 or more")
	case t.HandshakeTimeout < 0:
		return wrong("TLS.HandshakeTimeout", t.HandshakeTimeout.String(), "more than 0")
	}
	switch {
	case o.WrongBurst < 1 || o.WrongPerMinute < 1:
		return wrong("WrongBurst, WrongPerMinute", fmt.Sprintf("%d, %d", o.WrongBurst, o.WrongPerMinute), "1 or more")
	case o.Poll < 0 || o.Recheck < 0:
		return wrong("Poll, Recheck", fmt.Sprintf("%s, %s", o.Poll, o.Recheck), "more than 0")
	case (o.OIDC.Issuer == "") != (o.OIDC.Audience == ""):
		return wrong("OIDC", "one of an issuer and an audience", "both, or neither")
	case o.OIDC.Skew < 0 || o.OIDC.Skew > 10*time.Minute:
		return wrong("OIDC.Skew", o.OIDC.Skew.String(), "0 to 10m")
	}
	if o.OIDC.Issuer != "" {
		u, err := url.Parse(o.OIDC.Issuer)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" &&
			(u.Scheme != "http" || !loopback(u.Hostname())) {
			return wrong("OIDC.Issuer", schema.Quote(o.OIDC.Issuer), "the URL https://HOST/… of a provider")
		}
	}
	return nil
}

// Authenticates reports whether there is a way to recognise a caller.
func (o *Options) Authenticates() bool {
	return o.Tokens != "" || o.OIDC.Issuer != "" || o.TLS.ClientCA != ""
}

// CheckExposed returns an error if a server that listens on addr (HOST:PORT, or the URI of a socket)
// could be called from other machines without TLS, or by anybody.
func (o *Options) CheckExposed(addr string) error {
	if strings.HasPrefix(addr, "grpc+unix:") {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil && loopback(host) {
		return nil
	}
	var missing string
	switch encrypted := o.TLS.Cert != ""; {
	case !encrypted && !o.Authenticates():
		missing = "--tls-cert and --tls-key, and one of --tokens, --oidc-issuer and --tls-client-ca"
	case !encrypted:
		missing = "--tls-cert and --tls-key"
	case !o.Authenticates():
		missing = "one of --tokens, --oidc-issuer and --tls-client-ca"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s can be reached from other machines: give %s, or --insecure to let in everybody "+
		"who reaches it", schema.ErrInvalid, addr, missing)
}

// loopback reports whether a host is this machine for this machine only.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

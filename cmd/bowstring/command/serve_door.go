package command

import (
	"context"
	"crypto/tls"
	"time"

	"golang.org/x/sys/unix"

	"bowstring/flight/auth"
)

// doorFlags say how callers come in.
type doorFlags struct {
	TLSCert          string        `name:"tls-cert" setting:"" type:"path" placeholder:"FILE" help:"Certificate of the server, with what stands between it and the root, as PEM. Read again when it changes."`
	TLSKey           string        `name:"tls-key" setting:"" type:"path" placeholder:"FILE" help:"Its private key, as PEM."`
	TLSClientCA      string        `name:"tls-client-ca" setting:"" type:"path" placeholder:"FILE" help:"Roots of clients' certificates, as PEM: a client with one of theirs is let in by the name in it."`
	TLSRequireClient bool          `name:"tls-require-client" setting:"" help:"Refuse connections without a client certificate, those of health checks too."`
	TLSMinVersion    string        `name:"tls-min-version" setting:"" enum:"1.2,1.3" default:"1.3" help:"Least version of TLS: ${enum} (default: ${default})."`
	Tokens           string        `setting:"" type:"path" placeholder:"FILE" help:"File of tokens that let clients in; see token create. Read again when it changes."`
	OIDCIssuer       string        `name:"oidc-issuer" setting:"" placeholder:"URL" help:"OpenID Connect provider whose tokens let clients in."`
	OIDCAudience     string        `name:"oidc-audience" setting:"" placeholder:"NAME" help:"Whom its tokens have to be for."`
	OIDCPrincipal    string        `name:"oidc-principal-claim" setting:"" default:"sub" placeholder:"CLAIM" help:"Claim that names the principal (default: ${default})."`
	OIDCGroups       string        `name:"oidc-groups-claim" setting:"" default:"groups" placeholder:"CLAIM" help:"Claim that lists its groups (default: ${default})."`
	OIDCTenant       string        `name:"oidc-tenant-claim" setting:"" placeholder:"CLAIM" help:"Claim that names its tenant, or lists those that it may choose from (default: none)."`
	OIDCPrefix       string        `name:"oidc-prefix" setting:"" placeholder:"TEXT" help:"What stands before principals and groups from tokens of the provider (default: nothing)."`
	OIDCSkew         time.Duration `name:"oidc-skew" setting:"" default:"30s" placeholder:"DURATION" help:"How far the provider's clock may be off (default: ${default})."`
	OIDCCA           string        `name:"oidc-ca" setting:"" type:"path" placeholder:"FILE" help:"Roots of the provider's certificate, as PEM (default: the system's)."`
	Reflection       string        `setting:"" enum:"callers,all,none" default:"callers" help:"Who may list the server's methods: ${enum} (default: ${default}, those that are let in)."`
	SourceGrace      time.Duration `setting:"" default:"5m" placeholder:"DURATION" help:"How long what was read last holds where the files of tokens, rules, tenants or certificates cannot be read; then no calls are let in (default: ${default})."`
	Insecure         bool          `setting:"" help:"Listen beyond this machine without TLS or without knowing who calls."`
}

// options are the door that the flags ask for.
func (f *doorFlags) options(app *App) auth.Options {
	o := auth.Options{
		TLS: auth.TLSOptions{
			Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, RequireClientCert: f.TLSRequireClient,
			MinVersion: tls.VersionTLS13,
		},
		Tokens: f.Tokens,
		OIDC: auth.OIDCOptions{
			Issuer: f.OIDCIssuer, Audience: f.OIDCAudience, PrincipalClaim: f.OIDCPrincipal, GroupsClaim: f.OIDCGroups,
			TenantClaim: f.OIDCTenant, Prefix: f.OIDCPrefix, Skew: f.OIDCSkew, CA: f.OIDCCA,
		},
		OpenReflection: f.Reflection == "all",
		Logger:         app.Log,
	}
	if f.TLSMinVersion == "1.2" {
		o.TLS.MinVersion = tls.VersionTLS12
	}
	return o
}

// open opens the door of a server that listens on addr; nil if it has none.
func (f *doorFlags) open(ctx context.Context, app *App, sources *auth.Sources, addr string) (*auth.Door, error) {
	o := f.options(app)
	o.Sources = sources
	if err := o.CheckExposed(addr); err != nil {
		if !f.Insecure {
			return nil, usagef("--listen: %v", err)
		}
		app.Log.WarnContext(ctx, "other machines can reach this server, and --insecure says not to mind", "reason",
			err.Error())
	}
	if o.TLS == (auth.TLSOptions{MinVersion: o.TLS.MinVersion}) && !o.Authenticates() {
		return nil, nil
	}
	withoutCore(ctx, app)
	return auth.New(ctx, o)
}

// noCore is the limit under which the kernel writes no core of a process, neither to a file,
// which would be longer, nor to a program, for which it would ignore a limit of zero.
const noCore = 1

// withoutCore keeps the server's memory out of files: it has the key of the certificate, and
// tokens that clients have sent.
func withoutCore(ctx context.Context, app *App) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &limit)
	if err == nil {
		limit.Cur = min(limit.Max, noCore)
		err = unix.Setrlimit(unix.RLIMIT_CORE, &limit)
	}
	if err != nil {
		app.Log.WarnContext(ctx, "a core of this process would have keys and tokens in it, and cannot be kept from "+
			"being written", "error", err)
	}
}

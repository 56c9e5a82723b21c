package command

import (
	"context"
	"crypto/tls"

	"golang.org/x/sys/unix"

	"bowstring/flight/auth"
)

// options are the door that the flags ask for.
func (f *authFlags) options(app *App) auth.Options {
	o := auth.Options{
		TLS: auth.TLSOptions{
			Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA, RequireClientCert: f.TLSRequireClient,
			MinVersion: tls.VersionTLS13,
		},
		Tokens: f.Tokens,
		OIDC: auth.OIDCOptions{
			Issuer: f.OIDCIssuer, Audience: f.OIDCAudience, PrincipalClaim: f.OIDCPrincipal, GroupsClaim: f.OIDCGroups,
			TenantClaim: f.OIDCTenant, Prefix: f.OIDCPrefix, CA: f.OIDCCA,
		},
		Logger: app.Log,
	}
	if f.TLSMinVersion == "1.2" {
		o.TLS.MinVersion = tls.VersionTLS12
	}
	return o
}

// open opens the door of a server that listens on addr; nil if it has none.
func (f *authFlags) open(ctx context.Context, app *App, sources *auth.Sources, addr string) (*auth.Door, error) {
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

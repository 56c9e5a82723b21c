package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// How a caller was recognised.
const (
	ByToken       = "token"
	ByOIDC        = "oidc"
	ByCertificate = "certificate"
)

// Limits of an identity, which may come from a token of another service.
const (
	maxName   = 256  // bytes of a principal, a group
	maxGroups = 1024 // of one principal
)

// Identity is the authenticated caller. It is immutable: readers must not change its
// slices.
type Identity struct {
	// Principal is the caller's name, of up to 256 printable bytes. Tokens, OpenID
	// Connect and certificates share one name space.
	Principal string
	// Groups are the groups of the principal, from its credentials.
	Groups []string
	// Tenant is the account that calls are charged to, unless they name another one; ""
	// is the default account.
	Tenant string
	// Tenants are the other accounts that calls may name.
	Tenants []string
	// By is ByToken, ByOIDC or ByCertificate.
	By string
	// ID names the credentials in logs: a token's ID or a certificate's serial number. It
	// is no secret.
	ID string
	// Expires is when the credentials expire, also for running calls; zero is never.
	Expires time.Time

	check func() error // returns why the credentials are invalid, apart from time; nil if nothing else can end them
}

// expired returns the reason for which the identity has become invalid, or nil.
func (id *Identity) expired(now time.Time) error {
	if !id.Expires.IsZero() && !now.Before(id.Expires) {
		return fmt.Errorf("it was good until %s", id.Expires.UTC().Format(time.RFC3339))
	}
	if id.check != nil {
		return id.check()
	}
	return nil
}

// mayEnd reports whether the identity can become invalid at all.
func (id *Identity) mayEnd() bool { return !id.Expires.IsZero() || id.check != nil }

// MayUse reports whether the caller's credentials allow calls on a tenant's account.
func (id *Identity) MayUse(tenant string) bool {
	return tenant == id.Tenant || slices.Contains(id.Tenants, tenant)
}

// valid checks the names of an identity from a token of another service.
func (id *Identity) valid() error {
	if err := checkName("principal", id.Principal); err != nil {
		return err
	}
	if len(id.Groups) > maxGroups {
		return fmt.Errorf("groups: got %d, want %d at most", len(id.Groups), maxGroups)
	}
	for _, g := range id.Groups {
		if err := checkName("group", g); err != nil {
			return err
		}
	}
	for _, t := range append([]string{id.Tenant}, id.Tenants...) {
		if t != "" && !TenantForm(t) {
			return fmt.Errorf("tenant: got %.200q, want up to 128 letters, digits and . _ @ : / -", t)
		}
	}
	return nil
}

// checkName checks a principal or a group.
func checkName(what, name string) error {
	if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.TrimSpace(name) != name ||
		strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%s: got %.200q, want 1 to %d printable bytes without spaces at the ends", what, name,
			maxName)
	}
	return nil
}

// TenantForm reports whether a tenant's name is well formed: 1 to 128 letters,
// digits and . _ @ : / -.
func TenantForm(name string) bool {
	return tenantForm.MatchString(name)
}

var tenantForm = regexp.MustCompile(`^[A-Za-z0-9._@:/-]{1,128}$`)

type identityKey struct{}

// WithIdentity returns a context that carries the caller's identity.
func WithIdentity(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// IdentityFrom returns the caller's identity, or nil if the server does not authenticate.
func IdentityFrom(ctx context.Context) *Identity {
	id, _ := ctx.Value(identityKey{}).(*Identity)
	return id
}

const (
	// authorizationHeader is where clients send a token, or in a handshake a name
	// and a token as its password.
	authorizationHeader = "authorization"
	// tokenHeader is where pyarrow's older ClientAuthHandler sends what a handshake
	// gave it.
	tokenHeader = "auth-token-bin"
	// maxCredential bounds what a client sends. Tokens of OpenID Connect have some
	// kilobytes.
	maxCredential = 16 << 10
	// anyUser is the name by which any token's owner may log in.
	anyUser = "token"
)

// Reasons for which credentials are wrong. They go to the log, never to a client.
var (
	errNone     = errors.New("no credentials")
	errTwice    = errors.New("credentials came twice")
	errLong     = errors.New("credentials are too long")
	errEmpty    = errors.New("the token is empty")
	errScheme   = errors.New("the authorization is neither Bearer nor, in a handshake, Basic")
	errEncoding = errors.New("the authorization is not well formed")
	errUser     = errors.New("the name is not that of the token's principal")
)

// credential is what a client sent.
type credential struct {
	token string
	user  string // with which the token came, in a handshake; "" otherwise
}

// fromHeaders returns the credential in a call's headers; errNone if there is none. Two
// credentials are an error: which of them counted would be a guess.
func fromHeaders(md metadata.MD, handshake bool) (credential, error) {
	auth, older := md.Get(authorizationHeader), md.Get(tokenHeader)
	switch {
	case len(auth)+len(older) == 0:
		return credential{}, errNone
	case len(auth)+len(older) > 1:
		return credential{}, errTwice
	case len(older) == 1:
		return bearer(older[0])
	}
	if len(auth[0]) > maxCredential {
		return credential{}, errLong
	}
	scheme, value, _ := strings.Cut(auth[0], " ")
	switch {
	case strings.EqualFold(scheme, "bearer"):
		return bearer(strings.Trim(value, " "))
	case handshake && strings.EqualFold(scheme, "basic"):
		return basic(strings.Trim(value, " "))
	}
	return credential{}, errScheme
}

func bearer(token string) (credential, error) {
	switch {
	case token == "":
		return credential{}, errEmpty
	case len(token) > maxCredential:
		return credential{}, errLong
	}
	return credential{token: token}, nil
}

// basic decodes a name and a password, which is a token. Some clients pad
// base64 (pyarrow), some don't (ADBC).
func basic(value string) (credential, error) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
	if err != nil {
		return credential{}, errEncoding
	}
	user, token, ok := strings.Cut(string(b), ":")
	if !ok {
		return credential{}, errEncoding
	}
	return withUser(user, token)
}

// fromPayload decodes what pyarrow's older ClientAuthHandler sends.
func fromPayload(payload []byte) (credential, error) {
	if len(payload) > maxCredential {
		return credential{}, errLong
	}
	var auth flight.BasicAuth
	if err := proto.Unmarshal(payload, &auth); err != nil {
		return credential{}, errEncoding
	}
	return withUser(auth.GetUsername(), auth.GetPassword())
}

func withUser(user, token string) (credential, error) {
	c, err := bearer(token)
	if user != anyUser {
		c.user = user
	}
	return c, err
}

package auth

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// How a caller was recognised.
const (
	ByToken       = "token"
	ByOIDC        = "oidc"
	ByCertificate = "certificate"
)

// What an identity may consist of.
const (
	maxName   = 256  // bytes of a principal, a group
	maxGroups = 1024 // of one principal
)

// Identity is who calls. It is immutable: whoever reads its lists leaves them
// as they are.
type Identity struct {
	// Principal is the caller's name, of up to 256 printable bytes. All ways to be
	// recognised share one space of names.
	Principal string
	// Groups are those the principal is in, by what let it in.
	Groups []string
	// Tenant is on whose account the principal calls unless it says otherwise; ""
	// is the account of all who have none.
	Tenant string
	// Tenants are the others on whose account it may call.
	Tenants []string
	// By is ByToken, ByOIDC or ByCertificate.
	By string
	// ID names what let the caller in, for logs: a token's ID, a certificate's
	// serial number. It is no secret.
	ID string
	// Expires is when that ends, whatever runs by then; zero is never.
	Expires time.Time

	check func() error // why it is no longer good, apart from time; may be nil
}

// still says why the identity has ended, if it has.
func (id *Identity) still(now time.Time) error {
	if !id.Expires.IsZero() && !now.Before(id.Expires) {
		return fmt.Errorf("it was good until %s", id.Expires.UTC().Format(time.RFC3339))
	}
	if id.check != nil {
		return id.check()
	}
	return nil
}

// mayEnd reports whether there is anything that could end it.
func (id *Identity) mayEnd() bool { return !id.Expires.IsZero() || id.check != nil }

// MayUse reports whether the caller may call on a tenant's account.
func (id *Identity) MayUse(tenant string) bool {
	return tenant == id.Tenant || slices.Contains(id.Tenants, tenant)
}

// valid checks the names of an identity that comes from elsewhere.
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

// WithIdentity returns a context that says who calls.
func WithIdentity(ctx context.Context, id *Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// IdentityFrom returns who calls, nil where nobody had to say.
func IdentityFrom(ctx context.Context) *Identity {
	id, _ := ctx.Value(identityKey{}).(*Identity)
	return id
}

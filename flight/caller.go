package flight

import (
	"context"
	"fmt"
	"regexp"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/flight/auth"
	"bowstring/flight/policy"
	"bowstring/schema"
)

const (
	// tenantHeader is the metadata that says on whose account a call is. Where
	// callers are known, it chooses among the tenants that they may use. Where they
	// are not, nobody checks it: it keeps those who mean well out of each other's
	// way.
	tenantHeader = "bowstring-tenant"
	// traceHeader is W3C's: version, trace, parent, flags.
	traceHeader = "traceparent"
)

var traceForm = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)

// withCaller returns a context that says on whose behalf a call is, down to the
// store. known says that callers have to say who they are: those who had not to
// for this call are on nobody's account then.
// tenants, if not nil, say on whose account those are who do not say so themselves.
func withCaller(ctx context.Context, known bool, tenants *policy.Tenants) (context.Context, fetch.Caller, error) {
	var c fetch.Caller
	id := auth.IdentityFrom(ctx)
	if id != nil {
		c.Principal, c.Groups, c.Tenant = id.Principal, id.Groups, id.Tenant
	}
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(tenantHeader); len(v) > 0 && (id != nil || !known) {
		if len(v) > 1 || !auth.TenantForm(v[0]) {
			return ctx, c, &schema.FieldError{
				Field: "header " + tenantHeader, Got: schema.Quote(v[0]),
				Want: "one name of up to 128 letters, digits and . _ @ : / -",
			}
		}
		if id != nil && !id.MayUse(v[0]) && !tenants.Has(v[0], who(c)) {
			return ctx, c, fmt.Errorf("%w: header %s: %s is no tenant on whose account this caller may call",
				schema.ErrDenied, tenantHeader, schema.Quote(v[0]))
		}
		c.Tenant = v[0]
	}
	if id != nil || !known {
		c.Tenant = tenants.Of(who(c), c.Tenant)
	}
	if v := md.Get(traceHeader); len(v) > 0 {
		if m := traceForm.FindStringSubmatch(v[0]); m != nil {
			c.Trace = m[1] // what is not of this form is to be ignored, W3C says
		}
	}
	return fetch.WithCaller(ctx, c), c, nil
}

func who(c fetch.Caller) policy.Who { return policy.Who{Principal: c.Principal, Groups: c.Groups} }

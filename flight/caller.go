package flight

import (
	"context"
	"regexp"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/schema"
)

const (
	// tenantHeader is the metadata that says on whose account a call is. Nobody
	// checks it: it keeps those who mean well out of each other's way.
	tenantHeader = "bowstring-tenant"
	// traceHeader is W3C's: version, trace, parent, flags.
	traceHeader = "traceparent"
)

var (
	tenantForm = regexp.MustCompile(`^[A-Za-z0-9._@:/-]{1,128}$`)
	traceForm  = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)
)

// withCaller returns a context that says on whose behalf a call is, down to the
// store.
func withCaller(ctx context.Context) (context.Context, fetch.Caller, error) {
	var c fetch.Caller
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx, c, nil
	}
	if v := md.Get(tenantHeader); len(v) > 0 {
		if c.Tenant = v[0]; len(v) > 1 || !tenantForm.MatchString(c.Tenant) {
			return ctx, c, &schema.FieldError{
				Field: "header " + tenantHeader, Got: schema.Quote(c.Tenant),
				Want: "one name of up to 128 letters, digits and . _ @ : / -",
			}
		}
	}
	if v := md.Get(traceHeader); len(v) > 0 {
		if m := traceForm.FindStringSubmatch(v[0]); m != nil {
			c.Trace = m[1] // what is not of this form is to be ignored, W3C says
		}
	}
	return fetch.WithCaller(ctx, c), c, nil
}

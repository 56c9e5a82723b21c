package flight

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/flight/auth"
	"bowstring/schema"
)

// The caller is taken from the headers if they have the right form.
func TestCaller(t *testing.T) {
	trace := "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, tt := range []struct {
		headers []string
		want    fetch.Caller
		err     string
	}{
		{},
		{headers: []string{tenantHeader, "vision/a@b.c"}, want: fetch.Caller{Tenant: "vision/a@b.c"}},
		{headers: []string{traceHeader, "00-" + trace + "-00f067aa0ba902b7-01"}, want: fetch.Caller{Trace: trace}},
		{headers: []string{traceHeader, "00-" + trace[1:] + "-00f067aa0ba902b7-01"}},
		{headers: []string{tenantHeader, ""}, err: `header bowstring-tenant`},
		{headers: []string{tenantHeader, "a b"}, err: `got "a b", want one name`},
		{headers: []string{tenantHeader, strings.Repeat("a", 129)}, err: `want one name of up to 128`},
		{headers: []string{tenantHeader, "a", tenantHeader, "b"}, err: `want one name`},
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(tt.headers...))
		ctx, c, err := withCaller(ctx, false, nil)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: %v, want %s", tt.headers, err, tt.err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(c, tt.want) || !reflect.DeepEqual(fetch.CallerFrom(ctx), tt.want) {
			t.Errorf("%q: %+v, %+v in the context, %v; want %+v", tt.headers, c, fetch.CallerFrom(ctx), err, tt.want)
		}
	}
}

// If callers authenticate, the credentials decide who the caller is, and the header chooses
// among its tenants.
func TestKnownCaller(t *testing.T) {
	alice := &auth.Identity{Principal: "alice", Groups: []string{"ml"}, Tenant: "vision", Tenants: []string{"audio"}}
	for _, tt := range []struct {
		id     *auth.Identity
		header string
		want   fetch.Caller
		err    error
	}{
		{alice, "", fetch.Caller{Principal: "alice", Groups: []string{"ml"}, Tenant: "vision"}, nil},
		{alice, "audio", fetch.Caller{Principal: "alice", Groups: []string{"ml"}, Tenant: "audio"}, nil},
		{alice, "text", fetch.Caller{}, schema.ErrDenied},
		{&auth.Identity{Principal: "bob"}, "vision", fetch.Caller{}, schema.ErrDenied},
		{nil, "vision", fetch.Caller{}, nil}, // a health check is on no account
	} {
		ctx := t.Context()
		if tt.id != nil {
			ctx = auth.WithIdentity(ctx, tt.id)
		}
		if tt.header != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(tenantHeader, tt.header))
		}
		ctx, c, err := withCaller(ctx, true, nil)
		if !errors.Is(err, tt.err) || err == nil &&
			(!reflect.DeepEqual(c, tt.want) || !reflect.DeepEqual(fetch.CallerFrom(ctx), tt.want)) {
			t.Errorf("%+v, header %q: %+v, %v; want %+v, %v", tt.id, tt.header, c, err, tt.want, tt.err)
		}
	}
}

// The log line of a call names its tenant. A wrong header is the client's mistake.
func TestCallerIsLogged(t *testing.T) {
	f := serve(t, Options{})
	client := f.dial()
	list := func(tenant string) error {
		stream, err := client.ListFlights(metadata.AppendToOutgoingContext(context.Background(), tenantHeader, tenant),
			nil)
		if err != nil {
			return err
		}
		for err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	_ = list("vision")
	if err := list("not a name"); err == nil || !strings.Contains(err.Error(), "InvalidArgument") {
		t.Errorf("a wrong header: %v", err)
	}
	if log := f.log.String(); !strings.Contains(log, "tenant=vision") {
		t.Errorf("the log says nothing of the tenant: %s", log)
	}
}

package flight

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"bowstring/flight/auth"
	"bowstring/internal/authtest"
)

// Each right way in names the caller as it should, and the tenant.
func TestRightWaysIn(t *testing.T) {
	d := newLogins(t, nil)
	f, token := d.serve(Options{})
	client, _ := f.connect(d.trust(nil, nil))
	p := d.provider
	id := mustURL(t, "spiffe://cluster/ns/ml/sa/train")
	cert := func(change func(*x509.Certificate)) *authtest.Pair {
		pair := d.authority.Client(t, "carol", change)
		return &pair
	}
	for name, tt := range map[string]struct {
		headers []string
		cert    *authtest.Pair
		want    string // in the log
		refused codes.Code
	}{
		"bearer": {headers: []string{"authorization", "Bearer " + token},
			want: "principal=alice by=token:" + tokenID(token) + " tenant=vision"},
		"bearer, in capitals": {headers: []string{"Authorization", "BEARER  " + token}, want: "principal=alice"},
		"older header":        {headers: []string{"auth-token-bin", token}, want: "principal=alice"},
		"tenant chosen": {headers: []string{"authorization", "Bearer " + token, tenantHeader, "audio"},
			want: "principal=alice by=token:" + tokenID(token) + " tenant=audio"},
		"tenant not one's own": {headers: []string{"authorization", "Bearer " + token, tenantHeader, "text"},
			refused: codes.PermissionDenied},
		"OIDC": {headers: []string{"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"jti": "7"}))}, want: "principal=carol by=oidc:7"},
		"OIDC, tenant": {headers: []string{"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"tenants": []string{"a", "b"}})), tenantHeader, "b"},
			want: "tenant=b"},
		"OIDC, other's tenant": {headers: []string{"authorization", "Bearer " + p.Sign(p.Claims(audience, nil)),
			tenantHeader, "vision"}, refused: codes.PermissionDenied},
		"OIDC, clocks differ": {headers: []string{"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"nbf": time.Now().Add(10 * time.Second).Unix(),
				"sub": "skewed"}))}, want: "principal=skewed"},
		"URI": {cert: cert(func(c *x509.Certificate) {
			c.URIs, c.DNSNames = []*url.URL{id}, []string{"no"}
		}), want: "principal=spiffe://cluster/ns/ml/sa/train by=certificate:"},
		"DNS name": {cert: cert(func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses = []string{"gpu7.lan"}, []string{"no@no"}
		}), want: "principal=gpu7.lan"},
		"mail address": {cert: cert(func(c *x509.Certificate) {
			c.EmailAddresses = []string{"eve@lan"}
		}), want: "principal=eve@lan"},
		"common name": {cert: cert(nil), want: "principal=carol by=certificate:"},
		"token and cert": {cert: cert(nil), headers: []string{"authorization", "Bearer " + token},
			want: "principal=alice"},
		"cert, tenant": {cert: cert(nil), headers: []string{tenantHeader, "vision"}, refused: codes.PermissionDenied},
	} {
		c := client
		if tt.cert != nil {
			c, _ = f.connect(d.trust(tt.cert, nil))
		}
		before := len(f.log.String())
		stream, err := c.ListActions(metadata.AppendToOutgoingContext(t.Context(), tt.headers...), &flight.Empty{})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != tt.refused {
			t.Errorf("%s: %v", name, err)
		}
		if log := f.log.String()[before:]; !strings.Contains(log, tt.want) {
			t.Errorf("%s: the log does not say %q: %s", name, tt.want, log)
		}
	}

	encoded := func(user string) string { return base64.StdEncoding.EncodeToString([]byte(user + ":" + token)) }
	for name, h := range map[string]struct {
		headers []string
		payload []byte
		want    string // in the message
	}{
		"basic":             {headers: []string{"authorization", "Basic " + encoded("alice")}},
		"basic, any name":   {headers: []string{"authorization", "Basic " + encoded("token")}},
		"basic, no name":    {headers: []string{"authorization", "basic " + encoded("")}},
		"basic, no padding": {headers: []string{"authorization", "Basic " + strings.TrimRight(encoded("token"), "=")}},
		"bearer":            {headers: []string{"authorization", "Bearer " + token}},
		"payload":           {payload: basicPayload(t, "alice", token), want: token},
		"payload, no name":  {payload: basicPayload(t, "", token), want: token},
	} {
		answer, headers, err := handshake(metadata.AppendToOutgoingContext(t.Context(), h.headers...), client,
			h.payload)
		if got := headers.Get("authorization"); err != nil || answer != h.want || len(got) != 2 ||
			got[0] != "Bearer "+token || got[1] != got[0] {
			t.Errorf("handshake, %s: %v", name, err)
		}
	}
	if logs := f.log.String() + d.log.String(); strings.Contains(logs, token[len(token)-43:]) {
		t.Error("the log has a secret")
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A stream that began under a token ends when that is revoked.
func TestRevokedStream(t *testing.T) {
	d := newLogins(t, nil)
	f, token := d.serve(Options{})
	f.fill("d", 200)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// A stream that waits for its client, for ever: its requests have not ended.
	stream, err := f.client.DoExchange(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&flight.FlightData{FlightDescriptor: command(`{"take":{"dataset":"d"}}`)}); err != nil {
		t.Fatal(err)
	}
	d.await(func() bool {
		running, _, _, _ := f.server.calls.snapshot(func(*call) bool { return true }, true)
		return len(running) == 1
	})
	if _, err := auth.RevokeToken(d.tokens, tokenID(token)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.Unauthenticated, "the credentials of the call have become invalid: the token was revoked")
	_, err = f.client.GetFlightInfo(t.Context(), command(`{"dataset":"d"}`))
	wantCode(t, err, codes.Unauthenticated, "valid credentials")
}

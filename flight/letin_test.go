package flight

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"bowstring/flight/auth"
	"bowstring/internal/authtest"
)

// incoming1 is the context of a call with headers.
func incoming1(headers ...string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs(headers...))
}

// everything calls each method once and returns their errors by method, nil for success.
func everything(ctx context.Context, c flight.Client, conn grpc.ClientConnInterface) map[string]error {
	one := func(recv func() error, err error) error {
		if err != nil {
			return err
		}
		if err := recv(); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}
	d := command(`{"dataset":"d"}`)
	ticket := &flight.Ticket{Ticket: []byte(`{"dataset":"d"}`)}
	out := map[string]error{}
	_, out["GetFlightInfo"] = c.GetFlightInfo(ctx, d)
	_, out["GetSchema"] = c.GetSchema(ctx, d)
	list, err := c.ListFlights(ctx, &flight.Criteria{})
	out["ListFlights"] = one(func() error { _, err := list.Recv(); return err }, err)
	get, err := c.DoGet(ctx, ticket)
	out["DoGet"] = one(func() error { _, err := get.Recv(); return err }, err)
	put, err := c.DoPut(ctx)
	out["DoPut"] = one(func() error { _ = put.CloseSend(); _, err := put.Recv(); return err }, err)
	exchange, err := c.DoExchange(ctx)
	out["DoExchange"] = one(func() error { _ = exchange.CloseSend(); _, err := exchange.Recv(); return err }, err)
	actions, err := c.ListActions(ctx, &flight.Empty{})
	out["ListActions"] = one(func() error { _, err := actions.Recv(); return err }, err)
	for _, name := range []string{"list", "describe", "stats", "drop", "nonsense"} {
		action, err := c.DoAction(ctx, &flight.Action{Type: name, Body: []byte(`{"dataset":"d"}`)})
		out["DoAction "+name] = one(func() error { _, err := action.Recv(); return err }, err)
	}
	reflect, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	out["reflection"] = one(func() error {
		_ = reflect.Send(&grpc_reflection_v1.ServerReflectionRequest{
			MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		_, err := reflect.Recv()
		return err
	}, err)
	return out
}

// connect opens a connection of the test's own.
func (f *fixture) connect(how ...grpc.DialOption) (flight.Client, *grpc.ClientConn) {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.addr, how...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return flight.NewClientFromConn(conn, nil), conn
}

// Wrong credentials reveal nothing: neither data, nor which of them is wrong in which way.
func TestWrongWaysIn(t *testing.T) {
	d := newLogins(t, nil)
	f, good := d.serve(Options{})
	f.fill("d", 10)

	revoked := d.token(auth.Token{Principal: "bob"})
	if _, err := auth.RevokeToken(d.tokens, tokenID(revoked)); err != nil {
		t.Fatal(err)
	}
	soon := d.token(auth.Token{Principal: "bob", Expires: time.Now().Add(3 * time.Second)})
	last := d.token(auth.Token{Principal: "dave"})
	d.await(func() bool { return d.known(last) && !d.known(soon) && !d.known(revoked) })

	p := d.provider
	other := authtest.NewProvider(t)
	key := p.Key()
	public, err := x509.MarshalPKIXPublicKey(key.Public().Key)
	if err != nil {
		t.Fatal(err)
	}
	rs := p.Sign(p.Claims(audience, nil))
	parts := strings.Split(rs, ".")
	encode := base64.RawURLEncoding.EncodeToString
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+good))
	swapped := swapLast(good)
	wrong := map[string][]string{
		"none":                 {},
		"empty header":         {"authorization", ""},
		"empty bearer":         {"authorization", "Bearer "},
		"only the scheme":      {"authorization", "Bearer"},
		"nonsense":             {"authorization", "Bearer nonsense"},
		"malformed":            {"authorization", "Bearer bow_" + tokenID(good)},
		"wrong secret":         {"authorization", "Bearer " + swapped},
		"unknown ID":           {"authorization", "Bearer bow_0123456789abcdef" + good[len("bow_0123456789abcdef"):]},
		"revoked":              {"authorization", "Bearer " + revoked},
		"expired":              {"authorization", "Bearer " + soon},
		"its hash":             {"authorization", "Bearer " + hashIn(t, d.tokens, tokenID(good))},
		"wrong scheme":         {"authorization", "Token " + good},
		"no scheme":            {"authorization", good},
		"basic, not a login":   {"authorization", basic},
		"two headers":          {"authorization", "Bearer " + good, "authorization", "Bearer " + good},
		"two headers, by name": {"authorization", "Bearer " + good, "auth-token-bin", good},
		"very long":            {"authorization", "Bearer " + strings.Repeat("a", 20<<10)},
		"older header, wrong":  {"auth-token-bin", swapped},
		"older header, empty":  {"auth-token-bin", ""},
		"JWT of three dots":    {"authorization", "Bearer " + rs + ".x"},
		"JWT, no signature":    {"authorization", "Bearer " + parts[0] + "." + parts[1] + "."},
		"JWT, alg none":        {"authorization", "Bearer " + encode([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."},
		"JWT, other audience":  {"authorization", "Bearer " + p.Sign(p.Claims("another", nil))},
		"JWT, no audience":     {"authorization", "Bearer " + p.Sign(p.Claims("", map[string]any{"aud": nil}))},
		"JWT, expired": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}))},
		"JWT, no expiry": {"authorization", "Bearer " + p.Sign(p.Claims(audience, map[string]any{"exp": nil}))},
		"JWT, not yet": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}))},
		"JWT, from the future": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"iat": time.Now().Add(time.Hour).Unix()}))},
		"JWT, times as text": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"nbf": "now"}))},
		"JWT, other issuer": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"iss": other.Issuer}))},
		"JWT, other provider": {"authorization", "Bearer " + other.Sign(other.Claims(audience, nil))},
		"JWT, wrong key":      {"authorization", "Bearer " + other.Sign(p.Claims(audience, nil))},
		"JWT, key under its ID": {"authorization",
			"Bearer " + authtest.SignWith(t, jose.SigningKey{Algorithm: jose.RS256,
				Key: jose.JSONWebKey{Key: other.Key().Key, KeyID: key.KeyID}}, p.Claims(audience, nil))},
		"JWT, key confusion": {"authorization",
			"Bearer " + authtest.SignWith(t, jose.SigningKey{Algorithm: jose.HS256,
				Key: jose.JSONWebKey{Key: public, KeyID: key.KeyID}}, p.Claims(audience, nil))},
		"JWT, changed claims": {"authorization", "Bearer " + parts[0] + "." +
			encode([]byte(`{"iss":"`+p.Issuer+`","aud":"`+audience+`","sub":"root","exp":99999999999}`)) + "." +
			parts[2]},
		"JWT, no principal": {"authorization", "Bearer " + p.Sign(p.Claims(audience, map[string]any{"sub": nil}))},
		"JWT, odd principal": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"sub": "a\nb"}))},
		"JWT, groups a number": {"authorization", "Bearer " + p.Sign(p.Claims(audience, map[string]any{"groups": 3}))},
		"two in one":           {"authorization", "Bearer " + good + ", Bearer " + good},
		"two, by a comma":      {"authorization", "Bearer " + swapped + "," + good},
		"bearer of a bearer":   {"authorization", "Bearer Bearer " + good},
		"broken in two":        {"authorization", "Bearer " + good[:40] + " " + good[40:]},
		"longer":               {"authorization", "Bearer " + good + "A"},
		"capitals":             {"authorization", "Bearer " + strings.ToUpper(good)},
		"quoted":               {"authorization", `Bearer "` + good + `"`},
		"header of a proxy":    {"proxy-authorization", "Bearer " + good},
		"other header":         {"x-authorization", "Bearer " + good, "token", good},
		"cookie":               {"cookie", "authorization=Bearer " + good + "; auth-token=" + good},
		"older, as bearer":     {"auth-token-bin", "Bearer " + good},
		"JWT, alg in letters":  {"authorization", "Bearer " + encode([]byte(`{"alg":"nOnE"}`)) + "." + parts[1] + "."},
		"JWT, no alg": {"authorization", "Bearer " + encode([]byte(`{"typ":"JWT"}`)) + "." + parts[1] + "." +
			parts[2]},
		"JWT, signed by zeros": {"authorization", "Bearer " + encode([]byte(`{"alg":"ES256","kid":"`+key.KeyID+`"}`)) +
			"." + parts[1] + "." + encode(make([]byte, 64))},
		"JWT, other alg": {"authorization", "Bearer " + encode([]byte(`{"alg":"PS256","kid":"`+key.KeyID+`"}`)) +
			"." + parts[1] + "." + parts[2]},
		"JWT, kid a path": {"authorization", "Bearer " + forged(t, jose.HS256, []byte(strings.Repeat("\x00", 32)),
			"../../../../../../dev/null", nil, p.Claims(audience, nil))},
		"JWT, kid a query": {"authorization", "Bearer " + forged(t, jose.RS256, other.Key().Key, "' OR 1=1 --",
			nil, p.Claims(audience, nil))},
		"JWT, kid very long": {"authorization", "Bearer " + forged(t, jose.RS256, other.Key().Key,
			strings.Repeat("k", 8<<10), nil, p.Claims(audience, nil))},
		"JWT, its own key": {"authorization", "Bearer " + forged(t, jose.RS256, other.Key().Key, key.KeyID,
			(&jose.SignerOptions{EmbedJWK: true}), p.Claims(audience, nil))},
		"JWT, its own keys": {"authorization", "Bearer " + forged(t, jose.RS256, other.Key().Key, key.KeyID,
			(&jose.SignerOptions{}).WithHeader("jku", other.Issuer+"/keys"), p.Claims(audience, nil))},
		"JWT, its own chain": {"authorization", "Bearer " + forged(t, jose.RS256, other.Key().Key, key.KeyID,
			(&jose.SignerOptions{}).WithHeader("x5u", other.Issuer+"/chain"), p.Claims(audience, nil))},
		"JWT, what is critical": {"authorization", "Bearer " + forged(t, jose.RS256, key.Key, key.KeyID,
			(&jose.SignerOptions{}).WithHeader("crit", []string{"exp"}), p.Claims(audience, nil))},
		"JWT, issuer nearly": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"iss": p.Issuer + "/"}))},
		"JWT, issuers": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"iss": []string{other.Issuer, p.Issuer}}))},
		"JWT, audiences": {"authorization",
			"Bearer " +
				p.Sign(p.Claims("", map[string]any{"aud": []string{"another", audience + "2",
					strings.ToUpper(audience)}}))},
		"JWT, audience of all": {"authorization", "Bearer " + p.Sign(p.Claims("*", nil))},
		"JWT, expired by skew": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"exp": time.Now().Add(-31 * time.Second).Unix()}))},
		"JWT, expired long ago": {"authorization", "Bearer " + p.Sign(p.Claims(audience, map[string]any{"exp": -1}))},
		"JWT, principals": {"authorization",
			"Bearer " + p.Sign(p.Claims(audience, map[string]any{"sub": []string{"carol", "root"}}))},
		"JWT, long principal": {"authorization", "Bearer " +
			p.Sign(p.Claims(audience, map[string]any{"sub": strings.Repeat("x", 257)}))},
		"JWT, too many groups": {"authorization", "Bearer " +
			p.Sign(p.Claims(audience, map[string]any{"groups": slices.Repeat([]string{"g"}, 1025)}))},
		"JWT, as JSON": {"authorization", `Bearer {"payload":"` + parts[1] + `","protected":"` + parts[0] +
			`","signature":"` + parts[2] + `"}`},
		"JWE":                  {"authorization", "Bearer " + rs + ".x.y"},
		"JWT, as older header": {"auth-token-bin", rs + "x"},
		"JWT, odd tenant": {"authorization", "Bearer " +
			p.Sign(p.Claims(audience, map[string]any{"tenants": "a b"}))},
	}
	// The same with a certificate that is good: a wrong token is not made good by it.
	client, conn := f.connect(d.trust(nil, nil))
	own := d.authority.Client(t, "carol", nil)
	certified, certifiedConn := f.connect(d.trust(&own, nil))
	const want = "unauthenticated: the call needs valid credentials: a token (authorization: Bearer TOKEN), or a " +
		"client certificate"
	distinguishable, came := 0, 0
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		ctx := metadata.AppendToOutgoingContext(t.Context(), wrong[name]...)
		for method, err := range everything(ctx, client, conn) {
			if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != want ||
				len(st.Details()) > 0 {
				if distinguishable++; err == nil {
					came++
				}
				t.Errorf("%s: %s: %v", name, method, err)
			}
		}
		if h := wrong[name]; len(h) == 0 || h[0] != "authorization" && h[0] != "auth-token-bin" {
			continue // it has no credential
		}
		if _, err := certified.GetFlightInfo(ctx, command(`{"dataset":"d"}`)); status.Convert(err).Message() != want {
			t.Errorf("%s beside a certificate: %v", name, err)
		}
	}
	for method, err := range everything(t.Context(), certified, certifiedConn) {
		if status.Code(err) == codes.Unauthenticated {
			t.Errorf("a good certificate: %s: %v", method, err)
		}
	}

	// Handshakes, in all the forms.
	for name, h := range map[string]struct {
		headers []string
		payload []byte
	}{
		"nothing": {},
		"wrong password": {headers: []string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+swapped))}},
		"another's token": {headers: []string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte("bob:"+good))}},
		"no colon": {headers: []string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte(good))}},
		"two headers":     {headers: []string{"authorization", basic, "authorization", basic}},
		"a bearer, wrong": {headers: []string{"authorization", "Bearer " + swapped}},
		"both ways at once": {headers: []string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte("alice:"+swapped))},
			payload: basicPayload(t, "alice", good)},
		"older header beside": {headers: []string{"authorization", basic, "auth-token-bin", good}},
		"colon in the name": {headers: []string{"authorization",
			"Basic " + base64.StdEncoding.EncodeToString([]byte("a:alice:"+good))}},
		"very long payload":    {payload: basicPayload(t, "alice", strings.Repeat("a", 20<<10))},
		"no base64":            {headers: []string{"authorization", "Basic !!"}},
		"nonsense payload":     {payload: []byte("nonsense")},
		"payload, wrong":       {payload: basicPayload(t, "alice", swapped)},
		"payload, another's":   {payload: basicPayload(t, "bob", good)},
		"payload, no password": {payload: basicPayload(t, "alice", "")},
	} {
		answer, headers, err := handshake(metadata.AppendToOutgoingContext(t.Context(), h.headers...), client,
			h.payload)
		if status.Convert(err).Message() != want || answer != "" || len(headers.Get("authorization")) > 0 {
			t.Errorf("handshake, %s: %q, %v, %v", name, answer, headers, err)
		}
	}
	// Valid certificates without a name.
	for name, change := range map[string]func(*x509.Certificate){
		"no name":           func(c *x509.Certificate) { c.Subject.CommonName = "" },
		"name of two lines": func(c *x509.Certificate) { c.Subject.CommonName = "carol\nroot" },
		"name with a NUL":   func(c *x509.Certificate) { c.Subject.CommonName = "root\x00.carol" },
		"very long name": func(c *x509.Certificate) {
			c.URIs = []*url.URL{{Scheme: "spiffe", Host: strings.Repeat("x", 257)}}
		},
		"spaces around":     func(c *x509.Certificate) { c.Subject.CommonName = " root" },
		"unseen characters": func(c *x509.Certificate) { c.Subject.CommonName = "root\u200b" },
		"odd group":         func(c *x509.Certificate) { c.Subject.Organization = []string{"ops\n"} },
		"too many groups":   func(c *x509.Certificate) { c.Subject.Organization = slices.Repeat([]string{"g"}, 1025) },
	} {
		pair := d.authority.Client(t, "carol", change)
		client, conn := f.connect(d.trust(&pair, nil))
		for method, err := range everything(t.Context(), client, conn) {
			if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != want {
				t.Errorf("certificate, %s: %s: %v", name, method, err)
			}
		}
	}

	// The supervisor of the server's process has no credentials.
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(),
		&grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}

	// Connections that fail.
	strange := authtest.NewAuthority(t, "another")
	ofAnother := strange.Client(t, "alice", nil)
	expired := d.authority.Client(t, "alice", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early := d.authority.Client(t, "alice", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) })
	forServers := d.authority.Server(t)
	for name, how := range map[string]grpc.DialOption{
		"client of another authority": d.trust(&ofAnother, nil),
		"expired certificate":         d.trust(&expired, nil),
		"certificate not yet good":    d.trust(&early, nil),
		"certificate of a server":     d.trust(&forServers, nil),
		"TLS 1.1": d.trust(&own, func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		}),
		"TLS 1.2": d.trust(&own, func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}),
	} {
		client, conn := f.connect(how)
		for method, err := range everything(t.Context(), client, conn) {
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: %s: %v", name, method, err)
			}
		}
	}
	for name, hello := range map[string]string{
		"HTTP/2 in plain": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"HTTP/1":          "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"SSLv3":           "\x16\x03\x00\x00\x05\x01\x00\x00\x01\x00",
	} {
		if got := f.say(hello); strings.Contains(got, "HTTP/2") || len(got) > 100 {
			t.Errorf("%s: the server answers %q", name, got)
		}
	}
	// Other protocols than HTTP/2 are refused inside TLS, too.
	raw, err := tls.Dial("tcp", f.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}) //nolint:gosec // a hostile client
	// Go sends such a client nothing in the handshake
	if err == nil {
		if got, _ := io.ReadAll(raw); len(got) > 0 {
			t.Errorf("a client that offers HTTP/1 only gets %q", got)
		}
		_ = raw.Close()
	}

	t.Logf("wrong ways in: ways=%d bytes_out=%d distinguishable=%d", len(wrong), came, distinguishable)

	// No secret is in a log.
	logs := f.log.String() + d.log.String()
	for _, secret := range []string{good, revoked, soon, last, swapped, rs} {
		if strings.Contains(logs, secret[len(secret)-40:]) {
			t.Error("the log has a secret")
		}
	}
}

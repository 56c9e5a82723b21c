package cql

import (
	"errors"
	"strings"
	"testing"

	"bowstring/schema"
)

// TestConnectFaultWithoutCertificate: a client without a certificate whose connection is closed without a reason gets
// an error that names certificates.
func TestConnectFaultWithoutCertificate(t *testing.T) {
	const hint = "cert and key"
	for name, c := range map[string]struct {
		parameters, text string
		hinted           bool
	}{
		"said":              {"tls=1", "remote error: tls: certificate required", true},
		"cut off":           {"tls=1", "gocql: no response to connection startup within timeout", true},
		"as it wrote":       {"tls=1", "write tcp 127.0.0.1:1->127.0.0.1:2: write: broken pipe", true},
		"as it read":        {"tls=1", "read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer", true},
		"nothing listens":   {"tls=1", "dial tcp 127.0.0.1:9042: connect: connection refused", false},
		"it has one":        {"cert=c&key=k", "gocql: no response to connection startup within timeout", false},
		"none can be asked": {"", "gocql: no response to connection startup within timeout", false},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := ParseURI("cql://127.0.0.1/k?" + c.parameters)
			if err != nil {
				t.Fatal(err)
			}
			got := (&Store{config: config}).connectFault(t.Context(), errors.New(c.text))
			if hinted := strings.Contains(got.Error(), hint); hinted != c.hinted || !strings.Contains(got.Error(), c.text) {
				t.Errorf("the error is %q; want that it says %q: %t", got, hint, c.hinted)
			}
			if name == "cut off" && !errors.Is(got, schema.ErrUnavailable) {
				t.Errorf("the error is %v, want what may be tried again", got)
			}
		})
	}
}

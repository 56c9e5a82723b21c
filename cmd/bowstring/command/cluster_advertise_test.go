package command

import (
	"net"
	"testing"
)

// A server that has a certificate is not advertised without TLS, unless that is said to be so.
func TestAdvertisedWithTLS(t *testing.T) {
	listen := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8815}
	for _, test := range []struct {
		advertise string
		encrypted bool
		plaintext bool
		want      string // "" if it is refused
	}{
		{"", false, false, "grpc://127.0.0.1:8815"},
		{"", true, false, "grpc+tls://127.0.0.1:8815"},
		{"grpc://node:1", false, false, "grpc://node:1"},
		{"grpc+tls://node:1", true, false, "grpc+tls://node:1"},
		{"grpc://node:1", true, false, ""},
		{"grpc://node:1", true, true, "grpc://node:1"},
	} {
		f := clusterFlags{Advertise: test.advertise, PeerPlaintext: test.plaintext, NodeRanks: 1}
		n, err := f.described("a", listen, test.encrypted, 1<<30)
		if (err == nil) != (test.want != "") || err == nil && n.Address != test.want {
			t.Errorf("%+v: %q, %v", test, n.Address, err)
		}
	}
}

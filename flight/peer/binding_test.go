package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"testing"
)

// Each connection has a binding of its own, which is the same on both sides. That holds for
// a resumed session too, which has the secrets of the first one in TLS 1.2.
func TestBinding(t *testing.T) {
	srv := httptest.NewTLSServer(nil) // it has a certificate
	defer srv.Close()
	server := &tls.Config{Certificates: srv.TLS.Certificates}
	client := &tls.Config{InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	connect := func() (a, b []byte, resumed bool, err error) {
		one, other := net.Pipe()
		defer one.Close()
		host := tls.Server(other, server)
		said := make(chan error, 1)
		go func() {
			defer other.Close()
			err := host.HandshakeContext(context.Background())
			if err == nil {
				b, err = Binding(host.ConnectionState())
			}
			if err == nil {
				_, err = host.Write([]byte("x")) // after the ticket of the session
			}
			said <- err
		}()
		guest := tls.Client(one, client)
		err = guest.HandshakeContext(t.Context())
		if err == nil {
			a, err = Binding(guest.ConnectionState())
		}
		if err == nil {
			_, err = io.ReadFull(guest, make([]byte, 1))
		}
		one.Close()
		return a, b, guest.ConnectionState().DidResume, errors.Join(err, <-said)
	}
	for _, version := range []uint16{tls.VersionTLS13, tls.VersionTLS12} {
		client.MaxVersion = version
		var before [][]byte
		for nth := range 3 {
			a, b, resumed, err := connect()
			if err != nil {
				t.Fatalf("%s, connection %d: %v", tls.VersionName(version), nth, err)
			}
			if len(a) < 32 || !bytes.Equal(a, b) || resumed != (nth > 0) {
				t.Errorf("%s, connection %d, resumed %t: its sides have %x and %x", tls.VersionName(version), nth,
					resumed, a, b)
			}
			for _, other := range before {
				if bytes.Equal(a, other) {
					t.Errorf("%s: connection %d has the binding of another", tls.VersionName(version), nth)
				}
			}
			before = append(before, a)
		}
	}
}

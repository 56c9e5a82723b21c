package peer

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Over TLS a wire speaks with another implementation of HTTP/2, the standard library's.
func TestWireOverTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var head [prefixBytes]byte
		if _, err := io.ReadFull(r.Body, head[:]); err != nil || r.ProtoMajor != 2 || r.URL.Path != "/x" {
			t.Errorf("a request for %s by %s, %v", r.URL.Path, r.Proto, err)
		}
		w.Header().Set("Content-Type", "application/grpc")
		_, _ = w.Write([]byte{0, 0, 0, 0, 3, 'a', 'b', 'c'}) // the other end sees what does not come
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	w, err := dialWire(t.Context(), srv.Listener.Addr().String(),
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, "/x", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.close() }()
	if err := w.send([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	n, err := w.next()
	b := make([]byte, n)
	if err == nil {
		_, err = io.ReadFull(w, b)
	}
	if err != nil || string(b) != "abc" {
		t.Errorf("got %q, %v", b, err)
	}
}

// Package authtest provides what tests of authentication need: certificates from an
// authority of the test's own, and an OpenID Connect provider in the test's process. The
// signatures and TLS are real, because a fake would accept what a library rejects.
package authtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates. It is constant, and safe for concurrent use.
type Authority struct {
	PEM  []byte // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its private key, as PEM.
type Pair struct{ Cert, Key []byte }

// NewAuthority makes an authority with a new key. A test that needs an untrusted
// certificate makes a second authority.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{key: newKey(t)}
	template := basic(t, name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Server makes a certificate for a server on this machine.
func (a *Authority) Server(t testing.TB) Pair {
	return a.sign(t, "server", func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
}

// Client makes a certificate for a client with a common name. change, if not nil, modifies it before it is signed.
func (a *Authority) Client(t testing.TB, name string, change func(*x509.Certificate)) Pair {
	return a.sign(t, name, func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		if change != nil {
			change(c)
		}
	})
}

// sign makes a key and signs a certificate for it. change completes the template.
func (a *Authority) sign(t testing.TB, name string, change func(*x509.Certificate)) Pair {
	t.Helper()
	key := newKey(t)
	template := basic(t, name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	change(template)
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
}

// basic returns the fields that all certificates have. The validity begins an hour ago,
// for clocks that differ, and ends in a day.
func basic(t testing.TB, name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
}

// newKey makes an ECDSA key. RSA keys take much longer to make.
func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Write writes b to a file of dir atomically, and returns its path. Servers watch such
// files, and must not see half of one.
func Write(t testing.TB, dir, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return path
}

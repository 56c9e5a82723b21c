package cassandratest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Keys are certificates for a node that wants TLS and for its clients.
type Keys struct {
	Dir       string // for Options.TLS
	Name      string // that the node's certificate has, and no other
	CA        string // file with what clients trust
	Cert, Key string // files with the certificate that the node trusts
}

// NewKeys makes certificates in a folder of the test, with the JRE's keytool.
func NewKeys(t testing.TB) Keys {
	t.Helper()
	dir := t.TempDir()
	k := Keys{
		Dir: dir, Name: "cassandra.test",
		CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key"),
	}
	const password = "keys for tests"
	write(t, filepath.Join(dir, "password"), []byte(password))
	keystore, truststore := filepath.Join(dir, "keystore.p12"), filepath.Join(dir, "truststore.p12")
	keytool(t, "-genkeypair", "-alias", "node", "-keyalg", "EC", "-groupname", "secp256r1", "-dname", "CN=node",
		"-validity", "2",
		"-ext", "san=dns:"+k.Name, "-keystore", keystore, "-storetype", "PKCS12", "-storepass", password)
	keytool(t, "-exportcert", "-rfc", "-alias", "node", "-file", k.CA, "-keystore", keystore, "-storepass", password)
	newCertificate(t, k.Cert, k.Key)
	keytool(t, "-importcert", "-noprompt", "-alias", "client", "-file", k.Cert, "-keystore", truststore, "-storetype",
		"PKCS12", "-storepass", password)
	return k
}

// keytool runs the JRE's keytool and fails the test with its output.
func keytool(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "keytool", args...).CombinedOutput(); err != nil {
		t.Fatalf("keytool, which comes with the JRE: %v: %s", err, out)
	}
}

// newCertificate makes a client's certificate, signed by itself.
func newCertificate(t testing.TB, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "client"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

package admin_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"bowstring/cmd/bowstring/admin"
	"bowstring/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// start starts a server and returns its address.
func start(t *testing.T, opts admin.Options) string {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "bowstring_test", Help: "Is there."}))
	opts.Metrics = registry
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Ready == nil {
		opts.Ready = func() error { return nil }
	}
	s, err := admin.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Start(l)
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// ask makes a request and returns the status and the text.
func ask(t *testing.T, client *http.Client, url string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// newClient returns a client that keeps no connection when the test is over.
func newClient(t *testing.T, config *tls.Config) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestReady(t *testing.T) {
	var why error
	url := "http://" + start(t, admin.Options{Ready: func() error { return why }})
	client := newClient(t, nil)
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, text := ask(t, client, url+path); code != http.StatusOK || text != "ok\n" {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	why = errors.New("draining")
	if code, text := ask(t, client, url+"/readyz"); code != http.StatusServiceUnavailable || text != "draining\n" {
		t.Errorf("a draining server: %d %q", code, text)
	}
	if code, _ := ask(t, client, url+"/healthz"); code != http.StatusOK {
		t.Errorf("a draining server is alive, and says %d", code)
	}
}

// Rights depend on the token and on the caller's address.
func TestWhoMaySeeWhat(t *testing.T) {
	const token = "correct horse battery staple"
	client := newClient(t, nil)
	open := "http://" + start(t, admin.Options{Hosts: []string{"node7"},
		Console: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		})})
	closed := "http://" + start(t, admin.Options{Token: func() ([]byte, error) { return []byte(token), nil }})
	broken := "http://" + start(t, admin.Options{Token: func() ([]byte, error) {
		return nil, errors.New("secret detail")
	}})
	for _, tt := range []struct {
		url    string
		header []string
		code   int
	}{
		{open + "/metrics", nil, 200},
		{open + "/debug/pprof/", nil, 200},
		{open + "/debug/pprof/cmdline", nil, 200},
		{open + "/debug/pprof/heap", []string{"Host", "evil.example:9815"}, 403}, // a page whose name leads here
		{open + "/metrics", []string{"Host", "evil.example:9815"}, 403},
		{open + "/metrics", []string{"Host", "127.0.0.1.evil.example"}, 403},
		{open + "/console/", []string{"Host", "evil.example:9815"}, 403},
		{open + "/console/", nil, 204},
		{open + "/healthz", []string{"Host", "evil.example:9815"}, 200}, // reveals nothing
		{open + "/metrics", []string{"Host", "Node7:9815"}, 200},
		{open + "/metrics", []string{"Host", "10.0.0.7:9815"}, 200},
		{open + "/metrics", []string{"Host", "[fd00::7]:9815"}, 200},
		{closed + "/metrics", []string{"Authorization", "Bearer " + token, "Host", "evil.example"}, 200},
		{open + "/nothing", nil, 404},
		{open + "/debug/pprof/profile?seconds=9999", nil, 400},
		{open + "/debug/pprof/profile?seconds=x", nil, 400},
		{closed + "/healthz", nil, 200},
		{closed + "/readyz", nil, 200},
		{closed + "/metrics", nil, 401},
		{closed + "/debug/pprof/", nil, 401},
		{closed + "/metrics", []string{"Authorization", "Bearer " + token}, 200},
		{closed + "/metrics", []string{"Authorization", "bearer " + token}, 200},
		{closed + "/debug/pprof/", []string{"Authorization", "Bearer " + token, "Host", "node7"}, 200},
		{closed + "/metrics", []string{"Authorization", "Bearer " + token + "x"}, 401},
		{closed + "/metrics", []string{"Authorization", "Bearer "}, 401},
		{closed + "/metrics", []string{"Authorization", "Basic " + token}, 401},
		{broken + "/metrics", []string{"Authorization", "Bearer " + token}, 500},
	} {
		code, text := ask(t, client, tt.url, tt.header...)
		if code != tt.code {
			t.Errorf("%s with %q: %d %q, want %d", tt.url, tt.header, code, text, tt.code)
		}
		if strings.Contains(text, token) || strings.Contains(text, "secret") {
			t.Errorf("%s shows a secret: %q", tt.url, text)
		}
		if strings.HasSuffix(tt.url, "/metrics") && (code == 200) != strings.Contains(text, "bowstring_test 0") {
			t.Errorf("%s: %d %q", tt.url, code, text)
		}
	}
	if resp, err := client.Post(open+"/metrics", "text/plain", strings.NewReader("x")); err != nil ||
		resp.StatusCode == http.StatusOK {
		t.Errorf("POST: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	// The server answers before it has read the rest. That is little enough for the client to have sent it by then: one
	// that still sends gets no answer, but an error.
	if code, _ := ask(t, client, open+"/metrics", "X-Long",
		strings.Repeat("x", 24<<10)); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 24 KiB: %d", code)
	}
}

// A panic is answered with an id; its text and stack are in the log, under the id.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	url := "http://" + start(t, admin.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Console: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("what others do") })})
	code, text := ask(t, newClient(t, nil), url+"/console/x")
	id := text[strings.LastIndexByte(strings.TrimSpace(text), ' ')+1:]
	id = strings.TrimSpace(id)
	if code != http.StatusInternalServerError || strings.Contains(text, "others") || len(id) < 16 {
		t.Errorf("%d %q", code, text)
	}
	for _, want := range []string{id, "what others do", "admin_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q: %s", want, log.String())
		}
	}
}

// writeCertificate writes a certificate of its own for 127.0.0.1, and returns it.
func writeCertificate(t *testing.T, dir string, serial int64, end time.Time) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: end.Add(-time.Hour * 48), NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:        true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &about, &about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der},
		"key.pem": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	end := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	own := writeCertificate(t, dir, 1, end)
	cert, err := admin.LoadCertificate(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := cert.NotAfter(); !got.Equal(end) {
		t.Errorf("it ends at %s, want %s", got, end)
	}
	url := "https://" + start(t, admin.Options{TLS: cert.TLS()})
	roots := x509.NewCertPool()
	roots.AddCert(own)
	client := newClient(t, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	if code, _ := ask(t, client, url+"/metrics"); code != http.StatusOK {
		t.Errorf("over TLS: %d", code)
	}
	if resp, err := newClient(t, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS11}).Get(url +
		"/healthz"); err == nil {
		resp.Body.Close()
		t.Error("TLS 1.1 is spoken")
	}
	if _, err := admin.LoadCertificate(filepath.Join(dir, "none.pem"), filepath.Join(dir, "key.pem"), nil); err == nil {
		t.Error("a certificate that is not there has no error")
	}
}

// A client that only holds connections is cut off, and its end makes room for others.
func TestConnectionsAreBounded(t *testing.T) {
	addr := start(t, admin.Options{})
	var held []net.Conn
	for range 128 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held = append(held, c)
	}
	// Each was accepted in the order in which it came, so this one is too many.
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("one more than may be: %d, %v", n, err)
	}
	for _, c := range held {
		c.Close()
	}
	client := newClient(t, nil)
	for { // until the server has seen them go
		resp, err := client.Get("http://" + addr + "/healthz")
		if err == nil {
			resp.Body.Close()
			break
		}
	}
}

package objecttest

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bowstring/fetch/object"
	"bowstring/internal/freeport"
)

// ServersVariable names the folder that has real servers, as tests/objects/objects.sh leaves them.
const ServersVariable = "BOWSTRING_OBJECT_SERVERS"

// Real is a bucket at a real server that runs until the end of a test.
type Real struct {
	URL  string // of the bucket
	Keys object.Keys
}

// program returns the path of a server's program. The test fails if it is missing: a test
// that was skipped without notice would prove nothing.
func program(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv(ServersVariable)
	if dir == "" {
		t.Fatalf("%s is not set: run this by tests/objects/objects.sh with COMMAND", ServersVariable)
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no %s there: tests/objects/objects.sh fetch gets it: %v", name, err)
	}
	return path
}

// run runs a server until the test's end, and waits until it accepts connections. The
// kernel kills it if the test process dies.
func run(t testing.TB, address string, command ...string) {
	t.Helper()
	var out lockedBuffer
	c := exec.CommandContext(context.Background(), command[0], command[1:]...)
	c.Stdout, c.Stderr = &out, &out
	// Without it, a test that is killed leaves its servers running.
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		if err := <-ended; err == nil {
			t.Logf("%s had ended by itself", command[0])
		}
		if t.Failed() {
			t.Logf("%s said:\n%.4000s", command[0], out.String())
		}
	})
	// A server has no other sign that it is ready.
	for end := time.Now().Add(time.Minute); ; {
		conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case err := <-ended:
			// The value is put back for the cleanup.
			ended <- err
			t.Fatalf("%s has ended: %v\n%s", command[0], err, out.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not answer at %s\n%s", command[0], address, out.String())
		}
	}
}

// lockedBuffer is a buffer that a process writes while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// freeAddress returns an address without a listener.
func freeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.On("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// Versity starts versitygw, an S3 server over a directory.
func Versity(t testing.TB) Real {
	t.Helper()
	dir, at := t.TempDir(), freeAddress(t)
	if err := os.Mkdir(filepath.Join(dir, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	k := object.Keys{ID: "versity", Secret: "versity-secret-0123456789"}
	run(t, at, program(t, "versitygw"), "--access", k.ID, "--secret", k.Secret, "--port", at, "--quiet", "--keep-alive",
		"posix", dir)
	return Real{URL: "s3://bucket?endpoint=http://" + at, Keys: k}
}

// FakeGCS starts fake-gcs-server, a server of Google Cloud Storage. It ignores
// credentials.
func FakeGCS(t testing.TB) Real {
	t.Helper()
	at := freeAddress(t)
	_, port, _ := net.SplitHostPort(at)
	run(t, at, program(t, "fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", port, "-backend", "memory",
		"-public-host", at, "-log-level", "error")
	send(t, http.MethodPost, "http://"+at+"/storage/v1/b?project=test", `{"name":"bucket"}`, nil)
	return Real{URL: "gs://bucket?endpoint=http://" + at, Keys: object.Keys{Token: "anything"}}
}

// Azurite starts Azurite, a server of Azure Blob Storage, with the account that it comes
// with.
func Azurite(t testing.TB) Real {
	t.Helper()
	at := freeAddress(t)
	host, port, _ := net.SplitHostPort(at)
	const account = "devstoreaccount1"
	// Azure's keys are in base64.
	key := base64.StdEncoding.EncodeToString([]byte("a key of a test, which is no secret at all"))
	t.Setenv("AZURITE_ACCOUNTS", account+":"+key)
	run(t, at, program(t, "azurite-blob"), "--silent", "--inMemoryPersistence", "--blobHost", host, "--blobPort", port,
		"--skipApiVersionCheck", "--loose", "--disableTelemetry")
	r := Real{URL: fmt.Sprintf("az://%s/container?endpoint=http://%s/%s", account, at, account),
		Keys: object.Keys{Secret: key}}
	// The container is made by a request with a shared key. The text to sign is that of
	// Azure's documentation: the method, the standard headers, which are empty, the x-ms
	// headers and the resource.
	date := time.Now().UTC().Format(http.TimeFormat)
	const path, version = "/" + account + "/container", "2023-11-03"
	secret, _ := base64.StdEncoding.DecodeString(key)
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:%s\nx-ms-version:%s\n/%s%s\nrestype:container", date, version,
		account, path)
	send(t, http.MethodPut, "http://"+at+path+"?restype=container", "", http.Header{"X-Ms-Date": {date},
		"X-Ms-Version":  {version},
		"Authorization": {"SharedKey " + account + ":" + base64.StdEncoding.EncodeToString(mac.Sum(nil))}})
	return r
}

// send makes one request and fails the test unless it succeeds.
func send(t testing.TB, method, url, body string, h http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range h {
		r.Header[k] = v
	}
	// A connection of its own leaves nothing behind.
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

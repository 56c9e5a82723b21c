package command

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"bowstring/schema"
)

// collecting is an OTLP collector that remembers names of spans by trace.
type collecting struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans map[string][]string
}

func (c *collecting) Export(_ context.Context,
	req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range req.GetResourceSpans() {
		for _, scope := range r.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans[string(s.GetTraceId())] = append(c.spans[string(s.GetTraceId())], s.GetName())
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// startCollector returns a collector and its endpoint.
func startCollector(t *testing.T) (*collecting, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &collecting{spans: map[string][]string{}}
	s := grpc.NewServer()
	collector.RegisterTraceServiceServer(s, c)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c, "http://" + l.Addr().String()
}

// startAdmin starts a server with an admin listener, and returns that one's address.
func startAdmin(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, addr, url string) {
	t.Helper()
	dir := t.TempDir()
	ready, logged := filepath.Join(dir, "ready"), filepath.Join(dir, "log")
	log, err := os.Create(logged)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close() // the process has its own
	cmd = exec.Command("bowstring", append([]string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--ready-file", ready, "--log-format", "json"}, args...)...)
	cmd.Stderr, cmd.Env = log, append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			text, _ := os.ReadFile(logged)
			t.Logf("the server's log:\n%s", text)
		}
	})
	line := make([]byte, 100) // the address, once it serves
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(logged)
	if err != nil {
		t.Fatal(err)
	}
	for entry := range bytes.Lines(text) {
		var e struct{ Msg, Address string }
		if err := json.Unmarshal(entry, &e); err == nil && strings.HasPrefix(e.Msg, "the admin listener") {
			url = e.Address
		}
	}
	if url == "" {
		t.Fatal("the log does not say where the admin listener is")
	}
	return cmd, strings.TrimPrefix(strings.TrimSpace(string(line[:n])), "grpc://"), url
}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
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

// A server process shows its metrics to who has the token, is not ready while it
// drains and still answers then, and sends what it traced before it ends.
func TestServeIsObserved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := makeDataset(dir, "photos", 400, 100_000); err != nil {
		t.Fatal(err)
	}
	traces, endpoint := startCollector(t)
	const token = "not a secret at all"
	cmd, addr, url := startAdmin(t, []string{adminTokenVariable + "=" + token}, "--store", dir, "--otlp-endpoint",
		endpoint, "--drain-timeout", "10m")
	if code, text := get(t, url+"/readyz", ""); code != http.StatusOK {
		t.Errorf("a server that serves: %d %q", code, text)
	}
	if code, _ := get(t, url+"/metrics", ""); code != http.StatusUnauthorized {
		t.Errorf("metrics without the token: %d", code)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+hex.EncodeToString(id)+
		"-b7ad6b7169203331-01")
	stream, err := flight.NewClientFromConn(conn, nil).DoGet(ctx,
		&flight.Ticket{Ticket: schema.Ticket{Request: schema.Request{Dataset: "photos"}}.Marshal()})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Release()
	health, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if code, text := get(t, url+"/readyz", ""); code != http.StatusServiceUnavailable || text != "draining\n" {
		t.Errorf("a server that drains: %d %q", code, text)
	}
	code, text := get(t, url+"/metrics", token)
	for _, line := range []string{"bowstring_draining 1\n", "bowstring_streams{kind=\"DoGet\"} 1\n", "go_goroutines ",
		"process_cpu_seconds_total "} {
		if code != http.StatusOK || !strings.Contains(text, line) {
			t.Errorf("metrics: %d, without %q", code, line)
		}
	}
	for reader.Next() {
	}
	if err := reader.Err(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	traces.mu.Lock()
	defer traces.mu.Unlock()
	spans := strings.Join(traces.spans[string(id)], ",") + ","
	for _, name := range []string{"DoGet", "plan", "first batch", "read store"} {
		if !strings.Contains(spans, name+",") {
			t.Errorf("no span %q came to the collector: %s", name, spans)
		}
	}
}

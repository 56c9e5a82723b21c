package command

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"bowstring/schema"
)

// process is a running "bowstring serve".
type process struct {
	*exec.Cmd
	addr           string // host:port
	stdout, stderr bytes.Buffer
}

func startServe(t *testing.T, args ...string) *process {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	p := &process{Cmd: exec.Command("bowstring", append([]string{"serve", "--listen", "127.0.0.1:0", "--ready-file",
		ready}, args...)...)}
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
		if t.Failed() {
			t.Logf("stderr of serve:\n%s", p.stderr.String())
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if text, err := os.ReadFile(ready); err == nil {
			p.addr = strings.TrimPrefix(strings.TrimSpace(string(text)), "grpc://")
			return p
		}
		if time.Now().After(deadline) {
			t.Fatal("serve does not become ready")
		}
	}
}

// A server that stops lets a stream come to its end; the drain timeout or a second signal
// cuts it off, and the exit status says so.
func TestServeDrain(t *testing.T) {
	// More than what the transport holds: the server must wait for the client.
	const rows, blobBytes = 400, 100_000
	dir := filepath.Join(t.TempDir(), "store")
	if err := makeDataset(dir, "photos", rows, blobBytes); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name    string
		timeout string
		finish  bool // the client reads to the end
		second  bool // there is a second signal
		exit    int
	}{
		{"stream ends", "10m", true, false, 0},
		{"timeout", "100ms", false, false, exitFailure},
		{"second signal", "10m", false, true, exitFailure},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := startServe(t, "--store", dir, "--drain-timeout", tc.timeout)
			conn, err := grpc.NewClient("passthrough:///"+p.addr,
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := flight.NewClientFromConn(conn, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ticket := schema.Ticket{Request: schema.Request{Dataset: "photos"}}
			stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: ticket.Marshal()})
			if err != nil {
				t.Fatal(err)
			}
			reader, err := flight.NewRecordReader(stream)
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Release()
			health, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
			if err := p.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if tc.finish || tc.second { // otherwise it may have ended before it says so
				awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			}
			if tc.second {
				if err := p.Process.Signal(syscall.SIGINT); err != nil {
					t.Fatal(err)
				}
			}
			if tc.finish {
				got := int64(0)
				for reader.Next() {
					got += reader.Record().NumRows()
				}
				if got != rows || reader.Err() != nil {
					t.Errorf("the stream gave %d rows of %d, then %v", got, rows, reader.Err())
				}
			}
			err = p.Wait()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if code := p.ProcessState.ExitCode(); code != tc.exit {
				t.Errorf("exit status %d, want %d", code, tc.exit)
			}
			if cut := strings.Contains(p.stderr.String(), "bowstring: streams were cut off"); cut != (tc.exit != 0) {
				t.Errorf("stderr speaks of streams cut off: %v", cut)
			}
			if got, want := p.stdout.String(), "grpc://"+p.addr+"\n"; got != want {
				t.Errorf("stdout %q, want %q", got, want)
			}
		})
	}
}

// Streams that drain are held to the rules: one that these no longer grant ends.
func TestRulesHoldWhileDraining(t *testing.T) {
	dir, rules := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "rules.yaml")
	if err := makeDataset(dir, "photos", 400, 100_000); err != nil {
		t.Fatal(err)
	}
	write := func(right string) {
		t.Helper()
		if err := os.WriteFile(rules, []byte("rules:\n  - {principals: [anonymous], datasets: ['*'], rights: ["+right+
			"]}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("read")
	p := startServe(t, "--store", dir, "--rules", rules, "--drain-timeout", "1m")
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ticket := schema.Ticket{Request: schema.Request{Dataset: "photos", Batch: 1}}
	stream, err := flight.NewClientFromConn(conn, nil).DoGet(t.Context(), &flight.Ticket{Ticket: ticket.Marshal()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	// A call that begins while the server drains may be refused, so it begins before.
	health, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_SERVING)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitHealth(t, health, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	write("list")
	for err = nil; err == nil; _, err = stream.Recv() { // slowly: all of it would take 40 s
		time.Sleep(100 * time.Millisecond)
	}
	if !strings.Contains(err.Error(), "the rules have changed") {
		t.Errorf("the stream, which the rules no longer grant, ended with %v", err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("the server stopped with %v", err)
	}
}

func awaitHealth(t *testing.T, watch grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse],
	want grpc_health_v1.HealthCheckResponse_ServingStatus) {
	t.Helper()
	for {
		r, err := watch.Recv()
		if err != nil {
			t.Fatalf("waiting for health %s: %v", want, err)
		}
		if r.GetStatus() == want {
			return
		}
	}
}

// Ctrl-C ends a client's command, which leaves nothing half done.
func TestInterrupt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := makeDataset(dir, "photos", 400, 100_000); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	cmd := exec.Command("bowstring", "get", "--store", dir, "photos", "--to", filepath.Join(out, "x.parquet"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for { // until it has begun to write
		if entries, err := os.ReadDir(out); err != nil || len(entries) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	entries, readErr := os.ReadDir(out)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if err == nil { // it was faster than the signal
		if len(entries) != 1 || entries[0].Name() != "x.parquet" {
			t.Errorf("a command that succeeded left %v", entries)
		}
		return
	}
	if code := cmd.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("exit status %d, want %d; stderr: %s", code, exitSignal+int(syscall.SIGINT), stderr.String())
	}
	if len(entries) != 0 {
		t.Errorf("a command that was interrupted left %v", entries)
	}
	if got := stderr.String(); got != "bowstring: stopped by interrupt\n" {
		t.Errorf("stderr %q", got)
	}
}

// noise returns bytes that nothing compresses, the same each time.
func noise(seed uint64, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

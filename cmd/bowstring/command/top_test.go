package command

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"bowstring/cmd/bowstring/watch"
	"bowstring/schema"
)

// top shows what runs on a server, to people and to programs.
func TestTop(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := makeDataset(dir, "photos", 400, 100_000); err != nil {
		t.Fatal(err)
	}
	p := startServe(t, "--store", dir)
	conn, err := grpc.NewClient("passthrough:///"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := arrowflight.NewClientFromConn(conn, nil).DoGet(t.Context(),
		&arrowflight.Ticket{Ticket: schema.Ticket{Request: schema.Request{Dataset: "photos", Batch: 8}}.Marshal()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the schema; nothing more is read
		t.Fatal(err)
	}
	top := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.Command("bowstring", append([]string{"top", "--server", "grpc://" + p.addr, "--once", "--interval",
			"100ms"}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return stdout.String()
	}
	var v watch.View
	if err := json.Unmarshal([]byte(top("--json")), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Streams) != 1 || v.Streams[0].Kind != "DoGet" || v.Streams[0].Dataset != "photos@1" || v.Seconds < 0.1 ||
		v.WindowUsed == 0 {
		t.Errorf("got %+v", v)
	}
	if len(v.Jobs) != 1 || v.Jobs[0].Dataset != "photos@1" || v.Jobs[0].Streams != 1 ||
		v.Jobs[0].Job != v.Streams[0].Plan {
		t.Errorf("got jobs %+v", v.Jobs)
	}
	text := top()
	for _, want := range []string{"1 streams", "no spill", "photos@1", "OPERATORS", "LIMIT", "LEFT"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A terminal gets as much as it has room for.
func TestScreen(t *testing.T) {
	got := screen("first line\nsecond\nthird\n", 5, 3)
	if want := "\x1b[Hfirst\x1b[K\r\nsecon\x1b[K\r\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

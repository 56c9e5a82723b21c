package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	arrowflight "github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"bowstring/fetch"
	"bowstring/flight"
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
	stream, err := arrowflight.NewClientFromConn(conn, nil).DoGet(t.Context(), &arrowflight.Ticket{Ticket: schema.Ticket{Request: schema.Request{Dataset: "photos", Batch: 8}}.Marshal()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the schema; nothing more is read
		t.Fatal(err)
	}
	top := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.Command("bowstring", append([]string{"top", "--server", "grpc://" + p.addr, "--once", "--interval", "100ms"}, args...)...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		return stdout.String()
	}
	var v topView
	if err := json.Unmarshal([]byte(top("--json")), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Streams) != 1 || v.Streams[0].Kind != "DoGet" || v.Streams[0].Dataset != "photos@1" || v.Seconds < 0.1 || v.WindowUsed == 0 {
		t.Errorf("got %+v", v)
	}
	if len(v.Jobs) != 1 || v.Jobs[0].Dataset != "photos@1" || v.Jobs[0].Streams != 1 || v.Jobs[0].Job != v.Streams[0].Plan {
		t.Errorf("got jobs %+v", v.Jobs)
	}
	text := top()
	for _, want := range []string{"1 streams", "no spill", "photos@1", "LIMIT", "LEFT"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Shares are of the time between two looks, and what is predicted goes by it.
func TestTopView(t *testing.T) {
	from := time.Now()
	to := from.Add(2 * time.Second)
	second := int64(time.Second)
	before := flight.Stats{
		Engine:  fetch.Stats{Windows: []fetch.WindowStats{{Job: "p", Dataset: "d@1", Step: 10, Steps: 100}, {Job: "p", Dataset: "d@1", Step: 20, Steps: 100, Rank: 1}}},
		Streams: []flight.StreamInfo{{ID: 1, Plan: "p", Started: from.Add(-time.Hour), Bytes: 1000, Wait: flight.WaitNanos{Store: 50 * second}}},
	}
	after := flight.Stats{
		Engine: fetch.Stats{
			Windows: []fetch.WindowStats{{Job: "p", Dataset: "d@1", Step: 20, Steps: 100}, {Job: "p", Dataset: "d@1", Step: 40, Steps: 100, Rank: 1}},
			Jobs:    []fetch.JobStats{{Job: "j", Dataset: "e@1", Streams: 1, Row: 25, Rows: 100, RowTime: second, SpillReads: 1, StoreReads: 3}},
		},
		Streams: []flight.StreamInfo{
			{ID: 1, Plan: "p", Started: from.Add(-time.Hour), Bytes: 3000, Wait: flight.WaitNanos{Store: 51 * second, Consumer: second / 2}},
			{ID: 2, Started: to.Add(-time.Second), Bytes: 5000, Wait: flight.WaitNanos{Consumer: second / 2}},
		},
	}
	v := newTopView("here", &before, &after, from, to)
	if len(v.Streams) != 2 || v.Streams[0].ID != 2 || v.Streams[0].BytesPerSec != 5000 || v.Streams[0].Limit != "consumer" || v.Streams[0].Consumer != 0.5 {
		t.Errorf("a stream that began meanwhile: %+v", v.Streams)
	}
	if s := v.Streams[1]; s.Store != 0.5 || s.Consumer != 0.25 || s.Limit != "store" || s.BytesPerSec != 1000 || s.Dataset != "d@1" {
		t.Errorf("a stream that went on: %+v", s)
	}
	if len(v.Jobs) != 2 || *v.Jobs[0].LeftSecs != 75 || *v.Jobs[0].SpillShare != 0.25 {
		t.Errorf("a job that the spill knows: %+v", v.Jobs)
	}
	// The slower rank did a tenth in two seconds, and has eight to go.
	if j := v.Jobs[1]; j.Streams != 2 || j.Progress != 0.2 || j.LeftSecs == nil || *j.LeftSecs < 15.9 || *j.LeftSecs > 16.1 {
		t.Errorf("a job by its streams: %+v", j)
	}
}

// A terminal gets as much as it has room for.
func TestScreen(t *testing.T) {
	got := screen("first line\nsecond\nthird\n", 5, 3)
	if want := "\x1b[Hfirst\x1b[K\r\nsecon\x1b[K\r\n\x1b[J"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

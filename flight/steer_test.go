package flight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/flight/audit"
)

// runOf is a ticket for a run by the datasets one and two.
func runOf(name, more string) string {
	return fmt.Sprintf(`{"mixture": {"run": %q, "epoch_size": 1000000,
		"sources": [{"dataset": "one", "snapshot": 1, "weight": 1}, {"dataset": "two", "snapshot": 1, "weight": 1}]},
		"columns": ["source"], "batch": 10, "shuffle": {"seed": 7}%s}`, name, more)
}

// sourcesIn reads the steps [from, until) of a stream, and returns how many rows of the
// source one each step has.
func sourcesIn(t *testing.T, r *flight.Reader, from, until int64) (of []int) {
	t.Helper()
	for from+int64(len(of)) <= until && r.Next() {
		var at struct {
			Step int64 `json:"step"`
		}
		mustUnmarshal(t, r.LatestAppMetadata(), &at)
		if at.Step != from+int64(len(of)) {
			t.Fatalf("step %d comes after %d steps", at.Step, len(of))
		}
		n, names := 0, r.Record().Column(0)
		for i := range names.Len() {
			if names.ValueStr(i) == "one" {
				n++
			}
		}
		of = append(of, n)
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return of
}

// The weights of a run are changed by its owner, or by a caller that may write its dataset.
// Both must be able to read the run's datasets. A running stream uses the change from its
// step on, and every other stream of the run too. All of it is recorded.
func TestSteer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	r := serveMixtures(t, Options{Audit: log})
	ann := r.as("ann")
	steer := func(who, more string) (got runInfo, err error) {
		t.Helper()
		o := r.as(who).act("steer", `{"dataset": "one", "run": "llama", `+more+`}`)
		if o.err == nil {
			mustUnmarshal(t, []byte(strings.TrimSpace(o.text)), &got)
		}
		return got, o.err
	}
	_, err = steer("ann", `"weights": {"one": 0}`)
	wantCode(t, err, codes.NotFound, "it begins with its first stream")

	ctx, cancel := context.WithCancel(ann.ctx())
	defer cancel()
	open := func(ctx context.Context) *flight.Reader {
		t.Helper()
		stream, err := r.client.DoGet(ctx, &flight.Ticket{Ticket: []byte(runOf("llama", ""))})
		if err != nil {
			t.Fatal(err)
		}
		reader, err := flight.NewRecordReader(stream)
		if err != nil {
			t.Fatal(err)
		}
		return reader
	}
	running := open(ctx)
	defer running.Release()
	before := sourcesIn(t, running, 0, 0)

	for _, tt := range []struct {
		who, more string
		code      codes.Code
		want      string
	}{
		{"bob", `"weights": {"one": 0}`, codes.NotFound, `there is no run "llama" (it begins with its first stream)`},
		{"bob", `"weights": {"three": 1}`, codes.NotFound, `there is no run "llama" (it begins with its first stream)`},
		{"eve", `"weights": {"one": 0}`, codes.PermissionDenied, "read"},
		{"tom", `"weights": {"one": 0}`, codes.PermissionDenied, `"write"`},
		{"ann", `"weights": {"three": 1}`, codes.InvalidArgument, "three"},
		{"ann", `"weights": {"one": 0, "two": 0}`, codes.InvalidArgument, "all 0"},
		{"ann", `"weights": {"one": 0}, "from_step": 1`, codes.InvalidArgument, "settled"},
		{"ann", `"weights": {}`, codes.InvalidArgument, "weights"},
		{"ann", `"weights": {"one": 1}, "over": -1`, codes.InvalidArgument, "over"},
	} {
		_, err := steer(tt.who, tt.more)
		wantCode(t, err, tt.code, tt.want)
	}

	got, err := steer("ann", `"weights": {"one": 0}`)
	if err != nil {
		t.Fatal(err)
	}
	if got.Step == nil || *got.Step < 1 || *got.Step < got.Settled || got.Owner != "ann" || len(got.Steered) != 1 ||
		got.Steered[0].By != "ann" || len(got.Changes) != 1 || got.Sources[1].Name != "two" {
		t.Fatalf("%+v", got)
	}
	step := *got.Step
	after := append(before, sourcesIn(t, running, 1, step+20)...)
	for at, n := range after {
		// Half of the rows are of one before, and none is from the step on.
		if want := int64(at) < step; want != (n > 0) {
			t.Fatalf("step %d has %d rows of one, and weights change at step %d", at, n, step)
		}
	}
	again, stop := context.WithCancel(ann.ctx())
	defer stop()
	reader := open(again)
	defer reader.Release()
	if got := sourcesIn(t, reader, 0, step+20); fmt.Sprint(got) != fmt.Sprint(after) {
		t.Errorf("a later reader gets %v, want %v", got, after)
	}

	if _, err := steer("root", `"weights": {"one": 3}, "over": 8, "from_step": 99000`); err != nil {
		t.Errorf("who may write the dataset: %v", err)
	}
	o := ann.get("%s", strings.Replace(runOf("llama", `, "stop": 1`), `"seed": 7`, `"seed": 8`, 1))
	wantCode(t, o.err, codes.InvalidArgument, "a name of its own for each run")

	for who, want := range map[string]int{"ann": 1, "bob": 0, "tom": 1} {
		o := r.as(who).act("runs", `{"dataset": "one"}`)
		if o.err != nil || strings.Count(o.text, "\n") != want {
			t.Errorf("%s sees %q, %v", who, o.text, o.err)
		}
	}
	var done []audit.Event
	for _, e := range lines(t, file) {
		if e.Event == audit.Steer && e.Phase == audit.Done {
			done = append(done, e)
		}
	}
	if len(done) != 2 || done[0].Principal != "ann" || done[0].Dataset != "one" || done[0].Run != "llama" ||
		done[0].Step != step || done[0].Method != "DoAction/steer" || done[1].Principal != "root" || done[1].Step != 99000 {
		t.Errorf("on record are %+v", done)
	}
}

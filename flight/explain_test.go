package flight

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/flight"
	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/fetch/predict"
	"bowstring/flight/audit"
)

const someRates = `"rates": {"store": {"latency_ms": 20, "bytes_per_s": 1000000}}`

// Errors about a request name its field.
func TestExplainRefuses(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 20)
	for body, want := range map[string]struct {
		code codes.Code
		text string
	}{
		``:                                    {codes.InvalidArgument, "want a JSON object"},
		`{"epochs": 2}`:                       {codes.InvalidArgument, "dataset"},
		`{"dataset": "e", ` + someRates + `}`: {codes.NotFound, `there is no dataset "e"`},
		`{"dataset": "d"}`:                    {codes.NotFound, "an operator measures it by the action calibrate"},
		`{"dataset": "d", "pace": 3}`:         {codes.InvalidArgument, `pace: got an unknown field`},
		`{"dataset": "d", "pace_ms": -3}`:     {codes.InvalidArgument, "pace_ms: got -3, want a number from 0"},
		`{"dataset": "d", "pace_ms": 1e12, ` + someRates + `}`: {codes.InvalidArgument,
			"pace_ms: got 1e+12, want milliseconds"},
		`{"dataset": "d", "epochs": 1.5}`: {codes.InvalidArgument,
			"epochs: got 1.5, want an integer"},
		`{"dataset": "d", "epochs": 4294967296, ` + someRates + `}`: {codes.InvalidArgument,
			"epochs: got 4294967296, want at most"},
		`{"dataset": "d", "nodes": 100000, ` + someRates + `}`: {codes.InvalidArgument, "nodes: got 100000"},
		`{"dataset": "d", "look_ms": 20000, ` + someRates + `}`: {codes.InvalidArgument,
			"look_ms: got 20000, want at most 10000"},
		`{"dataset": "d", "batch": 0, ` + someRates + `}`:             {codes.InvalidArgument, "batch: got 0"},
		`{"dataset": "d", "where": "label == 77", ` + someRates + `}`: {codes.InvalidArgument, "serves no row"},
		`{"dataset": "d", "rates": {"store": {"latency": 1}}}`: {codes.InvalidArgument,
			"rates.store.latency: got an unknown field"},
		`{"dataset": "d", "rates": {"store": {"latency_ms": 1e300}}}`: {codes.InvalidArgument,
			"rates.store.latency_ms: got 1e+300"},
	} {
		_, err := f.act("explain", body)
		wantCode(t, err, want.code, want.text)
	}
	for body, text := range map[string]string{
		`{"seconds": 61}`: "seconds: got 61, want at most 60", `{"secs": 1}`: "secs: got an unknown field",
		`{"rates": {"node": {"cores": -1}}}`: "rates.node.cores: got -1",
	} {
		_, err := f.act("calibrate", body)
		wantCode(t, err, codes.InvalidArgument, text)
	}
	_, err := f.act("calibrate", `{"dataset": "e"}`)
	wantCode(t, err, codes.NotFound, `there is no dataset "e"`)
}

func explain(t *testing.T, f *fixture, body string) Explained {
	t.Helper()
	results, err := f.act("explain", body)
	if err != nil || len(results) != 1 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	return decoded[Explained](t, results[0])
}

// The model's inputs are the values of the request and the state of the server.
func TestExplain(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 200)
	var size int64
	for i := range 200 {
		size += int64(len(content(i)))
	}
	got := explain(t, f,
		`{"dataset": "d", "columns": ["image"], "batch": 50, "world": {"size": 2}, "pace_ms": 10, "epochs": 3, "nodes": 2, "cache_bytes": 0, "window_bytes": 1048576, `+someRates+`}`)
	want := Circumstances{Rows: 200, RowBytes: float64(size) / 200, Batch: 50, Ranks: 2, Epochs: 3, PaceMS: 10,
		Nodes: 2, WindowBytes: 1 << 20}
	if got.Conditions != want || got.Dataset != "d@1" || got.Running != nil {
		t.Errorf("got %+v, want %+v", got, want)
	}
	p := got.Prediction
	if rate := predict.Rate(1e6 / want.RowBytes); p.Limit != predict.ByLink || p.First.SamplesPerSec < 0.999*rate ||
		p.First.SamplesPerSec > 1.001*rate {
		t.Errorf("limited by %s to %g samples/s, want the link, %g", p.Limit, p.First.SamplesPerSec, rate)
	}
	if p.SmallestCache == nil || p.SmallestWindow != nil { // the link is too slow for any window, and no cache is
		t.Errorf("%+v", p)
	}
	// A request without blobs reads none.
	if got := explain(t, f, `{"dataset": "d", "columns": ["label"], `+someRates+
		`}`); got.Prediction.First.HitShare != 1 {
		t.Errorf("%+v", got.Prediction.First)
	}
}

// Reads of the store show the latency of one read and not the throughput. They alone give
// no prediction.
func TestExplainUncalibrated(t *testing.T) {
	f := serve(t, Options{})
	f.fill("d", 200)
	if _, err := f.get(&flight.Ticket{Ticket: []byte(`{"dataset": "d"}`)}); err != nil {
		t.Fatal(err)
	}
	_, err := f.act("explain", `{"dataset": "d"}`)
	wantCode(t, err, codes.NotFound, "this server was not calibrated")
	// Rates of the caller are used as they are, and the other ones are named.
	got := explain(t, f, `{"dataset": "d", "nodes": 2, `+someRates+`}`)
	if !slices.Equal(got.Unknown, []string{"node", "network"}) {
		t.Errorf("%q is not known", got.Unknown)
	}
	got = explain(t, f, `{"dataset": "d", "cache_bytes": 100000000, "rates": {"store": {"latency_ms": 3}}}`)
	if !slices.Equal(got.Unknown, []string{"store", "spill", "node"}) {
		t.Errorf("%q is not known", got.Unknown)
	}
}

// Measured rates are used for predictions, until a newer measurement.
func TestCalibrate(t *testing.T) {
	f := serve(t, Options{})
	f.fill("small", 20)
	f.fill("d", 200)
	results, err := f.act("calibrate", `{"seconds": 0.3}`)
	if err != nil || len(results) != 1 {
		t.Fatal(results, err)
	}
	var found struct {
		fetch.Rates
		Uncertainty map[string]fetch.Uncertain
		Dataset     string
		CPU         int64 `json:"cpu_ns"`
		Reads       int64
	}
	mustUnmarshal(t, results[0], &found)
	if found.Dataset != "d@1" || found.Store.LatencyMS <= 0 || found.Node.Cores < 1 || found.CPU <= 0 ||
		found.Reads == 0 {
		t.Errorf("%s", results[0])
	}
	if u, ok := found.Uncertainty["store.latency_ms"]; !ok || u.Samples == 0 {
		t.Errorf("nothing is said of how sure it is: %s", results[0])
	}
	got := explain(t, f, `{"dataset": "small"}`)
	if got.Rates == nil || *got.Rates != found.Rates || got.RatesFrom.Store != fetch.FromCalibration {
		t.Errorf("explained by %+v, from %+v; found was %+v", got.Rates, got.RatesFrom, found.Rates)
	}
	if _, err := f.act("calibrate", `{`+someRates+`}`); err != nil {
		t.Fatal(err)
	}
	if got := explain(t, f, `{"dataset": "small"}`); got.Rates.Store != (predict.Store{LatencyMS: 20,
		BytesPerSec: 1e6}) {
		t.Errorf("explained by %+v", got.Rates)
	}
	results, err = f.act("calibrate", `{"probe": false}`)
	if err != nil || !strings.Contains(string(results[0]), `"latency_ms":20`) {
		t.Errorf("%s, %v", results, err)
	}
}

// A running job is compared to its prediction, for callers that may see the job. Others see
// that nothing runs.
func TestExplainRunning(t *testing.T) {
	r := wrongServer(t)
	alice, bob, root := r.as("alice"), r.as("bob"), r.as("root")
	const request = `{"dataset": "shared", "columns": ["label"], "batch": 1, "batch_bytes": 1`
	_, end := bob.streaming(request + `, "rank": 0, "epochs": 1000}`)
	defer end()
	question := request + `, "look_ms": 0, ` + someRates + `}`
	for _, c := range []struct {
		who  as
		runs bool
	}{{bob, true}, {root, true}, {alice, false}} {
		o := c.who.act("explain", question)
		if o.err != nil {
			t.Fatal(o.err)
		}
		got := decoded[Explained](t, []byte(o.text))
		if (got.Running != nil) != c.runs {
			t.Errorf("%s sees %+v", c.who.principal, got.Running)
		}
		if r := got.Running; r != nil && (r.Streams != 1 || r.Seconds <= 0 || r.Since.After(time.Now()) ||
			r.Limit == "") {
			t.Errorf("%s sees %+v", c.who.principal, r)
		}
		if (got.RatesFrom != nil) != (c.who == root) {
			t.Errorf("%s sees where rates come from: %+v", c.who.principal, got.RatesFrom)
		}
	}
	// The job is measured twice.
	if o := root.act("explain", strings.Replace(question, `"look_ms": 0`, `"look_ms": 20`, 1)); o.err != nil ||
		!strings.Contains(o.text, `"running":{`) {
		t.Error(o)
	}
	// alice sees a hundred rows of 205.
	o := alice.act("explain", `{"dataset": "shared", `+someRates+`}`)
	if got := decoded[Explained](t, []byte(o.text)); got.Conditions.Rows != 100 || got.Conditions.HeldBytes != 0 {
		t.Errorf("%+v", got.Conditions)
	}
	wantCode(t, alice.act("calibrate", `{"dataset": "shared"}`).err, codes.PermissionDenied, "admin")
	wantCode(t, bob.act("calibrate", `{`+someRates+`}`).err, codes.PermissionDenied, "admin")
	wantCode(t, bob.act("calibrate", `{"probe": false}`).err, codes.PermissionDenied, "admin")
}

// A calibration does not disturb running streams unless the operator requests it.
func TestCalibrateDuringStreams(t *testing.T) {
	r := wrongServer(t)
	root := r.as("root")
	_, end := root.streaming(`{"dataset": "shared", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	defer end()
	wantCode(t, root.act("calibrate", `{"dataset": "shared", "seconds": 0.1}`).err, codes.Unavailable, "1 streams read")
	if o := root.act("calibrate", `{"dataset": "shared", "seconds": 0.1, "busy": true}`); o.err != nil {
		t.Error(o)
	}
}

// Actions that measure, or report measurements, are on record.
func TestCalibrateIsAudited(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	f := serve(t, Options{Audit: log})
	f.fill("d", 100)
	for _, body := range []string{`{"dataset": "d", "seconds": 0.1}`, `{` + someRates + `}`} {
		if _, err := f.act("calibrate", body); err != nil {
			t.Fatal(err)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	phases := ""
	for line := range strings.Lines(string(lines)) {
		var e audit.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Event == audit.Measure {
			phases += e.Phase + " " + e.Dataset + ";"
		}
	}
	if phases != "begin d;done d;begin ;done ;" {
		t.Errorf("the record has %q:\n%s", phases, lines)
	}
}

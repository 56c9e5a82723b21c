package flight

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow/array"
	"google.golang.org/grpc/codes"

	"bowstring/flight/audit"
	"bowstring/flight/usage"
)

const mixtureRules = `
rules:
  - {principals: [root], datasets: ["*"], rights: [admin]}
  - {principals: [ann], datasets: [one], rights: [read], where: "label < 3", columns: [id, file_name, image]}
  - {principals: [ann], datasets: [two], rights: [read]}
  - {principals: [bob], datasets: [one], rights: [read]}
  - {principals: [tom], datasets: [one, two], rights: [read]}
  - {principals: [eve], datasets: [one, two], rights: [list]}
`

// mixtureOf is a request for a mixture of the datasets one and two, each once.
func mixtureOf(more string) string {
	return `{"mixture": {"sources": [{"dataset": "one", "repeat": 1}, {"dataset": "two", "repeat": 1}]}` + more + `}`
}

// serveMixtures is a server with rules and the datasets one and two, of 100 and 200 samples.
func serveMixtures(t *testing.T, opts Options) *ruled {
	t.Helper()
	r := serveRules(t, mixtureRules, opts)
	for name, n := range map[string]int{"one": 100, "two": 200} {
		rec := samples(0, n)
		o := r.as("root").put(command(`{"put": {"dataset": %q, "key": "file_name", "media": {"image": "image"}}}`, name), rec)
		rec.Release()
		if o.err != nil {
			t.Fatal(o)
		}
	}
	return r
}

// The rule of each dataset of a mixture applies to that dataset, in the rows and in every
// answer about them. A dataset that the caller may not read does not exist for it.
func TestMixtureKeepsTheRules(t *testing.T) {
	r := serveMixtures(t, Options{})
	ask := mixtureOf(`, "columns": ["source", "position", "label", "file_name", "image"], "shuffle": {"seed": 1}`)
	count := func(who string) map[string]int {
		t.Helper()
		o := r.as(who).get("%s", ask)
		if o.err != nil {
			t.Fatal(o)
		}
		rows := map[string]int{}
		for _, rec := range o.recs {
			for i := range int(rec.NumRows()) {
				source, position := rec.Column(0).ValueStr(i), rec.Column(1).(*array.Int64).Value(i)
				if who == "ann" && source == "one" && (position%10 >= 3 || !rec.Column(2).IsNull(i)) {
					t.Fatalf("%s is shown position %d of one, with label %s", who, position, rec.Column(2).ValueStr(i))
				}
				if rec.Column(3).ValueStr(i) != fmt.Sprintf("%06d.jpg", position) {
					t.Fatalf("position %d of %s is %s", position, source, rec.Column(3).ValueStr(i))
				}
				rows[source]++
			}
		}
		return rows
	}
	if got := count("root"); got["one"] != 100 || got["two"] != 200 {
		t.Errorf("root gets %v", got)
	}
	if got := count("ann"); got["one"] != 30 || got["two"] != 200 {
		t.Errorf("ann gets %v", got)
	}
	info, err := r.client.GetFlightInfo(r.as("ann").ctx(), command("%s", ask))
	if err != nil {
		t.Fatal(err)
	}
	var about listedInfo
	mustUnmarshal(t, info.AppMetadata, &about)
	if len(about.Sources) != 2 || about.Sources[0].Samples != 30 || about.Sources[0].Rows != 30 || about.Rows != 230 ||
		info.TotalBytes != -1 || about.Sources[1].Name != "two" || about.Sources[1].Snapshot != 1 {
		t.Errorf("ann gets %s, %d bytes", info.AppMetadata, info.TotalBytes)
	}
	if o := r.as("ann").schemaOf(command("%s", mixtureOf(""))); o.err != nil {
		t.Error(o)
	}
	// bob may read one and does not know of two.
	missing := strings.ReplaceAll(ask, `"two"`, `"tow"`)
	for _, do := range []func(string) outcome{
		func(s string) outcome { return r.as("bob").get("%s", s) },
		func(s string) outcome { return r.as("bob").info(command("%s", s)) },
		func(s string) outcome { return r.as("bob").schemaOf(command("%s", s)) },
		func(s string) outcome { return r.as("bob").act("explain", s) },
		func(s string) outcome { return r.as("bob").act("warm", s) },
	} {
		got, twin := do(ask), do(missing)
		if a, b := got.masked("two"), twin.masked("tow"); a != b || got.rows != 0 {
			t.Errorf("hidden data is distinguishable from missing data:\n%s\n%s", a, b)
		}
		wantCode(t, got.err, codes.NotFound, `source`)
	}
	wantCode(t, r.as("eve").get("%s", ask).err, codes.PermissionDenied, `source "one"`)
	// A change of the rules of one source ends the stream.
	_, end := r.as("ann").streaming(mixtureOf(`, "batch": 1, "batch_bytes": 1, "shuffle": {"seed": 1}, "epochs": 1000`))
	defer end()
	kept := func(c *call) bool { return c.streaming && c.caller.Principal == "ann" }
	r.set(t, strings.Replace(mixtureRules, "{principals: [ann], datasets: [two], rights: [read]}",
		"{principals: [ann], datasets: [two], rights: [list]}", 1))
	r.server.EnforceRules()
	if _, err := r.server.calls.wait(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
}

// A mixture's reading is on record, in the audit log and in the book, for each of its datasets.
func TestMixtureIsOnRecord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit")
	log, err := audit.Open(audit.Options{Path: file, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	book, err := usage.Open(usage.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	r := serveMixtures(t, Options{Audit: log, Usage: book})
	o := r.as("ann").get("%s", mixtureOf(`, "columns": ["image"], "shuffle": {"seed": 1}`))
	if o.err != nil || o.rows != 230 {
		t.Fatal(o)
	}
	if _, err := r.server.calls.wait(t.Context(), func(c *call) bool { return c.streaming }); err != nil {
		t.Fatal(err)
	}
	used := map[string]usage.Entry{}
	var bytes int64
	for line := range strings.Lines(r.as("root").act("usage", "").text) {
		var e usage.Entry
		mustUnmarshal(t, []byte(line), &e)
		if e.Rows > 0 {
			used[e.Dataset] = e
			bytes += e.Bytes
		}
	}
	if used["one"].Rows != 30 || used["two"].Rows != 200 || bytes < o.bytes || used["two"].Bytes < 5*used["one"].Bytes {
		t.Errorf("used: %+v, %d bytes of %d", used, bytes, o.bytes)
	}
	if err := r.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	found := map[string]audit.Event{}
	for _, e := range lines(t, file) {
		if e.Event == audit.Read && e.Principal == "ann" {
			found[e.Phase+" "+e.Dataset] = e
		}
	}
	for name, rows := range map[string]int64{"one": 30, "two": 200} {
		if e := found[audit.Begin+" "+name]; e.Snapshot != 1 || e.Rule == "" || e.Plan == "" {
			t.Errorf("beginning of %s: %+v", name, e)
		}
		if e := found[audit.Done+" "+name]; e.Rows != rows || e.Bytes == 0 || e.Code != "OK" {
			t.Errorf("end of %s: %+v", name, e)
		}
	}
}

// The action explain returns the progress through the sources of a mixture.
func TestExplainMixture(t *testing.T) {
	r := serveMixtures(t, Options{})
	rates := `"rates": {"store": {"latency_ms": 1, "reads_per_s": 1000, "bytes_per_s": 1e9}}`
	weights := `{"mixture": {"sources": [{"dataset": "one", "weight": 3}, {"dataset": "two", "weight": 1}], "epoch_size": 80}, "batch": 8,
		"shuffle": {"seed": 1, "epoch": 0}, "epochs": 2, ` + rates
	for more, want := range map[string]struct {
		at   int64
		seen [2]float64
	}{"": {20, [2]float64{1, 0.2}}, `, "step": 5`: {5, [2]float64{0.3, 0.05}}} {
		o := r.as("root").act("explain", weights+more+"}")
		if o.err != nil {
			t.Fatal(o)
		}
		var e Explained
		if err := json.Unmarshal([]byte(o.text), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Mixture) != 2 || *e.SeenAt != want.at || e.Mixture[0].Rows != 60 || e.Mixture[0].Share != 0.75 {
			t.Fatalf("%s", o.text)
		}
		for i := range e.Mixture {
			if d := e.Mixture[i].Seen - want.seen[i]; d > 0.011 || d < -0.011 {
				t.Errorf("%s%s: %v of source %d, want %v", weights, more, e.Mixture[i].Seen, i, want.seen[i])
			}
		}
		// 100 samples of one at 6 a step, 200 of two at 2 a step.
		if first := e.Mixture[0].FirstPass; first == nil || *first < 16 || *first > 17 {
			t.Errorf("all of one is seen in step %v", first)
		}
		if e.Conditions.Rows != 80 || e.Conditions.RowBytes <= 0 {
			t.Errorf("%+v", e.Conditions)
		}
	}
}

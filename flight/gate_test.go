package flight

import (
	"log/slog"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/flight/usage"
)

// Labels of "shared" are 0 to 9; split "test" has rows with the labels 5 to 9 only.
const wrongRules = `
rules:
  - {name: root, principals: [root], datasets: ["*"], rights: [admin]}
  - {name: alice, principals: [alice], datasets: [shared], rights: [read], where: "label < 5", columns: [id, label, image]}
  - {name: nameless, principals: [nora], datasets: [shared], rights: [read], columns: [label, image]}
  - {name: lists, principals: [carol], datasets: [shared], rights: [list]}
  - {name: misfit, principals: [mia], datasets: ["shar*"], rights: [read], where: "nosuchcolumn == 1"}
  - {name: misfit in rows, principals: [moe], datasets: ["shar*"], rights: [read], where: "1 % (label - 7) == 0"}
  - {name: misfit in columns, principals: [max], datasets: ["shar*"], rights: [read], columns: [nosuchcolumn]}
  - {name: bob, principals: [bob], groups: [team-b], datasets: [shared, "zzz*"], rights: [read, write, drop]}
`

// "zzz1" exists, and alice may not know of it. "zzz2" does not exist.
const hiddenDataset, noDataset = "zzz1", "zzz2"

// shared has 200 rows in train and 5 in test.
func wrongServer(t *testing.T) *ruled {
	book, err := usage.Open(usage.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() }) // after the server has stopped
	r := serveRules(t, wrongRules, Options{Usage: book})
	root := r.as("root")
	rec := samples(0, 200)
	defer rec.Release()
	test := samples(205, 210)
	defer test.Release()
	for _, put := range []struct {
		command string
		rec     arrow.Record
	}{
		{`{"put": {"dataset": "shared", "key": "file_name", "media": {"image": "image"}}}`, rec},
		{`{"put": {"dataset": "shared", "key": "file_name", "split": "test", "mode": "append", "media": {"image": "image"}}}`, test},
		{`{"put": {"dataset": "` + hiddenDataset + `", "key": "file_name"}}`, rec},
	} {
		if o := root.put(command("%s", put.command), put.rec); o.err != nil {
			t.Fatal(o.err)
		}
	}
	if o := root.act("tag", `{"dataset": "`+hiddenDataset+`", "name": "prod"}`); o.err != nil {
		t.Fatal(o.err)
	}
	return r
}

// In every way that alice tries, she gets no byte, and learns nothing that she would not
// learn about a missing dataset.
func TestWrongWays(t *testing.T) {
	r := wrongServer(t)
	alice, bob, root := r.as("alice"), r.as("bob"), r.as("root")
	// The calls of others must not show, nor must results computed for them.
	if o := root.get(`{"dataset": "shared", "where": "file_name != 'evaluated before'"}`); o.err != nil ||
		o.rows != 205 {
		t.Fatal(o)
	}
	plan, end := bob.streaming(`{"dataset": "` + hiddenDataset +
		`", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	defer end()
	var bytesOut int64
	var distinguishable int
	ways := wrongWays()
	for _, w := range ways {
		t.Run(w.method+"/"+w.name, func(t *testing.T) {
			hidden, none := w.hidden, w.none
			if hidden == "" {
				hidden, none = hiddenDataset, noDataset
			}
			if hidden == "(plan)" {
				hidden = plan
			}
			got, twin := w.do(alice, hidden), w.do(alice, none)
			if status.Code(got.err) == codes.Internal || status.Code(got.err) == codes.Unknown {
				t.Errorf("%v", got.err)
			}
			bytesOut += got.bytes
			if got.bytes+got.rows != 0 {
				t.Errorf("%d bytes and %d rows came", got.bytes, got.rows)
			}
			if a, b := got.masked(hidden), twin.masked(none); a != b {
				distinguishable++
				t.Errorf("hidden data is distinguishable from missing data:\n%s\n%s", a, b)
			}
		})
	}
	t.Logf("wrong ways: ways=%d bytes_out=%d distinguishable=%d", len(ways), bytesOut, distinguishable)
}

// Every RPC and every action has its wrong ways in the table, or does not lead to data.
func TestWrongWaysAreAll(t *testing.T) {
	noData := map[string]string{
		"Handshake":      "returns the caller's name",
		"ListActions":    "is the same for everybody",
		"DoAction/shm":   "says where a socket is, which gives memory and no bytes",
		"DoAction/nodes": "says what each GetFlightInfo says, too: where the cluster's nodes are",
		"DoAction":       "is covered by its actions",
		"DoAction/stats": "has a test of its own: TestStatsAreOnesOwn",
	}
	covered := map[string]bool{}
	for _, w := range wrongWays() {
		covered[w.method] = true
	}
	var methods []string
	for _, m := range gen.FlightService_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, m := range gen.FlightService_ServiceDesc.Streams {
		methods = append(methods, m.StreamName)
	}
	for _, a := range actions() {
		methods = append(methods, "DoAction/"+a.name)
	}
	if len(methods) < 15 {
		t.Fatalf("only %d methods were found: %v", len(methods), methods)
	}
	for _, d := range methods {
		if !covered[d] && noData[d] == "" {
			t.Errorf("%s leads somewhere, and wrongWays has no way through it", d)
		}
	}
}

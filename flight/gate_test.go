package flight

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/flight"
	gen "github.com/apache/arrow/go/v17/arrow/flight/gen/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/flight/usage"
	"bowstring/schema"
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

// There is "zzz1", of which alice may know nothing; there is no "zzz2".
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

// way is a wrong way to what alice may not see. It is tried with what is hidden and with
// what does not exist: the outcomes are the same, and no byte comes.
type way struct {
	door   string // the RPC, or DoAction/NAME
	name   string
	do     func(a as, x string) outcome
	hidden string // "" stands for hiddenDataset
	none   string // "" stands for noDataset
}

// idOf is the id of row i of "shared".
func idOf(i int) schema.ID { return schema.SampleID("shared", fmt.Sprintf("%06d.jpg", i)) }

func one(format string) func(string) string {
	return func(x string) string { return fmt.Sprintf(format, x) }
}

func wrongWays() []way {
	info := func(format string) func(as, string) outcome {
		return func(a as, x string) outcome { return a.info(command(format, x)) }
	}
	get := func(format string) func(as, string) outcome {
		return func(a as, x string) outcome { return a.get(format, x) }
	}
	act := func(name, format string) func(as, string) outcome {
		body := one(format)
		return func(a as, x string) outcome { return a.act(name, body(x)) }
	}
	put := func(format string) func(as, string) outcome {
		return func(a as, x string) outcome {
			rec := samples(0, 2)
			defer rec.Release()
			return a.put(command(format, x), rec)
		}
	}
	take := func(format string) func(as, string) outcome {
		return func(a as, x string) outcome { return a.take(fmt.Sprintf(format, x), ints("position", 0)) }
	}
	number := func(x string) (n int64) { fmt.Sscan(x, &n); return n }
	ticket := func(x, rest string) *flight.Ticket {
		return &flight.Ticket{Ticket: fmt.Appendf(nil, `{"dataset":%q%s}`, x, rest)}
	}
	const whole = `,"snapshot":1,"batch":64`
	ways := []way{
		// A dataset that may not be known.
		{door: "ListFlights", name: "by name", do: func(a as, x string) outcome {
			return a.flights(`{"dataset": "` + x + `"}`)
		}},
		{door: "ListFlights", name: "by prefix", do: func(a as, x string) outcome {
			return a.flights(`{"dataset": "` + x[:4] + `*"}`)
		}},
		{door: "DoAction/list", name: "by name", do: act("list", `{"dataset": "%s"}`)},
		{door: "DoAction/describe", name: "newest", do: act("describe", `{"dataset": "%s"}`)},
		{door: "DoAction/describe", name: "by number", do: act("describe", `{"dataset": "%s", "snapshot": 1}`)},
		{door: "DoAction/describe", name: "number that is not",
			do: act("describe", `{"dataset": "%s", "snapshot": 99}`)},
		{door: "DoAction/explain", name: "dataset", do: act("explain", `{"dataset": "%s"}`)},
		{door: "DoAction/explain", name: "with rates",
			do: act("explain", `{"dataset": "%s", "rates": {"store": {"latency_ms": 1}}}`)},
		{door: "DoAction/explain", name: "hidden split", hidden: "test", none: "tost",
			do: act("explain", `{"dataset": "shared", "split": "%s", "rates": {"store": {"latency_ms": 1}}}`)},
		{door: "DoAction/explain", name: "where label", hidden: "7", none: "77",
			do: act("explain", `{"dataset": "shared", "where": "label == %s", "rates": {"store": {"latency_ms": 1}}}`)},
		{door: "DoAction/calibrate", name: "dataset", do: act("calibrate", `{"dataset": "%s"}`)},
		{door: "GetSchema", name: "path", do: func(a as, x string) outcome { return a.schemaOf(path(x)) }},
		{door: "GetSchema", name: "command", do: func(a as, x string) outcome {
			return a.schemaOf(command(`{"dataset": %q}`, x))
		}},
		{door: "GetSchema", name: "column", do: func(a as, x string) outcome {
			return a.schemaOf(command(`{"dataset": %q, "columns": ["nope"]}`, x))
		}},
		{door: "GetFlightInfo", name: "path", do: func(a as, x string) outcome { return a.info(path(x)) }},
		{door: "GetFlightInfo", name: "split", do: func(a as, x string) outcome { return a.info(path(x, "train")) }},
		{door: "GetFlightInfo", name: "snapshot", do: func(a as, x string) outcome {
			return a.info(path(x+"@1", "train"))
		}},
		{door: "GetFlightInfo", name: "command", do: info(`{"dataset": %q}`)},
		{door: "GetFlightInfo", name: "where", do: info(`{"dataset": %q, "where": "label == 1"}`)},
		{door: "GetFlightInfo", name: "wrong where", do: info(`{"dataset": %q, "where": "label =="}`)},
		{door: "GetFlightInfo", name: "positions", do: info(`{"dataset": %q, "selection": {"positions": [0]}}`)},
		{door: "GetFlightInfo", name: "selection",
			do: info(`{"dataset": %q, "selection": {"name": "` + strings.Repeat("ab", 32) + `"}}`)},
		{door: "GetFlightInfo", name: "ranks", do: info(`{"dataset": %q, "world": {"size": 8}}`)},
		{door: "PollFlightInfo", name: "path", do: func(a as, x string) outcome { return a.poll(path(x)) }},
		{door: "DoGet", name: "by hand", do: get(`{"dataset": %q}`)},
		{door: "DoGet", name: "of another's info",
			do: get(`{"dataset": %q, "snapshot": 1, "batch": 64, "rank": 0, "step": 0}`)},
		{door: "DoGet", name: "resumed",
			do: get(`{"dataset": %q, "snapshot": 1, "batch": 64, "order": "free", "rank": 0, "step": 1, "row": 3, "served": "AQ=="}`)},
		{door: "DoGet", name: "beyond the end", do: get(`{"dataset": %q, "step": 100000}`)},
		{door: "DoGet", name: "unknown split", do: get(`{"dataset": %q, "split": "nope"}`)},
		{door: "DoGet", name: "unknown column", do: get(`{"dataset": %q, "columns": ["nope"]}`)},
		{door: "DoGet", name: "epochs", do: get(`{"dataset": %q, "shuffle": {"seed": 1, "epoch": 1}, "epochs": 3}`)},
		{door: "DoExchange", name: "position", do: take(`{"take": {"dataset": %q}}`)},
		{door: "DoExchange", name: "snapshot",
			do: take(`{"take": {"dataset": %q, "snapshot": 1, "columns": ["label"]}}`)},
		{door: "DoPut", name: "create", do: put(`{"put": {"dataset": %q, "key": "file_name"}}`)},
		{door: "DoPut", name: "append", do: put(`{"put": {"dataset": %q, "key": "file_name", "mode": "append"}}`)},
		{door: "DoPut", name: "replace", do: put(`{"put": {"dataset": %q, "key": "file_name", "mode": "replace"}}`)},
		{door: "DoPut", name: "path", do: func(a as, x string) outcome {
			rec := samples(0, 2)
			defer rec.Release()
			return a.put(path(x), rec)
		}},
		{door: "DoPut", name: "selection", do: func(a as, x string) outcome {
			return a.put(command(`{"selection": {"dataset": %q}}`, x), ints("position", 1))
		}},
		{door: "DoAction/drop", name: "dataset", do: act("drop", `{"dataset": "%s"}`)},
		{door: "DoAction/drop", name: "snapshot", do: act("drop", `{"dataset": "%s", "snapshot": 1}`)},
		{door: "DoAction/tag", name: "by number", do: act("tag", `{"dataset": "%s", "snapshot": 1, "name": "mine"}`)},
		{door: "DoAction/tag", name: "by tag", do: act("tag", `{"dataset": "%s", "tag": "prod", "name": "mine"}`)},
		{door: "DoAction/untag", name: "a tag", do: act("untag", `{"dataset": "%s", "name": "prod"}`)},
		{door: "DoAction/tags", name: "of a dataset", do: act("tags", `{"dataset": "%s"}`)},
		{door: "DoAction/tags", name: "by name", do: act("tags", `{"dataset": "%s@prod"}`)},
		{door: "GetFlightInfo", name: "tag", do: func(a as, x string) outcome {
			return a.info(path(x+"@prod", "train"))
		}},
		{door: "GetSchema", name: "tag that is not", do: func(a as, x string) outcome {
			return a.schemaOf(path(x + "@test"))
		}},
		{door: "DoAction/drop", name: "tag", do: act("drop", `{"dataset": "%s", "tag": "prod"}`)},
		{door: "DoAction/usage", name: "of a dataset", do: act("usage", `{"dataset": "%s"}`)},
		{door: "DoAction/warm", name: "dataset", do: act("warm", `{"dataset": "%s"}`)},
		{door: "DoAction/CancelFlightInfo", name: "whole ticket", do: func(a as, x string) outcome {
			return a.actProto(flight.CancelFlightInfoActionType,
				&flight.CancelFlightInfoRequest{Info: &flight.FlightInfo{
					Endpoint: []*flight.FlightEndpoint{{Ticket: ticket(x, whole)}}}})
		}},
		{door: "DoAction/CancelFlightInfo", name: "newest", do: func(a as, x string) outcome {
			return a.actProto(flight.CancelFlightInfoActionType,
				&flight.CancelFlightInfoRequest{Info: &flight.FlightInfo{
					Endpoint: []*flight.FlightEndpoint{{Ticket: ticket(x, "")}}}})
		}},
		{door: "DoAction/RenewFlightEndpoint", name: "ticket", do: func(a as, x string) outcome {
			return a.actProto(flight.RenewFlightEndpointActionType,
				&flight.RenewFlightEndpointRequest{Endpoint: &flight.FlightEndpoint{Ticket: ticket(x, whole)}})
		}},
		{door: "DoAction/cancel", name: "another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("cancel", `{"plan": "%s"}`)},
		{door: "DoAction/lineage", name: "another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("lineage", `{"job": "%s"}`)},
		{door: "DoAction/lineage", name: "a step of another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("lineage", `{"job": "%s", "step": 0}`)},
		{door: "DoAction/gc", name: "dry run", do: func(a as, _ string) outcome {
			return a.act("gc", `{"dry_run": true}`)
		}},
		{door: "DoAction/gc", name: "collection", do: func(a as, _ string) outcome { return a.act("gc", "") }},

		// Rows of a dataset that may be read in part: 7 is one that may not.
		{door: "DoExchange", name: "hidden position", hidden: "7", none: "70000", do: func(a as, x string) outcome {
			return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
		}},
		{door: "DoExchange", name: "beyond the last seen", hidden: "204", none: "205",
			do: func(a as, x string) outcome {
				return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
			}},
		{door: "DoExchange", name: "negative", hidden: "7", none: "-7", do: func(a as, x string) outcome {
			return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
		}},
		{door: "DoExchange", name: "hidden id", hidden: schema.FormatID(idOf(7)), none: schema.FormatID(idOf(70000)),
			do: func(a as, x string) outcome {
				id := idOf(7)
				if x != schema.FormatID(id) {
					id = idOf(70000)
				}
				return a.take(`{"take": {"dataset": "shared"}}`, idRecord(id))
			}},
		{door: "DoExchange", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: take(`{"take": {"dataset": "shared", "columns": [%q]}}`)},
		{door: "DoGet", name: "listed positions", hidden: "7", none: "70000",
			do: get(`{"dataset": "shared", "selection": {"positions": [%s]}}`)},
		{door: "GetFlightInfo", name: "listed positions", hidden: "7", none: "70000",
			do: info(`{"dataset": "shared", "selection": {"positions": [%s]}}`)},
		{door: "GetFlightInfo", name: "listed and where", hidden: "7", none: "70000",
			do: info(`{"dataset": "shared", "where": "label >= 0", "selection": {"positions": [%s]}}`)},
		{door: "DoGet", name: "where position", hidden: "7", none: "70000",
			do: get(`{"dataset": "shared", "where": "position == %s"}`)},
		{door: "DoGet", name: "where id", hidden: schema.FormatID(idOf(7)), none: schema.FormatID(idOf(70000)),
			do: get(`{"dataset": "shared", "where": "id == '%s'"}`)},
		{door: "DoGet", name: "where label", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "label == %s"}`)},
		{door: "DoGet", name: "where or true", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "label == %s or false"}`)},
		{door: "DoGet", name: "where size", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "image.size > 0 and label == %s"}`)},
		{door: "GetFlightInfo", name: "error of a hidden row", hidden: "7", none: "77",
			do: info(`{"dataset": "shared", "where": "1 %% (label - %s) == 5"}`)},
		{door: "DoGet", name: "error of a hidden row", hidden: "9", none: "99",
			do: get(`{"dataset": "shared", "where": "1 %% (label - %s) == 5"}`)},
		{door: "GetFlightInfo", name: "where on a hidden column", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "where": "%s == '000001.jpg'"}`)},
		{door: "GetFlightInfo", name: "where by $env", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "where": "$env['%s'] == '000001.jpg'"}`)},
		{door: "DoGet", name: "where that another has had evaluated", hidden: "file_name", none: "file_nane",
			do: get(`{"dataset": "shared", "where": "%s != 'evaluated before'"}`)},
		{door: "DoGet", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: get(`{"dataset": "shared", "columns": ["label", %q]}`)},
		{door: "GetFlightInfo", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "columns": [%q]}`)},
		{door: "GetSchema", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: func(a as, x string) outcome {
				return a.schemaOf(command(`{"dataset": "shared", "columns": [%q]}`, x))
			}},
		{door: "GetFlightInfo", name: "hidden split", hidden: "test", none: "tost", do: func(a as, x string) outcome {
			return a.info(path("shared", x))
		}},
		{door: "DoGet", name: "hidden split", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "split": %q}`)},
		{door: "DoGet", name: "hidden split and where", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "where": "label > 0", "split": %q}`)},
		{door: "DoGet", name: "where split", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "where": "split == '%s'"}`)},
		{door: "GetSchema", name: "hidden split", hidden: "test", none: "tost", do: func(a as, x string) outcome {
			return a.schemaOf(path("shared", x))
		}},
		{door: "DoPut", name: "selection of a hidden position", hidden: "7", none: "70000",
			do: func(a as, x string) outcome {
				return a.put(command(`{"selection": {"dataset": "shared"}}`), ints("position", 0, number(x)))
			}},
		{door: "DoPut", name: "selection of a hidden id", hidden: schema.FormatID(idOf(7)),
			none: schema.FormatID(idOf(70000)), do: func(a as, x string) outcome {
				id := idOf(7)
				if x != schema.FormatID(id) {
					id = idOf(70000)
				}
				return a.put(command(`{"selection": {"dataset": "shared"}}`), idRecord(id))
			}},
		{door: "DoGet", name: "steps over hidden rows", hidden: "11", none: "1100",
			do: get(`{"dataset": "shared", "batch": 10, "step": %s, "stride": 3}`)},
		{door: "DoGet", name: "a row of a share", hidden: "30", none: "3000",
			do: get(`{"dataset": "shared", "columns": ["position"], "batch": 1000, "where": "label == 4 or label == 5", "row": %s}`)},
	}
	return ways
}

// Whatever way alice tries, she gets no byte, and learns nothing that she would not learn
// of what there is not.
func TestWrongWays(t *testing.T) {
	r := wrongServer(t)
	alice, bob, root := r.as("alice"), r.as("bob"), r.as("root")
	// What others do meanwhile must not show, nor what was computed for them.
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
		t.Run(w.door+"/"+w.name, func(t *testing.T) {
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
				t.Errorf("what is hidden can be told from what there is not:\n%s\n%s", a, b)
			}
		})
	}
	t.Logf("wrong ways: ways=%d bytes_out=%d distinguishable=%d", len(ways), bytesOut, distinguishable)
}

// Every RPC and every action has its wrong ways in the table, or does not lead to data.
func TestWrongWaysAreAll(t *testing.T) {
	noData := map[string]string{
		"Handshake":         "says who calls",
		"ListActions":       "is the same for everybody",
		"DoAction/samenode": "says where a socket is, which gives memory and no bytes",
		"DoAction":          "is covered by its actions",
		"DoAction/stats":    "has a test of its own: TestStatsAreOnesOwn",
	}
	covered := map[string]bool{}
	for _, w := range wrongWays() {
		covered[w.door] = true
	}
	var doors []string
	for _, m := range gen.FlightService_ServiceDesc.Methods {
		doors = append(doors, m.MethodName)
	}
	for _, m := range gen.FlightService_ServiceDesc.Streams {
		doors = append(doors, m.StreamName)
	}
	for _, a := range actions() {
		doors = append(doors, "DoAction/"+a.name)
	}
	if len(doors) < 15 {
		t.Fatalf("only %d doors were found: %v", len(doors), doors)
	}
	for _, d := range doors {
		if !covered[d] && noData[d] == "" {
			t.Errorf("%s leads somewhere, and wrongWays has no way through it", d)
		}
	}
}

// Nothing but gate.go and gate_view.go asks the engine for what belongs to a dataset.
func TestGate(t *testing.T) {
	// of a job that was opened, or of none
	harmless := []string{"Stream", "Take", "Warm", "TotalBytes", "Ledger", "Work", "SetTerms"}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var inGate int
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || slices.Contains(harmless, sel.Sel.Name) {
				return true
			}
			if x, ok := sel.X.(*ast.SelectorExpr); ok && x.Sel.Name == "engine" {
				if strings.HasPrefix(name, "gate") {
					inGate++
				} else {
					t.Errorf("%s calls engine.%s: it has to go through gate.go, which asks the rules", name,
						sel.Sel.Name)
				}
			}
			return true
		})
	}
	if inGate == 0 {
		t.Error("no call of the engine was found: this test looks for the wrong thing")
	}
}

package flight

import (
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v17/arrow/flight"

	"bowstring/schema"
)

// way is a wrong way to data that alice may not see. It is tried with hidden data and with
// missing data: the outcomes are the same, and no byte arrives.
type way struct {
	method string // the RPC, or DoAction/NAME
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
		{method: "ListFlights", name: "by name", do: func(a as, x string) outcome {
			return a.flights(`{"dataset": "` + x + `"}`)
		}},
		{method: "ListFlights", name: "by prefix", do: func(a as, x string) outcome {
			return a.flights(`{"dataset": "` + x[:4] + `*"}`)
		}},
		{method: "DoAction/list", name: "by name", do: act("list", `{"dataset": "%s"}`)},
		{method: "DoAction/describe", name: "newest", do: act("describe", `{"dataset": "%s"}`)},
		{method: "DoAction/describe", name: "by number", do: act("describe", `{"dataset": "%s", "snapshot": 1}`)},
		{method: "DoAction/describe", name: "number that is not",
			do: act("describe", `{"dataset": "%s", "snapshot": 99}`)},
		{method: "DoAction/explain", name: "dataset", do: act("explain", `{"dataset": "%s"}`)},
		{method: "DoAction/explain", name: "with rates",
			do: act("explain", `{"dataset": "%s", "rates": {"store": {"latency_ms": 1}}}`)},
		{method: "DoAction/explain", name: "hidden split", hidden: "test", none: "tost",
			do: act("explain", `{"dataset": "shared", "split": "%s", "rates": {"store": {"latency_ms": 1}}}`)},
		{method: "DoAction/explain", name: "where label", hidden: "7", none: "77",
			do: act("explain", `{"dataset": "shared", "where": "label == %s", "rates": {"store": {"latency_ms": 1}}}`)},
		{method: "DoAction/calibrate", name: "dataset", do: act("calibrate", `{"dataset": "%s"}`)},
		{method: "GetSchema", name: "path", do: func(a as, x string) outcome { return a.schemaOf(path(x)) }},
		{method: "GetSchema", name: "command", do: func(a as, x string) outcome {
			return a.schemaOf(command(`{"dataset": %q}`, x))
		}},
		{method: "GetSchema", name: "column", do: func(a as, x string) outcome {
			return a.schemaOf(command(`{"dataset": %q, "columns": ["nope"]}`, x))
		}},
		{method: "GetFlightInfo", name: "path", do: func(a as, x string) outcome { return a.info(path(x)) }},
		{method: "GetFlightInfo", name: "split", do: func(a as, x string) outcome { return a.info(path(x, "train")) }},
		{method: "GetFlightInfo", name: "snapshot", do: func(a as, x string) outcome {
			return a.info(path(x+"@1", "train"))
		}},
		{method: "GetFlightInfo", name: "command", do: info(`{"dataset": %q}`)},
		{method: "GetFlightInfo", name: "where", do: info(`{"dataset": %q, "where": "label == 1"}`)},
		{method: "GetFlightInfo", name: "wrong where", do: info(`{"dataset": %q, "where": "label =="}`)},
		{method: "GetFlightInfo", name: "positions", do: info(`{"dataset": %q, "selection": {"positions": [0]}}`)},
		{method: "GetFlightInfo", name: "selection",
			do: info(`{"dataset": %q, "selection": {"name": "` + strings.Repeat("ab", 32) + `"}}`)},
		{method: "GetFlightInfo", name: "ranks", do: info(`{"dataset": %q, "world": {"size": 8}}`)},
		{method: "PollFlightInfo", name: "path", do: func(a as, x string) outcome { return a.poll(path(x)) }},
		{method: "DoGet", name: "by hand", do: get(`{"dataset": %q}`)},
		{method: "DoGet", name: "of another's info",
			do: get(`{"dataset": %q, "snapshot": 1, "batch": 64, "rank": 0, "step": 0}`)},
		{method: "DoGet", name: "resumed",
			do: get(`{"dataset": %q, "snapshot": 1, "batch": 64, "order": "free", "rank": 0, "step": 1, "row": 3, "served": "AQ=="}`)},
		{method: "DoGet", name: "beyond the end", do: get(`{"dataset": %q, "step": 100000}`)},
		{method: "DoGet", name: "unknown split", do: get(`{"dataset": %q, "split": "nope"}`)},
		{method: "DoGet", name: "unknown column", do: get(`{"dataset": %q, "columns": ["nope"]}`)},
		{method: "DoGet", name: "epochs", do: get(`{"dataset": %q, "shuffle": {"seed": 1, "epoch": 1}, "epochs": 3}`)},
		{method: "DoExchange", name: "position", do: take(`{"take": {"dataset": %q}}`)},
		{method: "DoExchange", name: "snapshot",
			do: take(`{"take": {"dataset": %q, "snapshot": 1, "columns": ["label"]}}`)},
		{method: "DoPut", name: "create", do: put(`{"put": {"dataset": %q, "key": "file_name"}}`)},
		{method: "DoPut", name: "append", do: put(`{"put": {"dataset": %q, "key": "file_name", "mode": "append"}}`)},
		{method: "DoPut", name: "replace", do: put(`{"put": {"dataset": %q, "key": "file_name", "mode": "replace"}}`)},
		{method: "DoPut", name: "merge", do: put(`{"put": {"dataset": %q, "on": "file_name", "mode": "merge"}}`)},
		{method: "DoPut", name: "delete", do: put(`{"put": {"dataset": %q, "on": "file_name", "mode": "delete"}}`)},
		{method: "DoAction/alter", name: "column", do: act("alter", `{"dataset": "%s", "drop_columns": ["label"]}`)},
		{method: "DoAction/alter", name: "rows", do: act("alter", `{"dataset": "%s", "delete_where": "label == 3"}`)},
		{method: "DoPut", name: "path", do: func(a as, x string) outcome {
			rec := samples(0, 2)
			defer rec.Release()
			return a.put(path(x), rec)
		}},
		{method: "DoPut", name: "selection", do: func(a as, x string) outcome {
			return a.put(command(`{"selection": {"dataset": %q}}`, x), ints("position", 1))
		}},
		{method: "DoAction/drop", name: "dataset", do: act("drop", `{"dataset": "%s"}`)},
		{method: "DoAction/drop", name: "snapshot", do: act("drop", `{"dataset": "%s", "snapshot": 1}`)},
		{method: "DoAction/tag", name: "by number", do: act("tag", `{"dataset": "%s", "snapshot": 1, "name": "mine"}`)},
		{method: "DoAction/tag", name: "by tag", do: act("tag", `{"dataset": "%s", "tag": "prod", "name": "mine"}`)},
		{method: "DoAction/untag", name: "a tag", do: act("untag", `{"dataset": "%s", "name": "prod"}`)},
		{method: "DoAction/steer", name: "a run", do: act("steer", `{"dataset": "%s", "run": "mine", "weights": {"a": 1}}`)},
		{method: "DoAction/runs", name: "of a dataset", do: act("runs", `{"dataset": "%s"}`)},
		{method: "DoAction/tags", name: "of a dataset", do: act("tags", `{"dataset": "%s"}`)},
		{method: "DoAction/tags", name: "by name", do: act("tags", `{"dataset": "%s@prod"}`)},
		{method: "GetFlightInfo", name: "tag", do: func(a as, x string) outcome {
			return a.info(path(x+"@prod", "train"))
		}},
		{method: "GetSchema", name: "tag that is not", do: func(a as, x string) outcome {
			return a.schemaOf(path(x + "@test"))
		}},
		{method: "DoAction/drop", name: "tag", do: act("drop", `{"dataset": "%s", "tag": "prod"}`)},
		{method: "DoAction/usage", name: "of a dataset", do: act("usage", `{"dataset": "%s"}`)},
		{method: "DoAction/warm", name: "dataset", do: act("warm", `{"dataset": "%s"}`)},
		{method: "DoAction/CancelFlightInfo", name: "whole ticket", do: func(a as, x string) outcome {
			return a.actProto(flight.CancelFlightInfoActionType,
				&flight.CancelFlightInfoRequest{Info: &flight.FlightInfo{
					Endpoint: []*flight.FlightEndpoint{{Ticket: ticket(x, whole)}}}})
		}},
		{method: "DoAction/CancelFlightInfo", name: "newest", do: func(a as, x string) outcome {
			return a.actProto(flight.CancelFlightInfoActionType,
				&flight.CancelFlightInfoRequest{Info: &flight.FlightInfo{
					Endpoint: []*flight.FlightEndpoint{{Ticket: ticket(x, "")}}}})
		}},
		{method: "DoAction/RenewFlightEndpoint", name: "ticket", do: func(a as, x string) outcome {
			return a.actProto(flight.RenewFlightEndpointActionType,
				&flight.RenewFlightEndpointRequest{Endpoint: &flight.FlightEndpoint{Ticket: ticket(x, whole)}})
		}},
		{method: "DoAction/cancel", name: "another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("cancel", `{"plan": "%s"}`)},
		{method: "DoAction/lineage", name: "another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("lineage", `{"job": "%s"}`)},
		{method: "DoAction/lineage", name: "a step of another's plan", hidden: "(plan)", none: "0123456789abcdef",
			do: act("lineage", `{"job": "%s", "step": 0}`)},
		{method: "DoAction/gc", name: "dry run", do: func(a as, _ string) outcome {
			return a.act("gc", `{"dry_run": true}`)
		}},
		{method: "DoAction/gc", name: "collection", do: func(a as, _ string) outcome { return a.act("gc", "") }},

		// Rows of a dataset that may be read in part: 7 is one that may not.
		{method: "DoExchange", name: "hidden position", hidden: "7", none: "70000", do: func(a as, x string) outcome {
			return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
		}},
		{method: "DoExchange", name: "beyond the last seen", hidden: "204", none: "205",
			do: func(a as, x string) outcome {
				return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
			}},
		{method: "DoExchange", name: "negative", hidden: "7", none: "-7", do: func(a as, x string) outcome {
			return a.take(`{"take": {"dataset": "shared"}}`, ints("position", number(x)))
		}},
		{method: "DoExchange", name: "hidden id", hidden: schema.FormatID(idOf(7)), none: schema.FormatID(idOf(70000)),
			do: func(a as, x string) outcome {
				id := idOf(7)
				if x != schema.FormatID(id) {
					id = idOf(70000)
				}
				return a.take(`{"take": {"dataset": "shared"}}`, idRecord(id))
			}},
		{method: "DoExchange", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: take(`{"take": {"dataset": "shared", "columns": [%q]}}`)},
		{method: "DoGet", name: "listed positions", hidden: "7", none: "70000",
			do: get(`{"dataset": "shared", "selection": {"positions": [%s]}}`)},
		{method: "GetFlightInfo", name: "listed positions", hidden: "7", none: "70000",
			do: info(`{"dataset": "shared", "selection": {"positions": [%s]}}`)},
		{method: "GetFlightInfo", name: "listed and where", hidden: "7", none: "70000",
			do: info(`{"dataset": "shared", "where": "label >= 0", "selection": {"positions": [%s]}}`)},
		{method: "DoGet", name: "where position", hidden: "7", none: "70000",
			do: get(`{"dataset": "shared", "where": "position == %s"}`)},
		{method: "DoGet", name: "where id", hidden: schema.FormatID(idOf(7)), none: schema.FormatID(idOf(70000)),
			do: get(`{"dataset": "shared", "where": "id == '%s'"}`)},
		{method: "DoGet", name: "where label", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "label == %s"}`)},
		{method: "DoGet", name: "where or true", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "label == %s or false"}`)},
		{method: "DoGet", name: "where size", hidden: "7", none: "77",
			do: get(`{"dataset": "shared", "where": "image.size > 0 and label == %s"}`)},
		{method: "GetFlightInfo", name: "error of a hidden row", hidden: "7", none: "77",
			do: info(`{"dataset": "shared", "where": "1 %% (label - %s) == 5"}`)},
		{method: "DoGet", name: "error of a hidden row", hidden: "9", none: "99",
			do: get(`{"dataset": "shared", "where": "1 %% (label - %s) == 5"}`)},
		{method: "GetFlightInfo", name: "where on a hidden column", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "where": "%s == '000001.jpg'"}`)},
		{method: "GetFlightInfo", name: "where by $env", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "where": "$env['%s'] == '000001.jpg'"}`)},
		{method: "DoGet", name: "where that another has had evaluated", hidden: "file_name", none: "file_nane",
			do: get(`{"dataset": "shared", "where": "%s != 'evaluated before'"}`)},
		{method: "DoGet", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: get(`{"dataset": "shared", "columns": ["label", %q]}`)},
		{method: "GetFlightInfo", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: info(`{"dataset": "shared", "columns": [%q]}`)},
		{method: "GetSchema", name: "hidden column", hidden: "file_name", none: "file_nane",
			do: func(a as, x string) outcome {
				return a.schemaOf(command(`{"dataset": "shared", "columns": [%q]}`, x))
			}},
		{method: "GetFlightInfo", name: "hidden split", hidden: "test", none: "tost", do: func(a as, x string) outcome {
			return a.info(path("shared", x))
		}},
		{method: "DoGet", name: "hidden split", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "split": %q}`)},
		{method: "DoGet", name: "hidden split and where", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "where": "label > 0", "split": %q}`)},
		{method: "DoGet", name: "where split", hidden: "test", none: "tost",
			do: get(`{"dataset": "shared", "where": "split == '%s'"}`)},
		{method: "GetSchema", name: "hidden split", hidden: "test", none: "tost", do: func(a as, x string) outcome {
			return a.schemaOf(path("shared", x))
		}},
		{method: "DoPut", name: "selection of a hidden position", hidden: "7", none: "70000",
			do: func(a as, x string) outcome {
				return a.put(command(`{"selection": {"dataset": "shared"}}`), ints("position", 0, number(x)))
			}},
		{method: "DoPut", name: "selection of a hidden id", hidden: schema.FormatID(idOf(7)),
			none: schema.FormatID(idOf(70000)), do: func(a as, x string) outcome {
				id := idOf(7)
				if x != schema.FormatID(id) {
					id = idOf(70000)
				}
				return a.put(command(`{"selection": {"dataset": "shared"}}`), idRecord(id))
			}},
		{method: "DoGet", name: "steps over hidden rows", hidden: "11", none: "1100",
			do: get(`{"dataset": "shared", "batch": 10, "step": %s, "stride": 3}`)},
		{method: "DoGet", name: "a row of a share", hidden: "30", none: "3000",
			do: get(`{"dataset": "shared", "columns": ["position"], "batch": 1000, "where": "label == 4 or label == 5", "row": %s}`)},
	}
	return ways
}

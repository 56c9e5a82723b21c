package simulate

import (
	"errors"
	"strings"
	"testing"

	"bowstring/schema"
)

const small = `{"nodes": {"count": 2}, "spill": {"bytes": 64000000}, "datasets": [{"name": "d", "samples": 100, "bytes": 1000}], "jobs": [{"dataset": "d", "batch": 10}]}`

// An error names the field, the wrong value and the valid ones.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, field string }{
		{`"count": 2`, `"count": 0`, "nodes.count"},
		{`"count": 2`, `"cuont": 2`, "nodes.cuont"},
		{`"count": 2`, `"count": 2, "zones": 3`, "nodes.zones"},
		{`"spill"`, `"sample": 3, "spill"`, "sample"},
		{`64000000`, `1000`, "spill.bytes"},
		{`64000000`, `"much"`, "spill.bytes"},
		{`"spill"`, `"store": {"latency_ms": -1}, "spill"`, "store.latency_ms"},
		{`"name": "d"`, `"name": "d/e"`, "datasets[0].name"},
		{`"dataset": "d"`, `"dataset": "e"`, "jobs[0].dataset"},
		{`"batch": 10`, `"batch": 1`, "jobs[0].batch"},
		{`"batch": 10`, `"batch": 10, "assign": "near"`, "jobs[0].assign"},
		{`"batch": 10`, `"batch": 10, "order": "any"`, "jobs[0]."},
		{`"batch": 10`, `"batch": 10, "pause_s": -1`, "jobs[0].pause_s"},
		{`"batch": 10`, `"batch": 10, "ranks": 3`, "jobs[0].ranks"},
		{`"jobs"`, `"faults": [{"kind": "fire", "at_s": 1, "node": 0}], "jobs"`, "faults[0].kind"},
		{`"jobs"`, `"faults": [{"kind": "kill", "at_s": 1}], "jobs"`, "faults[0].node"},
		{`"jobs"`, `"faults": [{"kind": "stop", "at_s": 1, "node": 1}], "jobs"`, "faults[0].for_s"},
		{`"jobs"`, `"faults": [{"kind": "kill", "at_s": 1, "node": 2}], "jobs"`, "faults[0].node"},
		{`"jobs"`, `"faults": [{"kind": "store_slow", "at_s": 1, "factor": 0.5}], "jobs"`, "faults[0].factor"},
		{small, ``, "file"},
		{small, `[]`, "file"},
		{small, "nodes: {count: 2\n", "file"},
	} {
		text := strings.Replace(small, c.old, c.new, 1)
		_, err := Parse([]byte(text), nil)
		if err == nil || !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v; want an error that names %s", text, err, c.field)
		}
	}
	if _, err := Parse([]byte(small), []byte(`{"store": {"reads_per_s": 10, "colour": 1}}`)); err == nil ||
		!strings.Contains(err.Error(), "store.colour") {
		t.Errorf("rates with an unknown field: %v", err)
	}
}

// Rates are the defaults of a file, field by field; YAML says what JSON does.
func TestParseRates(t *testing.T) {
	rates := `{"store": {"latency_ms": 3, "reads_per_s": 10}, "spill": {"read_bytes_per_s": 5}, "node": {"cores": 1.5}, "network": {"bytes_per_s": 7},
	"uncertainty": {"store.latency_ms": {"spread": 0.1}}, "server": "grpc://host:1", "dataset": "d", "at": "2026-01-01T00:00:00Z"}` // as calibrate writes it
	f, err := Parse([]byte("nodes: {count: 2}\nspill: {bytes: 64000000}\nstore: {reads_per_s: 20}\ndatasets: [{name: "+
		"d, samples: 100, bytes: 1000}]\njobs: [{dataset: d, batch: 10}]\n"), []byte(rates))
	if err != nil {
		t.Fatal(err)
	}
	if f.Store != (Store{LatencyMS: 3, ReadsPerS: 20}) || f.Spill != (Spill{Bytes: 64000000, ReadBytesPerS: 5}) ||
		f.Node.Cores != 1.5 || f.Network.BytesPerS != 7 {
		t.Errorf("got %+v", f)
	}
	if j := f.Jobs[0]; j.Name != "job-1" || j.Epochs != 1 || j.Ranks != 2 || j.Assign != "plan" {
		t.Errorf("defaults of a job: %+v", j)
	}
}

package simulate

import (
	"encoding/json"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
)

// simulated runs a file.
func simulated(t *testing.T, text string) *Report {
	t.Helper()
	f, err := Parse([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	small := f.sampled()
	datasets, err := makeAll(small)
	if err != nil {
		t.Fatal(err)
	}
	var report *Report
	synctest.Test(t, func(t *testing.T) {
		opts := Options{}
		if os.Getenv("SIMLOG") != "" {
			opts.Logger = slog.Default()
		}
		if report, err = run(small, datasets, opts); err != nil {
			t.Fatal(err)
		}
	})
	if testing.Verbose() {
		b, _ := json.MarshalIndent(report, "", " ")
		t.Log(string(b))
	}
	return report
}

func TestFirst(t *testing.T) {
	simulated(t, `{"nodes": {"count": 4, "ranks": 1}, "store": {"latency_ms": 5, "reads_per_s": 1000}, "spill": {"bytes": 100000000},
	"network": {"latency_ms": 1, "bytes_per_s": 1e9}, "node": {"us_per_sample": 10, "s_per_gb": 0.2, "cores": 2},
	"datasets": [{"name": "d", "samples": 4000, "bytes": 24000}],
	"jobs": [{"dataset": "d", "batch": 64, "epochs": 3, "assign": "local"}]}`)
}

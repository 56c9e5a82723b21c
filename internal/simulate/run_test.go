package simulate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
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
		if report, err = run(small, datasets, Options{}); err != nil {
			t.Fatal(err)
		}
	})
	for _, p := range report.Problems {
		t.Log(p)
	}
	return report
}

// file is a file with this number of nodes and this cache size in bytes each. Its job has a dataset of 2,000 samples
// of 24,000 bytes.
func file(nodes int, cache int64, job, more string) string {
	return fmt.Sprintf(`{"nodes": {"count": %d}, "store": {"latency_ms": 5, "reads_per_s": 2000}, "spill": {"bytes": %d, "read_bytes_per_s": 1e9},
	"network": {"latency_ms": 0.2, "bytes_per_s": 1e9}, "node": {"us_per_sample": 10, "cores": 2}%s,
	"datasets": [{"name": "d", "samples": 2000, "bytes": 24000}], "jobs": [{"dataset": "d", "batch": 64%s}]}`, nodes, cache, more, job)
}

// Every sample is served once in an epoch, and four nodes that hold the dataset together read it from the store once.
func TestHoldTogether(t *testing.T) {
	r := simulated(t, strings.Replace(file(4, 134e6, `, "epochs": 3, "assign": "local"`, ""), "24000", "240000", 1))
	for _, e := range r.Jobs[0].Epochs {
		if e.Samples != 2000 || e.Bytes != 2000*240000 {
			t.Errorf("epoch %d served %d samples of %d bytes, want 2,000 of 480,000,000", e.Epoch, e.Samples, e.Bytes)
		}
	}
	if reads := float64(r.Traffic.StoreReads) / 2000; reads > 1.1 {
		t.Errorf("%.3f reads of the store a sample in three epochs, want about 1", reads)
	}
	first, last := r.Jobs[0].Epochs[0], r.Jobs[0].Epochs[2]
	if first.Seconds < 1 || last.Seconds > first.Seconds/2 {
		t.Errorf("epochs took %v s and %v s; the first waits for a store of 2,000 reads a second, the last for none",
			first.Seconds, last.Seconds)
	}
	// b = 0.40 √((1−1/N)/(B/N)) of the bytes move where each node gets what it owns.
	if want, got := 0.40*math.Sqrt(0.75/16), float64(last.Traffic.PeerBytes)/float64(last.Bytes); got < want/2 ||
		got > want*2 {
		t.Errorf("%.3f of the bytes went from node to node, want about %.3f", got, want)
	}
}

// The cache is the real one: with half of the room it keeps what will be used, and hits half.
func TestHalfCache(t *testing.T) {
	r := simulated(t, file(1, 8<<20+24e6+600e3, `, "epochs": 4, "step_ms": 5`, ""))
	if e := r.Jobs[0].Epochs[3]; e.HitRate < 0.4 || e.HitRate > 0.8 {
		t.Errorf("a cache of half the dataset hits %.2f", e.HitRate)
	}
	if r.Engines.Evicted == 0 {
		t.Error("nothing was evicted")
	}
}

// A trainer that is slower than all else waits for nothing, and a step takes what its computing takes.
func TestPace(t *testing.T) {
	r := simulated(t, file(2, 64e6, `, "step_ms": 200, "epochs": 2, "pause_s": 3`, ""))
	e, next := r.Jobs[0].Epochs[0], r.Jobs[0].Epochs[1]
	if pause := next.StartS - e.StartS - e.Seconds; math.Abs(pause-3) > 1e-3 {
		t.Errorf("%v s are between two epochs, want 3", pause)
	}
	if want := 32 * 0.2; e.Seconds < want || e.Seconds > 1.1*want+0.2 {
		t.Errorf("32 steps of 200 ms took %v s", e.Seconds)
	}
	if w := e.Waits; math.Abs(w.Data+w.Compute+w.Ranks-e.Seconds) > 0.05 {
		t.Errorf("%+v do not make up %v s", w, e.Seconds)
	}
}

// Whatever happens to nodes, each sample is served once.
func TestFaults(t *testing.T) {
	for name, faults := range map[string]string{
		"kill and return": `{"kind": "kill", "at_s": 0.3, "node": 1, "for_s": 20}`,
		"keep the cache":  `{"kind": "kill", "at_s": 1.5, "node": 0, "for_s": 1, "keep_cache": true}`,
		"leave":           `{"kind": "leave", "at_s": 0.5, "node": 2}`,
		"join":            `{"kind": "join", "at_s": 0.7, "node": 2}`,
		"stop":            `{"kind": "stop", "at_s": 0.5, "node": 1, "for_s": 3}`,
		"cut":             `{"kind": "cut", "at_s": 0.2, "node": 1, "for_s": 5}`,
		"slow":            `{"kind": "slow", "at_s": 0.2, "node": 1, "factor": 1000, "for_s": 1}`,
		"store":           `{"kind": "store_slow", "at_s": 0.2, "factor": 20, "for_s": 2}`,
		"many":            `{"kind": "kill", "at_s": 0.3, "node": 0}, {"kind": "kill", "at_s": 0.4, "node": 1, "for_s": 2}, {"kind": "stop", "at_s": 1, "node": 2, "for_s": 30}`,
	} {
		t.Run(name, func(t *testing.T) {
			r := simulated(t, file(3, 64e6, `, "epochs": 2, "assign": "local", "step_ms": 20`,
				`, "faults": [`+faults+`]`))
			for _, e := range r.Jobs[0].Epochs {
				if e.Samples != 2000 {
					t.Errorf("epoch %d served %d samples, want 2,000", e.Epoch, e.Samples)
				}
			}
		})
	}
}

// A cluster whose nodes are gone for good does not keep its caller waiting.
func TestStuck(t *testing.T) {
	f, err := Parse([]byte(file(1, 64e6, "", `, "faults": [{"kind": "kill", "at_s": 0.1, "node": 0}]`)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Run(f, Options{}); err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("got %v, want an error that says that it was cancelled", err)
	}
}

// The same file serves the same samples by the same ways, and in about the same time: which goroutine of several goes
// first at a moment is for Go's scheduler to draw.
func TestRepeats(t *testing.T) {
	text := file(4, 40e6, `, "epochs": 2, "assign": "local", "step_ms": 10`, "")
	var first *Report
	near := func(a, b, by float64) bool { return math.Abs(a-b) <= by*max(a, b) }
	for range 3 {
		r := simulated(t, text)
		if first == nil {
			first = r
		}
		if !near(r.Seconds, first.Seconds, 0.1) ||
			!near(float64(r.Traffic.StoreBytes), float64(first.Traffic.StoreBytes), 0.02) ||
			!near(float64(r.Traffic.PeerBytes), float64(first.Traffic.PeerBytes), 0.02) ||
			r.Traffic.Served != first.Traffic.Served {
			t.Errorf("%v s, %+v; the first time %v s, %+v", r.Seconds, r.Traffic, first.Seconds, first.Traffic)
		}
	}
}

// The examples can be read, and run.
func TestExamples(t *testing.T) {
	list, err := os.ReadDir("../../examples/simulate")
	if err != nil || len(list) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, e := range list {
		text, err := os.ReadFile("../../examples/simulate/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(e.Name(), "rates") {
			continue
		}
		if _, err := Parse(text, nil); err != nil {
			t.Errorf("%s: %v", e.Name(), err)
		}
	}
}

// A plot is well-formed, and has a curve for each panel.
func TestPlot(t *testing.T) {
	drawing, err := simulated(t, file(2, 64e6, "", "")).Plot()
	if err != nil {
		t.Fatal(err)
	}
	curves := 0
	for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" && len(e.Attr[0].Value) > 10 {
			curves++
		}
	}
	if curves != 4 {
		t.Errorf("%d curves, want 4", curves)
	}
}

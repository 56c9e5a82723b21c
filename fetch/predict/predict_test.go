package predict

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"bowstring/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// usual is a job with photographs and a distant store.
func usual() (Rates, Job) {
	return Rates{
			Store:   Store{LatencyMS: 20, ReadsPerS: 20_000, BytesPerSec: 200e6},
			Spill:   Spill{ReadBytesPerSec: 2e9, WriteBytesPerSec: 1e9},
			Node:    Node{MicrosPerSample: 10, SecondsPerGB: 0.2, Cores: 8},
			Network: Network{LatencyMS: 0.2, BytesPerSec: 3e9},
		}, Job{
			Rows: 1_000_000, RowBytes: 110e3, RowReads: 1, Batch: 1024, Ranks: 8, Epochs: 10, PaceMS: 200, Nodes: 1,
			Strict:     true,
			CacheBytes: 64 << 30, WindowBytes: 2 << 30, BatchBytes: 16 << 20,
		}
}

func predicted(t *testing.T, r Rates, j Job) *Prediction {
	t.Helper()
	p, err := Of(r, j)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The bottleneck is named, and the rate equals one calculated by hand.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Rates, *Job)
		limit  Limit
		rate   float64 // of the first epoch
	}{
		{"link", func(*Rates, *Job) {}, ByLink, 200e6 / 110e3},
		{"reads", func(r *Rates, j *Job) { r.Store.ReadsPerS, j.PaceMS = 900, 0 }, ByStore, 900},
		{"consumer", func(_ *Rates, j *Job) { j.PaceMS = 2000 }, ByConsumer, 512},
		{"window", func(_ *Rates, j *Job) {
			j.WindowBytes, j.Batch, j.PaceMS = 2<<20, 1, 0
		}, ByStore, (float64(2<<20) - 110e3) / 110e3 / 0.020},
		{"reads in flight", func(r *Rates, j *Job) {
			r.Store = Store{LatencyMS: 8192}
			j.WindowBytes = 1 << 40
			j.PaceMS = 0
		}, ByStore, 500},
		{"spill", func(r *Rates, j *Job) {
			j.HeldBytes, r.Spill.ReadBytesPerSec, j.PaceMS = 110e9, 110e6, 0
		}, BySpill, 1000},
		{"node", func(r *Rates, j *Job) { r.Node = Node{MicrosPerSample: 2000, Cores: 1}; j.PaceMS = 0 }, ByNode, 500},
		{"network to consumers", func(r *Rates, j *Job) {
			r.Network.BytesPerSec, j.PaceMS = 110e6, 0
		}, ByNetwork, 1000},
		{"network between nodes", func(r *Rates, j *Job) {
			r.Network.BytesPerSec, j.PaceMS, j.Nodes, j.HeldBytes = 11e6, 0, 2, 110e9
		}, ByNetwork, 2 * 100 / 0.5},
		{"locality", func(r *Rates, j *Job) {
			r.Network.BytesPerSec, j.PaceMS, j.Nodes, j.HeldBytes, j.Local, j.Batch = 1e6, 0, 256, 110e9, true, 256*128
		}, ByNetwork, 256 * 1e6 / 110e3 / (0.40 * math.Sqrt((1-1.0/256)/128))},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, j := usual()
			c.change(&r, &j)
			e := predicted(t, r, j).First
			if e.Limit != c.limit || math.Abs(float64(e.SamplesPerSec)-c.rate) > 1e-6*c.rate {
				t.Errorf("limited by %s to %.3f samples/s, want %s, %.3f; %+v", e.Limit, e.SamplesPerSec, c.limit,
					c.rate, e.Parts)
			}
		})
	}
}

// With half of the dataset in the cache the link carries twice as many samples.
func TestLaterEpochs(t *testing.T) {
	r, j := usual()
	j.PaceMS = 0
	j.CacheBytes = cacheFixed + int64(j.footprint()/2)
	p := predicted(t, r, j)
	if got := float64(p.Later.SamplesPerSec / p.First.SamplesPerSec); math.Abs(got-2) > 1e-6 {
		t.Errorf("later epochs are %.4f times as fast, want 2", got)
	}
	if want := p.First.Seconds + 9*p.Later.Seconds; p.Seconds != want {
		t.Errorf("%.1f s in all, want %.1f", p.Seconds, want)
	}
	if p.Limit != ByLink || p.More[0].Nodes != 2 || p.More[1].Nodes != 4 {
		t.Errorf("%+v", p)
	}
	// Two nodes hold it all.
	if p.More[0].Later.HitShare < 0.9999 || p.More[0].Later.SamplesPerSec <= p.Later.SamplesPerSec {
		t.Errorf("two nodes: %+v", p.More[0].Later)
	}
}

func TestFirstBatch(t *testing.T) {
	_, j := usual()
	r := Rates{Store: Store{LatencyMS: 100}}
	for batch, trips := range map[int64]float64{1: 1, 256: 1, 257: 2, 768: 2, 769: 3} {
		j.Batch = batch
		if got := predicted(t, r, j).FirstBatchMS; math.Abs(got-100*trips) > 1e-6 {
			t.Errorf("a first batch of %d takes %.1f ms, want %g round trips of 100 ms", batch, got, trips)
		}
	}
	j.Lookups = 2
	if got := predicted(t, r, j).FirstBatchMS; got < 300 {
		t.Errorf("two look-ups of 100 ms, and the first batch after %.1f ms", got)
	}
}

func random(rng *rand.Rand) (Rates, Job) {
	// Over many orders of magnitude; sometimes unknown.
	draw := func(low, high float64) float64 {
		if rng.IntN(8) == 0 {
			return 0
		}
		return low * math.Pow(high/low, rng.Float64())
	}
	r := Rates{
		Store{draw(0.1, 300), draw(100, 1e6), draw(1e6, 1e10)}, Spill{draw(1e7, 1e10), draw(1e7, 1e10)},
		Node{draw(1, 1000), draw(0.05, 2), draw(1, 128)}, Network{draw(0.05, 5), draw(1e7, 1e10)},
	}
	n := func(most int64) int64 { return 1 + int64(math.Pow(float64(most), rng.Float64())) }
	j := Job{
		Rows: n(1e7), RowBytes: 100 * math.Pow(1e5, rng.Float64()), RowReads: float64(1 + rng.IntN(2)), Batch: n(4096),
		Ranks: n(64), Epochs: n(100),
		PaceMS: draw(1, 5000), Nodes: 1 << rng.IntN(7), Local: rng.IntN(2) == 0, Strict: rng.IntN(2) == 0,
		CacheBytes: n(1 << 40), WindowBytes: 1<<20 + n(1<<33), BatchBytes: 16 << 20, Lookups: n(3),
	}
	if rng.IntN(20) == 0 {
		j.RowBytes, j.RowReads = j.RowBytes*float64(rng.IntN(2)), float64(rng.IntN(2))
	}
	j.HeldBytes = int64(rng.Float64() * 1.2 * float64(j.Rows) * j.RowBytes * float64(rng.IntN(2)))
	return r, j
}

// If no known rate limits the job, its rate is infinite, and null in JSON.
func TestNothingLimits(t *testing.T) {
	_, j := usual()
	j.PaceMS, j.CacheBytes, j.HeldBytes = 0, 1<<40, 0
	r := Rates{Store: Store{BytesPerSec: 1e6}}
	p := predicted(t, r, j)
	if p.First.SamplesPerSec == Unlimited || p.Later.SamplesPerSec != Unlimited || p.Later.Seconds != 0 ||
		len(p.Later.Parts) != 0 {
		t.Errorf("of a store alone is known how fast it is: first %+v, later %+v", p.First, p.Later)
	}
	b, err := json.Marshal(p.Later)
	if err != nil || !strings.Contains(string(b), `"samples_per_s":null`) {
		t.Errorf("as JSON %s, %v", b, err)
	}
	var again Epoch
	if err := json.Unmarshal(b, &again); err != nil || again.SamplesPerSec != Unlimited {
		t.Errorf("read again: %+v, %v", again, err)
	}
	j.HeldBytes = int64(float64(j.Rows) * j.RowBytes)
	if p = predicted(t, r, j); p.First.SamplesPerSec != Unlimited {
		t.Errorf("held all: %+v", p.First)
	}
}

// Improving one rate makes nothing worse.
func TestMonotone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	slower := map[string]bool{"store.latency_ms": true, "network.latency_ms": true, "node.us_per_sample": true,
		"node.s_per_gb": true}
	for range 500 {
		r, j := random(rng)
		before := predicted(t, r, j)
		if _, err := json.Marshal(before); err != nil { // JSON has no infinity
			t.Fatalf("%v: %+v %+v", err, r, j)
		}
		for i, f := range r.fields() {
			if *f.at == 0 {
				continue // an unknown rate limits nothing, so a known one is worse
			}
			better := r
			factor := 1 + rng.Float64()
			if slower[f.name] {
				factor = 1 / factor
			}
			*better.fields()[i].at *= factor
			after := predicted(t, better, j)
			worse(t, before, after, "%s %g times as great", f.name, factor)
		}
		for name, change := range map[string]func(*Job){
			"cache":  func(j *Job) { j.CacheBytes *= 2 },
			"window": func(j *Job) { j.WindowBytes *= 2 },
			"held":   func(j *Job) { j.HeldBytes += 1 << 20 },
		} {
			// With a disk slower than the link, a larger cache slows the job.
			if name != "window" && (r.Spill.ReadBytesPerSec > 0 || r.Store.BytesPerSec > 0) {
				r := r
				r.Spill.ReadBytesPerSec = 0
				more := j
				change(&more)
				worse(t, predicted(t, r, j), predicted(t, r, more), "more %s", name)
				continue
			}
			more := j
			change(&more)
			worse(t, before, predicted(t, r, more), "more %s", name)
		}
		if t.Failed() {
			t.Fatalf("%+v %+v", r, j)
		}
	}
}

func worse(t *testing.T, a, b *Prediction, format string, args ...any) {
	t.Helper()
	const slack = 1 + 1e-9
	if b.First.SamplesPerSec*slack < a.First.SamplesPerSec || b.Later.SamplesPerSec*slack < a.Later.SamplesPerSec ||
		b.WaitSeconds > a.WaitSeconds*slack+1e-6 || b.FirstBatchMS > a.FirstBatchMS*slack+1e-9 {
		t.Errorf(format+": from %.6g, %.6g samples/s, %.6g s of waiting, %.6g ms to %.6g, %.6g, %.6g, %.6g",
			append(args,
				a.First.SamplesPerSec, a.Later.SamplesPerSec, a.WaitSeconds, a.FirstBatchMS,
				b.First.SamplesPerSec, b.Later.SamplesPerSec, b.WaitSeconds, b.FirstBatchMS)...)
	}
}

// The smallest cache and the smallest window are thresholds in the same model: with them consumers do not wait,
// with one byte less they do.
func TestSmallest(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var caches, windows, without int
	waited := func(e Epoch) bool { return e.WaitSeconds > 1e-9*e.Seconds }
	for range 2000 {
		r, j := random(rng)
		r.Spill.ReadBytesPerSec = 0 // see TestMonotone
		p := predicted(t, r, j)
		if c := p.SmallestCache; c != nil {
			with, less := j, j
			with.CacheBytes, less.CacheBytes = *c, *c-1
			if waited(predicted(t, r, with).Later) {
				t.Errorf("later epochs wait with the smallest cache, %d bytes", *c)
			}
			if *c > 0 {
				caches++
				if !waits(r, &less, less.held(less.CacheBytes)) {
					t.Errorf("later epochs do not wait with a byte less than the smallest cache, %d bytes", *c)
				}
			}
		} else if without++; j.PaceMS > 0 {
			all := j
			all.CacheBytes = 1 << 60
			if !waited(predicted(t, r, all).Later) && all.held(all.CacheBytes) == 1 {
				t.Errorf("no cache is said to be enough, and one that holds all is")
			}
		}
		if w := p.SmallestWindow; w != nil && *w > 1 {
			windows++
			with, less := j, j
			with.WindowBytes, less.WindowBytes = *w, *w-1
			later := func(j *Job) bool { return waits(r, j, j.held(j.CacheBytes)) }
			first := func(j *Job) bool { return waits(r, j, j.heldNow()) }
			any := func(j *Job) bool { return first(j) || j.Epochs > 1 && later(j) }
			if any(&with) && (j.Epochs == 1 || later(&with)) {
				t.Errorf("the smallest window, %d bytes, is not enough", *w)
			}
			if !any(&less) {
				t.Errorf("a byte less than the smallest window, %d bytes, is enough", *w)
			}
		}
		if t.Failed() {
			t.Fatalf("%+v %+v", r, j)
		}
	}
	if caches < 50 || windows < 50 || without < 50 {
		t.Errorf("only %d caches, %d windows and %d jobs without were looked at", caches, windows, without)
	}
}

// An error names the invalid field as JSON spells it.
func TestRefused(t *testing.T) {
	r, j := usual()
	for want, change := range map[string]func(*Rates, *Job){
		"rates.store.latency_ms":         func(r *Rates, _ *Job) { r.Store.LatencyMS = -1 },
		"rates.node.s_per_gb":            func(r *Rates, _ *Job) { r.Node.SecondsPerGB = math.NaN() },
		"rates.network.bytes_per_s":      func(r *Rates, _ *Job) { r.Network.BytesPerSec = math.Inf(1) },
		"rates.spill.write_bytes_per_s":  func(r *Rates, _ *Job) { r.Spill.WriteBytesPerSec = 2e15 },
		"batch: got 0, want 1 or more":   func(_ *Rates, j *Job) { j.Batch = 0 },
		"epochs: got -1, want 1 or more": func(_ *Rates, j *Job) { j.Epochs = -1 },
	} {
		r, j := r, j
		change(&r, &j)
		if _, err := Of(r, j); !errors.Is(err, schema.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The names in JSON are a contract with other programs.
func TestRatesJSON(t *testing.T) {
	const text = `{"store":{"latency_ms":1,"reads_per_s":2,"bytes_per_s":3},"spill":{"read_bytes_per_s":4,"write_bytes_per_s":5},` +
		`"node":{"us_per_sample":6,"s_per_gb":7,"cores":8},"network":{"latency_ms":9,"bytes_per_s":10}}`
	var r Rates
	if err := schema.DecodeJSON("rates", []byte(text), &r); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil || string(b) != text {
		t.Errorf("%s, %v", b, err)
	}
	for i, f := range r.fields() {
		if *f.at != float64(i+1) {
			t.Errorf("%s is %g", f.name, *f.at)
		}
	}
	if got := (Rates{Store: Store{LatencyMS: 11}}).Over(r); got.Store.LatencyMS != 11 || got.Network.BytesPerSec != 10 {
		t.Errorf("%+v", got)
	}
}

func TestChanges(t *testing.T) {
	then, _ := usual()
	now := then
	now.Store.BytesPerSec /= 2
	now.Store.LatencyMS *= 1.1
	now.Node.Cores = 0 // unknown now
	got := Changes(then, now, 0.15)
	if len(got) != 1 || got[0] != (Change{"store.bytes_per_s", 200e6, 100e6}) {
		t.Errorf("%+v", got)
	}
}

// Two parameters reproduce the four figures of Yang and Cong for MuMMI within a tenth.
func TestHiPC(t *testing.T) {
	for _, f := range HiPCMuMMI {
		got := MuMMI.Speedup(f.Nodes)
		t.Logf("%3.0f nodes: %.1f times, published %.0f", f.Nodes, got, f.Speedup)
		if math.Abs(got-f.Speedup) > 0.1*f.Speedup {
			t.Errorf("%.0f nodes: %.1f times as fast, the paper has %.0f", f.Nodes, got, f.Speedup)
		}
	}
	// By hand: 1000 samples, half of them cached.
	h := HiPC{D: 1000, R: 10, U: 5, V: 2, Rc: 100, Rb: 50, A: 0.5, B: 0.1}
	for name, c := range map[string][2]float64{
		"train": {h.Train(4), 125}, "load": {h.Load(4), 150}, "distributed": {h.LoadDistributed(4), 50 + 3.75 + 50},
		"local": {h.LoadLocal(4), 50 + 1 + 50}, "epoch": {h.Epoch(4, h.LoadLocal(4)), 125},
	} {
		if math.Abs(c[0]-c[1]) > 1e-9 {
			t.Errorf("%s: %g s, want %g", name, c[0], c[1])
		}
	}
}

// BenchmarkHiPC is what the bench reports: how far the model is from the published figures.
func BenchmarkHiPC(b *testing.B) {
	worst := 0.0
	for range b.N {
		for _, f := range HiPCMuMMI {
			worst = max(worst, math.Abs(MuMMI.Speedup(f.Nodes)/f.Speedup-1))
		}
	}
	b.ReportMetric(worst, "table_error")
}

package metrics_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/flight"
)

// fixed is a collector of statistics that the test makes up.
func fixed(t *testing.T, st *flight.Stats, times *[]fetch.Times) (*metrics.Collector, *prometheus.Registry) {
	t.Helper()
	c, err := metrics.New(metrics.Options{
		Stats: func() flight.Stats {
			return *st
		}, Times: func() []fetch.Times { return *times }, Version: "test", GoVersion: "go",
	})
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	return c, r
}

func gather(t *testing.T, r *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

// series counts those that a server which takes no native histograms stores.
func series(families map[string]*dto.MetricFamily) (n int) {
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n++
			if h := m.GetHistogram(); h != nil {
				n += len(h.GetBucket()) + 2
			}
		}
	}
	return n
}

// label is the value of a label.
func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// However many jobs, datasets and tenants there were, the series are bounded, and
// what was counted is in them, by name or in what all others did.
func TestSeriesAreBounded(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	st := flight.Stats{Engine: fetch.Stats{Spill: &fetch.SpillStats{Datasets: map[string]fetch.SpillDataset{}}}}
	times := []fetch.Times{{Tier: "spill"}, {Tier: "store"}}
	c, r := fixed(t, &st, &times)
	for _, method := range []string{"DoGet", "DoPut", "DoExchange", "GetFlightInfo", "GetSchema", "ListFlights",
		"DoAction", "ListActions", "Check"} {
		for _, code := range []codes.Code{codes.OK, codes.Canceled, codes.NotFound} {
			c.Ended(t.Context(), method, code, time.Second)
		}
	}
	empty := series(gather(t, r))
	var reads, lastOther float64
	for seen := 0; seen < 10_000; {
		// Jobs end, and as many begin; those that run go on.
		live := st.Engine.Jobs[:0]
		for _, j := range st.Engine.Jobs {
			if random.IntN(3) == 0 {
				n := random.Int64N(10)
				j.StoreReads += n
				reads += float64(n)
				live = append(live, j)
			}
		}
		for len(live) < 256 {
			live = append(live, fetch.JobStats{Job: fmt.Sprintf("%064x", seen), Dataset: fmt.Sprintf("d%d@1", seen),
				Rows: 100, Row: 50, StoreReads: 1})
			reads++
			if seen < 1000 { // none is ever forgotten
				st.Engine.Spill.Datasets[fmt.Sprintf("d%d@1", seen)] = fetch.SpillDataset{Misses: 1}
			}
			seen++
		}
		st.Engine.Jobs = live
		now := gather(t, r)
		if n := series(now); n > 2000+20*len(live) || n > 5000 {
			t.Fatalf("%d series with %d jobs that run, after %d", n, len(live), seen)
		}
		for _, m := range now["bowstring_job_reads_total"].GetMetric() {
			if label(m, "training_job") == "other" && label(m, "tier") == "store" {
				if v := m.GetCounter().GetValue(); v < lastOther {
					t.Fatalf("a counter fell from %g to %g", lastOther, v)
				} else {
					lastOther = v
				}
			}
		}
	}
	full := series(gather(t, r))
	t.Logf("%d series without a job, %d after 10,000", empty, full)
	if lastOther == 0 || lastOther > reads {
		t.Errorf("other jobs have %g reads of %g", lastOther, reads)
	}
	misses := 0.0
	for _, m := range gather(t, r)["bowstring_spill_misses_total"].GetMetric() {
		misses += m.GetCounter().GetValue()
	}
	if misses != float64(len(st.Engine.Spill.Datasets)) {
		t.Errorf("%g misses in all, want %d", misses, len(st.Engine.Spill.Datasets))
	}
}

// Names that clients make up do not collide with those that stand for others.
func TestNamesOfOthers(t *testing.T) {
	st := flight.Stats{Tenants: []flight.TenantInfo{{Tenant: "", Calls: 1}, {Tenant: "other", Calls: 1},
		{Others: true, Calls: 1}}}
	_, r := fixed(t, &st, &[]fetch.Times{})
	var names []string
	for _, m := range gather(t, r)["bowstring_tenant_rows_total"].GetMetric() {
		names = append(names, label(m, "tenant"))
	}
	if got := strings.Join(names, " "); got != "() (other) other" {
		t.Errorf("tenants %s", got)
	}
}

// The names of metrics and their help are as Prometheus would have them.
func TestConventions(t *testing.T) {
	st := flight.Stats{Engine: fetch.Stats{
		Spill: &fetch.SpillStats{Datasets: map[string]fetch.SpillDataset{"d@1": {}}},
		Jobs:  []fetch.JobStats{{Job: "j", Dataset: "d@1"}},
	}}
	times := []fetch.Times{{Tier: "store"}}
	c, r := fixed(t, &st, &times)
	c.Ended(t.Context(), "DoGet", codes.OK, time.Second)
	c.FirstBatch(t.Context(), time.Second)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Latencies are in both kinds of histogram, and reads that are traced are examples.
func TestReadSeconds(t *testing.T) {
	times := fetch.Times{Tier: "store", Sum: 3 * time.Second, Count: 3}
	bucket := func(seconds float64) int { // the first one whose bound is not below
		i := 0
		for i < len(times.Counts)-1 && bound(i) < seconds {
			i++
		}
		return i
	}
	for _, s := range []float64{0.003, 0.003, 1} {
		times.Counts[bucket(s)]++
	}
	traced := trace.TraceID{1, 2, 3}
	times.Examples[3].Trace, times.Examples[3].Took, times.Examples[3].At = traced, 3*time.Millisecond, time.Now()
	_, r := fixed(t, &flight.Stats{}, &[]fetch.Times{times})
	h := gather(t, r)["bowstring_read_seconds"].GetMetric()[0].GetHistogram()
	for _, b := range h.GetBucket() {
		want := uint64(0)
		if b.GetUpperBound() >= 0.003 {
			want = 2
		}
		if b.GetUpperBound() >= 1 {
			want = 3
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("%d reads took up to %g s, want %d", b.GetCumulativeCount(), b.GetUpperBound(), want)
		}
	}
	// Native buckets, as the protocol has them: spans of indexes, and differences.
	got, at, delta, value := map[int32]int64{}, int32(0), 0, int64(0)
	for _, span := range h.GetPositiveSpan() {
		at += span.GetOffset()
		for range span.GetLength() {
			value += h.GetPositiveDelta()[delta]
			got[at] = value
			at++
			delta++
		}
	}
	for i, n := range times.Counts {
		if n != uint64(got[int32(fetch.TimesFirst+i)]) {
			t.Errorf("native bucket %d has %d reads, want %d", fetch.TimesFirst+i, got[int32(fetch.TimesFirst+i)], n)
		}
	}
	var text strings.Builder
	enc := expfmt.NewEncoder(&text, expfmt.NewFormat(expfmt.TypeOpenMetrics))
	if err := enc.Encode(gather(t, r)["bowstring_read_seconds"]); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), `trace_id="`+traced.String()+`"`) {
		t.Errorf("no example in\n%s", text.String())
	}
}

func bound(i int) float64 {
	b := 1.0
	for n := fetch.TimesFirst + i; n < 0; n += 8 {
		b /= 2
	}
	for n := fetch.TimesFirst + i; n >= 8; n -= 8 {
		b *= 2
	}
	const eighth = 1.0905077326652577 // 2^(1/8)
	for n := ((fetch.TimesFirst+i)%8 + 8) % 8; n > 0; n-- {
		b *= eighth
	}
	return b
}

// Calls of a traced caller are examples.
func TestExemplars(t *testing.T) {
	c, r := fixed(t, &flight.Stats{}, &[]fetch.Times{})
	id := trace.TraceID{9}
	sampled := trace.ContextWithSpanContext(context.Background(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1},
			TraceFlags: trace.FlagsSampled}))
	unsampled := trace.ContextWithSpanContext(context.Background(),
		trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{8}, SpanID: trace.SpanID{1}}))
	c.FirstBatch(unsampled, time.Second)
	examples := func() (found []string) {
		for _, b := range gather(t, r)["bowstring_first_batch_seconds"].GetMetric()[0].GetHistogram().GetBucket() {
			for _, l := range b.GetExemplar().GetLabel() {
				if l.GetName() == "trace_id" {
					found = append(found, l.GetValue())
				}
			}
		}
		return found
	}
	if found := examples(); len(found) > 0 {
		t.Errorf("examples %v of a call that is not traced", found)
	}
	c.FirstBatch(sampled, time.Second)
	if found := examples(); len(found) != 1 || found[0] != id.String() {
		t.Errorf("examples %v, want %s", found, id)
	}
}

// TestObjects: requests to buckets are shown by bucket and kind, a bounded number of them by name, and none is lost.
func TestObjects(t *testing.T) {
	st := &flight.Stats{}
	const n = 60
	for i := range n {
		u := object.Usage{Bucket: fmt.Sprintf("s3://bucket%02d", i), Counts: object.Counts{Gets: 7, Puts: 2, BytesIn: 100,
			Throttled: 1}, Cost: object.Bill{Total: object.Dollar / 4}}
		u.Tenants = []object.UsageTenant{{Tenant: "a", Counts: u.Counts, Cost: u.Cost}}
		u.Limits = []object.Limit{{Bucket: u.Bucket, Class: "reads", PerSecond: 100, Waiting: 3}}
		u.FirstByte.Counts[40], u.FirstByte.Count, u.FirstByte.Sum = 9, 9, 9*time.Millisecond
		st.Objects = append(st.Objects, u)
	}
	_, r := fixed(t, st, &[]fetch.Times{})
	got := gather(t, r)
	sums := map[string]float64{}
	for _, m := range got["bowstring_object_requests_total"].GetMetric() {
		sums[label(m, "kind")] += m.GetCounter().GetValue()
	}
	if sums["get"] != 7*n || sums["put"] != 2*n || sums["list"] != 0 || len(sums) != len(object.Kinds()) {
		t.Errorf("requests by kind: %v", sums)
	}
	if have := len(got["bowstring_object_cost_dollars_total"].GetMetric()); have != 51 {
		t.Errorf("%d buckets have series, want 50 and one for the others", have)
	}
	if m := got["bowstring_tenant_object_cost_dollars_total"].GetMetric(); len(m) != 1 || m[0].GetCounter().GetValue() != n/4 {
		t.Errorf("cost by tenant: %v", m)
	}
	if m := got["bowstring_object_limit_requests_per_second"].GetMetric(); len(m) != 50 || m[0].GetGauge().GetValue() != 100 {
		t.Errorf("limits: %v", m)
	}
	if h := got["bowstring_object_first_byte_seconds"].GetMetric()[0].GetHistogram(); h.GetSampleCount() != 9 {
		t.Errorf("times until the first byte: %v", h)
	}
}

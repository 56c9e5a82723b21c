package command

import (
	"context"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

const (
	rulesFile = "../../../deploy/prometheus/bowstring.rules.yml"
	// scrapeEvery is how often the servers of a replay are scraped, and rules evaluated.
	scrapeEvery = 30 * time.Second
	// replayed is how long a replay is.
	replayed = 40 * time.Minute
)

// point is a sample of a series.
type point struct {
	at int64
	v  float64
}

func (p point) T() int64                    { return p.at }
func (point) ST() int64                     { return 0 }
func (p point) F() float64                  { return p.v }
func (point) H() *histogram.Histogram       { return nil }
func (point) FH() *histogram.FloatHistogram { return nil }
func (point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample         { return p }

// history is series in memory, as Prometheus would have them.
type history struct {
	series []storage.Series
	begin  time.Time
}

// flat are the series of a scrape with their values, by labels as text.
type flat struct {
	at     time.Time
	series map[string]flatSeries
}

type flatSeries struct {
	labels  labels.Labels
	value   float64
	counter bool
}

// flatten makes series of what a registry gathers, with the labels of a target.
func flatten(families []*dto.MetricFamily, job, instance string) flat {
	all := flat{time.Now(), map[string]flatSeries{}}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			add := func(suffix string, v float64, counter bool, more ...string) {
				pairs := append([]string{model.MetricNameLabel, f.GetName() + suffix, "job", job, "instance", instance},
					more...)
				for _, l := range m.GetLabel() {
					pairs = append(pairs, l.GetName(), l.GetValue())
				}
				set := labels.FromStrings(pairs...)
				all.series[set.String()] = flatSeries{set, v, counter}
			}
			switch {
			case m.Counter != nil:
				add("", m.GetCounter().GetValue(), true)
			case m.Gauge != nil:
				add("", m.GetGauge().GetValue(), false)
			case m.Untyped != nil:
				add("", m.GetUntyped().GetValue(), false)
			case m.Summary != nil:
				add("_sum", m.GetSummary().GetSampleSum(), true)
				add("_count", float64(m.GetSummary().GetSampleCount()), true)
				for _, q := range m.GetSummary().GetQuantile() {
					add("", q.GetValue(), false, "quantile", strconv.FormatFloat(q.GetQuantile(), 'g', -1, 64))
				}
			case m.Histogram != nil:
				h := m.GetHistogram()
				add("_sum", h.GetSampleSum(), true)
				add("_count", float64(h.GetSampleCount()), true)
				for _, b := range h.GetBucket() {
					if !math.IsInf(b.GetUpperBound(), 1) {
						add("_bucket", float64(b.GetCumulativeCount()), true, "le",
							strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
					}
				}
				add("_bucket", float64(h.GetSampleCount()), true, "le", "+Inf")
			}
		}
	}
	return all
}

// replayOf is a history in which counters go on as fast as they did between two
// scrapes, and all else is as it was after.
func replayOf(before, after flat) *history {
	h := &history{begin: time.Now().Truncate(time.Second)}
	took := max(after.at.Sub(before.at), time.Millisecond)
	for name, s := range after.series {
		from := 0.0
		if past, ok := before.series[name]; ok {
			from = past.value
		}
		var samples []chunks.Sample
		for at := time.Duration(0); at <= replayed; at += scrapeEvery {
			v := s.value
			if s.counter {
				v = from + (s.value-from)*at.Seconds()/took.Seconds()
			}
			samples = append(samples, point{h.begin.Add(at).UnixMilli(), v})
		}
		h.series = append(h.series, storage.NewListSeries(s.labels, samples))
	}
	return h
}

// change has all series of a name be something else from some time on.
func (h *history) change(name string, from time.Duration, to float64) {
	for i, s := range h.series {
		if s.Labels().Get(model.MetricNameLabel) != name {
			continue
		}
		var samples []chunks.Sample
		for it := s.Iterator(nil); it.Next() != chunkenc.ValNone; {
			at, v := it.At()
			if at >= h.begin.Add(from).UnixMilli() {
				v = to
			}
			samples = append(samples, point{at, v})
		}
		h.series[i] = storage.NewListSeries(s.Labels(), samples)
	}
}

// Querier implements storage.Queryable.
func (h *history) Querier(int64, int64) (storage.Querier, error) { return (*querier)(h), nil }

type querier history

func (*querier) Close() error { return nil }
func (*querier) LabelValues(context.Context, string, *storage.LabelHints,
	...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}
func (*querier) LabelNames(context.Context, *storage.LabelHints,
	...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Select implements storage.Querier.
func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	var found []storage.Series
	for _, s := range q.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			found = append(found, s)
		}
	}
	return &seriesSet{found: found, at: -1}
}

type seriesSet struct {
	found []storage.Series
	at    int
}

func (s *seriesSet) Next() bool                      { s.at++; return s.at < len(s.found) }
func (s *seriesSet) At() storage.Series              { return s.found[s.at] }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// alertRules reads the rules with Prometheus's own checks of their form.
func alertRules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation)
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	var list []rulefmt.Rule
	for _, g := range groups.Groups {
		list = append(list, g.Rules...)
	}
	return list
}

// firing evaluates all rules over a history, in their order, and returns the
// alerts that fired in it.
func firing(t *testing.T, h *history) []string {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, EnableAtModifier: true})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	var fired []string
	for _, r := range alertRules(t) {
		q, err := engine.NewRangeQuery(t.Context(), h, nil, r.Expr, h.begin.Add(5*time.Minute), h.begin.Add(replayed),
			scrapeEvery)
		if err != nil {
			t.Fatalf("%s%s: %v", r.Alert, r.Record, err)
		}
		result := q.Exec(t.Context())
		matrix, err := result.Matrix()
		if err != nil {
			t.Fatalf("%s%s: %v", r.Alert, r.Record, err)
		}
		for _, s := range matrix {
			if r.Record != "" {
				var samples []chunks.Sample
				for _, p := range s.Floats {
					samples = append(samples, point{p.T, p.F})
				}
				set := labels.NewBuilder(s.Metric).Set(model.MetricNameLabel, r.Record).Labels()
				h.series = append(h.series, storage.NewListSeries(set, samples))
			} else if longest(s.Floats) >= time.Duration(r.For) && !slices.Contains(fired, r.Alert) {
				fired = append(fired, r.Alert)
			}
		}
		q.Close()
	}
	slices.Sort(fired)
	return fired
}

// longest is for how long a series was there without a gap.
func longest(points []promql.FPoint) (most time.Duration) {
	since := 0
	for i, p := range points {
		if i > 0 && p.T-points[i-1].T > scrapeEvery.Milliseconds() {
			since = i
		}
		most = max(most, time.Duration(p.T-points[since].T)*time.Millisecond)
	}
	return most
}

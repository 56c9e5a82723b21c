package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"bowstring/cmd/bowstring/metrics"
	"bowstring/fetch/object"
	"bowstring/flight"
	"bowstring/flight/shm"
	"bowstring/internal/objecttest"
	"bowstring/schema"
)

// sharedMemory opens a server of rings. It is nil on systems without memfd.
func sharedMemory(t *testing.T) *shm.Server {
	t.Helper()
	if !shm.Supported {
		return nil
	}
	s, err := shm.Listen(shm.Options{Path: filepath.Join(t.TempDir(), "s"), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // registered before the server's, so after it
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// everything is a scrape of a server that has all that there is to see.
func everything(t *testing.T) flat {
	t.Helper()
	o := newObserved(t, observedOptions{
		flight: flight.Options{Shm: sharedMemory(t), Requests: asked(t)},
		spill:  spillIn(t.TempDir()), collections: metrics.NewCollections(time.Hour), memoryLimit: 1 << 40,
		cluster: func() *metrics.Cluster {
			return &metrics.Cluster{Name: "lab", Node: "a", View: "v", Members: 2, Share: 0.5, Read: time.Now(), Up: 1}
		},
		certificates: func() map[string]time.Time { return map[string]time.Time{"admin": time.Now()} },
		sources:      func() map[string]bool { return map[string]bool{"tokens": false} },
	})
	o.mustRead(2)
	if _, err := o.read(t.Context(), schema.Request{Dataset: "nothing"}, ""); err == nil {
		t.Fatal("there is no dataset of that name")
	}
	return o.flat()
}

// asked are requests to a bucket. The bucket refused one of them.
func asked(t *testing.T) *object.Requests {
	t.Helper()
	s, err := objecttest.Start(objecttest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.PutObject("bucket", "a", []byte("a"))
	refused := objecttest.SlowDown()
	refused.Times = 1
	s.Fail(refused)
	requests := object.NewRequests(object.RequestsOptions{})
	b, err := object.Open(t.Context(), s.URL("bucket"), object.Options{Requests: requests,
		Keys: &object.Keys{ID: "id", Secret: "secret"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Stat(t.Context(), "a"); !errors.Is(err, schema.ErrUnavailable) {
		t.Fatalf("the first request is not refused: %v", err)
	}
	if _, err := b.Stat(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	return requests
}

// selector is what a query asks for, and where it stands.
type selector struct {
	place string
	*parser.VectorSelector
}

func selectors(t *testing.T, place, expr string) (list []selector) {
	t.Helper()
	tree, err := parser.ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %s: %v", place, expr, err)
		return nil
	}
	parser.Inspect(tree, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			list = append(list, selector{place, v})
		}
		return nil
	})
	return list
}

// variables are Grafana's, with a value that a query can be parsed with.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$job", "bowstring", "$instance", ".*")

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// panels are the queries of all dashboards.
func panels(t *testing.T) (list []selector) {
	t.Helper()
	files, err := filepath.Glob("../../../deploy/grafana/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	ids := map[string]bool{}
	for _, path := range files {
		var d struct {
			UID        string `json:"uid"`
			Templating struct {
				List []struct {
					Type  string          `json:"type"`
					Query json.RawMessage `json:"query"`
				} `json:"list"`
			} `json:"templating"`
			Panels []struct {
				ID      int    `json:"id"`
				Title   string `json:"title"`
				Type    string `json:"type"`
				Targets []struct {
					Expr string `json:"expr"`
				} `json:"targets"`
			} `json:"panels"`
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, p := range d.Panels {
			place := fmt.Sprintf("%s: %q", filepath.Base(path), p.Title)
			if id := fmt.Sprint(d.UID, p.ID); ids[id] {
				t.Errorf("%s: its id is another one's, too", place)
			} else {
				ids[id] = true
			}
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s asks for nothing", place)
			}
			for _, target := range p.Targets {
				list = append(list, selectors(t, place, variables.Replace(target.Expr))...)
			}
		}
		for _, v := range d.Templating.List {
			var q struct {
				Query string `json:"query"`
			}
			if v.Type != "query" {
				continue
			}
			if err := json.Unmarshal(v.Query, &q); err != nil {
				t.Fatal(err)
			}
			m := labelValues.FindStringSubmatch(q.Query)
			if m == nil {
				t.Errorf("%s: a variable is %q", path, q.Query)
				continue
			}
			list = append(list, selectors(t, path+": a variable", variables.Replace(m[1]))...)
		}
	}
	return list
}

// No rule and no panel asks for a metric, or a label of one, that no server has.
func TestQueriesFindSomething(t *testing.T) {
	series := everything(t)
	known := map[string][]labels.Labels{"up": {labels.FromStrings("job", "bowstring", "instance", "a:1")}}
	for _, s := range series.series {
		known[s.labels.Get(model.MetricNameLabel)] = append(known[s.labels.Get(model.MetricNameLabel)], s.labels)
	}
	var asked []selector
	for _, r := range alertRules(t) {
		asked = append(asked, selectors(t, "rule "+r.Alert+r.Record, r.Expr)...)
		if r.Record != "" { // all of them have the labels of a target and no others
			known[r.Record] = known["up"]
		}
	}
	asked = append(asked, panels(t)...)
	for _, s := range asked {
		if problem := unknown(known[s.Name], s.LabelMatchers); problem != "" {
			t.Errorf("%s asks for %s: %s", s.place, s.VectorSelector, problem)
		}
	}
	for _, wrong := range []string{"bowstring_nothing", `bowstring_streams{colour="blue"}`,
		`bowstring_wait_seconds_total{source="moon"}`} {
		for _, s := range selectors(t, "a test", wrong) {
			if unknown(known[s.Name], s.LabelMatchers) == "" {
				t.Errorf("%s is not missed", wrong)
			}
		}
	}
}

// unknown says what is asked for that none of the series has.
func unknown(series []labels.Labels, matchers []*labels.Matcher) string {
	if len(series) == 0 {
		return "there is no such metric"
	}
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel {
			continue
		}
		if !slices.ContainsFunc(series, func(l labels.Labels) bool { return l.Has(m.Name) }) {
			return "it has no label " + m.Name
		}
	}
	if !slices.ContainsFunc(series, func(l labels.Labels) bool {
		return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
			return m.Name != model.MetricNameLabel && !m.Matches(l.Get(m.Name))
		})
	}) {
		return "no series matches"
	}
	return ""
}

const (
	watching = "../../../docs/operating/watch.md"
	mending  = "../../../docs/operating/mend.md"
)

// watch.md has every metric, and mend.md says of each alert what to do.
func TestOperatingIsTrue(t *testing.T) {
	data, err := os.ReadFile(mending)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	const begin, end = "<!-- metrics: made by go test ./cmd/bowstring/command -run TestOperatingIsTrue -update -->\n",
		"<!-- end of metrics -->"
	rewrite(t, watching, "(?s)"+begin+".*"+end, begin+metrics.Markdown()+end)
	for _, r := range alertRules(t) {
		if r.Alert == "" {
			continue
		}
		if !strings.Contains(text, "\n### "+r.Alert+"\n") {
			t.Errorf("%s does not say what to do about %s", mending, r.Alert)
		}
		if want := "docs/operating/mend.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
			t.Errorf("the runbook of %s is %q, want %q", r.Alert, r.Annotations["runbook"], want)
		}
	}
}

// Every metric of the catalog is in the scrape of a server that has everything.
func TestCatalogIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range everything(t).series {
		name := s.labels.Get(model.MetricNameLabel)
		seen[name] = true
		seen[strings.TrimSuffix(name, "_bucket")] = true
	}
	for _, m := range metrics.Catalog() {
		if !seen[m.Name] {
			t.Errorf("%s is in the catalog, and no server shows it", m.Name)
		}
	}
}

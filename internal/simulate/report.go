package simulate

import (
	"bytes"
	"context"
	"html/template"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"bowstring/fetch/object"
	"bowstring/fetch/spans"
)

// Report is the result of a File. With a sample, all figures are of the sample except counts, bytes and rates, which
// are scaled up.
type Report struct {
	Nodes    int64       `json:"nodes"`
	Ranks    int64       `json:"ranks"` // running all nodes
	Sample   int64       `json:"sample"`
	Seconds  float64     `json:"seconds"` // until the last job ended
	Jobs     []JobReport `json:"jobs"`
	Traffic  Traffic     `json:"traffic"`
	Cost     object.Bill `json:"cost_usd"` // of the requests to the bucket, and of their bytes
	Engines  Engines     `json:"engines"`
	Series   []Point     `json:"series"`
	Problems []string    `json:"problems,omitempty"` // background errors, up to a bound
}

// JobReport is the result of a job.
type JobReport struct {
	Name        string        `json:"name"`
	Dataset     string        `json:"dataset"`
	Seconds     float64       `json:"seconds"` // from its start to its end: the training time
	SamplesPerS float64       `json:"samples_per_s"`
	Epochs      []EpochReport `json:"epochs"`
}

// EpochReport is the result of an epoch of a job. Traffic is that of all jobs during the epoch.
type EpochReport struct {
	Epoch       int64   `json:"epoch"`
	StartS      float64 `json:"start_s"`
	Seconds     float64 `json:"seconds"`
	FirstS      float64 `json:"first_step_s"` // until the first step had all its samples
	Samples     int64   `json:"samples"`
	Bytes       int64   `json:"bytes"`
	SamplesPerS float64 `json:"samples_per_s"`
	Waits       Waits   `json:"waits_s"`
	Traffic     Traffic `json:"traffic"`
	// HitRate is the share of the samples for which no read of the store was made in that time.
	HitRate float64     `json:"hit_rate"`
	Cost    object.Bill `json:"cost_usd"`
	// Held is the share of the samples of datasets in objects that caches held at the end. Derived is how many
	// requests the epoch takes by the rule of docs/spans.md, if it runs alone; 0 if its dataset is not in objects.
	Held    float64 `json:"held"`
	Derived float64 `json:"derived_requests"`
}

// Waits is where the time of a rank went, in seconds, on average over ranks. Store, Spill, Peer, Encode and Consumer
// are the server's: it waited for reads, worked, or had batches that were not taken. Data, Compute and Ranks are the
// trainer's, and add up to its epoch.
type Waits struct {
	Store    float64 `json:"store"`
	Spill    float64 `json:"spill"`
	Peer     float64 `json:"peer"`
	Encode   float64 `json:"encode"`
	Consumer float64 `json:"consumer"`
	Data     float64 `json:"data"`
	Compute  float64 `json:"compute"`
	Ranks    float64 `json:"ranks"` // for other ranks to end their step
}

// each calls f for each field with the same field of o.
func (w *Waits) each(o *Waits, f func(*float64, float64)) {
	f(&w.Store, o.Store)
	f(&w.Spill, o.Spill)
	f(&w.Peer, o.Peer)
	f(&w.Encode, o.Encode)
	f(&w.Consumer, o.Consumer)
	f(&w.Data, o.Data)
	f(&w.Compute, o.Compute)
	f(&w.Ranks, o.Ranks)
}

func (w *Waits) add(o *Waits) { w.each(o, func(to *float64, n float64) { *to += n }) }

// over returns the mean over n ranks.
func (w *Waits) over(n int64) Waits {
	out := *w
	out.each(w, func(to *float64, v float64) { *to = round(v / float64(n)) })
	return out
}

// Traffic is the traffic of the links.
type Traffic struct {
	StoreReads    int64 `json:"store_reads"` // of samples that are not in objects
	StoreBytes    int64 `json:"store_bytes"`
	ManifestReads int64 `json:"manifest_reads"` // reads of pages of manifests from the store
	ManifestBytes int64 `json:"manifest_bytes"`
	PeerReads     int64 `json:"peer_reads"` // answered by other nodes
	PeerBytes     int64 `json:"peer_bytes"`
	ZoneBytes     int64 `json:"zone_bytes"` // of PeerBytes: between zones
	Requests      int64 `json:"requests"`   // to the bucket
	RequestBytes  int64 `json:"request_bytes"`
	Refused       int64 `json:"refused"` // of Requests: refused as too many
	Served        int64 `json:"served"`  // samples delivered to trainers
	ServedBytes   int64 `json:"served_bytes"`
}

// each calls f for each field with the same field of o.
func (t *Traffic) each(o *Traffic, f func(*int64, int64)) {
	f(&t.StoreReads, o.StoreReads)
	f(&t.StoreBytes, o.StoreBytes)
	f(&t.ManifestReads, o.ManifestReads)
	f(&t.ManifestBytes, o.ManifestBytes)
	f(&t.PeerReads, o.PeerReads)
	f(&t.PeerBytes, o.PeerBytes)
	f(&t.ZoneBytes, o.ZoneBytes)
	f(&t.Requests, o.Requests)
	f(&t.RequestBytes, o.RequestBytes)
	f(&t.Refused, o.Refused)
	f(&t.Served, o.Served)
	f(&t.ServedBytes, o.ServedBytes)
}

func (t Traffic) minus(o Traffic) Traffic {
	t.each(&o, func(to *int64, n int64) { *to -= n })
	return t
}

func (t Traffic) times(n int64) Traffic {
	t.each(&t, func(to *int64, _ int64) { *to *= n })
	return t
}

// Engines sums the counters of all engines.
type Engines struct {
	SpillReads  int64 `json:"spill_reads"`
	SpillBytes  int64 `json:"spill_bytes"`
	SharedReads int64 `json:"shared_reads"` // reads that shared another read
	Fills       int64 `json:"fills"`        // prefetched
	Hedges      int64 `json:"hedges"`
	Retries     int64 `json:"retries"`
	Failed      int64 `json:"failed_reads"`
	PeerAsked   int64 `json:"peer_asked"`
	PeerRefused int64 `json:"peer_refused"` // failed peer reads: the store was read instead
	Evicted     int64 `json:"evicted"`
	Stored      int64 `json:"stored"`
}

// engines sums Engines.
type engines = Engines

// Point is a point in time: rates since the previous point.
type Point struct {
	AtS         float64 `json:"at_s"`
	SamplesPerS float64 `json:"samples_per_s"`
	StoreBPerS  float64 `json:"store_bytes_per_s"` // including the bucket
	PeerBPerS   float64 `json:"peer_bytes_per_s"`
	Nodes       int     `json:"nodes"` // running nodes
}

// counters is the traffic since the start.
type counters = Traffic

func (w *world) count() counters {
	s := w.store
	return counters{
		StoreReads: s.blobs.Load(), StoreBytes: s.blobBytes.Load(), ManifestReads: s.pages.Load(),
		ManifestBytes: s.pageBytes.Load(),
		PeerReads:     w.peerBlobs.Load(), PeerBytes: w.peerBytes.Load(), ZoneBytes: w.zoneBytes.Load(),
		Requests: w.bucket.requests.Load(), RequestBytes: w.bucket.bytes.Load(), Refused: w.bucket.refused.Load(),
		Served: w.served.Load(), ServedBytes: w.servedBytes.Load(),
	}
}

// countEngine adds the counters of a server's engine and cache.
func (e *Engines) countEngine(l *life) {
	st := l.engine.Stats()
	e.SpillReads += st.SpillReads
	e.SpillBytes += st.SpillBytes
	e.SharedReads += st.SharedReads
	e.Fills += st.Fills
	e.Hedges += st.Hedges
	e.Retries += st.Retries
	e.Failed += st.FailedReads
	if l.cluster == nil {
		return
	}
	for _, p := range l.cluster.Tier().Stats() {
		e.PeerAsked += p.Asked
		e.PeerRefused += p.Refused
	}
}

// retire adds the counters of a server that ends.
func (w *world) retire(l *life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.retired.countEngine(l)
}

// series is the points in time of a run, at most maxPoints. A run of any length then has
// a plot of the same size.
type series struct {
	world *world
	every time.Duration

	mu     sync.Mutex
	last   counters
	at     time.Duration
	points []Point
}

// firstEvery is the period of points at the beginning. It doubles when there are
// maxPoints.
const (
	firstEvery = 50 * time.Millisecond
	maxPoints  = 400
)

func newSeries(w *world) *series {
	return &series{world: w, every: firstEvery, last: w.count(), at: w.since()}
}

// run records points until ctx ends. If there are too many, pairs are merged, and the period doubles.
func (s *series) run(ctx context.Context) {
	for sleepUntil(ctx, time.Now().Add(s.every)) == nil {
		s.take()
		s.mu.Lock()
		if len(s.points) >= maxPoints {
			for i := range len(s.points) / 2 {
				s.points[i] = joined(s.points, i)
			}
			s.points = s.points[:len(s.points)/2]
			s.every *= 2
		}
		s.mu.Unlock()
	}
}

// joined merges two points.
func joined(points []Point, i int) Point {
	a, b, from := points[2*i], points[2*i+1], 0.0
	if i > 0 {
		from = points[i-1].AtS
	}
	d, e := a.AtS-from, b.AtS-a.AtS
	mean := func(x, y float64) float64 { return (x*d + y*e) / max(d+e, 1e-9) }
	return Point{AtS: b.AtS, Nodes: b.Nodes, SamplesPerS: mean(a.SamplesPerS, b.SamplesPerS),
		StoreBPerS: mean(a.StoreBPerS, b.StoreBPerS), PeerBPerS: mean(a.PeerBPerS, b.PeerBPerS)}
}

// take adds a point with the rates since the one before.
func (s *series) take() {
	now, at, nodes := s.world.count(), s.world.since(), 0
	for _, n := range s.world.nodes {
		if n.lives() != nil {
			nodes++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := (at - s.at).Seconds()
	if d <= 0 {
		return
	}
	per := func(now, before int64) float64 { return float64(now-before) / d }
	s.points = append(s.points, Point{
		AtS: at.Seconds(), Nodes: nodes, SamplesPerS: per(now.Served, s.last.Served),
		StoreBPerS: per(now.StoreBytes+now.ManifestBytes+now.RequestBytes,
			s.last.StoreBytes+s.last.ManifestBytes+s.last.RequestBytes),
		PeerBPerS: per(now.PeerBytes, s.last.PeerBytes),
	})
	s.last, s.at = now, at
}

// round drops fractions of a microsecond.
func round(s float64) float64 { return math.Round(s*1e6) / 1e6 }

// ratio returns a / b, and 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// report returns the results of the jobs.
func (w *world) report(jobs []*job, s *series) *Report {
	k := w.file.Sample
	r := &Report{Nodes: w.file.Nodes.Count * k, Ranks: w.file.Nodes.Count * w.file.Nodes.Ranks * k, Sample: k,
		Traffic: w.count().times(k)}
	r.Cost = w.bucket.cost(r.Traffic.Requests, r.Traffic.RequestBytes)
	for _, j := range jobs {
		one := JobReport{Name: j.Name, Dataset: j.Dataset, Epochs: []EpochReport{}}
		var samples int64
		var from, to time.Time
		for i, e := range j.epochs {
			took := e.ended.Sub(e.began).Seconds()
			traffic := e.after.minus(e.before)
			missed := traffic.StoreReads + traffic.Requests
			whole := traffic.times(k)
			one.Epochs = append(one.Epochs, EpochReport{
				Epoch: int64(i), StartS: round(e.began.Sub(w.began).Seconds()), Seconds: round(took),
				FirstS:  round(e.first.Seconds()),
				Samples: e.samples * k, Bytes: e.bytes * k, SamplesPerS: round(ratio(float64(e.samples*k), took)),
				Waits: e.waits.over(j.Job.Ranks), Traffic: whole,
				HitRate: round(max(1-ratio(float64(missed), float64(traffic.Served)), 0)),
				Cost:    w.bucket.cost(whole.Requests, whole.RequestBytes),
				Held:    round(e.held), Derived: round(w.derived(j, i, e) * float64(k)),
			})
			if i == 0 {
				from = e.began
			}
			samples, to = samples+e.samples, e.ended
		}
		one.Seconds = round(to.Sub(from).Seconds())
		one.SamplesPerS = round(ratio(float64(samples*k), one.Seconds))
		r.Seconds = max(r.Seconds, round(to.Sub(w.began).Seconds()))
		r.Jobs = append(r.Jobs, one)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Engines, r.Problems = w.retired, w.trouble
	for _, n := range w.nodes {
		if l := n.lives(); l != nil {
			r.Engines.countEngine(l)
		}
		if n.cache != nil {
			st := n.cache.Stats()
			r.Engines.Evicted += st.Evicted
			r.Engines.Stored += st.Stored
		}
	}
	r.Series = append([]Point{}, s.points...)
	for i := range r.Series {
		p := &r.Series[i]
		*p = Point{round(p.AtS), round(p.SamplesPerS * float64(k)), round(p.StoreBPerS * float64(k)),
			round(p.PeerBPerS * float64(k)), p.Nodes * int(k)}
	}
	return r
}

// held is the share of the samples of datasets in objects that the caches of all nodes hold.
func (w *world) held() float64 {
	var samples, entries int64
	for _, d := range w.store.datasets {
		if d.in != nil {
			samples += d.snap.Rows()
		}
	}
	for _, n := range w.nodes {
		if l := n.lives(); l != nil && n.cache != nil {
			entries += n.cache.Stats().Entries
		}
	}
	return min(ratio(float64(entries), float64(samples)), 1)
}

// derived returns how many requests an epoch takes by the rule of docs/spans.md. Reports
// have it next to the simulated number, so that each checks the other.
func (w *world) derived(j *job, epoch int, e *epochTally) float64 {
	d := w.store.datasets[j.Dataset]
	if d.in == nil {
		return 0
	}
	chunks := d.in.chunks(spans.Most(w.file.Nodes.WindowBytes / 2))
	return spans.Requests(float64(e.samples), ratio(float64(d.snap.Rows()), float64(chunks)), e.held, epoch == 0)
}

// panel is one plot.
type panel struct {
	Title, Most string
	Top         float64
	Line        string // points of a polyline
}

// plotWidth, panelHeight and panelEvery are the sizes of a plot, in pixels.
const (
	plotWidth   = 800.0
	panelHeight = 140.0
	panelEvery  = 190.0
)

var plot = template.Must(template.New("plot").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {{.Height}}" font-family="sans-serif" font-size="12">
<rect width="900" height="{{.Height}}" fill="white"/>
{{range .Panels}}<g transform="translate(60 {{.Top}})">
<text y="-8" font-weight="bold">{{.Title}}</text><text x="800" y="-8" text-anchor="end">most: {{.Most}}</text>
<rect width="800" height="140" fill="none" stroke="#bbb"/>
<polyline points="{{.Line}}" fill="none" stroke="#1565c0" stroke-width="1.5"/>
</g>
{{end}}<text x="60" y="{{.Foot}}">0 s</text><text x="860" y="{{.Foot}}" text-anchor="end">{{.End}} s</text>
</svg>
`))

// Plot draws the report's series as SVG: a panel each for samples, bytes from the store, bytes between nodes, and
// nodes.
func (r *Report) Plot() ([]byte, error) {
	size := func(v float64) string { return humanize.Bytes(uint64(v)) + "/s" }
	count := func(v float64) string { return humanize.CommafWithDigits(v, 0) }
	var panels []panel
	for _, c := range []struct {
		title string
		of    func(*Point) float64
		show  func(float64) string
	}{
		{"samples a second", func(p *Point) float64 { return p.SamplesPerS }, count},
		{"from the store", func(p *Point) float64 { return p.StoreBPerS }, size},
		{"between nodes", func(p *Point) float64 { return p.PeerBPerS }, size},
		{"nodes that run", func(p *Point) float64 { return float64(p.Nodes) }, count},
	} {
		most := 0.0
		for i := range r.Series {
			most = max(most, c.of(&r.Series[i]))
		}
		var line strings.Builder
		for i := range r.Series {
			p := &r.Series[i]
			x, y := plotWidth*ratio(p.AtS, r.Series[len(r.Series)-1].AtS), panelHeight*(1-ratio(c.of(p), most))
			line.WriteString(strconv.FormatFloat(x, 'f', 1, 64) + "," + strconv.FormatFloat(y, 'f', 1, 64) + " ")
		}
		panels = append(panels, panel{c.title, c.show(most), 40 + panelEvery*float64(len(panels)),
			strings.TrimSpace(line.String())})
	}
	height := 40 + panelEvery*float64(len(panels))
	var b bytes.Buffer
	err := plot.Execute(&b, map[string]any{"Panels": panels, "Height": height, "Foot": height - 28,
		"End": strconv.FormatFloat(r.Seconds, 'f', 1, 64)})
	return b.Bytes(), err
}

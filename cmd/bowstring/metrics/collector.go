// Package metrics shows what a server counts as Prometheus metrics: a collector that
// reads the counters of server, engine, spill and store when it is scraped, so that
// streams pay nothing for it, and a few histograms, which need an observation for each
// call.
//
// It is below cmd because it reads the counters of all packages, and only cmd may import
// flight. Package admin serves the metrics. docs/operating/mend.md explains them to operators,
// and deploy has the rules and dashboards that query them.
//
// The number of series is bounded, whatever clients do: a label with values from clients
// has a fixed number of values by name, and the rest is added up as "other". See
// [capped].
package metrics

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"bowstring/fetch"
	"bowstring/fetch/object"
	"bowstring/flight"
	"bowstring/schema"
)

const (
	// maxJobs and maxDatasets are how many have series of their own.
	maxJobs     = 100
	maxDatasets = 50
	maxBuckets  = 50
)

// Options say what a Collector shows. Stats and Times must be set.
type Options struct {
	Stats func() flight.Stats
	Times func() []fetch.Times
	// Collections counts collections; nil if there are none.
	Collections *Collections
	// Certificates returns when the certificates end that are presented to
	// clients, by listener; nil if there are none.
	Certificates func() map[string]time.Time
	// AdminGuesses counts wrong tokens of the admin listener, and requests that it refused unheard; nil if there is
	// none.
	AdminGuesses func() (wrong, limited int64)
	// Sources returns what is read that says which callers come in and what they may do, and whether it cannot be read
	// just now; nil if there is nothing.
	Sources func() map[string]bool
	// Cluster returns what the server is in its cluster, nil if it is in none; it may be nil itself.
	Cluster func() *Cluster
	// MemoryLimit is what the process may use, in bytes; 0 if that is not known.
	MemoryLimit int64
	// Version and GoVersion say what was built.
	Version, GoVersion string
}

func (o *Options) cluster() *Cluster {
	if o.Cluster == nil {
		return nil
	}
	return o.Cluster()
}

func (o *Options) check() error {
	if o.Stats == nil || o.Times == nil {
		return &schema.FieldError{Field: "Stats, Times", Got: "none", Want: "what to show"}
	}
	return nil
}

// Collector is a prometheus.Collector of what a server has counted, and a flight.Observer
// that makes histograms of the calls it observes. It is safe for concurrent use. It owns
// nothing of what it reads.
type Collector struct {
	opts  Options
	calls *prometheus.HistogramVec
	first prometheus.Histogram

	mu       sync.Mutex
	handles  map[call]prometheus.Observer // guarded by mu
	jobs     capped                       // guarded by mu
	datasets capped                       // guarded by mu
	buckets  capped                       // guarded by mu
}

// call has the labels that distinguish calls.
type call struct {
	method string
	code   codes.Code
}

// New returns a Collector.
func New(opts Options) (*Collector, error) {
	if err := opts.check(); err != nil {
		return nil, err
	}
	about := func(m *metric, least, factor float64, n int) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: m.name, Help: m.help, Buckets: prometheus.ExponentialBuckets(least, factor, n),
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}
	}
	return &Collector{
		opts:    opts,
		calls:   prometheus.NewHistogramVec(about(callSeconds, 0.001, 10, 7), callSeconds.labels), // to 1,000 s
		first:   prometheus.NewHistogram(about(firstBatch, 0.001, 4, 9)),                          // to 65 s
		handles: map[call]prometheus.Observer{},
		jobs:    capped{most: maxJobs}, datasets: capped{most: maxDatasets},
		buckets: capped{most: maxBuckets},
	}, nil
}

// Ended implements flight.Observer.
func (c *Collector) Ended(ctx context.Context, method string, code codes.Code, took time.Duration) {
	c.mu.Lock()
	h := c.handles[call{method, code}]
	if h == nil {
		h = c.calls.WithLabelValues(method, code.String())
		c.handles[call{method, code}] = h
	}
	c.mu.Unlock()
	observe(ctx, h, took)
}

// FirstBatch implements flight.Observer.
func (c *Collector) FirstBatch(ctx context.Context, took time.Duration) { observe(ctx, c.first, took) }

// observe adds to a histogram, with an exemplar where the call is traced.
func observe(ctx context.Context, h prometheus.Observer, took time.Duration) {
	span := trace.SpanContextFromContext(ctx)
	if e, ok := h.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		e.ObserveWithExemplar(took.Seconds(), exemplar(span.TraceID(), span.SpanID()))
		return
	}
	h.Observe(took.Seconds())
}

func exemplar(t trace.TraceID, s trace.SpanID) prometheus.Labels {
	return prometheus.Labels{"trace_id": t.String(), "span_id": s.String()}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	ch, st := sink(to), c.opts.Stats()
	c.calls.Collect(ch)
	c.first.Collect(ch)
	ch.send(buildInfo, 1, c.opts.Version, c.opts.GoVersion)
	if c.opts.MemoryLimit > 0 {
		ch.send(processLimit, float64(c.opts.MemoryLimit))
	}
	ch.server(&st)
	ch.engine(&st.Engine)
	for _, t := range c.opts.Times() {
		ch <- newTimes(t)
	}
	ch.store(&st)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collectJobs(ch, st.Engine.Jobs)
	c.collectObjects(ch, st.Objects)
	if st.Engine.Spill != nil {
		ch.spill(st.Engine.Spill)
		c.collectDatasets(ch, st.Engine.Spill.Datasets)
	}
	c.opts.Collections.collect(ch)
	if cluster := c.opts.cluster(); cluster != nil {
		ch.cluster(cluster)
		ch.send(fellBack, float64(st.Engine.FellBack))
	}
	if st.Shm != nil {
		ch.shm(&st)
	}
	if c.opts.AdminGuesses != nil {
		wrong, limited := c.opts.AdminGuesses()
		ch.send(adminRefused, float64(wrong), "wrong")
		ch.send(adminRefused, float64(limited), "limited")
	}
	if c.opts.Certificates != nil {
		for listener, end := range c.opts.Certificates() {
			ch.at(certificate, end, listener)
		}
	}
	if c.opts.Sources != nil {
		for what, unread := range c.opts.Sources() {
			ch.truth(sourceUnread, unread, what)
		}
	}
}

// collectJobs shows the jobs that run. Two of one plan, of which one began anew, are one here.
func (c *Collector) collectJobs(ch sink, jobs []fetch.JobStats) {
	tiers := []string{"window", "spill", "peer", "store"}
	byName := map[string]int{}
	var items []item
	for i := range jobs {
		j := &jobs[i]
		counters := []float64{
			float64(j.WindowReads), float64(j.SpillReads), float64(j.PeerReads), float64(j.StoreReads),
			float64(j.WindowBytes), float64(j.SpillBytes), float64(j.PeerBytes), float64(j.StoreBytes),
		}
		gauges := []float64{float64(j.Streams), float64(j.Epoch), progress(j),
			time.Duration((j.Rows - j.Row) * j.RowTime).Seconds()}
		if at, ok := byName[j.Job]; ok {
			for n, v := range counters {
				items[at].counters[n] += v
			}
			gauges[0] += items[at].gauges[0]
			items[at].gauges = gauges
			continue
		}
		byName[j.Job] = len(items)
		items = append(items, item{name: j.Job, counters: counters, gauges: gauges, labels: []string{j.Dataset}})
	}
	own, rest, n := c.jobs.split(items, 2*len(tiers), 4)
	for _, it := range own {
		labels := []string{labelOf(it.name), it.labels[0]}
		ch.send(jobEpoch, it.gauges[1], labels...)
		ch.send(jobProgress, it.gauges[2], labels...)
		ch.send(jobLeft, it.gauges[3], labels...)
	}
	if n > 0 || slices.ContainsFunc(rest.counters, func(v float64) bool { return v > 0 }) {
		rest.labels = []string{other}
		own = append(own, rest)
	}
	for _, it := range own {
		labels := []string{labelOf(it.name), it.labels[0]}
		if it.name == other && it.labels[0] == other {
			labels[0] = other
		}
		ch.send(jobStreams, it.gauges[0], labels...)
		for i, tier := range tiers {
			ch.send(jobReads, it.counters[i], append(slices.Clone(labels), tier)...)
			ch.send(jobBytes, it.counters[len(tiers)+i], append(slices.Clone(labels), tier)...)
		}
	}
}

func (c *Collector) collectDatasets(ch sink, sets map[string]fetch.SpillDataset) {
	items := make([]item, 0, len(sets))
	for name, d := range sets {
		items = append(items, item{
			name: name, gauges: []float64{float64(d.Bytes)},
			counters: []float64{float64(d.Hits), float64(d.Misses), float64(d.Stored), float64(d.Evicted)},
		})
	}
	slices.SortFunc(items, func(a, b item) int { // who gets a place, where there is one: who is asked for most
		return cmp.Or(cmp.Compare(b.counters[0]+b.counters[1], a.counters[0]+a.counters[1]),
			cmp.Compare(a.name, b.name))
	})
	own, rest, n := c.datasets.split(items, 4, 1)
	show := func(name string, it item) {
		ch.send(datasetBytes, it.gauges[0], name)
		for i, m := range []*metric{datasetHits, datasetMisses, datasetStored, datasetEvicted} {
			ch.send(m, it.counters[i], name)
		}
	}
	for _, it := range own {
		show(labelOf(it.name), it)
	}
	if n > 0 || slices.ContainsFunc(rest.counters, func(v float64) bool { return v > 0 }) {
		show(other, rest)
	}
}

// collectObjects shows what is asked of buckets.
func (c *Collector) collectObjects(ch sink, list []object.Usage) {
	items := make([]item, 0, len(list))
	byURL := make(map[string]*object.Usage, len(list))
	tenants := map[string]*object.UsageTenant{}
	for i := range list {
		u := &list[i]
		byURL[u.Bucket] = u
		var waiting, waited float64
		for _, l := range u.Limits {
			waiting += float64(l.Waiting)
			waited += time.Duration(l.Waited).Seconds()
		}
		counters := []float64{float64(u.BytesIn), float64(u.BytesOut), float64(u.Errors), float64(u.Throttled),
			float64(u.Cost.Total) / float64(object.Dollar), waited}
		for _, k := range object.Kinds() {
			counters = append(counters, float64(u.Number(k)))
		}
		items = append(items, item{name: u.Bucket, counters: counters, gauges: []float64{waiting}})
		for _, t := range u.Tenants {
			sum := tenants[t.Tenant]
			if sum == nil {
				sum = &object.UsageTenant{}
				tenants[t.Tenant] = sum
			}
			sum.Add(t.Counts)
			sum.Cost.Total += t.Cost.Total
		}
	}
	own, rest, n := c.buckets.split(items, 6+len(object.Kinds()), 1)
	show := func(name string, it item) {
		ch.send(objectBytes, it.counters[0], name, "in")
		ch.send(objectBytes, it.counters[1], name, "out")
		for i, m := range []*metric{objectErrors, objectThrottled, objectCost, objectWaited} {
			ch.send(m, it.counters[2+i], name)
		}
		for i, k := range object.Kinds() {
			ch.send(objectRequests, it.counters[6+i], name, k.String())
		}
		ch.send(objectWaiting, it.gauges[0], name)
	}
	for _, it := range own {
		name, u := labelOf(it.name), byURL[it.name]
		show(name, it)
		ch.firstByte(name, &u.FirstByte)
		for _, l := range u.Limits {
			if l.PerSecond > 0 {
				ch.send(objectLimit, l.PerSecond, name, strings.ToValidUTF8(l.Prefix, "\uFFFD"), l.Class)
			}
		}
	}
	if n > 0 || slices.ContainsFunc(rest.counters, func(v float64) bool { return v > 0 }) {
		show(other, rest)
	}
	for name, t := range tenants {
		if name = labelOf(name); name == "("+other+")" {
			name = other // the name in package object for the tenants without counters of their own
		}
		ch.send(tenantRequests, float64(t.Requests()), name)
		ch.send(tenantCost, float64(t.Cost.Total)/float64(object.Dollar), name)
	}
}

// firstByte sends a classic histogram of each fourth doubling.
func (ch sink) firstByte(bucket string, f *object.FirstBytes) {
	bounds, sum := map[float64]uint64{}, uint64(0)
	for i, n := range f.Counts {
		sum += n
		if at := i + object.FirstBytesLeast; at%(2<<object.FirstBytesSchema) == 0 && i < len(f.Counts)-1 {
			bounds[math.Exp2(float64(at>>object.FirstBytesSchema))] = sum
		}
	}
	one, err := prometheus.NewConstHistogram(objectFirst.desc, f.Count, f.Sum.Seconds(), bounds, bucket)
	if err != nil {
		one = prometheus.NewInvalidMetric(objectFirst.desc, err)
	}
	ch <- one
}

// Collections counts the collections of garbage that a server makes by itself. A
// nil Collections counts nothing. It is safe for concurrent use.
type Collections struct {
	every                   time.Duration
	last                    atomic.Int64 // Unix nanoseconds
	done, failed, elsewhere atomic.Int64
}

// NewCollections returns the account of a server that collects that often.
func NewCollections(every time.Duration) *Collections {
	c := &Collections{every: every}
	c.last.Store(time.Now().UnixNano())
	return c
}

// Done counts a collection that came to its end.
func (c *Collections) Done() {
	if c == nil {
		return
	}
	c.done.Add(1)
	c.last.Store(time.Now().UnixNano())
}

// Elsewhere counts one that was not made, as another server was at it, or the store was
// away. The metrics of all servers of a store show which.
func (c *Collections) Elsewhere() {
	if c != nil {
		c.elsewhere.Add(1)
	}
}

// Failed counts one that failed.
func (c *Collections) Failed() {
	if c != nil {
		c.failed.Add(1)
	}
}

func (c *Collections) collect(ch sink) {
	if c == nil {
		ch.send(collectEvery, 0)
		return
	}
	ch.send(collectEvery, c.every.Seconds())
	ch.at(collectLast, time.Unix(0, c.last.Load()))
	for result, n := range map[string]int64{"done": c.done.Load(), "failed": c.failed.Load(),
		"elsewhere": c.elsewhere.Load()} {
		ch.send(collections, float64(n), result)
	}
}

// Cluster is what a server is in its cluster, and what went on between it and other nodes.
type Cluster struct {
	Name, Node, Zone string
	View             string // names who owns what, as this node has it; "" where it does not know
	Members          int
	Share            float64
	Read             time.Time // when the leases were last read
	Failed           bool      // they could not be since

	Up, Down, Silent, InFlight int64 // ways to other nodes, and blobs asked for by them
	// Peers and Sent are by class: [SameZone] and [OtherZone].
	Peers map[string]Peers
	Sent  map[string]Sent
}

// Classes of other nodes.
const (
	SameZone  = "zone"
	OtherZone = "far"
)

// Peers count what this node asked others for.
type Peers struct{ Asked, Answered, Bytes, Refused int64 }

// Sent count what this node sent others.
type Sent struct{ Blobs, Bytes, Refused int64 }

func (ch sink) cluster(c *Cluster) {
	ch.send(clusterInfo, 1, c.Name, c.Node, c.Zone, c.View)
	ch.send(clusterMembers, float64(c.Members))
	ch.send(clusterShare, c.Share)
	ch.at(clusterRead, c.Read)
	ch.truth(clusterFailed, c.Failed)
	ch.send(peerLinks, float64(c.Up), "up")
	ch.send(peerLinks, float64(c.Down), "down")
	ch.send(peerLinks, float64(c.Silent), "silent")
	ch.send(peerInFlight, float64(c.InFlight))
	for _, class := range []string{SameZone, OtherZone} {
		p, l := c.Peers[class], c.Sent[class]
		for m, n := range map[*metric]int64{
			peerAsked: p.Asked, peerReads: p.Answered, peerBytes: p.Bytes, peerRefused: p.Refused,
			sentReads: l.Blobs, sentBytes: l.Bytes, sentRefused: l.Refused,
		} {
			ch.send(m, float64(n), class)
		}
	}
}

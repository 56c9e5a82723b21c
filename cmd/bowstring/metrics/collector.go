// Package metrics exports the counters of a server as Prometheus metrics. A collector
// reads the counters of server, engine, spill and store during a scrape, so that streams
// pay nothing for it. A few histograms need an observation for each call.
//
// This package is below cmd because it reads the counters of all packages, and only cmd
// may import flight. Package admin serves the metrics. docs/operating/mend.md explains
// them to operators, and deploy has the rules and dashboards that query them.
//
// The number of series is bounded, whatever clients do. A label with values from clients
// has a fixed number of values by name, and the other values are added up as "other". See
// [capped].
//
// Begin reading at [Collector.Collect]. The file catalog.go names all metrics with their
// help texts, and sink.go maps the statistics to them.
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
	// maxJobs, maxDatasets and maxBuckets limit the names that have series of their own.
	// A job has 12 series, a dataset 5.
	maxJobs     = 100
	maxDatasets = 50
	maxBuckets  = 50
)

// Options configure a Collector. Stats and Times must be set. The functions are called
// during each scrape, from the goroutine of the scrape, and must be safe for concurrent
// use. None of them may block, because Prometheus counts a slow scrape as a failed one.
type Options struct {
	// Stats returns the server's statistics, the same as the stats action returns. The
	// Collector only reads them.
	Stats func() flight.Stats
	// Times returns the latency histograms of reads, one for each tier.
	Times func() []fetch.Times
	// Collections counts collections; nil if there are none.
	Collections *Collections
	// Certificates returns when the certificates that clients see expire, by listener. It
	// is nil if the server presents none.
	Certificates func() map[string]time.Time
	// AdminGuesses counts requests of the admin listener with a wrong token, and requests
	// that the listener refused without checking the token. It is nil if there is no
	// such listener.
	AdminGuesses func() (wrong, limited int64)
	// Sources returns the sources of authentication and policy by name, and whether the
	// last attempt to read each of them failed. It is nil if the server has no such
	// source.
	Sources func() map[string]bool
	// Cluster returns the state of this node in its cluster. The function itself, and its
	// result, are nil if the server is not in a cluster.
	Cluster func() *Cluster
	// MemoryLimit is the number of bytes that the process may use. It is 0 if the limit
	// is unknown.
	MemoryLimit int64
	// Version and GoVersion are the labels of the metric build_info.
	Version, GoVersion string
}

// cluster calls Cluster if it is set. Its result is nil outside of a cluster.
func (o *Options) cluster() *Cluster {
	if o.Cluster == nil {
		return nil
	}
	return o.Cluster()
}

// check returns a *schema.FieldError if a function is missing without which no scrape can
// work. Otherwise the first scrape would panic, long after the mistake.
func (o *Options) check() error {
	if o.Stats == nil || o.Times == nil {
		return &schema.FieldError{Field: "Stats, Times", Got: "none", Want: "what to show"}
	}
	return nil
}

// Collector is a prometheus.Collector for the counters of a server. It is also a
// flight.Observer, and makes histograms of the calls that it observes. It is safe for
// concurrent use. It owns none of the counters that it reads.
type Collector struct {
	// calls has a histogram for each method and status code, and first has the times to
	// the first batch. Both are safe for concurrent use by themselves.
	opts  Options
	calls *prometheus.HistogramVec
	first prometheus.Histogram

	// mu also serializes the part of Collect that uses the capped names. Two scrapes at
	// once would otherwise add an increase to the rest twice.
	mu sync.Mutex
	// handles caches the observers of calls. WithLabelValues hashes the labels and
	// formats the code for each call; the map does neither.
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
	// Each histogram has two forms. Scrapers that know native histograms get buckets at
	// most 10 % apart. The few classic buckets serve the others. If a native histogram
	// exceeds 100 buckets, client_golang may reset it, but not more often than once an
	// hour; before that it makes the buckets wider.
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

// observe adds a duration to a histogram. If the call is traced and the trace is sampled,
// it adds the trace as an exemplar. Traces that are not sampled are left out, because the
// link from a dashboard would lead to no trace.
func observe(ctx context.Context, h prometheus.Observer, took time.Duration) {
	span := trace.SpanContextFromContext(ctx)
	if e, ok := h.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		e.ObserveWithExemplar(took.Seconds(), exemplar(span.TraceID(), span.SpanID()))
		return
	}
	h.Observe(took.Seconds())
}

// exemplar returns the labels of an exemplar, by which a dashboard finds the trace.
func exemplar(t trace.TraceID, s trace.SpanID) prometheus.Labels {
	return prometheus.Labels{"trace_id": t.String(), "span_id": s.String()}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector. All metrics of a scrape come from one call of
// Stats, so that they are consistent with each other: a rate of hits and a rate of misses
// cover the same interval.
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
	// The capped names below keep state from scrape to scrape. See mu.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.collectJobs(ch, st.Engine.Jobs)
	c.collectObjects(ch, st.Objects)
	if st.Engine.Spill != nil {
		ch.spill(st.Engine.Spill)
		c.collectDatasets(ch, st.Engine.Spill.Datasets)
	}
	c.opts.Collections.collect(ch)
	// Optional parts of a server send no series if they are absent, so that an alert on a
	// missing cluster or ring does not fire on a server without one.
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

// collectJobs sends the metrics of the jobs that run. Two jobs may have one name, if one
// of them began again while the other still ran. They have one series: their counters and
// streams are added up, and epoch, progress and time are those of the later one.
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
	// Epoch, progress and remaining time of jobs that share the series "other" cannot be
	// added up. They are sent for jobs with series of their own only.
	own, rest, n := c.jobs.split(items, 2*len(tiers), 4)
	for _, it := range own {
		labels := []string{labelOf(it.name), it.labels[0]}
		ch.send(jobEpoch, it.gauges[1], labels...)
		ch.send(jobProgress, it.gauges[2], labels...)
		ch.send(jobLeft, it.gauges[3], labels...)
	}
	// The rest is sent as long as one of its counters is above 0, even if no such job
	// runs any more. A counter that disappears and returns would look like a reset.
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

// collectDatasets sends the spill's metrics of snapshots. The map has no order, so that
// the snapshots are sorted first: if series are free, the most read snapshots get them.
func (c *Collector) collectDatasets(ch sink, sets map[string]fetch.SpillDataset) {
	items := make([]item, 0, len(sets))
	for name, d := range sets {
		items = append(items, item{
			name: name, gauges: []float64{float64(d.Bytes)},
			counters: []float64{float64(d.Hits), float64(d.Misses), float64(d.Stored), float64(d.Evicted)},
		})
	}
	slices.SortFunc(items, func(a, b item) int {
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

// collectObjects sends the metrics of requests to buckets, first by bucket and then by
// tenant. A tenant's figures are summed over all buckets. The tenants are not capped
// here, because package object itself limits them.
func (c *Collector) collectObjects(ch sink, list []object.Usage) {
	items := make([]item, 0, len(list))
	byURL := make(map[string]*object.Usage, len(list))
	tenants := map[string]*object.UsageTenant{}
	for i := range list {
		u := &list[i]
		byURL[u.Bucket] = u
		// A bucket has a limit for each prefix and class that it throttled. Waiting is
		// summed over them, because the prefixes are as many as the bucket's layout has.
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

// firstByte sends the times to the first byte of a bucket as a classic histogram. Its
// bounds are the finer buckets' bounds at each second power of two. The last of the finer
// buckets has no bound of its own: its times are in +Inf alone.
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

// Collections counts the garbage collections that a server runs by itself. A nil
// Collections counts nothing. It is safe for concurrent use. The maintenance goroutine
// writes it, and scrapes read it.
type Collections struct {
	every                   time.Duration
	last                    atomic.Int64 // Unix nanoseconds
	done, failed, elsewhere atomic.Int64
}

// NewCollections returns the counters of a server that collects garbage once in every.
// Until the first collection the last success is the start of the server. With 0 an alert
// on the age of the last success would fire right after each start.
func NewCollections(every time.Duration) *Collections {
	c := &Collections{every: every}
	c.last.Store(time.Now().UnixNano())
	return c
}

// Done counts a collection that completed, and sets the time of the last success.
func (c *Collections) Done() {
	if c == nil {
		return
	}
	c.done.Add(1)
	c.last.Store(time.Now().UnixNano())
}

// Elsewhere counts a collection that this server skipped, because another server was
// collecting or the store was unavailable. The metrics of all servers of a store together
// show which of them collected.
func (c *Collections) Elsewhere() {
	if c != nil {
		c.elsewhere.Add(1)
	}
}

// Failed counts a collection that returned an error.
func (c *Collections) Failed() {
	if c != nil {
		c.failed.Add(1)
	}
}

// collect sends the counters. A server that never collects sends an interval of 0, so
// that an alert can distinguish it from a server whose collections fail.
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

// Cluster is the state of a server in its cluster, and its traffic with other nodes. It
// is a copy: the Collector may read it without a lock.
type Cluster struct {
	Name, Node, Zone string
	View             string // identifies the assignment of keys to owners, as this node sees it; "" if it has none
	Members          int
	// Share is the share of all keys that this node owns, from 0 to 1.
	Share  float64
	Read   time.Time // when the leases were last read
	Failed bool      // whether a later attempt to read them failed

	Up, Down, Silent, InFlight int64 // links to other nodes by state, and blobs being requested from them
	// Peers and Sent are by class: [SameZone] and [OtherZone].
	Peers map[string]Peers
	Sent  map[string]Sent
}

// SameZone and OtherZone are the classes of other nodes. Traffic between zones costs
// money at cloud providers, traffic within a zone does not.
const (
	SameZone  = "zone"
	OtherZone = "far"
)

// Peers counts the blobs that this node requested from others. Asked is the requests,
// Answered those that brought a blob of Bytes in total, Refused those that failed.
type Peers struct{ Asked, Answered, Bytes, Refused int64 }

// Sent counts the blobs that this node sent to others. Refused is the requests that it
// could not answer with a blob.
type Sent struct{ Blobs, Bytes, Refused int64 }

// cluster sends the metrics of a cluster. Both classes are always sent, also with 0: a
// counter that appears with its first increase would hide that increase from rate().
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

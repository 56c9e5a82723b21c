package metrics

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"bowstring/fetch"
	"bowstring/flight"
)

// sink receives the metrics of one scrape. It belongs to the goroutine that collects.
type sink chan<- prometheus.Metric

// send sends one value. A wrong number of labels, or a label that is not UTF-8, becomes
// an invalid metric: the scrape then reports the error, and the process goes on.
func (ch sink) send(m *metric, v float64, labels ...string) {
	one, err := prometheus.NewConstMetric(m.desc, m.kind, v, labels...)
	if err != nil {
		one = prometheus.NewInvalidMetric(m.desc, err)
	}
	ch <- one
}

// seconds sends a number of nanoseconds in seconds, the base unit of Prometheus.
func (ch sink) seconds(m *metric, nanos int64, labels ...string) {
	ch.send(m, time.Duration(nanos).Seconds(), labels...)
}

// truth sends 1 for true and 0 for false.
func (ch sink) truth(m *metric, is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	ch.send(m, v, labels...)
}

// at sends a time in seconds since 1970. The zero time is sent as 0.
func (ch sink) at(m *metric, t time.Time, labels ...string) {
	v := 0.0
	if !t.IsZero() {
		v = float64(t.UnixMilli()) / 1e3
	}
	ch.send(m, v, labels...)
}

// server sends the counters of the server and of its tenants. Each kind of stream is sent
// also with 0, so that a graph has no gap. The server limits the tenants with entries of
// their own to 64, so that they need no cap here.
func (ch sink) server(st *flight.Stats) {
	s := &st.Server
	ch.truth(draining, s.Draining)
	kinds := map[string]int{"DoGet": 0, "DoPut": 0, "DoExchange": 0, "warm": 0}
	for _, one := range st.Streams {
		kinds[one.Kind]++
	}
	for kind, n := range kinds {
		ch.send(streamsNow, float64(n), kind)
	}
	ch.send(streamsLimit, float64(st.Limits.MaxStreams))
	ch.send(streamsTotal, float64(s.Streams))
	ch.seconds(streamSeconds, s.StreamNanos)
	ch.send(callsTotal, float64(s.Calls))
	ch.send(rowsTotal, float64(s.Rows))
	ch.send(bytesTotal, float64(s.Bytes))
	for source, nanos := range map[string]int64{
		"store": s.Wait.Store, "spill": s.Wait.Spill, "peer": s.Wait.Peer, "window": s.Wait.Window,
		"encode": s.Wait.Encode, "consumer": s.Wait.Consumer,
		"operators": s.Wait.Operators,
	} {
		ch.seconds(waitSeconds, nanos, source)
	}
	ch.send(faultsTotal, float64(s.Faults))
	for _, t := range st.Tenants {
		name := other
		if !t.Others {
			name = labelOf(t.Tenant)
		}
		ch.send(tenantStreams, float64(t.Streams), name)
		ch.send(tenantRows, float64(t.Rows), name)
		ch.send(tenantBytes, float64(t.Bytes), name)
		ch.send(tenantStored, float64(t.StoreBytes), name)
		ch.seconds(tenantMade, t.ProcessorNanos, name)
		ch.seconds(tenantSeconds, t.StreamNanos, name)
		ch.send(tenantRefused, float64(t.Refused), name)
	}
}

// shm sends the metrics of the memory that the server shares with clients on its node.
func (ch sink) shm(st *flight.Stats) {
	s := st.Shm
	ch.send(ringsNow, float64(s.Rings))
	ch.send(ringBytes, float64(s.Bytes))
	ch.send(ringKept, float64(s.Kept))
	ch.send(ringHeld, float64(s.Held))
	ch.send(ringsGiven, float64(s.Given))
	ch.send(ringsRefused, float64(s.Refused))
	ch.send(ringSent, float64(s.Sent))
	ch.send(ringWaits, float64(s.Waits))
	ch.send(ringsLapsed, float64(s.Abandoned))
	ch.send(ringInline, float64(s.Inline))
	ch.send(ringPinned, float64(s.Pinned))
	ch.send(ringReferred, float64(s.Referred))
	ch.send(ringCopied, float64(s.Copied))
}

// uses are the labels of the counters of admission.Use, in its order.
var uses = []string{"windows", "uploads", "evaluation", "answers", "manifests", "peer_reads", "operators"}

// operators sends the metrics of the engine's operators.
func (ch sink) operators(o *fetch.OperatorStats) {
	ch.send(cellsMade, float64(o.Cells))
	ch.send(cellsFaulty, float64(o.Faults))
	ch.send(programPanics, float64(o.Panics))
	ch.seconds(makingSeconds, o.Processor)
	ch.seconds(makingQueued, o.Queued)
	ch.send(prefixesKept, float64(o.PrefixesKept))
	ch.send(prefixesFound, float64(o.PrefixesFound))
	ch.send(prefixTrials, float64(o.PrefixTrials))
	ch.send(makingNow, float64(o.Running), "running")
	ch.send(makingNow, float64(o.Waiting), "waiting")
	ch.send(makingWorkers, float64(o.Workers))
}

// engine sends the counters of the engine. All reasons of reads are sent, also those that
// have not occurred.
func (ch sink) engine(e *fetch.Stats) {
	ch.operators(&e.Operators)
	ch.send(readBytes, float64(e.ReadBytes), "store")
	for _, reason := range fetch.ReadReasons() {
		ch.send(readReasons, float64(e.ReadReasons[reason]), reason)
	}
	ch.send(readBytes, float64(e.SpillBytes), "spill")
	ch.send(readBytes, float64(e.PeerBytes), "peer")
	ready := 0
	for _, w := range e.Windows {
		ready += w.Ready
	}
	for m, v := range map[*metric]int64{
		sharedReads: e.SharedReads, failedReads: e.FailedReads, retries: e.Retries, hedges: e.Hedges,
		hedgesWon: e.HedgesWon, rankGroupBytes: e.RankGroupBytes, rankGroupsBehind: e.RankGroupsBehind,
		failedBlobs: e.Failed, lost: e.Lost, fills: e.Fills, readsInFlight: int64(e.ReadsInFlight),
		bytesInFlight: e.BytesInFlight,
		inFlightLimit: e.InFlightLimit, waitingRows: int64(ready), streamsReading: int64(len(e.Windows)),
		streamsWaiting: int64(e.Waiting), snapshotsOpen: int64(e.Snapshots),
		jobsNow: int64(len(e.Jobs)), spanRequests: e.Spans.Spans, spanBytes: e.Spans.Bytes, spanSingles: e.Spans.Singles,
		spanMemory: e.Spans.Memory, proofsLearned: e.Proofs.Learned, proofsCompared: e.Proofs.Compared,
		proofsWrong: e.Proofs.Wrong, proofsWaiting: e.Proofs.Waiting,
	} {
		ch.send(m, float64(v))
	}
	ch.send(spanBlobs, float64(e.Spans.Blobs), "wanted")
	ch.send(spanBlobs, float64(e.Spans.Neighbours), "beside")
	ch.seconds(pathLatency, e.Path.MinLatency*int64(time.Microsecond))
	ch.send(pathRate, e.Path.BytesPerSec)
	// A use that this package does not know yet keeps the name that the engine gives it.
	for i, a := range e.Memory {
		use := a.Use
		if i < len(uses) {
			use = uses[i]
		}
		ch.send(memoryUsed, float64(a.Used), use)
		ch.send(memoryLimit, float64(a.Limit), use)
		ch.send(memoryMost, float64(a.Most), use)
		ch.send(memoryWaiting, float64(a.Waiting), use)
	}
}

func (ch sink) store(st *flight.Stats) {
	for m, v := range map[*metric]int64{
		storeReads: st.Store.BlobReads, storeBytes: st.Store.BlobBytes, storeWrites: st.Store.BlobWrites,
		storeDedups:  st.Store.BlobDedups,
		storeWritten: st.Store.WrittenBytes, storeBlobs: st.Store.Blobs, storeStored: st.Store.StoredBytes,
	} {
		ch.send(m, float64(v))
	}
}

// progress returns the share of its epoch that a job has read. A job without rows has
// made no progress, which is better than NaN in a graph.
func progress(j *fetch.JobStats) float64 { return float64(j.Row) / float64(max(j.Rows, 1)) }

func (ch sink) spill(s *fetch.SpillStats) {
	for m, v := range map[*metric]int64{
		spillBudget: s.BudgetBytes, spillHeld: s.HeldBytes, spillAbroad: s.ElsewhereBytes, spillBlobs: s.Entries, spillFiles: int64(s.Segments),
		spillBypassed: s.Bypassed, spillWritten: s.WrittenBytes, spillMoved: s.MovedBytes,
		spillUnnamed: s.Unnamed,
	} {
		ch.send(m, float64(v))
	}
	for kind, n := range map[string]int64{
		"read": s.ReadErrors, "write": s.WriteErrors, "damaged": s.Damaged, "disk_full": s.DiskFull, "busy": s.Busy,
	} {
		ch.send(spillErrors, float64(n), kind)
	}
	ch.truth(spillLost, s.IndexLost)
}

// other is the label of names without series of their own. A real name that equals it, or
// is empty, is written in brackets. See labelOf.
const other = "other"

// labelOf returns name as the value of a label. Names come from clients. Prometheus
// rejects a whole scrape that has a label with invalid UTF-8, so that one client could
// blind the monitoring; invalid bytes are replaced.
func labelOf(name string) string {
	name = strings.ToValidUTF8(name, "\uFFFD")
	switch name {
	case other, "":
		return "(" + name + ")"
	}
	return name
}

// capped gives a bounded number of names series of their own, and adds up the others. A
// name keeps its series as long as it exists, because otherwise a counter would jump. If
// a name with a series disappears, the next new name gets the series. For a name without
// a series, the increase since the last collection is added to the rest. The rest
// therefore never falls.
//
// It is not safe for concurrent use.
type capped struct {
	// most is the limit of own, and constant. The length of rest is constant as well.
	most  int
	names map[string]*place // the names of the last collection
	own   int               // number of names with a series
	rest  []float64         // sums of the counters of names without a series, disappeared ones included
}

// place is the state of one name. It lives as long as the name is in each collection.
type place struct {
	own  bool
	seen []float64 // values of the last collection, already in the rest; nil for names with a series
	live bool      // whether the current collection has the name
}

// item is a name with its counters, all of the same length, and its gauges.
type item struct {
	name             string
	counters, gauges []float64
	labels           []string // labels besides the name
}

// split returns the items that have series of their own, and the sum of the others. The
// rest has the counters of all names that ever were without a series, and the gauges of
// the n that exist now. All items must have the given numbers of counters and gauges.
func (c *capped) split(items []item, counters, gauges int) (own []item, rest item, n int) {
	if c.names == nil {
		c.names, c.rest = map[string]*place{}, make([]float64, counters)
	}
	// Names that have disappeared release their series first. Otherwise a new name in the
	// same collection would go to the rest although a series is free.
	for _, p := range c.names {
		p.live = false
	}
	for _, it := range items {
		if p := c.names[it.name]; p != nil {
			p.live = true
		}
	}
	for name, p := range c.names {
		if !p.live {
			if p.own {
				c.own--
			}
			delete(c.names, name)
		}
	}
	rest = item{name: other, gauges: make([]float64, gauges)}
	for _, it := range items {
		p := c.names[it.name]
		if p == nil {
			p = &place{own: c.own < c.most}
			// A new name counts from zero. Its count before this collection is an
			// increase of the rest as well.
			if p.own {
				c.own++
			} else {
				p.seen = make([]float64, counters)
			}
			c.names[it.name] = p
		}
		if p.own {
			own = append(own, it)
			continue
		}
		n++
		for i, v := range it.counters {
			if v >= p.seen[i] {
				c.rest[i] += v - p.seen[i]
			} else { // the counter began again, so that all of it is new
				c.rest[i] += v
			}
		}
		p.seen = slices.Clone(it.counters)
		for i, v := range it.gauges {
			rest.gauges[i] += v
		}
	}
	rest.counters = slices.Clone(c.rest)
	return own, rest, n
}

// classicStep is the number of buckets of fetch.Times that make one classic bucket. The
// finer bounds are 2^(1/8) apart, so that the classic ones are a factor of 4 apart, from
// 15 µs to 16 s. A classic bucket is a series of its own, and finer ones would cost too
// many.
const (
	classicStep  = 16
	classicFirst = 4 * 8 // bucket whose upper bound is the first one: 2^-16 s
	classicLast  = 24 * 8
)

// times is a fetch.Times as a histogram with native and classic buckets. client_golang's
// constant histograms have one kind or the other, so that times writes the message
// itself.
type times struct{ fetch.Times }

func newTimes(t fetch.Times) prometheus.Metric { return times{t} }

// Desc implements prometheus.Metric.
func (times) Desc() *prometheus.Desc { return readSeconds.desc }

// Write implements prometheus.Metric. Classic buckets are cumulative by the definition of
// Prometheus, native buckets are not.
func (t times) Write(to *dto.Metric) error {
	h := &dto.Histogram{
		SampleCount: proto.Uint64(t.Count), SampleSum: proto.Float64(t.Sum.Seconds()),
		Schema: proto.Int32(fetch.TimesSchema), ZeroThreshold: proto.Float64(1e-9), ZeroCount: proto.Uint64(0),
	}
	sum := uint64(0)
	for i, n := range t.Counts {
		sum += n
		if i >= classicFirst && i <= classicLast && (i-classicFirst)%classicStep == 0 {
			bound := math.Exp2(float64(fetch.TimesFirst+i) / 8)
			h.Bucket = append(h.Bucket, &dto.Bucket{CumulativeCount: proto.Uint64(sum),
				UpperBound: proto.Float64(bound), Exemplar: t.example(bound)})
		}
	}
	t.native(h)
	to.Label = []*dto.LabelPair{{Name: proto.String("tier"), Value: proto.String(t.Tier)}}
	to.Histogram = h
	return nil
}

// native adds the native buckets to h. The format is sparse. A span is a run of buckets
// without gaps between them; its offset is the distance from the end of the span before,
// and that of the first span is an absolute index. Counts are encoded as differences from
// the bucket before.
func (t times) native(h *dto.Histogram) {
	last, before := -1, int64(0)
	for i, n := range t.Counts {
		if n == 0 {
			continue
		}
		if len(h.PositiveSpan) == 0 || i != last+1 {
			offset := int32(i - last - 1)
			if len(h.PositiveSpan) == 0 {
				offset = int32(fetch.TimesFirst + i)
			}
			h.PositiveSpan = append(h.PositiveSpan,
				&dto.BucketSpan{Offset: proto.Int32(offset), Length: proto.Uint32(0)})
		}
		span := h.PositiveSpan[len(h.PositiveSpan)-1]
		span.Length = proto.Uint32(span.GetLength() + 1)
		h.PositiveDelta = append(h.PositiveDelta, int64(n)-before)
		last, before = i, int64(n)
	}
	if len(h.PositiveSpan) == 0 { // without a span, a histogram counts as a classic one
		h.PositiveSpan = []*dto.BucketSpan{{Offset: proto.Int32(0), Length: proto.Uint32(0)}}
	}
}

// example returns a traced read that belongs to the classic bucket below bound. It is nil
// if there is none. bound/4 is the bound of the bucket before: see classicStep.
func (t times) example(bound float64) *dto.Exemplar {
	for _, e := range t.Examples {
		s := e.Took.Seconds()
		if !e.Trace.IsValid() || s > bound || s <= bound/4 {
			continue
		}
		labels := make([]*dto.LabelPair, 0, 2)
		for name, v := range exemplar(e.Trace, e.Span) {
			labels = append(labels, &dto.LabelPair{Name: proto.String(name), Value: proto.String(v)})
		}
		return &dto.Exemplar{Label: labels, Value: proto.Float64(s),
			Timestamp: timestamppb.New(e.At.Round(time.Millisecond))}
	}
	return nil
}

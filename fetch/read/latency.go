package read

import (
	"math"
	"math/bits"
	"time"

	"go.opentelemetry.io/otel/trace"
)

const (
	// latencyPeriod is the length of a counting period. Quantiles are over the current period and the one before.
	latencyPeriod = 5 * time.Second
	// latencyMin is how many reads a quantile needs.
	latencyMin = 32

	octaves    = 32 // powers of two of microseconds
	perOctave  = 8  // buckets per octave, so that a quantile is at most 1/8 too high
	logPerOct  = 3
	histLength = octaves * perOctave
)

// latencies counts recent reads by duration, in buckets whose width grows with the latency, as in HdrHistogram. It is
// not safe for concurrent use.
type latencies struct {
	now, before [histLength]uint32
	n, nBefore  uint64
	since       time.Time
	most        time.Duration // maximum of the current period
	mostBefore  time.Duration
}

// bucketOf returns the bucket of a latency.
func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	octave := bits.Len64(us) - 1
	if octave < logPerOct {
		return int(us) // below 8 µs, one bucket per microsecond
	}
	i := (octave-logPerOct+1)*perOctave + int(us>>(octave-logPerOct))&(perOctave-1)
	return min(i, histLength-1)
}

// upperOf returns the highest latency of a bucket.
func upperOf(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i) * time.Microsecond
	}
	octave, within := i/perOctave-1+logPerOct, i%perOctave
	us := (uint64(perOctave+within+1) << (octave - logPerOct)) - 1
	return time.Duration(us) * time.Microsecond
}

// add counts a read.
func (l *latencies) add(now time.Time, took time.Duration) {
	if now.Sub(l.since) > latencyPeriod {
		if now.Sub(l.since) > 2*latencyPeriod && l.n < latencyMin {
			l.n, l.now = 0, [histLength]uint32{} // too old, and too few
		}
		if l.n >= latencyMin || l.nBefore == 0 {
			l.before, l.nBefore, l.mostBefore = l.now, l.n, l.most
			l.now, l.n, l.most = [histLength]uint32{}, 0, 0
		}
		l.since = now
	}
	l.now[bucketOf(took)]++
	l.n++
	l.most = max(l.most, took)
}

// quantile returns the latency that a share q of the reads did not exceed; false if there are too few reads.
func (l *latencies) quantile(q float64) (time.Duration, bool) {
	n := l.n + l.nBefore
	if n < latencyMin {
		return 0, false
	}
	rank := uint64(q * float64(n))
	for i := range l.now {
		c := uint64(l.now[i]) + uint64(l.before[i])
		if c > rank {
			return min(upperOf(i), max(l.most, l.mostBefore)), true
		}
		rank -= c
	}
	return max(l.most, l.mostBefore), true
}

// greatest returns the recent maximum.
func (l *latencies) greatest() time.Duration { return max(l.most, l.mostBefore) }

// Reads of a tier are counted by duration in buckets that grow by a factor of 2^(1/8), those of a Prometheus native
// histogram of schema 3. Bucket i holds durations up to 2^((TimesFirst+i)/8) seconds and above the bucket before it:
// the first one up to 2^-20 s, about a microsecond, the last one all above 64 s.
const (
	// TimesSchema is the schema of native histograms with these buckets.
	TimesSchema = 3
	// TimesFirst is the index of bucket 0 in that schema.
	TimesFirst = -20 * perDoubling
	// TimesLength is the number of buckets.
	TimesLength = 26*perDoubling + 2

	perDoubling  = 1 << TimesSchema
	exampleWidth = 2 * perDoubling // buckets that share an example
)

// doublingBounds are the lower bounds of the buckets within [0.5, 1).
var doublingBounds = func() (bounds [perDoubling]float64) {
	for i := range bounds {
		bounds[i] = math.Exp2(float64(i)/perDoubling - 1)
	}
	return bounds
}()

// Times is the durations of a tier's reads since its reader was made.
type Times struct {
	Tier   string // name of the tier
	Counts [TimesLength]uint64
	Count  uint64
	Sum    time.Duration
	// Examples are reads of traced streams: the last one of each range of latencies, the zero Example if there was
	// none.
	Examples [(TimesLength + exampleWidth - 1) / exampleWidth]Example
}

// Example is a read of a traced stream.
type Example struct {
	Trace trace.TraceID
	Span  trace.SpanID // of the stream
	Took  time.Duration
	At    time.Time
}

// bucketOfTimes returns the bucket of a latency.
func bucketOfTimes(d time.Duration) int {
	frac, exp := math.Frexp(max(d, 1).Seconds()) // a clock may not advance
	within := 0
	for within < perDoubling && doublingBounds[within] < frac {
		within++
	}
	return min(max((exp-1)*perDoubling+within-TimesFirst, 0), TimesLength-1)
}

// add counts a read.
func (t *Times) add(took time.Duration) {
	t.Counts[bucketOfTimes(took)]++
	t.Count++
	t.Sum += took
}

// Times returns the durations of reads, for each tier in order.
func (r *Reader) Times() []Times {
	list := make([]Times, len(r.lanes))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.lanes {
		list[i] = r.lanes[i].times
		list[i].Tier = r.lanes[i].tier.Name()
	}
	return list
}

// quantiles returns the quantiles for statistics.
func (l *latencies) quantiles() (q Quantiles) {
	q.Max = l.greatest()
	q.P50, _ = l.quantile(0.5)
	q.P95, _ = l.quantile(0.95)
	q.P99, _ = l.quantile(0.99)
	return q
}

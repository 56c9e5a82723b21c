package read

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// Reads of a tier are counted by how long they took in buckets that grow by a
// factor of 2^(1/8), those of a Prometheus native histogram of schema 3. Bucket i
// holds what took up to 2^(TimesFirst+i)/8 seconds and longer than the bucket
// before it: the first one up to 2^-20 s, a microsecond, the last one all that is more than 64 s.
const (
	// TimesSchema is the schema of native histograms that has these buckets.
	TimesSchema = 3
	// TimesFirst is the index that bucket 0 has there.
	TimesFirst = -20 * perDoubling
	// TimesLength is how many buckets there are.
	TimesLength = 26*perDoubling + 2

	perDoubling  = 1 << TimesSchema
	exampleWidth = 2 * perDoubling // buckets that share an example
)

// doublingBounds are the bounds of the buckets within [0.5, 1), lower ones.
var doublingBounds = func() (bounds [perDoubling]float64) {
	for i := range bounds {
		bounds[i] = math.Exp2(float64(i)/perDoubling - 1)
	}
	return bounds
}()

// Times says how long the reads of a tier took, since its reader was made.
type Times struct {
	Tier   string // its name
	Counts [TimesLength]uint64
	Count  uint64
	Sum    time.Duration
	// Examples are reads of streams that are traced: the last one of each range of
	// latencies, the zero Example where there was none.
	Examples [(TimesLength + exampleWidth - 1) / exampleWidth]Example
}

// Example is a read of a stream that is traced.
type Example struct {
	Trace trace.TraceID
	Span  trace.SpanID // of the stream
	Took  time.Duration
	At    time.Time
}

// bucketOfTimes returns the bucket of a latency.
func bucketOfTimes(d time.Duration) int {
	frac, exp := math.Frexp(max(d, 1).Seconds()) // a clock may stand still
	within := 0
	for within < perDoubling && doublingBounds[within] < frac {
		within++
	}
	return min(max((exp-1)*perDoubling+within-TimesFirst, 0), TimesLength-1)
}

// add counts a read in.
func (t *Times) add(took time.Duration) {
	t.Counts[bucketOfTimes(took)]++
	t.Count++
	t.Sum += took
}

// Times returns how long reads took, for each tier in their order.
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

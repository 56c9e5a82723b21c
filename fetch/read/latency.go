package read

import (
	"math/bits"
	"time"
)

const (
	// latencyPeriod is how long reads are counted together: quantiles are those
	// of the present period and the one before.
	latencyPeriod = 5 * time.Second
	// latencyMin is how many reads make a quantile worth believing.
	latencyMin = 32

	octaves    = 32 // powers of two of microseconds
	perOctave  = 8  // buckets in each, so that a quantile is at most an eighth too great
	logPerOct  = 3
	histLength = octaves * perOctave
)

// latencies counts how long the reads of late took, in buckets whose width
// grows with the latency, as HdrHistogram's do. It is not safe for concurrent
// use.
type latencies struct {
	now, before [histLength]uint32
	n, nBefore  uint64
	since       time.Time
	most        time.Duration // of the present period
	mostBefore  time.Duration
}

// bucketOf returns the bucket of a latency.
func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 1))
	octave := bits.Len64(us) - 1
	if octave < logPerOct {
		return int(us) // below 8 µs, one each
	}
	i := (octave-logPerOct+1)*perOctave + int(us>>(octave-logPerOct))&(perOctave-1)
	return min(i, histLength-1)
}

// upperOf returns the greatest latency of a bucket.
func upperOf(i int) time.Duration {
	if i < perOctave {
		return time.Duration(i) * time.Microsecond
	}
	octave, within := i/perOctave-1+logPerOct, i%perOctave
	us := (uint64(perOctave+within+1) << (octave - logPerOct)) - 1
	return time.Duration(us) * time.Microsecond
}

// add counts a read in.
func (l *latencies) add(now time.Time, took time.Duration) {
	if now.Sub(l.since) > latencyPeriod {
		if now.Sub(l.since) > 2*latencyPeriod && l.n < latencyMin {
			l.n, l.now = 0, [histLength]uint32{} // too old and too few
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

// quantile returns the latency that a share q of the reads did not exceed, and
// false if there are too few to tell.
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

// greatest returns the greatest latency of late.
func (l *latencies) greatest() time.Duration { return max(l.most, l.mostBefore) }

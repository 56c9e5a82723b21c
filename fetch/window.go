package fetch

import (
	"sync"
	"time"
)

const (
	// initialWindow is what a stream may hold ahead of its consumer at first.
	initialWindow = 4 << 20
	// initialReads is how many reads a stream has in flight at first.
	initialReads = 4
	// headroom is how much more than bandwidth × latency a window may grow to:
	// twice lets a stream find out that more comes back when more is asked for.
	headroom = 2
	// ratePeriod is over how long bandwidth is measured at least.
	ratePeriod = 5 * time.Millisecond
	// rateDecay is what the greatest bandwidth seen loses each period, so that
	// a link that became slower is believed in the end.
	rateDecay = 0.98
)

// window bounds what one stream holds ahead of its consumer, in bytes, and how
// many of its reads are in flight.
//
// It starts small and grows by each read that completes while the consumer
// waits, which doubles it every round trip as TCP's slow start (RFC 5681) does.
// It stops at twice the greatest bandwidth × the least latency measured, the
// model of the path that BBR uses (Cardwell et al., "BBR: Congestion-Based
// Congestion Control", 2016), and at the stream's share of the node's memory.
// So a distant store soon sees as many reads as fill the path, while one that
// answers from memory sees a few at a time, whose bytes are still in the
// processor's cache when they are sent.
//
// All fields are guarded by mu. cond is told of every change that may let
// somebody go on.
type window struct {
	mu   sync.Mutex
	cond sync.Cond

	size     int64 // bytes the stream may hold now
	limit    int64 // the stream's share; size never exceeds it
	used     int64 // bytes reserved by reads under way, and by batches not yet released
	reads    int   // reads that may be in flight now
	maxReads int

	latency   time.Duration // the least of any read, 0 before the first
	rate      float64       // the greatest lately, in bytes per second
	meanBytes float64       // of a read, moving
	period    time.Time     // when the present period of measuring the rate began
	inPeriod  int64         // bytes since
}

func (w *window) init(maxReads int) {
	w.cond.L = &w.mu
	w.size, w.limit = initialWindow, initialWindow
	w.reads, w.maxReads = min(initialReads, maxReads), maxReads
	w.period = time.Now()
}

// setLimit sets the stream's share of the memory. A smaller one takes effect
// as the consumer takes what is there.
func (w *window) setLimit(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = n
	w.size = min(w.size, n)
	w.cond.Broadcast()
}

// completed takes note of a read of n bytes that began at start; mu is held.
func (w *window) completed(n int64, start time.Time) {
	now := time.Now()
	if took := now.Sub(start); w.latency == 0 || took < w.latency {
		w.latency = took
	}
	w.meanBytes += (float64(n) - w.meanBytes) / 16
	w.inPeriod += n
	if elapsed := now.Sub(w.period); elapsed >= max(ratePeriod, w.latency) {
		w.rate = max(w.rate*rateDecay, float64(w.inPeriod)/elapsed.Seconds())
		w.period, w.inPeriod = now, 0
	}
}

// grow makes room for one more read of n bytes, if the path may carry it; mu
// is held.
func (w *window) grow(n int64) {
	path := headroom * w.rate * w.latency.Seconds()
	if w.rate == 0 || float64(w.size) < path {
		w.size = min(w.size+n, w.limit)
	}
	if w.rate == 0 || float64(w.reads)*w.meanBytes < path {
		w.reads = min(w.reads+1, w.maxReads)
	}
	w.cond.Broadcast()
}

// free returns n bytes.
func (w *window) free(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.used -= n
	w.cond.Broadcast()
}

func (w *window) inUse() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}

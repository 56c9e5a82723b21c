package prefetch

import (
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

const (
	// nearWindow and farWindow are what a stream may hold ahead of its consumer
	// at first, of a store that answers at once and of one that does not; more
	// where other streams have shown that the path carries it.
	nearWindow = 4 << 20
	farWindow  = 32 << 20
	// longWindow is it of a store that answers after longLatency, and that part of it of a nearer one, if that is more
	// than farWindow.
	longWindow  = 64 << 20
	longLatency = 150 * time.Millisecond
	// headroom is how many times what the consumer takes during a slow read the
	// window may grow to.
	headroom = 2
	// ratePeriod is over how long bandwidth is measured at least.
	ratePeriod = 5 * time.Millisecond
	// rateDecay is what the greatest bandwidth seen loses each period, so that
	// a stream that became slower is believed in the end.
	rateDecay = 0.98
)

// window bounds what one stream holds ahead of its consumer, in bytes: what
// its reads in flight will bring, what waits to be delivered, and batches that
// were not yet released.
//
// It starts small and grows by each read that completes while the consumer
// waits: by twice its bytes, as they lie in the window until their batch is taken,
// and as many more are to be asked for in every round trip. It stops at twice what the consumer
// takes, at its fastest, while a slow read is under way (the 99th percentile
// of late, or a hedged one): more could not keep it from waiting; and at the stream's share of
// the node's memory. It shrinks as those do. So a distant store soon sees
// as many reads as fill the path, while of one that answers from memory only a
// few blobs are read ahead.
//
// All fields are guarded by Stream.mu.
type window struct {
	size  int64 // bytes the stream may hold now
	least int64 // size is not made smaller than that, but for limit
	limit int64 // the stream's share; size never exceeds it
	used  int64 // bytes reserved by reads under way, and by batches not yet released

	rate     float64   // at which bytes came, the greatest lately, per second
	period   time.Time // when the present period of measuring the rate began
	inPeriod int64     // bytes since
}

// init sets the window for such a way to the store, and the stream's share.
func (w *window) init(now time.Time, path read.Path, share int64) {
	w.least = nearWindow
	if path.Far() {
		w.least = max(farWindow, int64(longWindow*min(path.Latency, longLatency)/longLatency), path.Limit)
	}
	w.size, w.period = w.least, now
	w.setLimit(share)
}

// setLimit sets the stream's share of the memory. A smaller one takes effect
// as the consumer takes what is there.
func (w *window) setLimit(n int64) {
	w.limit = n
	w.size = min(w.size, n)
}

// completed takes note of a read of n bytes. slow is how long a slow read takes;
// waiting says that the consumer waits.
func (w *window) completed(now time.Time, n int64, slow time.Duration, waiting bool) {
	w.inPeriod += n
	if elapsed := now.Sub(w.period); elapsed >= max(ratePeriod, slow/2) {
		w.rate = max(w.rate*rateDecay, float64(w.inPeriod)/elapsed.Seconds())
		w.period, w.inPeriod = now, 0
		if most := w.most(slow); w.size > most {
			w.size = most
		}
	}
	if waiting && (w.rate == 0 || w.size < w.most(slow)) {
		w.size = min(w.size+2*n, w.limit)
	}
}

// most is what the window may grow to.
func (w *window) most(slow time.Duration) int64 {
	return min(max(w.least, int64(headroom*w.rate*slow.Seconds())), w.limit)
}

// sizer cuts runs of rows into record batches that are bounded by rows and by
// bytes.
type sizer struct {
	rowBytes   int64 // the metadata of a row, on average, and what is made of it
	batchBytes int64 // what the request allows a batch
	maxBytes   int64 // what it may have now
	bytes      int64 // of the batch so far
	rows       int64
}

const (
	// packedIDBytes is what each token of a sequence has beside: its place, and its segment.
	packedIDBytes = 8
	// mostTokenBytes is what a token takes at most, where it is copied.
	mostTokenBytes = 8
)

// newSizer returns the sizer of a job's batches.
func newSizer(j *resolve.Job) sizer {
	m := j.Manifest()
	z := sizer{batchBytes: j.Request().BatchBytes}
	if z.batchBytes == 0 {
		z.batchBytes = schema.DefaultBatchBytes
	}
	z.maxBytes = z.batchBytes
	if rows := m.Rows(); rows > 0 {
		for _, c := range m.Snapshot().Chunks {
			z.rowBytes += c.ManifestBytes()
		}
		z.rowBytes /= rows
	}
	z.rowBytes += j.ComputedBytes(z.rowBytes)
	if sum, ok := j.Plan().Packing(); ok && sum.Sequences > 0 {
		pack := j.Request().Pack
		z.rowBytes = z.rowBytes*sum.Documents/sum.Sequences + packedIDBytes*pack.Length
		if pack.Pad != nil {
			z.rowBytes += mostTokenBytes * pack.Length
		}
	}
	return z
}

func (z *sizer) reset() { z.bytes, z.rows = 0, 0 }

// fits reports whether the batch may have a row with that many bytes of blobs
// too, and if so counts it in. The first row always fits.
func (z *sizer) fits(blobs int64) bool {
	n := z.rowBytes + blobs
	if z.rows > 0 && (z.bytes+n > z.maxBytes || z.rows == schema.DefaultMetaBatch) {
		return false
	}
	z.bytes += n
	z.rows++
	return true
}

package prefetch

import (
	"time"

	"bowstring/fetch/read"
	"bowstring/fetch/resolve"
	"bowstring/schema"
)

const (
	// nearWindow and farWindow are the initial window of a stream, in bytes: of a store
	// that answers at once, and of a distant one. The window begins larger if other
	// streams have shown that the path carries more.
	nearWindow = 4 << 20
	farWindow  = 32 << 20
	// longWindow is the initial window of a store that answers after longLatency. A
	// nearer store gets a part of it in proportion to its latency, at least farWindow.
	longWindow  = 64 << 20
	longLatency = 150 * time.Millisecond
	// headroom bounds the window: at most headroom times what the consumer takes during
	// a slow read.
	headroom = 2
	// ratePeriod is the shortest time over which bandwidth is measured.
	ratePeriod = 5 * time.Millisecond
	// rateDecay is the factor that the maximum bandwidth is multiplied by each period,
	// so that the window of a stream that became slower shrinks in the end.
	rateDecay = 0.98
)

// window bounds what one stream holds for its consumer, in bytes: reads in flight,
// data that waits to be delivered, and batches that were not yet released.
//
// It starts small and grows with each read that completes while the consumer waits. It
// grows by twice the bytes of the read: these bytes stay in the window until their
// batch is taken, and each round trip should request as many again. It stops at twice
// what the consumer takes, at its fastest, during a slow read (the recent p99, or a
// hedged read), because more could not keep the consumer from waiting. It also stops at
// the stream's share of the node's memory. It shrinks as these bounds do. So a distant
// store soon gets as many reads as fill the path. From a store that answers out of
// memory, the stream prefetches only a few blobs.
//
// All fields belong to the stream's goroutine.
type window struct {
	size  int64 // bytes the stream may hold now
	least int64 // lower bound of size, unless limit is less
	limit int64 // the stream's share; size never exceeds it
	used  int64 // bytes reserved by reads under way, and by batches not yet released

	rate     float64   // recent maximum bandwidth, in bytes per second
	period   time.Time // when the current measuring period began
	inPeriod int64     // bytes that have arrived in it
}

// init sets the initial window for a path to the store and the stream's share.
func (w *window) init(now time.Time, path read.Path, share int64) {
	w.least = nearWindow
	if path.Far() {
		w.least = max(farWindow, int64(longWindow*min(path.Latency, longLatency)/longLatency), path.Limit)
	}
	w.size, w.period = w.least, now
	w.setLimit(share)
}

// setLimit sets the stream's share of the memory. If the stream holds more, it reads
// nothing until the consumer has taken the excess.
func (w *window) setLimit(n int64) {
	w.limit = n
	w.size = min(w.size, n)
}

// completed adapts the window to a completed read of n bytes. slow is how long a slow
// read takes. waiting says that the consumer waits.
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

// most is the size up to which the window may grow.
func (w *window) most(slow time.Duration) int64 {
	return min(max(w.least, int64(headroom*w.rate*slow.Seconds())), w.limit)
}

// sizer decides how many rows fit a record batch, which is bounded by rows and by
// bytes.
type sizer struct {
	rowBytes   int64 // the mean metadata of a row, with its computed columns
	batchBytes int64 // the request's limit for a batch
	maxBytes   int64 // the current limit, which is less if memory is short
	bytes      int64 // of the batch so far
	rows       int64
}

const (
	// packedIDBytes is what each token of a sequence has in addition: position and segment.
	packedIDBytes = 8
	// mostTokenBytes is the most that a token takes in a padded sequence.
	mostTokenBytes = 8
)

// newSizer returns the sizer of a job's batches. Manifests do not say how large single
// rows are, so all rows count with their mean. A row of a packed job is a sequence, so
// it counts the mean number of documents.
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

// fits reports whether a row with that many bytes of blobs fits the batch too, and if
// so adds it. The first row always fits.
func (z *sizer) fits(blobs int64) bool {
	n := z.rowBytes + blobs
	if z.rows > 0 && (z.bytes+n > z.maxBytes || z.rows == schema.DefaultMetaBatch) {
		return false
	}
	z.bytes += n
	z.rows++
	return true
}

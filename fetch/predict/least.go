package predict

import "math"

// waits reports whether consumers wait in an epoch of which caches hold a share, after its
// first batch. Consumers without a pace wait always.
func waits(r Rates, j *Job, held float64) bool {
	pace := over(float64(j.Batch), j.PaceMS/1000)
	for _, p := range parts(r, j, held) {
		if p.SamplesPer < pace {
			return true
		}
	}
	return math.IsInf(pace, 1)
}

// smallestCache is the least budget of each node's cache with which later epochs do not
// wait; nil if they do with any.
func smallestCache(r Rates, j Job) *int64 {
	enough := func(bytes int64) bool { return !waits(r, &j, j.held(bytes)) }
	most := cacheFixed + int64(math.Ceil(j.footprint()/float64(j.Nodes))) + 1
	return least(most, enough)
}

// smallestWindow is the least window of each node with which no epoch waits, or, where the
// first one does with any window, no later one; nil if those do, too.
func smallestWindow(r Rates, j Job) *int64 {
	now, later := j.heldNow(), j.held(j.CacheBytes)
	at := func(bytes int64, held float64) bool {
		j.WindowBytes = bytes
		return !waits(r, &j, held)
	}
	// More than this, nobody has a use for: reads in flight are bounded.
	most := int64(min(2*maxReads*(j.RowBytes+readOverhead)+4*float64(j.Batch)*j.RowBytes, math.MaxInt64/4)) + 1
	if found := least(most, func(b int64) bool { return at(b, now) && (j.Epochs == 1 || at(b, later)) }); found != nil {
		return found
	}
	if j.Epochs == 1 {
		return nil
	}
	return least(most, func(b int64) bool { return at(b, later) })
}

// least is the smallest number up to most that is enough, as all above it are; nil if none is.
func least(most int64, enough func(int64) bool) *int64 {
	if !enough(most) {
		return nil
	}
	low, high := int64(-1), most // low is not enough
	for high-low > 1 {
		if mid := low + (high-low)/2; enough(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	return &high
}

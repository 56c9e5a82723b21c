package tiers

import "time"

const (
	// hedgeShare is how many reads more are made for the sake of slow ones.
	hedgeShare = 0.05
	// maxHedges is how many hedges may be saved up for a bad moment.
	maxHedges = 32
	// hedgeLeast and hedgeFactor say when a read is slow: after that many times
	// the 95th percentile of late. Below hedgeLeast nothing could be gained.
	hedgeLeast  = 20 * time.Millisecond
	hedgeFactor = 1.5
	// A read that is silent for silenceFactor times the 95th percentile, but
	// silenceLeast at least, is attempted again whatever hedges are left, and
	// after twice that once more: its server may be gone without a word.
	silenceFactor = 8
	silenceLeast  = time.Second
	maxAttempts   = 3 // under way at once
	// watchPeriod is how often slow reads are looked for.
	watchPeriod = 10 * time.Millisecond
)

// keepWatchLocked has slow reads looked for.
func (r *Reader) keepWatchLocked() {
	if r.watching || r.closed || r.oldest == nil {
		return
	}
	r.watching = true
	r.running.Add(1)
	if r.watch == nil {
		r.watch = time.AfterFunc(watchPeriod, r.lookForSlow)
		return
	}
	r.watch.Reset(watchPeriod)
}

// lookForSlow begins another attempt, at the last tier, at the reads that are slow.
func (r *Reader) lookForSlow() {
	defer r.running.Done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watching = false
	if r.closed {
		return
	}
	defer r.keepWatchLocked()
	hedgeAfter, silentAfter, hedging := r.patienceLocked()
	p95, _ := r.latency.quantile(0.95)
	p99, _ := r.latency.quantile(0.99)
	r.slow = max(p99, 3*p95) // a hedge and what went before it
	now := time.Now()
	for rd := r.oldest; rd != nil; rd = rd.newer {
		age := now.Sub(rd.start)
		if age < hedgeAfter && age < silentAfter {
			return
		}
		switch {
		case rd.running >= maxAttempts:
			continue
		case now.Sub(rd.latest) >= silentAfter<<max(rd.running-1, 0):
			r.stats.retries++
		case hedging && rd.failed == 0 && now.Sub(rd.latest) >= hedgeAfter && r.hedges >= 1:
			r.hedges--
			r.stats.hedges++
			rd.hedged = true
		default:
			continue
		}
		rd.attemptLocked(now)
		r.last.beganLocked(rd)
		r.startLocked(Attempt{rd, rd.attempts - 1, r.last})
	}
}

// patienceLocked says after which time a read is slow, and after which it is silent.
func (r *Reader) patienceLocked() (hedge, silent time.Duration, hedging bool) {
	p95, known := r.latency.quantile(0.95)
	if !known {
		return silenceLeast, 2 * silenceLeast, false
	}
	return max(hedgeLeast, time.Duration(hedgeFactor*float64(p95))), max(silenceLeast, silenceFactor*p95), !r.opts.NoHedge
}

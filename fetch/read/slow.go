package read

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
	// A read that waits for another node alone is left to that for awayLeast at least. Where the node says nothing, or
	// brings nothing for long, its tier knows sooner; where it is slow, it has a queue before the store, and a second
	// read would only make that longer.
	awayLeast = 5 * time.Second
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

// lookForSlow ends the reads that have had their time, looks after those that are slow, and has others go on with what
// goroutines have begun that are held up.
func (r *Reader) lookForSlow() {
	defer r.running.Done()
	var tell told
	r.mu.Lock()
	r.watching = false
	if !r.closed {
		now := time.Now()
		r.giveUpLocked(now, &tell)
		r.robLocked(now, &tell)
		r.againLocked(now)
		r.keepWatchLocked()
	}
	r.mu.Unlock()
	for _, e := range tell.ended {
		if e.read.overdue {
			r.trouble.report(r.opts.Logger, e.read.ref, e.read.attempts-1, e.o.Err)
		}
	}
	tell.tell()
}

// againLocked begins another attempt, at the last tier, at reads that are slow.
func (r *Reader) againLocked(now time.Time) {
	store, remote := r.patienceLocked(&r.latency), r.patienceLocked(&r.remote)
	remote.silent = max(remote.silent, awayLeast)
	soonest := min(store.hedge, store.silent, remote.hedge, remote.silent)
	p95, _ := r.latency.quantile(0.95)
	p99, _ := r.latency.quantile(0.99)
	r.slow = max(p99, 3*p95) // a hedge and what went before it
	for rd := r.oldest; rd != nil; rd = rd.newer {
		if now.Sub(rd.start) < soonest {
			return
		}
		is := store
		if r.awayLocked(rd) {
			is = remote
		}
		why := Retry
		switch quiet := now.Sub(rd.latest); {
		case rd.running >= maxAttempts:
			continue
		case quiet >= is.silent<<max(rd.running-1, 0):
			r.stats.retries++
		case is.hedging && rd.failed == 0 && quiet >= is.hedge && r.hedges >= 1:
			r.hedges--
			r.stats.hedges++
			rd.hedged = true
			why = Hedge
		default:
			continue
		}
		rd.attemptLocked(now)
		r.last.beganLocked(rd)
		r.dueLocked(Attempt{read: rd, nth: rd.attempts - 1, lane: r.last, why: why})
	}
}

// awayLocked reports whether a read waits for another node alone.
func (r *Reader) awayLocked(rd *read) bool {
	for i := range r.lanes {
		if rd.counted&r.lanes[i].bit() != 0 && !r.lanes[i].traits.Remote {
			return false
		}
	}
	return rd.counted != 0
}

// spareLocked is how many attempts under way a read does not wait for once the store has failed: those at other
// nodes, of one that one of them waits for, which may be that very node.
func (r *Reader) spareLocked(rd *read) (n int) {
	for i := range r.lanes {
		if l := &r.lanes[i]; rd.here && l.traits.Remote && rd.counted&l.bit() != 0 {
			n++
		}
	}
	return n
}

// patience says after which time a read is slow, and after which it is silent.
type patience struct {
	hedge, silent time.Duration
	hedging       bool
}

func (r *Reader) patienceLocked(l *latencies) patience {
	p95, known := l.quantile(0.95)
	if !known {
		return patience{silenceLeast, 2 * silenceLeast, false}
	}
	return patience{max(hedgeLeast, time.Duration(hedgeFactor*float64(p95))), max(silenceLeast, silenceFactor*p95),
		!r.opts.NoHedge}
}

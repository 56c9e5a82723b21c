package read

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bowstring/schema"
)

const (
	// damagedAttempts is how often a missing or damaged blob is read, from other replicas if the store has them.
	damagedAttempts = 3
	// Pauses before another attempt: firstPause, then doubling up to lastPause. Each is varied by up to half at
	// random, so that streams whose reads failed together do not retry together.
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// endedLocked processes the end of an attempt: the read ends with the blob, or another attempt starts, or the read
// fails.
func (r *Reader) endedLocked(a Attempt, c *came, notices *notices) {
	rd, err := a.read, c.answer.Err
	rd.running--
	if rd.over {
		if rd.overdue {
			r.stuck.Add(-1)
		}
		c.answer.Blob.Release()
		return
	}
	now, took := c.when, c.when.Sub(c.began)
	slow := a.lane == r.last && r.slow > 0 && took > r.slow
	if rd.trace != nil {
		notices.traced = append(notices.traced, traced{a, c.began, slow && err == nil, err})
	}
	if err == nil {
		rd.unchecked = c.answer.Unchecked
		notices.ended = append(notices.ended, ended{rd, r.broughtLocked(a, now, took, &c.answer)})
		return
	}
	if a.lane != r.last { // ask the tiers below at once
		a.lane.abandonedLocked(rd)
		below := &r.lanes[a.lane.index+1]
		for rd.here && below.traits.Remote {
			below = &r.lanes[below.index+1]
		}
		if rd.running > 0 && rd.counted&r.last.bit() != 0 {
			return // it has been asked already
		}
		rd.running++
		rd.latest = now
		below.beganLocked(rd)
		rd.asked = rd.asked || a.lane.traits.Remote
		r.dueLocked(Attempt{read: rd, nth: a.nth, lane: below, why: a.why})
		return
	}
	rd.failed++
	rd.why = err
	r.stats.failedReads++
	if errors.Is(err, schema.ErrNotFound) || errors.Is(err, schema.ErrDataLoss) {
		r.hearLocked(now)
	}
	pause, again := r.pauseAfterLocked(rd, now, err)
	switch {
	case again:
		r.stats.retries++
		rd.attemptLocked(now.Add(pause))
		r.dueLocked(Attempt{read: rd, nth: rd.attempts - 1, lane: r.last, why: Retry, pause: time.NewTimer(pause)})
	case rd.running <= r.spareLocked(rd):
		r.forgetLocked(rd)
		delete(r.reads, rd.key())
		err = absenceIsLoss(err)
		r.stats.unanswered++
		if errors.Is(err, schema.ErrDataLoss) {
			r.stats.lost++
		}
		notices.ended = append(notices.ended, ended{rd, Outcome{Ref: rd.ref, Err: err, Tier: r.last.index, At: now}})
	}
}

// broughtLocked ends a read whose attempt brought the blob. took is the time of that attempt alone: earlier attempts
// say nothing about the store's latency, and would let a silent server raise the timeouts. Neither does a joined
// answer: it may take no time at all, and a path with such a latency would seem to carry next to nothing.
func (r *Reader) broughtLocked(a Attempt, now time.Time, took time.Duration, answer *Answer) Outcome {
	rd, l := a.read, a.lane
	if a.nth > 0 && rd.hedged {
		r.stats.hedgesWon++
	}
	l.completedLocked(rd, now, took, answer.Joined)
	l.times.add(took)
	if rd.trace != nil {
		rd.trace.exampleLocked(&l.times, took, now)
	}
	if l == r.last {
		r.hearLocked(now)
		if !answer.Joined {
			r.latency.add(now, took)
		}
		r.stats.reads++
		r.stats.reasons[r.reasonLocked(a)]++
		r.stats.readBytes += rd.ref.Size
		r.stats.readNanos += int64(took)
		if rd.place.Dataset != 0 && !rd.place.IsPage() && !r.opts.Keeps(rd.ref) {
			r.stats.fellBack++
		}
		if rd.account != nil {
			rd.account.LastBytes.Add(rd.ref.Size)
		}
		r.hedges = min(r.hedges+hedgeShare, maxHedges)
	} else if l.traits.Remote {
		r.remote.add(now, took)
		r.stats.peerReads++
		r.stats.peerBytes += rd.ref.Size
	} else {
		r.stats.upperReads++
		r.stats.upperBytes += rd.ref.Size
	}
	r.forgetLocked(rd) // it stays in reads while it is held
	rd.blob = answer.Blob
	rd.refs.Store(int32(1 + len(rd.others)))
	return Outcome{Ref: rd.ref, Blob: answer.Blob, Tier: l.index, Took: now.Sub(rd.latest), At: now}
}

// keeps reports whether the tiers of this node are to cache what a read brings. Pages of manifests are not requested
// from other nodes, so each node caches those that it reads.
func (r *Reader) keeps(rd *read) bool {
	return rd.place.Dataset != 0 && !rd.fill && (rd.place.IsPage() || r.opts.Keeps(rd.ref))
}

// offer offers a blob to the tiers above the one that had it.
func (rd *read) offer(o *Outcome) {
	r := rd.reader
	// Ownership may have changed since the read began, so an unchecked blob may be one to cache now. It is not
	// cached.
	if o.Err != nil || o.Tier <= 0 || rd.unchecked || !r.keeps(rd) {
		return
	}
	ref := r.Known(rd.ref)
	if ref.Unproven() {
		return // without a stored checksum, a lookup would not find it
	}
	for i := range r.lanes[:o.Tier] {
		if k := r.lanes[i].caching; k != nil {
			rd.refs.Add(1)
			k.Offer(ref, rd.place, o.Took, schema.NewBlob(o.Blob.Bytes(), rd))
		}
	}
}

// pauseAfterLocked reports whether a failed read is tried again, and after which pause.
func (r *Reader) pauseAfterLocked(rd *read, now time.Time, err error) (time.Duration, bool) {
	switch {
	case errors.Is(err, schema.ErrUnavailable):
		// The fault may pass.
	case errors.Is(err, schema.ErrDataLoss), errors.Is(err, schema.ErrNotFound):
		if rd.failed >= damagedAttempts {
			return 0, false
		}
	default:
		return 0, false // neither time nor another replica helps
	}
	b := backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: lastPause,
		Multiplier: backoff.DefaultMultiplier, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	b.Reset()
	pause := b.NextBackOff()
	for range rd.failed - 1 {
		pause = b.NextBackOff()
	}
	return pause, now.Add(pause).Sub(rd.start) < r.opts.ReadTimeout
}

// absenceIsLoss turns the ErrNotFound of a blob into ErrDataLoss: a manifest names the blob, so its absence is not
// the client's mistake.
func absenceIsLoss(err error) error {
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return err
}

const (
	// hedgeShare is how many hedges are allowed per read.
	hedgeShare = 0.05
	// maxHedges is how many unused hedges are saved up for a slow period.
	maxHedges = 32
	// A read is slow after hedgeFactor times the recent p95, and at least hedgeLeast. Below hedgeLeast a hedge could
	// gain nothing.
	hedgeLeast  = 20 * time.Millisecond
	hedgeFactor = 1.5
	// If a read has no answer for silenceFactor times the recent p95, and at least
	// silenceLeast, it is attempted again, even if no hedges are left. After twice that
	// time it is attempted once more. Its server may have died without closing the
	// connection.
	silenceFactor = 8
	silenceLeast  = time.Second
	maxAttempts   = 3 // in flight at once
	// A read that waits only for another node is left to it for at least awayLeast. If that node sends nothing, or no
	// blob for long, its tier cancels the request sooner. If the node is slow, it waits in a queue before the store,
	// and a second read would only lengthen the queue.
	awayLeast = 5 * time.Second
	// watchPeriod is how often the reader checks for slow reads.
	watchPeriod = 10 * time.Millisecond
)

// keepWatchLocked starts the timer that checks for slow reads, unless it runs or no read
// is in flight. One timer serves all reads: a timer for each would cost as much as a read
// that hits.
func (r *Reader) keepWatchLocked() {
	if r.watching || r.closed || r.oldest == nil {
		return
	}
	r.watching = true
	r.running.Add(1)
	if r.watch == nil {
		r.watch = time.AfterFunc(watchPeriod, r.probeSlow)
		return
	}
	r.watch.Reset(watchPeriod)
}

// probeSlow fails the reads that have timed out, starts attempts for slow ones, and hands work that blocked
// goroutines have not begun to others. The timer calls it.
func (r *Reader) probeSlow() {
	defer r.running.Done()
	var notices notices
	r.mu.Lock()
	r.watching = false
	if !r.closed {
		now := time.Now()
		r.failLateLocked(now, &notices)
		r.robLocked(now, &notices)
		r.againLocked(now)
		r.keepWatchLocked()
	}
	r.mu.Unlock()
	for _, e := range notices.ended {
		if e.read.overdue {
			r.trouble.report(r.opts.Logger, e.read.ref, e.read.attempts-1, e.o.Err)
		}
	}
	notices.send()
}

// againLocked starts another attempt, at the last tier, for reads that are slow.
func (r *Reader) againLocked(now time.Time) {
	store, remote := r.patienceLocked(&r.latency), r.patienceLocked(&r.remote)
	remote.silent = max(remote.silent, awayLeast)
	soonest := min(store.hedge, store.silent, remote.hedge, remote.silent)
	r.quantiles = r.latency.quantiles()
	r.slow = max(r.quantiles.P99, 3*r.quantiles.P95) // a hedge and what preceded it
	for rd := r.oldest; rd != nil; rd = rd.newer {
		if now.Sub(rd.start) < soonest {
			return
		}
		is := store
		if r.awayLocked(rd) {
			is = remote
			// The owner may be reading neighbours in the same request. This node would read all of them again.
			is.hedging = is.hedging && !r.last.gathers(rd.ref)
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

// awayLocked reports whether a read waits only for other nodes.
func (r *Reader) awayLocked(rd *read) bool {
	for i := range r.lanes {
		if rd.counted&r.lanes[i].bit() != 0 && !r.lanes[i].traits.Remote {
			return false
		}
	}
	return rd.counted != 0
}

// spareLocked is how many attempts in flight a read does not wait for once the store has failed. If a node waits for
// the read, those are the attempts at other nodes, because one of them may be that very node.
func (r *Reader) spareLocked(rd *read) (n int) {
	for i := range r.lanes {
		if l := &r.lanes[i]; rd.here && l.traits.Remote && rd.counted&l.bit() != 0 {
			n++
		}
	}
	return n
}

// patience is after which time a read is slow, and after which it is silent.
type patience struct {
	hedge, silent time.Duration
	hedging       bool
}

// patienceLocked returns the patience for a path with these recent latencies. If there
// are too few to know a p95, nothing is hedged, and a read counts as silent after twice
// silenceLeast.
func (r *Reader) patienceLocked(l *latencies) patience {
	p95, known := l.quantile(0.95)
	if !known {
		return patience{silenceLeast, 2 * silenceLeast, false}
	}
	return patience{max(hedgeLeast, time.Duration(hedgeFactor*float64(p95))), max(silenceLeast, silenceFactor*p95),
		!r.opts.NoHedge}
}

const (
	// leastRate, in bytes per second, extends ReadTimeout by the size of a blob, because a large blob takes long even
	// if nothing is wrong.
	leastRate = 1 << 20
	// maxStuck is how many abandoned attempts may still run before no more are started. A store that does not return
	// when its context ends, such as a mapped file on a hung disk, keeps a thread for each.
	maxStuck = 1024
)

// limit is the timeout of a read, over all of its attempts.
func (r *Reader) limit(rd *read) time.Duration {
	return r.opts.ReadTimeout + time.Duration(rd.ref.Size*int64(time.Second)/leastRate)
}

// overdueLocked reports whether a read has timed out: since it began, or since it was requested if the store has
// brought nothing for as long. In the second case it had to wait behind reads that the store did not answer.
func (r *Reader) overdueLocked(rd *read, now time.Time) bool {
	limit := r.limit(rd)
	return now.Sub(rd.start) >= limit ||
		rd.counted&r.last.bit() != 0 && now.Sub(rd.since) >= limit && now.Sub(r.heard) >= limit
}

// hearLocked records that the store has answered a read of a blob.
func (r *Reader) hearLocked(now time.Time) { r.heard, r.silent = now, false }

// listenLocked records that the store is asked. Without reads in flight before, its silence begins now.
func (r *Reader) listenLocked(now time.Time) {
	if r.last.inFlightLocked() == 0 && !r.silent {
		r.heard = now
	}
}

// failLateLocked fails the reads that have timed out. Their attempts may still run: Close waits for them, and blobs
// that they bring are released. Other goroutines take their place.
func (r *Reader) failLateLocked(now time.Time, notices *notices) {
	long := now.Sub(r.heard) >= r.opts.ReadTimeout
	n := 0
	for rd := r.oldest; rd != nil; {
		if !long && now.Sub(rd.start) < r.opts.ReadTimeout {
			break // later reads have not timed out
		}
		newer := rd.newer
		if r.overdueLocked(rd, now) {
			err := r.lateErrorLocked(rd, now)
			r.silent = r.silent || rd.counted&r.last.bit() != 0
			r.stuck.Add(int64(rd.running))
			rd.overdue = true
			r.forgetLocked(rd)
			delete(r.reads, rd.key())
			r.stats.unanswered++
			notices.ended = append(notices.ended, ended{rd, Outcome{Ref: rd.ref, Err: err, Tier: r.last.index, At: now}})
			if n++; n <= maxIdle {
				r.wakeLocked() // the goroutines of its attempts may not return
			}
		}
		rd = newer
	}
}

// lateErrorLocked is the error of a read that has timed out.
func (r *Reader) lateErrorLocked(rd *read, now time.Time) error {
	where := "the store"
	if p, ok := r.last.tier.(Placed); ok && p.Where() != "" {
		where = p.Where()
	}
	err := fmt.Errorf("%w: read blob %s of %d bytes: %s has not sent it for %s, in %d attempts, of which %d failed; "+
		"check that the store answers and the network to it, or raise the read timeout of %s", schema.ErrUnavailable,
		rd.ref.Key, rd.ref.Size, where, now.Sub(rd.since).Round(time.Millisecond), rd.attempts, rd.failed,
		r.opts.ReadTimeout)
	if rd.why != nil {
		err = fmt.Errorf("%w; the last of these: %w", err, rd.why)
	}
	return err
}

// stuckError is the error of an attempt while too many abandoned ones still run.
func stuckError(n int64) error {
	return fmt.Errorf("%w: %d abandoned attempts have not ended: the store does not answer and cannot be "+
		"left; check its disks or its servers", schema.ErrUnavailable, n)
}

// Reason is why a blob was read from the last tier.
type Reason uint8

// Reasons for reads of the last tier. Without other nodes there are only Own, Ahead, Page, Hedge and Retry.
const (
	// Without other nodes there are only Own, Prefetched, Page, Hedge and Retry.
	Own        Reason = iota // a stream wants it, and this node owns it
	ForPeer                  // another node requested it, and this node owns it
	Prefetched               // this node owns it, and prefetches it into the spill
	// Page is for pages of manifests and for blobs without a place. They are not
	// requested from other nodes.
	Page
	NotOwner    // another node requested it, with a different view of ownership
	Unreachable // another node owns it, and cannot be asked now
	Refused     // another node was asked, and has not sent it
	Hedge       // an attempt in addition to a slow one
	Retry       // an attempt after one that failed, or was silent for long
	reasons
)

var reasonNames = [reasons]string{"own", "peer", "ahead", "page", "astray", "unreachable", "refused", "hedge", "retry"}

// String returns the name of a reason in statistics.
func (r Reason) String() string { return reasonNames[r] }

// Reasons counts reads by reason.
type Reasons [reasons]int64

// Map returns the counts that are not 0, by name.
func (r *Reasons) Map() map[string]int64 {
	m := make(map[string]int64, reasons)
	for i, n := range r {
		if n != 0 {
			m[Reason(i).String()] = n
		}
	}
	return m
}

// ReasonNames lists the names of all reasons. The caller must not change the slice.
func ReasonNames() []string { return reasonNames[:] }

// reason is why the first attempt of a read is made at the last tier. It calls Options.Keeps.
func (r *Reader) reason(rd *read) Reason {
	switch {
	case rd.place.Dataset == 0 || rd.place.IsPage():
		return Page
	case !r.opts.Keeps(rd.ref):
		if rd.here {
			return NotOwner
		}
		return Unreachable
	case rd.fill:
		return Prefetched
	case rd.here:
		return ForPeer
	}
	return Own
}

// reasonLocked is why the attempt that brought a blob from the last tier was made.
func (r *Reader) reasonLocked(a Attempt) Reason {
	rd := a.read
	switch {
	case a.why != Own:
		return a.why
	case a.nth == 0 && rd.asked:
		return Refused
	}
	return r.reason(rd)
}

// troublePeriod is the shortest time between logs of failed reads.
const troublePeriod = 5 * time.Second

// trouble logs failed reads at a limited rate, because with a store that is down thousands fail per second.
type trouble struct {
	mu       sync.Mutex
	reported time.Time // guarded by mu
	untold   int       // failures since reported that were not logged; guarded by mu
}

// report logs that the n-th attempt at a read failed, at most once in troublePeriod. A cancelled read is not logged.
func (t *trouble) report(log *slog.Logger, ref schema.BlobRef, n int, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	now := time.Now()
	if !t.reported.IsZero() && now.Sub(t.reported) < troublePeriod {
		t.untold++
		t.mu.Unlock()
		return
	}
	more := t.untold
	t.reported, t.untold = now, 0
	t.mu.Unlock()
	log.Warn("a read failed", "blob", ref.Key, "attempt", n, "error", err, "more_since_last", more)
}

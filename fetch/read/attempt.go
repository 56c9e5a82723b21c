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
	// damagedAttempts is how often a blob that is missing or damaged is read, on
	// other replicas where the store has them.
	damagedAttempts = 3
	// Pauses before another attempt: the first, doubling up to the last, each
	// made up to half shorter or longer by chance, so that streams which failed
	// together do not come back together.
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// endedLocked takes in what came of an attempt: the blob, another attempt, or an error in the end.
func (r *Reader) endedLocked(a Attempt, c *came, tell *told) {
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
		tell.traced = append(tell.traced, traced{a, c.began, slow && err == nil, err})
	}
	if err == nil {
		rd.unchecked = c.answer.Unchecked
		tell.ended = append(tell.ended, ended{rd, r.broughtLocked(a, now, took, c.answer.Blob)})
		return
	}
	if a.lane != r.last { // the tiers below are asked at once
		a.lane.abandonedLocked(rd)
		below := &r.lanes[a.lane.index+1]
		for rd.here && below.traits.Remote {
			below = &r.lanes[below.index+1]
		}
		if rd.running > 0 && rd.counted&r.last.bit() != 0 {
			return // which is asked already
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
		r.stats.givenUp++
		if errors.Is(err, schema.ErrDataLoss) {
			r.stats.lost++
		}
		tell.ended = append(tell.ended, ended{rd, Outcome{Ref: rd.ref, Err: err, Tier: r.last.index, At: now}})
	}
}

// broughtLocked takes note of an attempt that has brought the blob. took is how
// long that attempt took: what went before it says nothing about the store's
// latency, and would have silent servers make the reader patient.
func (r *Reader) broughtLocked(a Attempt, now time.Time, took time.Duration, blob schema.Blob) Outcome {
	rd, l := a.read, a.lane
	if a.nth > 0 && rd.hedged {
		r.stats.hedgesWon++
	}
	l.completedLocked(rd, now, took)
	l.times.add(took)
	if rd.trace != nil {
		rd.trace.exampleLocked(&l.times, took, now)
	}
	if l == r.last {
		r.hearLocked(now)
		r.latency.add(now, took)
		r.stats.reads++
		r.stats.reasons[r.reasonLocked(a)]++
		r.stats.readBytes += rd.ref.Size
		r.stats.readNanos += int64(took)
		if rd.place.Dataset != 0 && !rd.place.IsPage() && !r.opts.Keeps(rd.ref) {
			r.stats.stoodIn++
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
	r.forgetLocked(rd) // it stays in reads as long as it is held
	rd.blob = blob
	rd.refs.Store(int32(1 + len(rd.others)))
	return Outcome{Ref: rd.ref, Blob: blob, Tier: l.index, Took: now.Sub(rd.latest), At: now}
}

// keeps reports whether the tiers of this node are to keep what a read brings. No other node is asked for the pages of
// manifests, so each keeps those that it reads.
func (r *Reader) keeps(rd *read) bool {
	return rd.place.Dataset != 0 && !rd.fill && (rd.place.IsPage() || r.opts.Keeps(rd.ref))
}

// offer offers a blob that came to the tiers above the one that had it.
func (rd *read) offer(o *Outcome) {
	r := rd.reader
	// What is for this node to keep may have changed since the read began: nothing is kept that was not checked.
	if o.Err != nil || o.Tier <= 0 || rd.unchecked || !r.keeps(rd) {
		return
	}
	ref := r.Known(rd.ref)
	if ref.Unproven() {
		return // its checksum is not kept: nothing would find it
	}
	for i := range r.lanes[:o.Tier] {
		if k := r.lanes[i].keeper; k != nil {
			rd.refs.Add(1)
			k.Offer(ref, rd.place, o.Took, schema.NewBlob(o.Blob.Bytes(), rd))
		}
	}
}

// pauseAfterLocked says whether a read that failed is tried again, and after
// which pause.
func (r *Reader) pauseAfterLocked(rd *read, now time.Time, err error) (time.Duration, bool) {
	switch {
	case errors.Is(err, schema.ErrUnavailable):
		// Whatever is wrong may pass.
	case errors.Is(err, schema.ErrDataLoss), errors.Is(err, schema.ErrNotFound):
		if rd.failed >= damagedAttempts {
			return 0, false
		}
	default:
		return 0, false // neither time nor another replica would put it right
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

// absenceIsLoss makes an ErrDataLoss of a blob's ErrNotFound: a manifest names
// the blob, so that it is not there is not the client's mistake.
func absenceIsLoss(err error) error {
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return err
}

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
	r.quantiles = r.latency.quantiles()
	r.slow = max(r.quantiles.P99, 3*r.quantiles.P95) // a hedge and what went before it
	for rd := r.oldest; rd != nil; rd = rd.newer {
		if now.Sub(rd.start) < soonest {
			return
		}
		is := store
		if r.awayLocked(rd) {
			is = remote
			// Its owner may be reading much else with it, once for all: this node would read all of that again.
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

const (
	// leastRate is how many bytes a second a blob is given time for beyond ReadTimeout: a large one takes long
	// though nothing is wrong.
	leastRate = 1 << 20
	// maxStuck is how many attempts at reads that are over may run on before no more are made. A store that
	// does not return when its context ends, such as a mapped file of a disk that hangs, keeps a thread for each.
	maxStuck = 1024
)

// limit is how long a read takes at most, whatever its attempts do.
func (r *Reader) limit(rd *read) time.Duration {
	return r.opts.ReadTimeout + time.Duration(rd.ref.Size*int64(time.Second)/leastRate)
}

// overdueLocked reports whether a read has had its time: since it began, or since it was wanted where the store has
// brought nothing for as long. The latter had to wait for reads that the store did not answer.
func (r *Reader) overdueLocked(rd *read, now time.Time) bool {
	limit := r.limit(rd)
	return now.Sub(rd.start) >= limit ||
		rd.counted&r.last.bit() != 0 && now.Sub(rd.since) >= limit && now.Sub(r.heard) >= limit
}

// hearLocked takes note that the store has said something of a blob.
func (r *Reader) hearLocked(now time.Time) { r.heard, r.silent = now, false }

// listenLocked takes note that the store is asked. It has been silent for no longer than it has been asked.
func (r *Reader) listenLocked(now time.Time) {
	if r.last.inFlightLocked() == 0 && !r.silent {
		r.heard = now
	}
}

// giveUpLocked ends the reads that have had their time. Their attempts may run on: Close waits for these, and what they
// bring is released. Others begin in their place.
func (r *Reader) giveUpLocked(now time.Time, tell *told) {
	long := now.Sub(r.heard) >= r.opts.ReadTimeout
	n := 0
	for rd := r.oldest; rd != nil; {
		if !long && now.Sub(rd.start) < r.opts.ReadTimeout {
			break // those that began later have time
		}
		newer := rd.newer
		if r.overdueLocked(rd, now) {
			err := r.lateErrorLocked(rd, now)
			r.silent = r.silent || rd.counted&r.last.bit() != 0
			r.stuck.Add(int64(rd.running))
			rd.overdue = true
			r.forgetLocked(rd)
			delete(r.reads, rd.key())
			r.stats.givenUp++
			tell.ended = append(tell.ended, ended{rd, Outcome{Ref: rd.ref, Err: err, Tier: r.last.index, At: now}})
			if n++; n <= maxIdle {
				r.wakeLocked() // its own goroutines may not come back
			}
		}
		rd = newer
	}
}

// lateErrorLocked says of a read that it has had its time.
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

// stuckError is what becomes of an attempt while too many others have not ended.
func stuckError(n int64) error {
	return fmt.Errorf("%w: %d attempts that were given up have not ended: the store does not answer and cannot be "+
		"left; check its disks or its servers", schema.ErrUnavailable, n)
}

// Reason says why a blob was read from the last tier.
type Reason uint8

// Reasons for reads of the last tier. Without other nodes there are but Own, Ahead, Page, Hedge and Retry.
const (
	Own         Reason = iota // a stream wants it, and it is this node that reads it
	Lent                      // another node wants it, and it is this node that reads it
	Ahead                     // it is this node that reads it, and keeps it before a stream wants it
	Page                      // a page of a manifest, or what is at no place: no other node is asked for those
	Astray                    // another node wants it, whose view of who owns it is another one
	Unreachable               // another node owns it, and can't be asked now
	Refused                   // another node was asked, and has not sent it
	Hedge                     // an attempt beside one that was slow
	Retry                     // an attempt after one that failed, or was silent for long
	reasons
)

var reasonNames = [reasons]string{"own", "peer", "ahead", "page", "astray", "unreachable", "refused", "hedge", "retry"}

// String returns the name of a reason, as statistics have it.
func (r Reason) String() string { return reasonNames[r] }

// Reasons are reads by reason.
type Reasons [reasons]int64

// Map returns what is not 0, by name.
func (r *Reasons) Map() map[string]int64 {
	m := make(map[string]int64, reasons)
	for i, n := range r {
		if n != 0 {
			m[Reason(i).String()] = n
		}
	}
	return m
}

// ReasonNames are the names of all reasons.
func ReasonNames() []string { return reasonNames[:] }

// reason is why a read whose first attempt is at the last tier is made there. r.opts.Keeps is asked.
func (r *Reader) reason(rd *read) Reason {
	switch {
	case rd.place.Dataset == 0 || rd.place.IsPage():
		return Page
	case !r.opts.Keeps(rd.ref):
		if rd.here {
			return Astray
		}
		return Unreachable
	case rd.fill:
		return Ahead
	case rd.here:
		return Lent
	}
	return Own
}

// reasonLocked is why an attempt that has brought a blob from the last tier was made.
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

// troublePeriod is how often reads that fail are told of.
const troublePeriod = 5 * time.Second

// trouble tells operators of reads that fail, and not of each: a store that is
// down fails thousands a second.
type trouble struct {
	mu     sync.Mutex
	told   time.Time // guarded by mu
	untold int       // guarded by mu
}

// report logs that the n-th attempt at a read failed, unless another did
// shortly before. A read that was given up is no trouble.
func (t *trouble) report(log *slog.Logger, ref schema.BlobRef, n int, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	t.mu.Lock()
	now := time.Now()
	if !t.told.IsZero() && now.Sub(t.told) < troublePeriod {
		t.untold++
		t.mu.Unlock()
		return
	}
	more := t.untold
	t.told, t.untold = now, 0
	t.mu.Unlock()
	log.Warn("a read failed", "blob", ref.Key, "attempt", n, "error", err, "more_since_last", more)
}

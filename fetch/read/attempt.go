package read

import (
	"errors"
	"fmt"
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
		if rd.place.Dataset != 0 && !rd.place.IsPage() && !r.opts.Keeps(rd.ref.Key) {
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
	return rd.place.Dataset != 0 && !rd.fill && (rd.place.IsPage() || r.opts.Keeps(rd.ref.Key))
}

// offer offers a blob that came to the tiers above the one that had it.
func (rd *read) offer(o *Outcome) {
	r := rd.reader
	// What is for this node to keep may have changed since the read began: nothing is kept that was not checked.
	if o.Err != nil || o.Tier <= 0 || rd.unchecked || !r.keeps(rd) {
		return
	}
	for i := range r.lanes[:o.Tier] {
		if k := r.lanes[i].keeper; k != nil {
			rd.refs.Add(1)
			k.Offer(rd.ref, rd.place, o.Took, schema.NewBlob(o.Blob.Bytes(), rd))
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

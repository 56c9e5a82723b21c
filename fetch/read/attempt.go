package read

import (
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bowstring/fetch/store"
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

// maxIdle is how many goroutines without anything to read are kept. A new one begins
// with a small stack, which a tier makes it grow: that costs more than most else of a
// read that hits.
const maxIdle = 256

// worker is a goroutine that reads. One that waits is in Reader.idle; what is left of one that has
// ended is in Reader.spent, for the next: a burst makes as many as reads may be in flight.
type worker struct {
	run  func()
	wake chan bool // false where the reader closes
	// serves says that it makes the quick attempts that are due, one after another; guarded by Reader.mu.
	serves bool
}

// quick reports whether an attempt most likely takes less time than it takes to wake a goroutine: it finds where bytes
// are mapped, and reads none of them.
func (a *Attempt) quick() bool {
	return a.read != nil && a.nth == 0 && a.read.late && a.lane.index == a.read.entry
}

// startLocked has an attempt made, and wakes a goroutine for it. It is made by whichever
// goroutine is the first to have nothing else to do. Where all processors are busy, those that are running go on from
// read to read, and one that was just woken waits for its turn: the attempt would, too, and it may be of the very
// blob that a consumer waits for.
//
// Quick ones are left to one goroutine. Several would spend more time on waiting for each other than on what they do.
// Where one proves slow after all, lookForSlow has others go on.
func (r *Reader) startLocked(a Attempt) {
	if !a.quick() {
		r.due.add(a)
		r.wakeLocked(false)
		return
	}
	r.quick.add(a)
	if r.servers == 0 {
		r.serveLocked()
	}
}

// serveLocked has a goroutine make the quick attempts that are due.
func (r *Reader) serveLocked() {
	r.servers++
	r.wakeLocked(true)
}

// wakeLocked has a goroutine begin: one that waits, or a new one.
func (r *Reader) wakeLocked(serves bool) {
	if last := len(r.idle) - 1; last >= 0 {
		w := r.idle[last]
		r.idle = r.idle[:last]
		w.serves = serves
		w.wake <- true // there is room: it waits
		return
	}
	var w *worker
	if last := len(r.spent) - 1; last >= 0 {
		w, r.spent = r.spent[last], r.spent[:last]
	} else {
		w = &worker{wake: make(chan bool, 1)}
		w.run = func() { r.work(w) }
	}
	w.serves = serves
	w.wake <- true
	r.running.Add(1)
	go w.run()
}

// retireLocked has a goroutine serve no longer, if it does. Another one goes on, if quick attempts are left.
func (r *Reader) retireLocked(w *worker) {
	if !w.serves {
		return
	}
	w.serves = false
	if r.servers--; r.servers == 0 && r.quick.len() > 0 {
		r.serveLocked()
	}
}

// takeLocked takes what is due, for a goroutine that makes it next: what it was woken for before anything else. So none
// that may take long waits for quick ones that prove slow.
func (r *Reader) takeLocked(w *worker) Attempt {
	first, second := &r.due, &r.quick
	if w.serves {
		first, second = second, first
	}
	a := first.take()
	if a.read == nil {
		a = second.take()
	}
	if a.read != nil && !a.quick() {
		r.retireLocked(w) // it may take long
	}
	return a
}

// work makes attempts until there is nothing to read and enough others wait.
func (r *Reader) work(w *worker) {
	defer r.running.Done()
	for <-w.wake {
		r.attempts(w)
		r.mu.Lock()
		r.retireLocked(w)
		if r.closed || len(r.idle) >= maxIdle {
			r.spent = append(r.spent, w)
			r.mu.Unlock()
			return
		}
		r.idle = append(r.idle, w)
		r.mu.Unlock()
	}
}

// dismissLocked ends the goroutines that wait. The reader is closed: none comes after them.
func (r *Reader) dismissLocked() {
	for _, w := range r.idle {
		w.wake <- false
	}
	r.idle, r.due, r.quick = nil, due{}, due{}
}

// attempts makes the attempts that are due, and then those at whatever is to be read next: at each read until one
// succeeds or there is no sense in another.
func (r *Reader) attempts(w *worker) {
	r.mu.Lock()
	a := r.takeLocked(w)
	r.mu.Unlock()
	if a.read == nil { // another goroutine has made it, and has not asked for more
		a = r.more(w)
	}
	for a.read != nil {
		began := time.Now()
		blob, unchecked, err := r.get(a)
		then := r.ended(w, a, began, blob, unchecked, err)
		if t := a.read.trace; t != nil {
			t.attempt(a, began, then.slow, err)
		}
		if then.pause != nil {
			select {
			case <-then.pause.C:
			case <-a.read.Done():
				then.pause.Stop()
			}
		}
		if then.told {
			r.finish(a, then.outcome)
		}
		if a = then.again; a.read == nil {
			a = r.more(w)
		}
	}
}

// more asks what to read next. What is begun meanwhile and quick, w makes, if it serves: it comes back for it.
func (r *Reader) more(w *worker) Attempt {
	a := r.opts.More()
	if a.read != nil && !a.quick() {
		r.mu.Lock()
		r.retireLocked(w)
		r.mu.Unlock()
	}
	return a
}

// get reads a blob once, and checks it, unless that is left to those who wait.
func (r *Reader) get(a Attempt) (b schema.Blob, unchecked bool, err error) {
	rd, l := a.read, a.lane
	if n := r.stuck.Load(); n >= maxStuck {
		return b, false, stuckError(n)
	}
	if a.nth == 0 && l.index == rd.entry && r.keeps(rd) {
		for i := range r.lanes[:l.index] {
			if k := r.lanes[i].keeper; k != nil {
				k.Missed(rd.place, rd.ref.Size)
			}
		}
	}
	ctx := store.WithAttempt(rd, a.nth)
	late := rd.late && l.index == rd.entry
	if late {
		b, unchecked, err = l.late.GetUnchecked(ctx, rd.ref, rd.place)
	} else {
		b, err = l.tier.Get(ctx, rd.ref, rd.place)
	}
	if err == nil && !late && !l.traits.Checked {
		if err = rd.ref.Check(b.Bytes()); err != nil {
			b.Release()
			b = schema.Blob{}
		}
	}
	if err != nil && l == r.last {
		r.trouble.report(r.opts.Logger, rd.ref, a.nth, err)
	}
	return b, unchecked, err
}

// next is what follows an attempt.
type next struct {
	again   Attempt     // another one at the same read, or one that is due, if not zero
	pause   *time.Timer // to wait for before, if not nil
	slow    bool        // it was
	told    bool        // the read is over, and who waits is told of the outcome
	outcome Outcome
}

// ended takes note of how an attempt, made since began, ended.
func (r *Reader) ended(w *worker, a Attempt, began time.Time, blob schema.Blob, unchecked bool, err error) next {
	r.mu.Lock()
	defer r.mu.Unlock()
	then := r.endedLocked(a, began, blob, unchecked, err)
	if then.again.read != nil {
		r.retireLocked(w) // it may take long
	} else {
		then.again = r.takeLocked(w)
	}
	return then
}

func (r *Reader) endedLocked(a Attempt, began time.Time, blob schema.Blob, unchecked bool, err error) next {
	rd := a.read
	rd.running--
	if rd.over {
		if rd.overdue {
			r.stuck.Add(-1)
		}
		blob.Release()
		return next{}
	}
	now := time.Now()
	if err == nil {
		took := now.Sub(began)
		rd.unchecked = unchecked
		return next{told: true, slow: a.lane == r.last && r.slow > 0 && took > r.slow,
			outcome: r.broughtLocked(a, now, took, blob)}
	}
	if a.lane != r.last { // the tiers below are asked at once
		a.lane.abandonedLocked(rd)
		below := &r.lanes[a.lane.index+1]
		for rd.here && below.traits.Remote {
			below = &r.lanes[below.index+1]
		}
		if rd.running > 0 && rd.counted&r.last.bit() != 0 {
			return next{} // which is asked already
		}
		rd.running++
		rd.latest = now
		below.beganLocked(rd)
		rd.asked = rd.asked || a.lane.traits.Remote
		return next{again: Attempt{rd, a.nth, below, a.why}}
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
		return next{again: Attempt{rd, rd.attempts - 1, r.last, Retry}, pause: time.NewTimer(pause)}
	case rd.running <= r.spareLocked(rd):
		r.forgetLocked(rd)
		delete(r.reads, rd.key())
		err = absenceIsLoss(err)
		r.stats.givenUp++
		if errors.Is(err, schema.ErrDataLoss) {
			r.stats.lost++
		}
		return next{told: true, outcome: Outcome{Ref: rd.ref, Err: err, Tier: r.last.index, At: now}}
	}
	return next{}
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

// finish offers a blob to the tiers above the one that had it, and tells who
// waits. Meanwhile they hold it, so that nobody reads it again.
func (r *Reader) finish(a Attempt, o Outcome) {
	rd := a.read
	// What is for this node to keep may have changed since the read began: nothing is kept that was not checked.
	if o.Err == nil && !rd.unchecked && r.keeps(rd) {
		for i := range r.lanes[:o.Tier] {
			if k := r.lanes[i].keeper; k != nil {
				rd.refs.Add(1)
				k.Offer(rd.ref, rd.place, o.Took, schema.NewBlob(o.Blob.Bytes(), rd))
			}
		}
	}
	rd.deliver(o)
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

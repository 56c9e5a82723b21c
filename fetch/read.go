package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"bowstring/fetch/store"
	"bowstring/schema"
	"bowstring/spill"
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

// read is one blob being read for all who want it. Several attempts may be
// under way at once, of which the first that brings the right bytes ends it.
//
// It is the owner of a blob that more than one gets, and the context of its
// first attempt, so that in the usual case a read costs one allocation. All
// fields but refs and blob are guarded by scheduler.mu.
type read struct {
	readContext
	ref   schema.BlobRef
	start time.Time

	first  waiter   // who wants it
	others []waiter // more who do

	place  spill.Place // where it was found to be wanted
	spill  bool        // the first attempt reads the spill
	inFlow bool        // it is counted in scheduler.flow

	attempts int       // begun
	running  int       // under way
	failed   int       // ended badly
	latest   time.Time // when the last attempt began
	hedged   bool      // an attempt was begun because the first was slow
	over     bool      // brought, failed for good, or no longer wanted

	older, newer *read // reads under way in the order they began

	refs atomic.Int32 // holders of the blob, where they are several
	blob schema.Blob  // theirs; set before there is a holder
}

// waiter is who wants a blob: a cell of a stream, or whoever receives from
// result, which has room for it.
type waiter struct {
	stream *Stream
	run    *run
	cell   int
	result chan<- outcome
}

// outcome is what became of a read.
type outcome struct {
	ref  schema.BlobRef
	took time.Duration
	blob schema.Blob
	err  error
}

// Unpin implements schema.Owner.
func (r *read) Unpin() {
	if r.refs.Add(-1) == 0 {
		r.blob.Release()
	}
}

// Frame implements schema.Framer. Of all who have the blob, the spill alone stores it.
func (r *read) Frame() []byte { return r.blob.Frame() }

// work makes attempts at reading r until one succeeds or there is no sense in
// another, and then whatever the scheduler finds to be read next.
func (s *scheduler) work(w *worker) {
	defer s.running.Done()
	r, n := w.read, w.nth
	w.read = nil
	for r != nil {
		if n == 0 && r.spill {
			r, n = s.fetchSpilled(w, r)
			continue
		}
		began := time.Now()
		blob, err := s.get(store.WithAttempt(r, n), r.ref)
		if err != nil {
			s.trouble.report(s.opts.Logger, r.ref, n, err)
		}
		var pause *time.Timer
		r, n, pause = s.ended(w, r, n, began, blob, err)
		if pause == nil {
			continue
		}
		select {
		case <-pause.C:
		case <-r.Done():
			pause.Stop()
		}
	}
}

// get reads a blob once, and checks it.
func (s *scheduler) get(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	b, err := s.store.Get(ctx, ref)
	if err != nil {
		return schema.Blob{}, err
	}
	if err := ref.Check(b.Bytes()); err != nil {
		b.Release()
		return schema.Blob{}, err
	}
	return b, nil
}

// nextFor begins the next read, whose first attempt is w's to make; nil if there
// is none, and w at its end. s.mu is held.
func (s *scheduler) nextFor(w *worker) *read {
	r := s.nextLocked()
	if r == nil {
		s.workers = append(s.workers, w)
	}
	return r
}

// ended takes note of how the n-th attempt at r, made since began, ended. It
// returns what its goroutine is to read next, if anything, and after which pause.
func (s *scheduler) ended(w *worker, r *read, n int, began time.Time, blob schema.Blob, err error) (*read, int, *time.Timer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.running--
	if r.over {
		blob.Release()
		return s.nextFor(w), 0, nil
	}
	now := time.Now()
	if err == nil {
		if n > 0 && r.hedged {
			s.stats.hedgesWon++
		}
		s.finish(r, now, now.Sub(began), blob, nil)
		return s.nextFor(w), 0, nil
	}
	r.failed++
	s.stats.failedReads++
	pause, again := s.pauseAfter(r, now, err)
	switch {
	case again:
		s.stats.retries++
		r.attempt(now.Add(pause))
		return r, r.attempts - 1, time.NewTimer(pause)
	case r.running == 0:
		s.finish(r, now, 0, schema.Blob{}, absenceIsLoss(err))
	}
	return s.nextFor(w), 0, nil
}

// attempt counts another attempt in, which begins then.
func (r *read) attempt(then time.Time) {
	r.attempts++
	r.running++
	r.latest = then
}

// pauseAfter says whether a read that failed is tried again, and after which
// pause.
func (s *scheduler) pauseAfter(r *read, now time.Time, err error) (time.Duration, bool) {
	switch {
	case errors.Is(err, schema.ErrUnavailable):
		// Whatever is wrong may pass.
	case errors.Is(err, schema.ErrDataLoss), errors.Is(err, schema.ErrNotFound):
		if r.failed >= damagedAttempts {
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
	for range r.failed - 1 {
		pause = b.NextBackOff()
	}
	return pause, now.Add(pause).Sub(r.start) < s.opts.ReadTimeout
}

// absenceIsLoss makes an ErrDataLoss of a blob's ErrNotFound: a manifest names
// the blob, so that it is not there is not the client's mistake.
func absenceIsLoss(err error) error {
	if errors.Is(err, schema.ErrNotFound) {
		return fmt.Errorf("%w: %s", schema.ErrDataLoss, err.Error())
	}
	return err
}

// finish gives all who wait for r what became of it. took is how long the
// attempt took that brought the blob: what went before it says nothing about
// the store's latency, and would have silent servers make the engine patient.
// s.mu is held.
func (s *scheduler) finish(r *read, now time.Time, took time.Duration, blob schema.Blob, err error) {
	if err == nil {
		r.inFlow = false
		s.flow.completed(now, r.ref.Size, took)
		s.latency.add(now, took)
		s.stats.reads++
		s.stats.readBytes += r.ref.Size
		s.stats.readNanos += int64(took)
		s.hedges = min(s.hedges+hedgeShare, maxHedges)
	}
	s.forget(r)
	keep := err == nil && s.opts.Spill != nil && r.place.Dataset != 0
	if holders := r.waiters(); err == nil && (keep || holders > 1) {
		if keep {
			holders++
		}
		r.share(blob, holders)
		blob = schema.NewBlob(blob.Bytes(), r)
	}
	if keep { // with the lock, so that nobody finds it neither under way nor there
		s.opts.Spill.Offer(r.ref, r.place, took, blob)
	}
	r.deliver(now, blob, err, false)
}

// waiters is how many want the blob.
func (r *read) waiters() int { return 1 + len(r.others) }

// share makes r the owner of a blob that so many get.
func (r *read) share(blob schema.Blob, holders int) {
	r.blob = blob
	r.refs.Store(int32(holders))
}

// deliver gives all who wait what became of r. s.mu is held.
func (r *read) deliver(now time.Time, blob schema.Blob, err error, spilled bool) {
	r.first.receive(now, r, blob, err, spilled)
	for _, w := range r.others {
		w.receive(now, r, blob, err, spilled)
	}
}

// forget takes r, which is over, off the lists, and ends its other attempts.
func (s *scheduler) forget(r *read) {
	if r.inFlow {
		r.inFlow = false
		s.flow.abandoned(r.ref.Size)
	}
	r.over = true
	r.end()
	delete(s.reads, r.ref)
	if r.older != nil {
		r.older.newer = r.newer
	} else {
		s.oldest = r.newer
	}
	if r.newer != nil {
		r.newer.older = r.older
	} else {
		s.newest = r.older
	}
	r.older, r.newer = nil, nil
}

// receive takes what became of a read; scheduler.mu is held.
func (w *waiter) receive(now time.Time, r *read, blob schema.Blob, err error, spilled bool) {
	if w.stream != nil {
		w.stream.receive(now, w.run, w.cell, blob, err, spilled)
		return
	}
	w.result <- outcome{r.ref, now.Sub(r.latest), blob, err}
}

// read gets one blob, checked, outside of any stream's window and of what may
// be in flight.
func (s *scheduler) read(ctx context.Context, ref schema.BlobRef) (schema.Blob, error) {
	result := make(chan outcome, 1)
	w := waiter{result: result}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return schema.Blob{}, errClosing()
	}
	if r := s.join(ref, w); r != nil {
		s.fromStore(r)
		s.spawn(r, 0)
	}
	s.mu.Unlock()
	select {
	case o := <-result:
		return o.blob, o.err
	case <-ctx.Done():
		s.mu.Lock()
		s.leave(func(other *waiter) bool { return other.result == w.result })
		s.mu.Unlock()
		select {
		case o := <-result: // it came in that moment
			o.blob.Release()
		default:
		}
		return schema.Blob{}, context.Cause(ctx)
	}
}

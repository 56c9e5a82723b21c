package read

import (
	"fmt"
	"time"

	"bowstring/schema"
)

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
	if r.last.reads+r.last.flow.reads == 0 && !r.silent {
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

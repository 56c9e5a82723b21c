package read

import "time"

// lane is the way to a tier: what may be in flight on it, and what is. All fields
// but tier, keeper, late, traits, index and last are guarded by Reader.mu.
type lane struct {
	tier   Tier
	keeper Keeper // the tier, if it keeps what comes from below
	late   Late   // the tier, if its blobs may be checked late
	traits Traits
	index  int
	last   bool // there is none below

	reads int  // under way, where their number is fixed
	flow  flow // where it is measured
	times Times
}

func (l *lane) init(t Tier, index, maxReads int) {
	l.tier, l.traits, l.index = t, t.Traits(), index
	l.keeper, _ = t.(Keeper)
	l.late, _ = t.(Late)
	l.flow.init(maxReads, func() int { return 1 })
}

func (l *lane) bit() uint8 { return 1 << l.index }

// admitsLocked reports whether a read of n bytes may begin.
func (l *lane) admitsLocked(n int64) bool {
	if l.traits.Parallel > 0 {
		return l.reads < l.traits.Parallel
	}
	return l.flow.admits(n)
}

// beganLocked counts a read in, once.
func (l *lane) beganLocked(r *read) {
	if r.counted&l.bit() != 0 {
		return
	}
	if l.last {
		r.reader.listenLocked(time.Now())
	}
	r.counted |= l.bit()
	if l.traits.Parallel > 0 {
		l.reads++
	} else {
		l.flow.began(r.ref.Size)
	}
	if l.last {
		r.account.beganLocked(r.ref.Size)
	}
}

// abandonedLocked counts a read out that brought nothing.
func (l *lane) abandonedLocked(r *read) {
	if r.counted&l.bit() == 0 {
		return
	}
	r.counted &^= l.bit()
	if l.traits.Parallel > 0 {
		l.reads--
	} else {
		l.flow.abandoned(r.ref.Size)
	}
	if l.last {
		r.account.endedLocked(r.ref.Size)
	}
}

// completedLocked counts a read out that brought the blob, and took that long.
func (l *lane) completedLocked(r *read, now time.Time, took time.Duration) {
	if l.traits.Parallel > 0 || r.counted&l.bit() == 0 {
		l.abandonedLocked(r)
		return
	}
	r.counted &^= l.bit()
	l.flow.completed(now, r.ref.Size, took)
	if l.last {
		r.account.endedLocked(r.ref.Size)
	}
}

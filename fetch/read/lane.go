package read

import "time"

const (
	// paceMost is what a read counts for in a lane's pace at most: it may have had to wait for a processor.
	paceMost = 4 * quickRead
	// paceShare is the part that a read has in the pace, as its inverse.
	paceShare = 8
)

// lane is the way to a tier: what may be in flight on it, and what is. All fields
// but tier, keeper, traits, index and last are guarded by Reader.mu.
type lane struct {
	tier   Tier
	keeper Keeper // the tier, if it keeps what comes from below
	traits Traits
	index  int
	last   bool // there is none below

	reads int  // under way, where their number is fixed
	flow  flow // where it is measured
	times Times
	pace  time.Duration // of a read, as a moving average in which none counts for long; 0: not known
}

func (l *lane) init(t Tier, index, maxReads int) {
	l.tier, l.traits, l.index = t, t.Traits(), index
	l.keeper, _ = t.(Keeper)
	l.flow.init(maxReads, func() int { return 1 })
}

// quick reports whether its reads most likely take no time.
func (l *lane) quick() bool { return l.pace > 0 && l.pace < quickRead }

// together is how many reads of it a goroutine begins at once.
func (l *lane) together() int {
	switch {
	case l.traits.Together > 1:
		return l.traits.Together
	case l.quick():
		return runLength
	}
	return 1
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
	counts := min(max(took, 1), paceMost)
	if l.pace == 0 {
		l.pace = counts
	}
	l.pace += (counts - l.pace) / paceShare
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

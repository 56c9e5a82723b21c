package spill

import "sync/atomic"

const (
	// maxSpent is of how many slots it is known that they were just used, and spentAtOnce how many of them are candidates
	// beside those of a [Chooser] each time.
	maxSpent    = 4096
	spentAtOnce = 16
)

// spent are slots whose blobs were handed out and are held no more, the last ones: what was just used is mostly what is used
// last. So little of it is missed where nearly all that is there is to be kept, and candidates drawn at random would find
// none.
type spent struct {
	added atomic.Uint32 // slots that ever were
	slots [maxSpent]atomic.Uint32
	taken uint32 // of those added, which were suggested, or have become too many; guarded by Cache.mu
}

// add notes a slot. It may be called by any goroutine; what is noted at the same time as very many others may be lost.
func (s *spent) add(slot uint32) { s.slots[(s.added.Add(1)-1)%maxSpent].Store(slot) }

// suggest has the chooser consider some of them, the one first that was used first. Cache.mu is held.
func (s *spent) suggest(c *Chooser, t Table, now Time) {
	added := s.added.Load()
	if added-s.taken > maxSpent {
		s.taken = added - maxSpent
	}
	for range min(added-s.taken, spentAtOnce) {
		slot := int(s.slots[s.taken%maxSpent].Load())
		s.taken++
		if slot < t.Slots() {
			c.consider(t, slot, now)
		}
	}
}

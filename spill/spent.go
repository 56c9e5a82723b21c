package spill

import "sync/atomic"

const (
	// maxSpent is how many slots that were just used are noted, and spentAtOnce how many of them are candidates each time,
	// beside those of a [Chooser].
	maxSpent    = 4096
	spentAtOnce = 16
)

// spent are the slots whose blobs were last handed out and are held no more. A blob that was just used is mostly the one
// whose next use is last. Where nearly all blobs are to be kept, candidates drawn at random would find none that is not.
type spent struct {
	added atomic.Uint32 // how many slots were ever added
	slots [maxSpent]atomic.Uint32
	taken uint32 // how many of those were suggested, or overwritten before; guarded by Cache.mu
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

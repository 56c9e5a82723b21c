package spill

import "sync/atomic"

const (
	// maxSpent is how many recently used slots are remembered. spentAtOnce is how many of them become candidates at
	// each eviction, in addition to those of a [Chooser].
	maxSpent    = 4096
	spentAtOnce = 16
)

// spent remembers slots whose blobs were handed out and then released. A blob that was just used is usually the one
// whose next use is last. If nearly all blobs are worth keeping, candidates drawn at random would miss it.
type spent struct {
	added atomic.Uint32 // slots added so far
	slots [maxSpent]atomic.Uint32
	taken uint32 // slots suggested, or overwritten before that; guarded by Cache.mu
}

// add adds a slot. Any goroutine may call it; a slot added at the same time as very many others may be lost.
func (s *spent) add(slot uint32) { s.slots[(s.added.Add(1)-1)%maxSpent].Store(slot) }

// suggest makes some of the slots candidates of the chooser, oldest first. Cache.mu is held.
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

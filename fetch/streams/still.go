package streams

import (
	"slices"
	"time"

	"bowstring/fetch/admission"
)

// stillAfter is how long a stream stands still whose consumer does not ask for a batch before it counts as one that
// does not read. A consumer that comes back later than that has waited longer than what was read ahead of it takes to
// be read again.
const stillAfter = 5 * time.Second

// reclaimPeriod is how often a stream that waits for memory looks whether others
// hold some that they have no use for.
const reclaimPeriod = time.Second

// readers lists the streams that read blobs.
func (s *Set) readers() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Stream, 0, len(s.streams))
	for st := range s.streams {
		if len(st.columns) > 0 {
			list = append(list, st)
		}
	}
	return list
}

// findStill looks which streams stand still by now, and has the others share what those have no use for. It returns
// all that do.
func (s *Set) findStill(list []*Stream) []*Stream {
	now, before := time.Now(), 0
	still := slices.Clone(list)
	still = slices.DeleteFunc(still, func(st *Stream) bool {
		if st.still.Load() {
			before++
		}
		return !st.standsStill(now)
	})
	if len(still) > before {
		s.shareAgain()
	}
	return still
}

// standsStill reports whether the stream stands still. If so, it reads nothing more before its consumer comes.
func (s *Stream) standsStill(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone && !s.asked && now.Sub(s.left) >= stillAfter {
		s.still.Store(true)
	}
	return s.still.Load()
}

// comeLocked notes that the consumer asks for a batch. The lock is given up meanwhile, where the stream stood still.
func (s *Stream) comeLocked() {
	s.asked = true
	if s.still.Swap(false) {
		s.mu.Unlock()
		s.set.shareAgain()
		s.mu.Lock()
	}
}

// leaveLocked notes that it has one.
func (s *Stream) leaveLocked() { s.asked, s.left = false, time.Now() }

// shareAgain divides the memory between the streams that read.
func (s *Set) shareAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shareLocked()
}

// cramped looks now and then whether some streams stand still: one has all of its share under way, and waits.
func (s *Set) cramped() {
	now := time.Now().UnixNano()
	if last := s.looked.Load(); now-last >= int64(reclaimPeriod) && s.looked.CompareAndSwap(last, now) {
		s.findStill(s.readers())
	}
}

// reclaim has the streams whose consumers do not wait give back what they have
// read ahead: those that stand still, then what is beyond others' shares, and all if that is not enough. Somebody
// of the tenant has nothing, and needs so many bytes. Where it is the tenant's own
// ceiling that is in the way, only its own streams can help.
func (s *Set) reclaim(t *tenant, need int64) {
	list := s.readers()
	enough := func(st *Stream) (done, idle bool) {
		own, all := s.opts.Ledger.Left(admission.Windows, t.name)
		return own >= need && all >= need, all >= need && st.tenant != t
	}
	for _, st := range s.findStill(list) {
		if _, idle := enough(st); !idle {
			st.giveBack(0)
		}
	}
	for _, part := range []int64{1, 0} {
		for _, st := range list {
			done, idle := enough(st)
			if done {
				return
			}
			if !idle {
				st.giveBack(part * st.tenant.share.Load())
			}
		}
	}
}

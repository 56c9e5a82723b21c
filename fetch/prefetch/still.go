package prefetch

import (
	"slices"
	"time"

	"bowstring/fetch/admission"
)

// stillAfter is how long a stream stands still whose consumer does not ask for a batch before it counts as one that
// does not read. What was read ahead of it can be read again in less time.
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
	now, more := time.Now(), false
	still := slices.DeleteFunc(slices.Clone(list), func(st *Stream) bool {
		is, since := st.standsStill(now)
		more = more || since
		return !is
	})
	if more {
		s.shareAgain()
	}
	return still
}

// standsStill reports whether the stream stands still, and whether that is found just now. If so, it reads nothing more
// before its consumer comes.
func (s *Stream) standsStill(now time.Time) (is, found bool) {
	s.ask(func(s *owner) {
		if !s.gone && !s.asked && now.Sub(s.left) >= stillAfter {
			found = !s.still.Swap(true)
		}
	})
	return s.still.Load(), found
}

// shareAgain divides the memory between the streams that read.
func (s *Set) shareAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shareLocked()
}

// nextPart is of which part of the memory what streams keep that stand still is at most, all of them together.
const nextPart = 8

// giveBackStill is giveBack of a stream that stands still: it keeps its next batch, as far as that is not large, so
// that a consumer that comes every ten seconds finds it.
func (s *Stream) giveBackStill() { s.ask((*owner).dropStill) }

func (s *owner) dropStill() {
	if s.gone || s.asked {
		return
	}
	rows := s.slot.left()
	bytes := min(s.sizer.batchBytes, s.set.opts.WindowBytes/(nextPart*max(s.set.reading.Load(), 1)))
	kept := 0
	for ; kept < len(s.ahead.runs) && rows > 0; kept++ {
		r := s.ahead.runs[kept]
		rows -= int64(r.left)
		for row := range r.state {
			if !r.state[row].taken {
				bytes -= s.rowSize(r, row)
			}
		}
		if bytes < 0 {
			break
		}
	}
	s.drop(0, kept)
}

// cramped looks now and then whether some streams stand still, for one that waits and has all under way that it has room
// for. Those give back what they have no use for, where memory is short. It does not wait for them.
func (s *Set) cramped() {
	now := time.Now().UnixNano()
	if last := s.looked.Load(); now-last < int64(reclaimPeriod) || !s.looked.CompareAndSwap(last, now) {
		return
	}
	s.looking.Go(func() {
		still := s.findStill(s.readers())
		if s.opts.Ledger.Free(admission.Windows) < s.opts.WindowBytes/nextPart {
			for _, st := range still {
				st.giveBackStill()
			}
		}
	})
}

// reclaim has the streams whose consumers do not wait give back what they have
// read ahead: those that stand still but for their next batch, then what is beyond shares, and all if that is not
// enough. Somebody of the tenant has nothing, and needs so many bytes. Where it is the tenant's own
// ceiling that is in the way, only its own streams can help.
func (s *Set) reclaim(t *tenant, need int64) {
	list := s.readers()
	short := func(st *Stream) bool {
		own, all := s.opts.Ledger.Left(admission.Windows, t.name)
		return all < need || own < need && st.tenant == t
	}
	for _, st := range s.findStill(list) {
		if short(st) {
			st.giveBackStill()
		}
	}
	for _, part := range []int64{1, 0} {
		for _, st := range list {
			if short(st) {
				st.giveBack(part * st.tenant.share.Load())
			}
		}
	}
}
